//! `executor join`: dials a gateway and serves requests from this network.

use std::time::Duration;

use bowline_core::error::display_chain;
use bowline_host::executor::{
    ExecutorProtocol, ExecutorRunError, ExecutorRunOptions, ExecutorService, ServiceStatus,
    run_executor_with,
};
use bowline_runtime::Lifecycle;
use tokio::time::timeout;

use super::setup::{self, ExecutorSetup};
use crate::cli::args::ExecutorJoinArgs;
use crate::cli::failure::gateway_name_hint;
use crate::cli::gateway_finder::check_exposure;
use crate::cli::up::{self, GatewaySignals};
use crate::cli::{CliExit, CliFailure, CommandContext};
use bowline_config::state;

/// Maximum wait for the first connection before the executor reports readiness.
const FIRST_CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Runs an executor until SIGINT or SIGTERM, or until another executor takes over the name.
pub(super) fn run(
    join: &ExecutorJoinArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    up::create_server_runtime()?.block_on(run_executor(join, context))
}

async fn run_executor(
    join: &ExecutorJoinArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    check_exposure(join.gateway.trim(), context.global.insecure)?;
    let mut signals = GatewaySignals::register()?;
    let Some(file) = setup::checked_token_file(context)? else {
        let message = "an executor proves who it is by a token of its gateway";
        return Err(CliFailure::usage(message)
            .with_hint("add --token-file FILE")
            .with_hint(token_command(&join.name)));
    };
    let ExecutorSetup {
        service,
        telemetry: _telemetry,
    } = setup::set_up_executor(&join.name, ExecutorProtocol::Bowline, &join.means, context)?;
    let lifecycle = Lifecycle::default();
    let shutdown = lifecycle.shutdown();
    let credential = state::token_file_credential(&file);
    let options = ExecutorRunOptions::default();
    let running = run_executor_with(
        &join.gateway,
        &credential,
        &service,
        options,
        shutdown.wait_closing(),
    );
    let mut running = std::pin::pin!(running);
    let mut status = service.status();
    let first_change = status.wait_for(|current| *current != ServiceStatus::Waiting);
    let first = tokio::select! {
        ran = &mut running => return to_exit(join, ran),
        first = timeout(FIRST_CONNECT_WAIT, first_change) => {
            first.map_or(ServiceStatus::Waiting, |how| {
                how.map_or(ServiceStatus::Closed, |how| how.clone())
            })
        }
        () = signals.wait_for_stop() => ServiceStatus::Closed,
    };
    if let ServiceStatus::Refused { status, reason } = &first {
        lifecycle.close();
        // Waits for an orderly close.
        let _ran = running.await;
        return Err(refused_failure(join, *status, reason));
    }
    if first != ServiceStatus::Closed {
        setup::print_status(&first, &join.gateway, &mut context.out);
        print_ready(join, &service, first == ServiceStatus::Connected, context)?;
    }
    status.mark_unchanged();
    loop {
        tokio::select! {
            ran = &mut running => return to_exit(join, ran),
            () = signals.wait_for_stop(), if !shutdown.is_closing() => {
                context.out.write_note("stopping");
                lifecycle.close();
            }
            Ok(()) = status.changed() => {
                let how = status.borrow_and_update().clone();
                setup::print_status(&how, &join.gateway, &mut context.out);
            }
        }
    }
}

/// Prints readiness.
fn print_ready(
    join: &ExecutorJoinArgs,
    service: &ExecutorService,
    is_connected: bool,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    let offer = service.offer();
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "name": join.name,
        "pid": std::process::id(),
        "gateway": join.gateway,
        "connected": is_connected,
        "servers": offer.servers.keys().collect::<Vec<_>>(),
    });
    let away_note = if is_connected { "" } else { " (away)" };
    let lines = [
        format!(
            "bowline {} is executor {}",
            env!("CARGO_PKG_VERSION"),
            join.name
        ),
        format!("  gateway  {}{away_note}", join.gateway),
        format!("  use it   via = \"executor:{}\"", join.name),
        "  stop     Ctrl-C".to_owned(),
    ];
    context.out.write_result(&ready, |out| {
        lines.iter().try_for_each(|line| out.write_line(line))
    })
}

fn to_exit(
    join: &ExecutorJoinArgs,
    result: Result<(), ExecutorRunError>,
) -> Result<CliExit, CliFailure> {
    let gateway = &join.gateway;
    match result {
        Ok(()) => Ok(CliExit::Ok),
        Err(error @ ExecutorRunError::Endpoint(_)) => Err(CliFailure::usage(format!(
            "`{gateway}` cannot be used: {}",
            display_chain(&error)
        ))
        .with_hint("for instance http://gateway.example:7331")),
        Err(ExecutorRunError::Fenced) => {
            let message = format!("another executor of {gateway} is `{}` now", join.name);
            Err(CliFailure::new(CliExit::Unexpected, "fenced", message)
                .with_hint("two executors have one name, and the newer has its place")
                .with_hint("give each its own --name"))
        }
    }
}

fn refused_failure(join: &ExecutorJoinArgs, status: Option<u16>, reason: &str) -> CliFailure {
    let (gateway, name) = (&join.gateway, &join.name);
    let message = format!("cannot be executor `{name}` of {gateway}: {reason}");
    if status == Some(404) {
        return CliFailure::new(CliExit::Unreachable, "unreachable", message)
            .with_hint("there is no gateway at that address");
    }
    // Credentials are refused with 401, or after the connection is open.
    if status == Some(403) {
        return CliFailure::new(CliExit::Denied, "host_refused", message)
            .with_hint(gateway_name_hint(gateway));
    }
    CliFailure::new(CliExit::Auth, "auth", message)
        .with_hint(token_command(name))
        .with_hint(format!(
            "or let its principal have the name: [principals.P] executors = [\"{name}\"]"
        ))
}

/// Returns the command to create a token for the executor.
fn token_command(name: &str) -> String {
    format!("on the gateway: bowline token create --kind executor --principal {name}")
}
