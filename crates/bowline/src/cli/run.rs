//! `run`: starts a coding agent that has the gateway among its servers, with a token of its own.
//!
//! This process becomes the client: terminal, signals, job control and exit code are the client's
//! own. A small process beside it notices its end, whatever that was, and ends the token.

mod end;
mod place;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::Context;
use super::api;
use super::args::RunClient;
use super::client::{self, Client as Api, QUICK, encode};
use super::daemon::{Daemon, Finder};
use super::failure::{Exit, Failure};
use super::stdio::start::{self, Starter};
use crate::clients::{Client, Entry, TOKEN_VARIABLE, Token};
use crate::config::{self, ClientConfig, Config, Direct, Env};

pub(super) use end::run as end;
pub(super) use place::{check_server, endpoint, settings};
use place::{program, settings_of};

/// How long a token lives whose end nobody told.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The switch that has clients go to their direct endpoints, and its values.
const SWITCH: &str = "BOWLINE_PROXY";
const OFF: [&str; 3] = ["0", "false", "off"];

/// Variables that are ours begin so; a client has no need of any but its token.
const OUR_VARIABLES: &str = "BOWLINE_";

/// Where a client is sent, and with what.
struct Way {
    url: String,
    /// The secret, for the environment of the client and for nothing else.
    token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Made {
    id: String,
    token: String,
}

/// A gateway that was found, and the config that it runs with.
struct Found {
    api: Api,
    daemon: Daemon,
    config: Config,
}

pub(super) fn run(asked: &RunClient, context: &mut Context) -> Result<Exit, Failure> {
    let program = program(asked.client, &context.env)?;
    let config = settings(context)?;
    allowed(asked.client, &config)?;
    check_before_start(asked, &config, context)?;
    if is_switched_off(&context.env) {
        let why = format!("{SWITCH} is switched off");
        return directly(asked, &program, (&config, &why), context);
    }
    let found = match find(&config, context) {
        Err(failure) if failure.exit == Exit::Unreachable => {
            let why = failure.message.clone();
            let direct = directly(asked, &program, (&config, &why), context);
            // Why there is no gateway is what has to be mended.
            return direct.map_err(|mut other| {
                other.hints.extend(failure.hints);
                other
            });
        }
        found => found?,
    };
    through(asked, &program, found, context)
}

/// A server that is neither in the config nor at a gateway that runs is refused before one is
/// started.
fn check_before_start(
    asked: &RunClient,
    config: &Config,
    context: &Context,
) -> Result<(), Failure> {
    let Some(server) = asked.server.as_deref() else {
        return Ok(());
    };
    match Finder::new(context).find() {
        Err(failure) if failure.code == "not_running" => check_server(server, config, None),
        // What a gateway that runs has is looked at when it has answered.
        _ => Ok(()),
    }
}

/// A run that a profile of the client forbids is refused before anything is started.
fn allowed(client: Client, config: &Config) -> Result<(), Failure> {
    if config.clients.get(&client).is_none_or(|one| one.enabled) {
        return Ok(());
    }
    let name = client.name();
    let message = format!("the config forbids to start `{name}` with the gateway");
    let place = config.path.as_ref().map(|path| path.display().to_string());
    let failure = Failure::new(Exit::Denied, "client_disabled", message);
    Err(failure.hint(format!(
        "[clients.{name}] enabled = false in {}",
        place.unwrap_or_default()
    )))
}

fn is_switched_off(env: &Env) -> bool {
    let value = env.text(SWITCH).map(str::to_ascii_lowercase);
    value.is_some_and(|value| OFF.contains(&value.trim()))
}

/// Finds a gateway, or starts one. Its own config counts from here on.
fn find(config: &Config, context: &Context) -> Result<Found, Failure> {
    let (finder, starter) = (Finder::new(context), Starter::new(context)?);
    let daemon = client::runtime()?.block_on(start::ensure(&finder, &starter))?;
    let api = Api::new(context)?;
    let config = settings_of(&api, config, context)?;
    Ok(Found {
        api,
        daemon,
        config,
    })
}

/// Starts the client with the gateway's endpoint and a token of this run.
fn through(
    asked: &RunClient,
    program: &OsStr,
    found: Found,
    context: &mut Context,
) -> Result<Exit, Failure> {
    let Found {
        api,
        daemon,
        config,
    } = found;
    allowed(asked.client, &config)?;
    let server = asked.server.as_deref();
    if let Some(server) = server {
        check_server(server, &config, Some(&api))?;
    }
    let path = endpoint(server, asked.profile.as_deref(), &config)?;
    let made = create(&api, asked)?;
    let way = Way {
        url: format!("{}{path}", daemon.url),
        token: Some(made.token),
    };
    let launched = end::watch(&made.id, &daemon, context).and_then(|()| {
        let environment = environment(asked.client, &config, &way, &context.env);
        Err(become_client(asked, program, &way, environment))
    });
    // Still here: nobody holds the token.
    let _ended = tell_end(&api, &made.id);
    launched
}

/// Makes the token of this run.
fn create(api: &Api, asked: &RunClient) -> Result<Made, Failure> {
    let wanted = json!({
        "principal": asked.principal,
        "role": asked.role,
        "contexts": asked.context,
        "profile": asked.profile,
        "expires_s": asked.expires.unwrap_or(LIFE).as_secs(),
        "run": asked.client.name(),
    });
    let body = Bytes::from(wanted.to_string());
    let body = api.post("/api/v1/tokens", body, QUICK);
    api::read(&body.map_err(api::did_you_mean)?)
}

/// Says that the run of this token is over.
fn tell_end(api: &Api, id: &str) -> Result<(), Failure> {
    let path = format!("/api/v1/tokens/{}/end", encode(id));
    api.post(&path, Bytes::from_static(b"{}"), QUICK).map(drop)
}

/// Starts the client with its direct endpoint, if it has one, and says so.
fn directly(
    asked: &RunClient,
    program: &OsStr,
    (config, why): (&Config, &str),
    context: &mut Context,
) -> Result<Exit, Failure> {
    let name = asked.client.name();
    let none = |message: String| Failure::new(Exit::Unreachable, "no_gateway", message);
    if asked.is_narrowed() {
        let message = format!("{why}, and without a gateway nothing narrows what `{name}` may do");
        return Err(
            none(message).hint("leave out --principal, --role, --server, --profile and --context")
        );
    }
    let settings = config.clients.get(&asked.client);
    let Some(direct) = settings.and_then(|one| one.direct.as_ref()) else {
        let message = format!("{why}, and `{name}` has no direct endpoint");
        let hint = format!("or give it one: [clients.{name}] direct = \"https://...\"");
        return Err(none(message).hint(hint));
    };
    let way = Way {
        url: direct.url.clone(),
        token: token_of(direct, name)?,
    };
    let Way { url, .. } = &way;
    context.out.warning(&format!(
        "{why}: `{name}` goes DIRECTLY to {url}; no roles, no outbox, no audit, no other servers"
    ));
    let environment = environment(asked.client, config, &way, &context.env);
    Err(become_client(asked, program, &way, environment))
}

fn token_of(direct: &Direct, name: &str) -> Result<Option<String>, Failure> {
    let token = direct.token.as_ref().map(config::Template::value);
    token.transpose().map_err(|error| {
        let message = format!("`clients.{name}.direct_token` cannot be read: {error}");
        Failure::new(Exit::Usage, "config", message)
    })
}

/// Returns what the client sees of our environment: no credential of a server, nothing of ours,
/// and its token.
fn environment(client: Client, config: &Config, way: &Way, env: &Env) -> Vec<(OsString, OsString)> {
    let fallback = ClientConfig::default();
    let kept = &config.clients.get(&client).unwrap_or(&fallback).keep_env;
    let is_hidden = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with(OUR_VARIABLES)
            || (config.credentials.contains(&*name) && !kept.iter().any(|one| *one == name))
    };
    let seen = env.iter().filter(|(name, _)| !is_hidden(name));
    let seen = seen.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let token = way.token.as_ref();
    let token = token.map(|token| (TOKEN_VARIABLE.into(), token.into()));
    seen.chain(token).collect()
}

/// Turns this process into the client; returns only if that cannot be.
fn become_client(
    asked: &RunClient,
    program: &OsStr,
    way: &Way,
    environment: Vec<(OsString, OsString)>,
) -> Failure {
    let entry = Entry {
        name: &asked.name,
        url: &way.url,
        token: match way.token {
            Some(_) => Token::FromEnvironment,
            None => Token::None,
        },
    };
    let next = asked.args.first().map(|next| next.to_string_lossy());
    let before = asked.client.arguments_before(entry, next.as_deref());
    let error = Command::new(program)
        .args(before)
        .args(&asked.args)
        .env_clear()
        .envs(environment)
        .exec();
    let program = PathBuf::from(program);
    let message = format!("`{}` cannot be started: {error}", program.display());
    Failure::new(Exit::Unreachable, "client_not_started", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_off_by_three_words_and_no_others() {
        for (value, off) in [
            ("0", true),
            ("false", true),
            ("OFF", true),
            ("1", false),
            ("", false),
            ("no", false),
        ] {
            assert_eq!(is_switched_off(&Env::of([(SWITCH, value)])), off, "{value}");
        }
        assert!(!is_switched_off(&Env::default()));
    }

    #[test]
    fn a_client_sees_its_token_and_no_credential_of_a_server() {
        let env = Env::of([
            ("HOME", "/h"),
            ("TRACKER_TOKEN", "a"),
            ("OWN_KEY", "b"),
            ("BOWLINE_TOKEN_FILE", "c"),
            (TOKEN_VARIABLE, "of another run"),
        ]);
        let kept = ClientConfig {
            keep_env: vec!["OWN_KEY".to_owned()],
            ..ClientConfig::default()
        };
        let config = Config {
            credentials: ["TRACKER_TOKEN", "OWN_KEY"].map(str::to_owned).into(),
            clients: [(Client::Codex, kept)].into(),
            ..Config::default()
        };
        let way = Way {
            url: String::new(),
            token: Some("mine".to_owned()),
        };
        let names = |client| -> Vec<_> {
            let seen = environment(client, &config, &way, &env);
            let text = |text: &OsString| text.to_string_lossy().into_owned();
            let pairs = seen.iter().map(|(name, value)| (text(name), text(value)));
            pairs.collect()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let token = pair(TOKEN_VARIABLE, "mine");
        assert_eq!(names(Client::Claude), [pair("HOME", "/h"), token.clone()]);
        assert_eq!(
            names(Client::Codex),
            [pair("HOME", "/h"), pair("OWN_KEY", "b"), token]
        );
    }
}
