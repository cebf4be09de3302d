//! Sets up an executor from its command line and config.

use std::path::PathBuf;
use std::sync::Arc;

use bowline_core::egress::EgressRule;
use bowline_host::executor::{
    ExecutorProtocol, ExecutorService, ServiceStatus, with_exec_server_limits,
};
use bowline_runtime::{SystemClock, TaskTracker};

use crate::assemble::{AssembleError, ChildDefaults};
use crate::cli::args::ExecutorAllowArgs;
use crate::cli::{CliFailure, CliOutput, CommandContext, up};
use crate::executor_offer;
use crate::telemetry::Telemetry;
use bowline_config::secrets::SecretVault;
use bowline_config::secrets::secret_watch::refresh_outdated;
use bowline_config::state;
use bowline_config::{Config, UpstreamConfig};

/// A configured executor.
pub(super) struct ExecutorSetup {
    pub(super) service: ExecutorService,
    /// Kept alive for the executor's logs and traces.
    pub(super) telemetry: Telemetry,
}

/// Sets up an executor of this name.
pub(super) fn set_up_executor(
    name: &str,
    protocol: ExecutorProtocol,
    args: &ExecutorAllowArgs,
    context: &mut CommandContext,
) -> Result<ExecutorSetup, CliFailure> {
    if !bowline_core::name::is_server_name(name) {
        let message = format!("--name `{}` cannot be used", name.escape_debug());
        let form = "lower-case letters, digits and `-`, at most 32, not `-` first";
        return Err(CliFailure::usage(message).with_hint(form));
    }
    let mut rules = Vec::with_capacity(args.allow.len());
    for text in &args.allow {
        rules.push(parse_rule(text)?);
    }
    let config = load_executor_config(context)?;
    if config.executor_offer.allow.is_empty()
        && config.executor_offer.servers.is_empty()
        && rules.is_empty()
    {
        context.out.write_warning(
            "no request can leave from here: nothing is allowed (--allow HOST:PORT)",
        );
    }
    let telemetry = up::start_telemetry(&context.env, &config.telemetry);
    let own_path = std::env::current_exe().map_err(AssembleError::OwnPath)?;
    let state = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    let child_defaults = ChildDefaults::new(own_path, &state);
    let offer = executor_offer::build_offer(
        name,
        &config,
        &rules,
        &child_defaults,
        &context.env,
        &telemetry.redactor,
    );
    let offer = match protocol {
        ExecutorProtocol::Bowline => offer,
        ExecutorProtocol::ExecServer => with_exec_server_limits(offer),
    };
    let (tasks, clock) = (TaskTracker::default(), Arc::new(SystemClock::start()));
    let secrets = config.executor_offer.secrets.values();
    let texts: Vec<_> = secrets.map(|secret| secret.value.clone()).collect();
    tasks.spawn("secrets", refresh_outdated(config.secrets.clone(), texts));
    let service = ExecutorService::new(offer, tasks, clock);
    Ok(ExecutorSetup { service, telemetry })
}

/// Returns the path of `--token-file`, if given, after checking that the file is readable.
pub(super) fn checked_token_file(context: &CommandContext) -> Result<Option<PathBuf>, CliFailure> {
    let from_flag = context.global.token_file.clone();
    let file = from_flag.or_else(|| context.env.path("BOWLINE_TOKEN_FILE"));
    if let Some(file) = &file {
        // The file is read again for every connection.
        state::read_token(file)?;
    }
    Ok(file)
}

/// Prints the state of the connection.
pub(super) fn print_status(status: &ServiceStatus, other: &str, out: &mut CliOutput) {
    match status {
        ServiceStatus::Connected => out.write_note(&format!("{other}: connected")),
        ServiceStatus::Away(reason) => {
            out.write_note(&format!("{other} is away; it is tried again: {reason}"))
        }
        ServiceStatus::Refused { reason, .. } => {
            out.write_note(&format!(
                "{other} does not want us; it is tried again: {reason}"
            ));
        }
        ServiceStatus::Waiting | ServiceStatus::Closed => {}
    }
}

fn parse_rule(text: &str) -> Result<EgressRule, CliFailure> {
    EgressRule::parse(text).map_err(|error| {
        let message = format!("--allow `{}` cannot be used: {error}", text.escape_debug());
        CliFailure::usage(message).with_hint("for instance --allow tracker.example:443")
    })
}

fn load_executor_config(context: &mut CommandContext) -> Result<Config, CliFailure> {
    // Without --config the executor has no servers or secrets, even if a default file exists.
    let Some(path) = context.config_path() else {
        return Ok(Config::default());
    };
    let directory = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    let vault = SecretVault::open(&directory, &context.env);
    let config = bowline_config::load_config_with(Some(path), &context.env, &vault)?;
    for warning in &config.warnings {
        context.out.write_warning(&warning.message);
    }
    for broken in &config.broken_servers {
        context.out.write_warning(&up::broken_server_line(broken));
    }
    let is_local = |reach: &UpstreamConfig| matches!(reach, UpstreamConfig::Child(_));
    for server in config
        .servers
        .iter()
        .filter(|server| !is_local(&server.upstream))
    {
        let message = format!(
            "server `{}` is not started here, and is not offered",
            server.name
        );
        context.out.write_warning(&message);
    }
    Ok(config)
}
