//! Resolves the parsed file into the runtime configuration: defaults, expansion, warnings.

use std::sync::Arc;

use bowline_api::servers::BrokenServer;
use bowline_host::allowlist::{Allowlist, DOCUMENT_BYTES_MAX};

use super::config_problem::ConfigProblem;
use super::executor_config;
use super::expand::{ExpandSource, expand_with};
use super::file::{ConfigFile, ServerSection, UnexpandedText};
use super::load_file::read_bounded_text;
use super::resolve_server::{ServerResolveError, resolve_server};
use super::secret_origins;
use super::tree::ConfigSyntax;
use super::via_config;
use super::warnings::{
    warn_about_memory_queue, warn_about_sandboxes, warn_about_server, warn_about_sharing,
    warn_about_unknown_servers,
};
use super::{
    BrokerConfig, Config, ConfigWarning, TelemetryConfig, audit_config, client_config,
    config_names, defaults, limits_config, policy_config,
};
use crate::secrets::SecretVault;

/// The source of the parsed file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolveInput<'a> {
    pub(super) text: &'a str,
    pub(super) syntax: ConfigSyntax,
    pub(super) source: ExpandSource<'a>,
}

/// Resolves a file. Servers unable to run on this machine are listed separately.
pub(super) fn resolve_config(
    file: ConfigFile,
    input: ResolveInput<'_>,
    vault: &Arc<SecretVault>,
) -> Result<Config, Vec<ConfigProblem>> {
    let mut problems = Vec::new();
    let secrets = secret_origins::resolve_secrets(&file, input.source, vault, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    secret_origins::prefetch_secrets(&file, &secrets);
    let input = ResolveInput {
        source: ExpandSource {
            secrets: Some(&secrets),
            ..input.source
        },
        ..input
    };
    let mut config = Config {
        limits: limits_config::resolve_host_limits(&file),
        connections: limits_config::resolve_connection_limits(&file),
        audit: audit_config::resolve_audit(&file),
        audit_export: file.audit_export.clone(),
        telemetry: resolve_telemetry(&file),
        journal: file.engine.unwrap_or_default(),
        broker: resolve_broker(&file),
        names: file.names.clone(),
        ..Config::default()
    };
    resolve_listen(&file, &mut config);
    config.credential_variables = client_config::find_credential_variables(&file, input.source.env);
    match client_config::resolve_clients(&file.clients, input.source, &mut config.warnings) {
        Ok(clients) => config.clients = clients,
        Err(problem) => problems.push(problem),
    }
    executor_config::resolve_executors(
        &file.executors,
        &file.executor_offer,
        input.text,
        input.source,
        &mut config,
        &mut problems,
    );
    config.policy = file.rules.policy;
    config.policy.server_executors = via_config::list_executors(&file.servers);
    resolve_servers(file.servers, input, &mut config, &mut problems);
    if let Some(path) = &file.rules.allowlist {
        match read_allowlist(path, input.source) {
            Ok(list) => config.policy.allowlist = Some(list),
            Err(problem) => problems.push(problem),
        }
    }
    limits_config::warn_about_shares(&file.shares, input, &mut config);
    warn_about_memory_queue(&mut config);
    config.pattern_mentions = policy_config::locate_mentions(file.rules.mentions, input.text);
    config.secrets = secrets.clone();
    warn_about_unknown_servers(&mut config);
    warn_about_sharing(&mut config);
    warn_about_sandboxes(&mut config);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

/// Sets the listen addresses, and warns about addresses that other machines can reach.
fn resolve_listen(file: &ConfigFile, config: &mut Config) {
    if let Some(listen) = &file.listen {
        config.listen.clone_from(listen);
    }
    for address in config
        .listen
        .iter()
        .filter(|address| !address.ip().is_loopback())
    {
        let message = format!("{address} is open to other machines, and HTTP is not encrypted");
        config.warnings.push(ConfigWarning {
            position: None,
            message,
        });
    }
}

/// Resolves the broker settings. A peer named like an alias replaces the alias.
fn resolve_broker(file: &ConfigFile) -> BrokerConfig {
    let peers = &file.rules.policy.peers;
    let mut broker = file.broker.clone();
    broker.aliases.retain(|name| !peers.contains_key(name));
    broker
}

fn resolve_telemetry(file: &ConfigFile) -> TelemetryConfig {
    let name = file.service_name.clone();
    TelemetryConfig {
        otlp: file.otlp.clone(),
        service_name: name.unwrap_or_else(|| defaults::SERVICE_NAME.to_owned()),
        sample: file.sample.unwrap_or(defaults::SAMPLE),
    }
}

/// Resolves every server. Changeable templates are recorded even for broken servers.
fn resolve_servers(
    sections: Vec<ServerSection>,
    input: ResolveInput<'_>,
    config: &mut Config,
    problems: &mut Vec<ConfigProblem>,
) {
    let mut names: Vec<String> = Vec::with_capacity(sections.len());
    for server in sections {
        let name = match input.syntax {
            ConfigSyntax::Toml => server.name.clone(),
            ConfigSyntax::Json => {
                let slug = config_names::to_slug(&server.name);
                config_names::unique_slug(&slug, |name| names.iter().any(|taken| taken == name))
            }
        };
        warn_about_server(&server, &name, input, &mut config.warnings);
        let mut watched = secret_origins::watched_templates(&server, &name, input.source);
        match resolve_server(&server, &name, input.source) {
            Ok(server) => config.servers.push(server),
            Err(ServerResolveError::File(problem)) => problems.push(problem),
            Err(ServerResolveError::Machine(reason)) => {
                watched.require_all_to_start();
                config.broken_servers.push(BrokenServer {
                    name: name.as_str().into(),
                    reason,
                });
            }
        }
        if !watched.is_empty() {
            config.watched_templates.push(watched);
        }
        names.push(name);
    }
}

/// Reads the allowlist document. Without the document the disabled features are unknown, so an
/// unreadable document refuses the whole file.
fn read_allowlist(
    path: &UnexpandedText,
    source: ExpandSource<'_>,
) -> Result<Allowlist, ConfigProblem> {
    let problem = |label: String| {
        let message = "the allowlist document cannot be used";
        ConfigProblem::new(path.span.clone(), message, label)
    };
    let expanded = expand_with(&path.text, source, |_, _| {});
    let expanded = expanded.map_err(|error| problem(error.to_string()))?;
    let file = source.directory.join(expanded);
    let text = read_bounded_text(&file, DOCUMENT_BYTES_MAX as u64).map_err(|error| {
        let cause = std::error::Error::source(&error);
        problem(cause.map_or_else(|| error.to_string(), ToString::to_string))
    })?;
    Allowlist::parse(text.as_bytes()).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        problem(format!("{error}{}", cause.unwrap_or_default()))
    })
}
