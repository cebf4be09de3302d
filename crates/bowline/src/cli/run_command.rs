//! `run`: starts a coding agent with the gateway among the agent's servers and a separate token.
//!
//! This process becomes the client by exec: terminal, signals, job control and exit code belong to
//! the client. A small helper process detects any end of the client and revokes the
//! token.

mod locate;
mod token_reaper;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bowline_api::tokens::{TokenCreateRequest, TokenResponse};
use bytes::Bytes;

use super::CommandContext;
use super::api_client::{self, ApiClient as Api, QUICK_TIMEOUT, percent_encode};
use super::api_types;
use super::args::RunArgs;
use super::failure::{CliExit, CliFailure};
use super::gateway_finder::GatewayFinder;
use super::stdio::gateway_starter::{self, GatewayStarter};
use bowline_config::client_programs::{ClientEndpoint, ClientProgram, TOKEN_VARIABLE, TokenSource};
use bowline_config::{ClientConfig, Config, DirectEndpoint, EnvVars};
use bowline_edge::GatewayAccess;

pub(super) use locate::{check_server_known, endpoint_path, load_config_or_default};
use locate::{find_program, load_gateway_config};
pub(super) use token_reaper::end_token_after as end;

/// Default lifetime of a token without a reported end.
const TOKEN_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The variable for using direct endpoints of clients, and the values.
const PROXY_VARIABLE: &str = "BOWLINE_PROXY";
const PROXY_OFF_VALUES: [&str; 3] = ["0", "false", "off"];

/// Prefix of Bowline's own variables; a client needs only the token.
const OWN_VARIABLE_PREFIX: &str = "BOWLINE_";

/// Endpoint and credential of a client.
struct ClientAccess {
    url: String,
    /// The secret, only for the environment of the client.
    token: Option<String>,
}

/// A located gateway with config.
struct FoundGateway {
    api: Api,
    gateway: GatewayAccess,
    config: Config,
}

pub(super) fn run(args: &RunArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let program = find_program(args.client, &context.env)?;
    let config = load_config_or_default(context)?;
    check_client_enabled(args.client, &config)?;
    check_server_before_start(args, &config, context)?;
    if is_proxy_off(&context.env) {
        let reason = format!("{PROXY_VARIABLE} is switched off");
        return run_directly(args, &program, &config, &reason, context);
    }
    let gateway = match find_or_start_gateway(&config, context) {
        Err(failure) if failure.exit == CliExit::Unreachable => {
            let reason = failure.message.clone();
            let direct = run_directly(args, &program, &config, &reason, context);
            // The hints of the missing gateway show the fix.
            return direct.map_err(|mut other| {
                other.hints.extend(failure.hints);
                other
            });
        }
        gateway => gateway?,
    };
    run_through_gateway(args, &program, gateway, context)
}

/// Refuses a server unknown to the config before a gateway is started.
fn check_server_before_start(
    args: &RunArgs,
    config: &Config,
    context: &CommandContext,
) -> Result<(), CliFailure> {
    let Some(server) = args.server.as_deref() else {
        return Ok(());
    };
    match GatewayFinder::new(context).find_gateway() {
        Err(failure) if failure.code == "not_running" => check_server_known(server, config, None),
        // The servers of a running gateway are checked after the gateway has responded.
        _ => Ok(()),
    }
}

/// Refuses a client disabled in the config.
fn check_client_enabled(client: ClientProgram, config: &Config) -> Result<(), CliFailure> {
    if config
        .clients
        .get(&client)
        .is_none_or(|client_config| client_config.enabled)
    {
        return Ok(());
    }
    let name = client.name();
    let message = format!("the config forbids to start `{name}` with the gateway");
    let config_path = config.path.as_ref().map(|path| path.display().to_string());
    let failure = CliFailure::new(CliExit::Denied, "client_disabled", message);
    Err(failure.with_hint(format!(
        "[clients.{name}] enabled = false in {}",
        config_path.unwrap_or_default()
    )))
}

fn is_proxy_off(env: &EnvVars) -> bool {
    let value = env.text(PROXY_VARIABLE).map(str::to_ascii_lowercase);
    value.is_some_and(|value| PROXY_OFF_VALUES.contains(&value.trim()))
}

/// Locates or starts a gateway. The gateway's own config replaces `config`.
fn find_or_start_gateway(
    config: &Config,
    context: &CommandContext,
) -> Result<FoundGateway, CliFailure> {
    let (finder, starter) = (GatewayFinder::new(context), GatewayStarter::new(context)?);
    let daemon = api_client::create_runtime()?
        .block_on(gateway_starter::ensure_gateway(&finder, &starter))?;
    let api = Api::new(context)?;
    let config = load_gateway_config(&api, config, context)?;
    Ok(FoundGateway {
        api,
        gateway: daemon,
        config,
    })
}

/// Starts the client with the gateway's endpoint and a token for this run.
fn run_through_gateway(
    args: &RunArgs,
    program: &OsStr,
    found_gateway: FoundGateway,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let FoundGateway {
        api,
        gateway: daemon,
        config,
    } = found_gateway;
    check_client_enabled(args.client, &config)?;
    let server = args.server.as_deref();
    if let Some(server) = server {
        check_server_known(server, &config, Some(&api))?;
    }
    let path = endpoint_path(server, args.profile.as_deref(), &config)?;
    let token = create_token(&api, args)?;
    let access = ClientAccess {
        url: format!("{}{path}", daemon.url),
        token: token.token,
    };
    let exec_result =
        token_reaper::spawn_reaper(&token.entry.id, &daemon, context).and_then(|()| {
            let environment = client_environment(args.client, &config, &access, &context.env);
            Err(exec_client(args, program, &access, environment))
        });
    // Reached only when the exec failed, so the token has no holder.
    let _ended = report_run_end(&api, &token.entry.id);
    exec_result
}

/// Creates the token of this run.
fn create_token(api: &Api, args: &RunArgs) -> Result<TokenResponse, CliFailure> {
    let request = TokenCreateRequest {
        principal: args.principal.clone(),
        role: args.role.clone(),
        contexts: args.context.clone(),
        profile: args.profile.clone(),
        expires_s: Some(args.expires.unwrap_or(TOKEN_LIFETIME).as_secs()),
        run: Some(args.client.name().to_owned()),
        ..TokenCreateRequest::default()
    };
    let body = api_types::encode_json(&request)?;
    let body = api.post("/api/v1/tokens", body, QUICK_TIMEOUT);
    api_types::parse_response(&body.map_err(api_types::with_suggestion_hint)?)
}

/// Reports the end of the token's run to the gateway.
fn report_run_end(api: &Api, id: &str) -> Result<(), CliFailure> {
    let path = format!("/api/v1/tokens/{}/end", percent_encode(id));
    api.post(&path, Bytes::from_static(b"{}"), QUICK_TIMEOUT)
        .map(drop)
}

/// Starts the client with the direct endpoint, if configured, and prints a warning.
fn run_directly(
    args: &RunArgs,
    program: &OsStr,
    config: &Config,
    reason: &str,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let name = args.client.name();
    let none = |message: String| CliFailure::new(CliExit::Unreachable, "no_gateway", message);
    if args.is_narrowed() {
        let message =
            format!("{reason}, and without a gateway nothing narrows what `{name}` may do");
        return Err(none(message)
            .with_hint("leave out --principal, --role, --server, --profile and --context"));
    }
    let settings = config.clients.get(&args.client);
    let Some(direct) = settings.and_then(|one| one.direct.as_ref()) else {
        let message = format!("{reason}, and `{name}` has no direct endpoint");
        let hint = format!("or give it one: [clients.{name}] direct = \"https://...\"");
        return Err(none(message).with_hint(hint));
    };
    let access = ClientAccess {
        url: direct.url.clone(),
        token: direct_token(direct, name)?,
    };
    let ClientAccess { url, .. } = &access;
    context.out.write_warning(&format!(
        "{reason}: `{name}` goes DIRECTLY to {url}; no roles, no outbox, no audit, no other servers"
    ));
    let environment = client_environment(args.client, config, &access, &context.env);
    Err(exec_client(args, program, &access, environment))
}

fn direct_token(direct: &DirectEndpoint, name: &str) -> Result<Option<String>, CliFailure> {
    let token = direct
        .token
        .as_ref()
        .map(bowline_config::ConfigTemplate::expand);
    token.transpose().map_err(|error| {
        let message = format!("`clients.{name}.direct_token` cannot be read: {error}");
        CliFailure::new(CliExit::Usage, "config", message)
    })
}

/// Builds the environment of the client: no credentials of servers, no Bowline variables, and its
/// token.
fn client_environment(
    client: ClientProgram,
    config: &Config,
    access: &ClientAccess,
    env: &EnvVars,
) -> Vec<(OsString, OsString)> {
    let fallback = ClientConfig::default();
    let keep_env = &config.clients.get(&client).unwrap_or(&fallback).keep_env;
    let is_hidden = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with(OWN_VARIABLE_PREFIX)
            || (config.credential_variables.contains(&*name)
                && !keep_env.iter().any(|one| *one == name))
    };
    let visible = env.iter().filter(|(name, _)| !is_hidden(name));
    let visible = visible.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let token = access.token.as_ref();
    let token = token.map(|token| (TOKEN_VARIABLE.into(), token.into()));
    visible.chain(token).collect()
}

/// Replaces this process by the client; returns only on failure.
fn exec_client(
    args: &RunArgs,
    program: &OsStr,
    access: &ClientAccess,
    environment: Vec<(OsString, OsString)>,
) -> CliFailure {
    let endpoint = ClientEndpoint {
        name: &args.name,
        url: &access.url,
        token: match access.token {
            Some(_) => TokenSource::FromEnvironment,
            None => TokenSource::None,
        },
    };
    let next = args.args.first().map(|next| next.to_string_lossy());
    let before = args
        .client
        .arguments_before_user_args(endpoint, next.as_deref());
    let error = Command::new(program)
        .args(before)
        .args(&args.args)
        .env_clear()
        .envs(environment)
        .exec();
    let program = PathBuf::from(program);
    let message = format!("`{}` cannot be started: {error}", program.display());
    CliFailure::new(CliExit::Unreachable, "client_not_started", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_is_off_by_three_words() {
        for (value, off) in [
            ("0", true),
            ("false", true),
            ("OFF", true),
            ("1", false),
            ("", false),
            ("no", false),
        ] {
            assert_eq!(
                is_proxy_off(&EnvVars::from_pairs([(PROXY_VARIABLE, value)])),
                off,
                "{value}"
            );
        }
        assert!(!is_proxy_off(&EnvVars::default()));
    }

    #[test]
    fn client_environment_hides_server_credentials() {
        let env = EnvVars::from_pairs([
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
            credential_variables: ["TRACKER_TOKEN", "OWN_KEY"].map(str::to_owned).into(),
            clients: [(ClientProgram::Codex, kept)].into(),
            ..Config::default()
        };
        let way = ClientAccess {
            url: String::new(),
            token: Some("mine".to_owned()),
        };
        let names = |client| -> Vec<_> {
            let seen = client_environment(client, &config, &way, &env);
            let text = |text: &OsString| text.to_string_lossy().into_owned();
            let pairs = seen.iter().map(|(name, value)| (text(name), text(value)));
            pairs.collect()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let token = pair(TOKEN_VARIABLE, "mine");
        assert_eq!(
            names(ClientProgram::Claude),
            [pair("HOME", "/h"), token.clone()]
        );
        assert_eq!(
            names(ClientProgram::Codex),
            [pair("HOME", "/h"), pair("OWN_KEY", "b"), token]
        );
    }
}
