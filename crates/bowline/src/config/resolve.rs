//! From what the file said to what the gateway runs with: defaults, expansion, warnings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_link::http::endpoint::Endpoint;
use http::HeaderValue;

use super::expand::{self, Source, expand};
use super::file::{File, Server, Text};
use super::frame::{Problem, place};
use super::reach::{Child, Reach, Remote, Template};
use super::tree::Syntax;
use super::{Breaker, Broken, Config, Restart, ServerConfig, Warning, defaults, name};

/// Variables that make a program load code it does not name.
const LOADERS: [&str; 7] = [
    "LD_PRELOAD",
    "LD_AUDIT",
    "NODE_OPTIONS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "BASH_ENV",
    "DYLD_INSERT_LIBRARIES",
];

/// Where the file was read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    pub(super) text: &'a str,
    pub(super) syntax: Syntax,
    pub(super) source: Source<'a>,
}

/// Fills in what was left out. A server that this machine cannot run is set aside by name.
pub(super) fn resolve(file: File, origin: Origin<'_>) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut config = Config::default();
    if let Some(listen) = file.listen {
        config.listen = listen;
    }
    for address in config
        .listen
        .iter()
        .filter(|address| !address.ip().is_loopback())
    {
        let message = format!("{address} is open to other machines, and HTTP is not encrypted");
        config.warnings.push(Warning {
            place: None,
            message,
        });
    }
    let mut names: Vec<String> = Vec::with_capacity(file.servers.len());
    for server in file.servers {
        let name = match origin.syntax {
            Syntax::Toml => server.name.clone(),
            Syntax::Json => {
                let slug = name::slug(&server.name);
                name::unique(&slug, |name| names.iter().any(|taken| taken == name))
            }
        };
        warn(&server, &name, origin, &mut config.warnings);
        match one(&server, &name, origin.source) {
            Ok(server) => config.servers.push(server),
            Err(Stop::File(problem)) => problems.push(problem),
            Err(Stop::Machine(reason)) => {
                config.broken.push(Broken {
                    name: name.as_str().into(),
                    reason,
                });
            }
        }
        names.push(name);
    }
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

/// Why a server does not come out of it.
enum Stop {
    File(Problem),
    Machine(String),
}

fn one(server: &Server, name: &str, source: Source<'_>) -> Result<ServerConfig, Stop> {
    let reach = match (&server.command, &server.url) {
        (Some(command), None) => Reach::Child(child(server, name, command, source)?),
        (None, Some(url)) => Reach::Remote(remote(server, name, url, source)?),
        (Some(_), Some(url)) => {
            let message = format!("server `{name}` has both `command` and `url`");
            let problem = Problem::new(url.span.clone(), message, "is it started or reached?");
            return Err(Stop::File(problem.help("keep one of them")));
        }
        (None, None) => {
            let message = format!("server `{name}` has neither `command` nor `url`");
            let label = "what should be started or reached?";
            let problem = Problem::new(server.name_span.clone(), message, label);
            return Err(Stop::File(problem.help(
                "add command = \"PROGRAM\" and args = [...], or url = \"https://...\"",
            )));
        }
    };
    let (backoff_min, backoff_max) = server.restart_backoff.unwrap_or(defaults::BACKOFF);
    Ok(ServerConfig {
        name: Arc::from(name),
        reach,
        call_timeout: server.timeout.unwrap_or(defaults::CALL_TIMEOUT),
        start_timeout: server.start_timeout.unwrap_or(defaults::START_TIMEOUT),
        lazy: server.lazy.unwrap_or(false),
        isolation: server.isolation,
        restart: Restart {
            budget: server.restart_budget.unwrap_or(defaults::RESTART_BUDGET),
            window: server.restart_window.unwrap_or(defaults::RESTART_WINDOW),
            backoff_min,
            backoff_max,
        },
        breaker: Breaker {
            failures: server
                .breaker_failures
                .unwrap_or(defaults::BREAKER_FAILURES),
            rest: server.breaker_rest.unwrap_or(defaults::BREAKER_REST),
        },
        effects: server.effects.clone(),
    })
}

fn child(server: &Server, name: &str, command: &Text, source: Source<'_>) -> Result<Child, Stop> {
    if let Some((_, first)) = server.headers.first() {
        let message = format!("server `{name}` is started here, so `headers` go nowhere");
        let problem = Problem::new(first.span.clone(), message, "only a `url` has headers");
        return Err(Stop::File(problem));
    }
    let program = text(command, "command", source)?;
    if program.is_empty() {
        let message = format!("server `{name}` has an empty `command`");
        let problem = Problem::new(command.span.clone(), message, "no program");
        return Err(Stop::File(problem));
    }
    let args = server.args.iter().map(|arg| text(arg, "args", source));
    let env = server
        .env
        .iter()
        .map(|(key, value)| Ok((key.clone(), text(value, &format!("env.{key}"), source)?)));
    let cwd = server
        .cwd
        .as_ref()
        .map(|cwd| text(cwd, "cwd", source))
        .transpose()?;
    let inherit_env = server.inherit_env.iter();
    Ok(Child {
        command: program_path(&program, source.directory),
        args: args.collect::<Result<_, Stop>>()?,
        env: env.collect::<Result<BTreeMap<_, _>, Stop>>()?,
        inherit_env: inherit_env.map(|name| name.text.clone()).collect(),
        // A daemon is started from anywhere, so a relative path starts at the config file.
        cwd: cwd.map(|cwd| source.directory.join(cwd)),
    })
}

fn remote(server: &Server, name: &str, url: &Text, source: Source<'_>) -> Result<Remote, Stop> {
    let only_for_children = server
        .args
        .first()
        .map(|arg| ("args", arg))
        .or_else(|| server.env.first().map(|(_, value)| ("env", value)))
        .or_else(|| server.cwd.as_ref().map(|cwd| ("cwd", cwd)))
        .or_else(|| {
            server
                .inherit_env
                .first()
                .map(|first| ("inherit_env", first))
        });
    if let Some((key, at)) = only_for_children {
        let message = format!("server `{name}` is reached at a `url`, so `{key}` has no use");
        let problem = Problem::new(at.span.clone(), message, "only a `command` has it");
        return Err(Stop::File(problem));
    }
    let unusable = |fault: String| {
        let message = format!("server `{name}` cannot be reached at this `url`");
        Stop::File(Problem::new(url.span.clone(), message, fault))
    };
    let address = text(url, "url", source)?;
    let address = Endpoint::parse(&address).map_err(|error| unusable(error.to_string()))?;
    if !server.headers.is_empty() && !address.is_private() {
        return Err(unusable(
            "headers go to other machines over https only".to_owned(),
        ));
    }
    let env = Arc::new(source.env.clone());
    let directory = Arc::new(source.directory.to_path_buf());
    let mut headers = Vec::with_capacity(server.headers.len());
    for (key, value) in &server.headers {
        // Read once now, so that what cannot be had is told at the start.
        let now = text(value, &format!("headers.{key}"), source)?;
        if HeaderValue::from_str(&now).is_err() {
            let reason = format!("`headers.{key}` holds what no header can");
            return Err(Stop::Machine(reason));
        }
        let template = Template::new(value.text.clone(), &env, &directory);
        headers.push((key.clone(), template));
    }
    Ok(Remote {
        url: address,
        transport: server.transport.unwrap_or_default(),
        headers,
    })
}

fn text(text: &Text, key: &str, source: Source<'_>) -> Result<String, Stop> {
    let expanded = expand(&text.text, source).map_err(|error| stop(&error, text, key))?;
    if expanded.contains('\0') {
        return Err(Stop::Machine(format!(
            "`{key}` holds a NUL after expansion"
        )));
    }
    Ok(expanded)
}

fn stop(error: &expand::Error, text: &Text, key: &str) -> Stop {
    if error.is_fault_of_the_file() {
        let message = format!("`{key}` cannot be expanded");
        let problem = Problem::new(text.span.clone(), message, error.to_string());
        return Stop::File(problem.help("write $${ for a literal ${"));
    }
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    Stop::Machine(format!("{error} (in `{key}`){}", cause.unwrap_or_default()))
}

/// A bare name is looked up in PATH; a relative path starts at the config file.
fn program_path(program: &str, directory: &Path) -> OsString {
    if program.contains('/') {
        let path: PathBuf = directory.join(program);
        path.into_os_string()
    } else {
        program.into()
    }
}

fn warn(server: &Server, name: &str, origin: Origin<'_>, warnings: &mut Vec<Warning>) {
    let mut add = |at: usize, message: String| {
        warnings.push(Warning {
            place: Some(place(origin.text, at)),
            message,
        });
    };
    if name != server.name {
        let written = server.name.escape_debug();
        add(
            server.name_span.start,
            format!("server \"{written}\" is called `{name}` here"),
        );
    }
    let set = server
        .env
        .iter()
        .map(|(key, value)| (key.as_str(), value.span.start));
    let inherited = server
        .inherit_env
        .iter()
        .map(|key| (key.text.as_str(), key.span.start));
    for (key, at) in set
        .chain(inherited)
        .filter(|(key, _)| LOADERS.contains(key))
    {
        add(
            at,
            format!("server `{name}` gets {key}, which can load code into its process"),
        );
    }
}
