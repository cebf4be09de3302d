//! Resolves a server of the parsed file: defaults, how the server is reached, and its secrets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::sandbox::{FsGrant, SandboxPolicy};
use http::HeaderValue;

use super::config_problem::ConfigProblem;
use super::expand::{self, ExpandSource, expand_with};
use super::exposed_secrets;
use super::file::{OptionalDuration, ServerSection, UnexpandedText};
use super::server_secrets::ServerSecrets;
use super::upstream_config::{
    ChildConfig, ConfigTemplate, RemoteConfig, TemplateContext, UpstreamConfig,
};
use super::via_config::{self, ViaConfig};
use super::{BreakerConfig, RestartConfig, ServerConfig, defaults};

/// Reason why a server was not resolved: a problem of the file, or of the machine.
pub(super) enum ServerResolveError {
    File(ConfigProblem),
    Machine(String),
}

/// Resolves a server with its defaults.
pub(super) fn resolve_server(
    server: &ServerSection,
    name: &str,
    source: ExpandSource<'_>,
) -> Result<ServerConfig, ServerResolveError> {
    let mut secrets = ServerSecrets::default();
    via_config::refuse_executor_only_keys(server, name).map_err(ServerResolveError::File)?;
    let upstream = resolve_upstream(server, name, source, &mut secrets)?;
    let fallback = ServerConfig::new(name, upstream);
    let (backoff_min, backoff_max) = server.restart_backoff.unwrap_or(defaults::BACKOFF);
    Ok(ServerConfig {
        call_timeout: server.timeout.unwrap_or(fallback.call_timeout),
        start_timeout: server.start_timeout.unwrap_or(fallback.start_timeout),
        install_timeout: server
            .install_timeout
            .map_or(fallback.install_timeout, OptionalDuration::duration),
        drain_timeout: server.drain_timeout.unwrap_or(fallback.drain_timeout),
        lazy: server.lazy.unwrap_or(fallback.lazy),
        idle_stop: server.idle_stop.and_then(OptionalDuration::duration),
        ping: server
            .ping
            .map_or(fallback.ping, OptionalDuration::duration),
        relist: server
            .relist
            .map_or(fallback.relist, OptionalDuration::duration),
        era_setting: server.era_setting,
        isolation: server.isolation,
        calls_max: server.max_calls.unwrap_or(fallback.calls_max),
        queue_max: server.queue.unwrap_or(fallback.queue_max),
        list_max: server.max_list.unwrap_or(fallback.list_max),
        result_max: max_result(server).unwrap_or(fallback.result_max),
        restart: RestartConfig {
            budget: server.restart_budget.unwrap_or(fallback.restart.budget),
            window: server.restart_window.unwrap_or(fallback.restart.window),
            backoff_min,
            backoff_max,
        },
        breaker: BreakerConfig {
            failures: server.breaker_failures.unwrap_or(fallback.breaker.failures),
            open_time: server.breaker_rest.unwrap_or(fallback.breaker.open_time),
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

fn max_result(server: &ServerSection) -> Option<usize> {
    usize::try_from(server.max_result?).ok()
}

/// Resolves how a server is reached; `secrets` collects the secrets found.
fn resolve_upstream(
    server: &ServerSection,
    name: &str,
    source: ExpandSource<'_>,
    secrets: &mut ServerSecrets,
) -> Result<UpstreamConfig, ServerResolveError> {
    match (&server.command, &server.url, &server.via) {
        (Some(command), None, _) => Ok(UpstreamConfig::Child(resolve_child(
            server, name, command, source, secrets,
        )?)),
        (None, Some(url), _) => Ok(UpstreamConfig::Remote(resolve_remote(
            server, name, url, source, secrets,
        )?)),
        (None, None, Some(via)) => {
            refuse_keys_without_use(server, name)?;
            let placed = via_config::resolve_placement(server, name, via);
            Ok(UpstreamConfig::Placed(
                placed.map_err(ServerResolveError::File)?,
            ))
        }
        (Some(_), Some(url), _) => {
            let message = format!("server `{name}` has both `command` and `url`");
            let problem =
                ConfigProblem::new(url.span.clone(), message, "is it started or reached?");
            Err(ServerResolveError::File(
                problem.with_help("keep one of them"),
            ))
        }
        (None, None, None) => {
            let message = format!("server `{name}` has neither `command` nor `url`");
            let label = "what should be started or reached?";
            let problem = ConfigProblem::new(server.name_span.clone(), message, label);
            Err(ServerResolveError::File(problem.with_help(
                "add command = \"PROGRAM\" and args = [...], or url = \"https://...\"",
            )))
        }
    }
}

fn resolve_child(
    server: &ServerSection,
    name: &str,
    command: &UnexpandedText,
    source: ExpandSource<'_>,
    secrets: &mut ServerSecrets,
) -> Result<ChildConfig, ServerResolveError> {
    if let Some((_, first)) = server.headers.first() {
        let message = format!("server `{name}` is started here, so `headers` go nowhere");
        let problem = ConfigProblem::new(first.span.clone(), message, "only a `url` has headers");
        return Err(ServerResolveError::File(problem));
    }
    if let Some(span) = &server.key_header_span {
        let message = format!("server `{name}` is started here, so no header carries a key to it");
        let problem = ConfigProblem::new(span.clone(), message, "only a `url` has headers");
        return Err(ServerResolveError::File(problem.with_help(
            "use \"argument:NAME\" or \"meta\", as the server understands it",
        )));
    }
    let program = expand_setting(command, "command", source, |_, _| {})?;
    if program.is_empty() {
        let message = format!("server `{name}` has an empty `command`");
        let problem = ConfigProblem::new(command.span.clone(), message, "no program");
        return Err(ServerResolveError::File(problem));
    }
    exposed_secrets::refuse_argv_secrets(server, name).map_err(ServerResolveError::File)?;
    let mut args = Vec::with_capacity(server.args.len());
    for (number, arg) in (1..).zip(&server.args) {
        args.push(expand_setting(arg, "args", source, |reference, value| {
            secrets.record_expansion(&format!("argument {number}"), reference, value);
        })?);
    }
    secrets.record_arguments(&args);
    let mut env = BTreeMap::new();
    for (key, value) in &server.env {
        let value = expand_setting(value, &format!("env.{key}"), source, |reference, value| {
            secrets.record_expansion(&format!("env {key}"), reference, value);
        })?;
        secrets.record_variable(key, &value);
        env.insert(key.clone(), value);
    }
    let cwd = server
        .cwd
        .as_ref()
        .map(|cwd| expand_setting(cwd, "cwd", source, |_, _| {}))
        .transpose()?;
    let inherit_env: Vec<_> = server
        .inherit_env
        .iter()
        .map(|name| name.text.clone())
        .collect();
    for key in &inherit_env {
        if let Some(value) = source.env.text(key) {
            secrets.record_variable(key, value);
        }
    }
    Ok(ChildConfig {
        command: program_path(&program, source.directory),
        args,
        env,
        inherit_env,
        // A daemon starts from anywhere, so a relative path is relative to the config file.
        cwd: cwd.map(|cwd| source.directory.join(cwd)),
        limits: server.limits,
        sandbox: resolve_sandbox(server, source)?,
    })
}

fn resolve_sandbox(
    server: &ServerSection,
    source: ExpandSource<'_>,
) -> Result<SandboxPolicy, ServerResolveError> {
    let mut fs = Vec::with_capacity(server.fs.len());
    for path in &server.fs {
        let FsGrant { path, access } =
            FsGrant::parse(&expand_setting(path, "fs", source, |_, _| {})?);
        let path = source.directory.join(path);
        fs.push(FsGrant { path, access });
    }
    Ok(SandboxPolicy {
        level: server.sandbox,
        fs,
        net: server.net.clone(),
        hidden: Vec::new(),
    })
}

fn resolve_remote(
    server: &ServerSection,
    name: &str,
    url: &UnexpandedText,
    source: ExpandSource<'_>,
    secrets: &mut ServerSecrets,
) -> Result<RemoteConfig, ServerResolveError> {
    refuse_child_only_keys(server, name)?;
    let unusable = |fault: String| {
        let message = format!("server `{name}` cannot be reached at this `url`");
        ServerResolveError::File(ConfigProblem::new(url.span.clone(), message, fault))
    };
    let address = expand_setting(url, "url", source, |reference, value| {
        secrets.record_expansion("url", reference, value);
    })?;
    secrets.record_query(&address);
    let address = HttpEndpoint::parse(&address).map_err(|error| unusable(error.to_string()))?;
    if !address.is_private() && exposed_secrets::has_secret(&url.text) {
        return Err(ServerResolveError::File(
            exposed_secrets::plain_url_problem(url, name),
        ));
    }
    if !server.headers.is_empty() && !address.is_private() {
        return Err(unusable(
            "headers go to other machines over https only".to_owned(),
        ));
    }
    let context = TemplateContext::new(source);
    let executor = server.via.as_ref().map(via_config::parse_via).transpose();
    let executor = executor.map_err(ServerResolveError::File)?;
    let mut headers = Vec::with_capacity(server.headers.len());
    let mut secret_headers = Vec::new();
    for (key, value) in &server.headers {
        if executor.is_some()
            && let Some(secret_header) =
                via_config::parse_secret_header(key, value).map_err(ServerResolveError::File)?
        {
            secret_headers.push(secret_header);
            continue;
        }
        // Expanded once now, so missing values are reported at the start.
        let now = expand_setting(
            value,
            &format!("headers.{key}"),
            source,
            |reference, value| {
                secrets.record_expansion(&format!("header {key}"), reference, value);
            },
        )?;
        if HeaderValue::from_str(&now).is_err() {
            let reason = format!("`headers.{key}` holds what no header can");
            return Err(ServerResolveError::Machine(reason));
        }
        secrets.record_header(key.as_str(), &now);
        headers.push((key.clone(), ConfigTemplate::new(&value.text, &context)));
    }
    Ok(RemoteConfig {
        url: address,
        transport: server.transport.unwrap_or_default(),
        headers,
        via: executor.map(|executor| ViaConfig {
            executor,
            secret_headers,
        }),
    })
}

fn refuse_child_only_keys(server: &ServerSection, name: &str) -> Result<(), ServerResolveError> {
    let env = server.env.first().map(|(_, value)| value);
    let present_keys = [
        ("args", server.args.first()),
        ("env", env),
        ("cwd", server.cwd.as_ref()),
        ("inherit_env", server.inherit_env.first()),
    ];
    let present_keys = present_keys
        .into_iter()
        .filter_map(|(key, text)| Some((key, &text?.span)))
        .chain(server.limits_span.iter().map(|span| ("limits", span)))
        .chain(server.sandbox_span.iter().map(|span| ("sandbox", span)));
    match present_keys.into_iter().next() {
        None => Ok(()),
        Some((key, span)) => {
            let description = match &server.url {
                Some(_) => "reached at a `url`",
                None => "started by an executor",
            };
            let message = format!("server `{name}` is {description}, so `{key}` has no use");
            let problem = ConfigProblem::new(span.clone(), message, "only a `command` has it");
            Err(ServerResolveError::File(problem))
        }
    }
}

/// Refuses keys without use for a server started by an executor.
fn refuse_keys_without_use(server: &ServerSection, name: &str) -> Result<(), ServerResolveError> {
    refuse_child_only_keys(server, name)?;
    let header = server.headers.first().map(|(_, value)| &value.span);
    match header.or(server.key_header_span.as_ref()) {
        None => Ok(()),
        Some(span) => {
            let message = format!("server `{name}` is started by an executor, and has no headers");
            let problem = ConfigProblem::new(span.clone(), message, "only a `url` has headers");
            Err(ServerResolveError::File(problem))
        }
    }
}

fn expand_setting(
    text: &UnexpandedText,
    key: &str,
    source: ExpandSource<'_>,
    note: impl FnMut(&str, &str),
) -> Result<String, ServerResolveError> {
    let expanded = expand_with(&text.text, source, note)
        .map_err(|error| to_resolve_error(&error, text, key))?;
    if expanded.contains('\0') {
        return Err(ServerResolveError::Machine(format!(
            "`{key}` holds a NUL after expansion"
        )));
    }
    Ok(expanded)
}

fn to_resolve_error(
    error: &expand::ExpandError,
    text: &UnexpandedText,
    key: &str,
) -> ServerResolveError {
    if error.is_config_fault() {
        let message = format!("`{key}` cannot be expanded");
        let problem = ConfigProblem::new(text.span.clone(), message, error.to_string());
        return ServerResolveError::File(problem.with_help("write $${ for a literal ${"));
    }
    ServerResolveError::Machine(error.format_line(&format!(" (in `{key}`)")))
}

/// Resolves a program: a bare name is searched in PATH, a path is relative to the config file.
pub(super) fn program_path(program: &str, directory: &Path) -> OsString {
    if program.contains('/') {
        let path: PathBuf = directory.join(program);
        path.into_os_string()
    } else {
        program.into()
    }
}
