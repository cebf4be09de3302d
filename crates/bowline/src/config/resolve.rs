//! From what the file said to what the gateway runs with: defaults, expansion, warnings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_host::allowlist::{Allowlist, DOCUMENT_BYTES_MAX};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::sandbox::{FsGrant, Sandbox};
use http::HeaderValue;

use super::executor;
use super::expand::{self, Source, expand_noting};
use super::exposure;
use super::file::{File, Server, Span, Text};
use super::frame::Problem;
use super::load::read_up_to;
use super::reach::{Child, Ground, Reach, Remote, Template};
use super::secrets::Secrets;
use super::sources;
use super::tree::Syntax;
use super::via::{self, Via};
use super::warn::{
    warn, warn_of_forgetting, warn_of_sandboxes, warn_of_sharing, warn_of_strangers,
};
use super::{
    Breaker, Broken, BrokerConfig, Config, Restart, ServerConfig, Telemetry, Warning, audit,
    clients, defaults, limits, name, policy,
};
use crate::secrets::Vault;

/// Where the file was read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    pub(super) text: &'a str,
    pub(super) syntax: Syntax,
    pub(super) source: Source<'a>,
}

/// Fills in what was left out. A server that this machine cannot run is set aside by name.
pub(super) fn resolve(
    file: File,
    origin: Origin<'_>,
    vault: &Arc<Vault>,
) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let secrets = sources::sources(&file, origin.source, vault, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    sources::warm(&file, &secrets);
    let origin = Origin {
        source: Source {
            secrets: Some(&secrets),
            ..origin.source
        },
        ..origin
    };
    let mut config = Config {
        limits: limits::host(&file),
        connections: limits::connections(&file),
        audit: audit::limits_of(&file),
        audit_export: file.audit_export.clone(),
        telemetry: telemetry(&file),
        journal: file.engine.unwrap_or_default(),
        broker: broker(&file),
        names: file.names.clone(),
        ..Config::default()
    };
    if let Some(listen) = &file.listen {
        config.listen.clone_from(listen);
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
    config.credentials = clients::credentials(&file, origin.source.env);
    match clients::resolve(&file.clients, origin.source, &mut config.warnings) {
        Ok(clients) => config.clients = clients,
        Err(problem) => problems.push(problem),
    }
    executor::resolve(
        (&file.executors, &file.servant),
        (origin.text, origin.source),
        &mut config,
        &mut problems,
    );
    config.policy = file.rules.policy;
    config.policy.server_executors = via::list_executors(&file.servers);
    servers(file.servers, origin, &mut config, &mut problems);
    if let Some(path) = &file.rules.allowlist {
        match allowlist(path, origin.source) {
            Ok(list) => config.policy.allowlist = Some(list),
            Err(problem) => problems.push(problem),
        }
    }
    limits::warn_of_shares(&file.shares, origin, &mut config);
    warn_of_forgetting(&mut config);
    config.mentions = policy::mentions(file.rules.mentions, origin.text);
    config.sources = secrets.clone();
    warn_of_strangers(&mut config);
    warn_of_sharing(&mut config);
    warn_of_sandboxes(&mut config);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

/// Returns what the broker takes on. A peer that has the name of an alias takes its own messages.
fn broker(file: &File) -> BrokerConfig {
    let peers = &file.rules.policy.peers;
    let mut broker = file.broker.clone();
    broker.aliases.retain(|name| !peers.contains_key(name));
    broker
}

fn telemetry(file: &File) -> Telemetry {
    let name = file.service_name.clone();
    Telemetry {
        otlp: file.otlp.clone(),
        service_name: name.unwrap_or_else(|| defaults::SERVICE_NAME.to_owned()),
        sample: file.sample.unwrap_or(defaults::SAMPLE),
    }
}

/// Reads every server. What may change of it is noted, also where it cannot run.
fn servers(
    written: Vec<Server>,
    origin: Origin<'_>,
    config: &mut Config,
    problems: &mut Vec<Problem>,
) {
    let mut names: Vec<String> = Vec::with_capacity(written.len());
    for server in written {
        let name = match origin.syntax {
            Syntax::Toml => server.name.clone(),
            Syntax::Json => {
                let slug = name::slug(&server.name);
                name::unique(&slug, |name| names.iter().any(|taken| taken == name))
            }
        };
        warn(&server, &name, origin, &mut config.warnings);
        let mut watched = sources::watched(&server, &name, origin.source);
        match one(&server, &name, origin.source) {
            Ok(server) => config.servers.push(server),
            Err(Stop::File(problem)) => problems.push(problem),
            Err(Stop::Machine(reason)) => {
                watched.needs_all_to_start();
                config.broken.push(Broken {
                    name: name.as_str().into(),
                    reason,
                });
            }
        }
        if !watched.is_empty() {
            config.watched.push(watched);
        }
        names.push(name);
    }
}

/// Why a server does not come out of it.
enum Stop {
    File(Problem),
    Machine(String),
}

/// Reads the allowlist document. What it switches off is not known without it, so a file that
/// names one which cannot be read is refused whole.
fn allowlist(path: &Text, source: Source<'_>) -> Result<Allowlist, Problem> {
    let problem = |label: String| {
        let message = "the allowlist document cannot be used";
        Problem::new(path.span.clone(), message, label)
    };
    let expanded = expand_noting(&path.text, source, |_, _| {});
    let expanded = expanded.map_err(|error| problem(error.to_string()))?;
    let file = source.directory.join(expanded);
    let text = read_up_to(&file, DOCUMENT_BYTES_MAX as u64).map_err(|error| {
        let cause = std::error::Error::source(&error);
        problem(cause.map_or_else(|| error.to_string(), ToString::to_string))
    })?;
    Allowlist::parse(text.as_bytes()).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        problem(format!("{error}{}", cause.unwrap_or_default()))
    })
}

fn one(server: &Server, name: &str, source: Source<'_>) -> Result<ServerConfig, Stop> {
    let mut secrets = Secrets::default();
    via::refuse_what_only_executors_have(server, name).map_err(Stop::File)?;
    let reach = match (&server.command, &server.url, &server.via) {
        (Some(command), None, _) => {
            Reach::Child(child(server, name, command, (source, &mut secrets))?)
        }
        (None, Some(url), _) => Reach::Remote(remote(server, name, url, (source, &mut secrets))?),
        (None, None, Some(via)) => {
            refuse_what_only_others_have(server, name)?;
            Reach::Placed(via::placed(server, name, via).map_err(Stop::File)?)
        }
        (Some(_), Some(url), _) => {
            let message = format!("server `{name}` has both `command` and `url`");
            let problem = Problem::new(url.span.clone(), message, "is it started or reached?");
            return Err(Stop::File(problem.help("keep one of them")));
        }
        (None, None, None) => {
            let message = format!("server `{name}` has neither `command` nor `url`");
            let label = "what should be started or reached?";
            let problem = Problem::new(server.name_span.clone(), message, label);
            return Err(Stop::File(problem.help(
                "add command = \"PROGRAM\" and args = [...], or url = \"https://...\"",
            )));
        }
    };
    let fallback = ServerConfig::new(name, reach);
    let (backoff_min, backoff_max) = server.restart_backoff.unwrap_or(defaults::BACKOFF);
    Ok(ServerConfig {
        call_timeout: server.timeout.unwrap_or(fallback.call_timeout),
        start_timeout: server.start_timeout.unwrap_or(fallback.start_timeout),
        install_timeout: server
            .install_timeout
            .map_or(fallback.install_timeout, Span::duration),
        drain_timeout: server.drain_timeout.unwrap_or(fallback.drain_timeout),
        lazy: server.lazy.unwrap_or(fallback.lazy),
        idle_stop: server.idle_stop.and_then(Span::duration),
        ping: server.ping.map_or(fallback.ping, Span::duration),
        relist: server.relist.map_or(fallback.relist, Span::duration),
        speaks: server.speaks,
        isolation: server.isolation,
        calls_max: server.max_calls.unwrap_or(fallback.calls_max),
        queue_max: server.queue.unwrap_or(fallback.queue_max),
        list_max: server.max_list.unwrap_or(fallback.list_max),
        result_max: max_result(server).unwrap_or(fallback.result_max),
        restart: Restart {
            budget: server.restart_budget.unwrap_or(fallback.restart.budget),
            window: server.restart_window.unwrap_or(fallback.restart.window),
            backoff_min,
            backoff_max,
        },
        breaker: Breaker {
            failures: server.breaker_failures.unwrap_or(fallback.breaker.failures),
            rest: server.breaker_rest.unwrap_or(fallback.breaker.rest),
        },
        pin: server.pin.unwrap_or(fallback.pin),
        cache: server.cache.unwrap_or(fallback.cache),
        check_output: server.check_output.unwrap_or(fallback.check_output),
        redact_results: server.redact_results.unwrap_or(fallback.redact_results),
        argv_secrets: server.argv_secrets,
        tools: server.tools.clone(),
        secrets,
        ..fallback
    })
}

fn max_result(server: &Server) -> Option<usize> {
    usize::try_from(server.max_result?).ok()
}

/// Where values come from, and where those are noted that nobody should read.
type Making<'a, 'b> = (Source<'a>, &'b mut Secrets);

fn child(
    server: &Server,
    name: &str,
    command: &Text,
    (source, secrets): Making<'_, '_>,
) -> Result<Child, Stop> {
    if let Some((_, first)) = server.headers.first() {
        let message = format!("server `{name}` is started here, so `headers` go nowhere");
        let problem = Problem::new(first.span.clone(), message, "only a `url` has headers");
        return Err(Stop::File(problem));
    }
    if let Some(span) = &server.key_header_span {
        let message = format!("server `{name}` is started here, so no header carries a key to it");
        let problem = Problem::new(span.clone(), message, "only a `url` has headers");
        return Err(Stop::File(problem.help(
            "use \"argument:NAME\" or \"meta\", as the server understands it",
        )));
    }
    let program = text(command, "command", source, |_, _| {})?;
    if program.is_empty() {
        let message = format!("server `{name}` has an empty `command`");
        let problem = Problem::new(command.span.clone(), message, "no program");
        return Err(Stop::File(problem));
    }
    exposure::refuse_argv_secrets(server, name).map_err(Stop::File)?;
    let mut args = Vec::with_capacity(server.args.len());
    for (number, arg) in (1..).zip(&server.args) {
        args.push(text(arg, "args", source, |reference, value| {
            secrets.expanded(&format!("argument {number}"), reference, value);
        })?);
    }
    secrets.args(&args);
    let mut env = BTreeMap::new();
    for (key, value) in &server.env {
        let value = text(value, &format!("env.{key}"), source, |reference, value| {
            secrets.expanded(&format!("env {key}"), reference, value);
        })?;
        secrets.variable(key, &value);
        env.insert(key.clone(), value);
    }
    let cwd = server
        .cwd
        .as_ref()
        .map(|cwd| text(cwd, "cwd", source, |_, _| {}))
        .transpose()?;
    let inherit_env: Vec<_> = server
        .inherit_env
        .iter()
        .map(|name| name.text.clone())
        .collect();
    for key in &inherit_env {
        if let Some(value) = source.env.text(key) {
            secrets.variable(key, value);
        }
    }
    Ok(Child {
        command: program_path(&program, source.directory),
        args,
        env,
        inherit_env,
        // A daemon is started from anywhere, so a relative path starts at the config file.
        cwd: cwd.map(|cwd| source.directory.join(cwd)),
        limits: server.limits,
        sandbox: sandbox(server, source)?,
    })
}

fn sandbox(server: &Server, source: Source<'_>) -> Result<Sandbox, Stop> {
    let mut fs = Vec::with_capacity(server.fs.len());
    for path in &server.fs {
        let FsGrant { path, access } = FsGrant::parse(&text(path, "fs", source, |_, _| {})?);
        let path = source.directory.join(path);
        fs.push(FsGrant { path, access });
    }
    Ok(Sandbox {
        level: server.sandbox,
        fs,
        net: server.net.clone(),
        hidden: Vec::new(),
    })
}

fn remote(
    server: &Server,
    name: &str,
    url: &Text,
    (source, secrets): Making<'_, '_>,
) -> Result<Remote, Stop> {
    refuse_what_only_children_have(server, name)?;
    let unusable = |fault: String| {
        let message = format!("server `{name}` cannot be reached at this `url`");
        Stop::File(Problem::new(url.span.clone(), message, fault))
    };
    let address = text(url, "url", source, |reference, value| {
        secrets.expanded("url", reference, value);
    })?;
    secrets.query(&address);
    let address = Endpoint::parse(&address).map_err(|error| unusable(error.to_string()))?;
    if !address.is_private() && exposure::has_secret(&url.text) {
        return Err(Stop::File(exposure::plain_url(url, name)));
    }
    if !server.headers.is_empty() && !address.is_private() {
        return Err(unusable(
            "headers go to other machines over https only".to_owned(),
        ));
    }
    let ground = Ground::new(source);
    let executor = server.via.as_ref().map(via::executor).transpose();
    let executor = executor.map_err(Stop::File)?;
    let mut headers = Vec::with_capacity(server.headers.len());
    let mut fills = Vec::new();
    for (key, value) in &server.headers {
        if executor.is_some()
            && let Some(fill) = via::fill(key, value).map_err(Stop::File)?
        {
            fills.push(fill);
            continue;
        }
        // Read once now, so that what cannot be had is told at the start.
        let now = text(
            value,
            &format!("headers.{key}"),
            source,
            |reference, value| {
                secrets.expanded(&format!("header {key}"), reference, value);
            },
        )?;
        if HeaderValue::from_str(&now).is_err() {
            let reason = format!("`headers.{key}` holds what no header can");
            return Err(Stop::Machine(reason));
        }
        secrets.header(key.as_str(), &now);
        headers.push((key.clone(), Template::new(&value.text, &ground)));
    }
    Ok(Remote {
        url: address,
        transport: server.transport.unwrap_or_default(),
        headers,
        via: executor.map(|executor| Via { executor, fills }),
    })
}

fn refuse_what_only_children_have(server: &Server, name: &str) -> Result<(), Stop> {
    let env = server.env.first().map(|(_, value)| value);
    let given = [
        ("args", server.args.first()),
        ("env", env),
        ("cwd", server.cwd.as_ref()),
        ("inherit_env", server.inherit_env.first()),
    ];
    let given = given
        .into_iter()
        .filter_map(|(key, text)| Some((key, &text?.span)))
        .chain(server.limits_span.iter().map(|span| ("limits", span)))
        .chain(server.sandbox_span.iter().map(|span| ("sandbox", span)));
    match given.into_iter().next() {
        None => Ok(()),
        Some((key, span)) => {
            let how = match &server.url {
                Some(_) => "reached at a `url`",
                None => "started by an executor",
            };
            let message = format!("server `{name}` is {how}, so `{key}` has no use");
            let problem = Problem::new(span.clone(), message, "only a `command` has it");
            Err(Stop::File(problem))
        }
    }
}

/// Refuses what has no use for a server that an executor starts.
fn refuse_what_only_others_have(server: &Server, name: &str) -> Result<(), Stop> {
    refuse_what_only_children_have(server, name)?;
    let header = server.headers.first().map(|(_, value)| &value.span);
    match header.or(server.key_header_span.as_ref()) {
        None => Ok(()),
        Some(span) => {
            let message = format!("server `{name}` is started by an executor, and has no headers");
            let problem = Problem::new(span.clone(), message, "only a `url` has headers");
            Err(Stop::File(problem))
        }
    }
}

fn text(
    text: &Text,
    key: &str,
    source: Source<'_>,
    note: impl FnMut(&str, &str),
) -> Result<String, Stop> {
    let expanded =
        expand_noting(&text.text, source, note).map_err(|error| stop(&error, text, key))?;
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
    Stop::Machine(error.told(&format!(" (in `{key}`)")))
}

/// A bare name is looked up in PATH; a relative path starts at the config file.
pub(super) fn program_path(program: &str, directory: &Path) -> OsString {
    if program.contains('/') {
        let path: PathBuf = directory.join(program);
        path.into_os_string()
    } else {
        program.into()
    }
}
