//! `worker join`: runs a gateway in the foreground with the tools of a hub.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::display_chain;
use bowline_core::policy::FeaturePattern;
use bowline_host::broker::{BrokerConnectError, RemotePeer as _};
use bowline_link::websocket::DialError;
use http::Uri;

use crate::assemble::Gateway;
use crate::cli::args::WorkerJoinArgs;
use crate::cli::failure::gateway_name_hint;
use crate::cli::gateway_finder::check_exposure;
use crate::cli::stdio::{self, gateway_starter::GatewayStarter};
use crate::cli::up::{self, GatewaySignals};
use crate::cli::{CliExit, CliFailure, CliOutput, CommandContext, OutputFormat};
use crate::worker::{Worker, WorkerOptions};
use bowline_config::Config;
use bowline_config::secrets::SecretVault;
use bowline_config::state::{self, StateDir};
use bowline_edge::AuthMode;

/// Maximum wait for the first connection before the worker serves disconnected.
const FIRST_CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Default listen address for local agents.
const DEFAULT_LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Runs a worker until SIGINT or SIGTERM, or until another worker takes over.
pub(super) fn run(
    join: &WorkerJoinArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let runtime = up::create_server_runtime()?;
    let outcome = runtime.block_on(run_worker(join, context));
    // A blocking read of stdin cannot be cancelled; the process must not wait for stdin.
    runtime.shutdown_background();
    outcome
}

async fn run_worker(
    join: &WorkerJoinArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let mut signals = GatewaySignals::register()?;
    let options = worker_options(join, context)?;
    let directory = state_directory(&options.hub, context)?;
    let config = load_worker_config(join, &directory, context)?;
    let state = StateDir::open(directory)?;
    let telemetry = up::start_telemetry(&context.env, &config.telemetry);
    let gateway =
        Gateway::start(config, state, AuthMode::Required, &context.env, telemetry).await?;
    let worker = Worker::join_hub(gateway, &options).await;
    let worker = worker.map_err(|error| to_failure(&options.hub, &error))?;
    let ready = tokio::select! {
        ready = worker.wait_ready(FIRST_CONNECT_WAIT) => ready,
        () = signals.wait_for_stop() => {
            worker.stop().await;
            return Ok(CliExit::Ok);
        }
    };
    if let Err(error) = &ready {
        if is_permanent(error) {
            worker.stop().await;
            return Err(to_failure(&options.hub, error));
        }
        let hub = &options.hub;
        context.out.write_warning(&format!(
            "hub {hub} is away; it is tried again: {}",
            display_chain(error)
        ));
    }
    print_ready(join, &options, &worker, context)?;
    let hub_error = run_until_stopped(join, &worker, &mut signals, context).await;
    context.out.write_note("stopping");
    tokio::select! {
        () = worker.stop() => {}
        // A second signal skips the wait for servers; reapers end the processes.
        () = signals.wait_for_stop() => {}
    }
    match hub_error {
        None => Ok(CliExit::Ok),
        Some(error) => Err(to_failure(&options.hub, &error)),
    }
}

fn worker_options(
    join: &WorkerJoinArgs,
    context: &CommandContext,
) -> Result<WorkerOptions, CliFailure> {
    check_exposure(join.hub.trim(), context.global.insecure)?;
    let from_flag = context.global.token_file.clone();
    let token_file = from_flag.or_else(|| context.env.path("BOWLINE_TOKEN_FILE"));
    let Some(token_file) = token_file else {
        let message = "a worker proves who it is by a token of its hub";
        let make = "on the hub: bowline token create --principal NAME --role ROLE";
        return Err(CliFailure::usage(message)
            .with_hint("add --token-file FILE")
            .with_hint(make));
    };
    // Checked once before the start; the file is read again for every connection.
    state::read_token(&token_file)?;
    let mut offers = Vec::new();
    for text in &join.offer {
        let pattern = FeaturePattern::parse(text).map_err(|error| {
            CliFailure::usage(format!("--offer `{text}` cannot be used: {error}"))
        })?;
        offers.push(pattern);
    }
    Ok(WorkerOptions {
        hub: join.hub.clone(),
        token_file,
        offers,
    })
}

/// Returns the state directory: a separate one for each hub, apart from `bowline up` and workers
/// of other hubs.
fn state_directory(hub: &str, context: &CommandContext) -> Result<PathBuf, CliFailure> {
    let root = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    if context.global.state.is_some() {
        return Ok(root);
    }
    let wrong = || CliFailure::usage(format!("`{hub}` cannot be used: expected http://HOST:PORT"));
    let uri: Uri = hub.trim().parse().map_err(|_error| wrong())?;
    let host = uri.host().ok_or_else(wrong)?;
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') => c.to_ascii_lowercase(),
        _ => '_',
    };
    let host: String = host.chars().map(plain).collect();
    let usual = match uri.scheme_str() {
        Some("https" | "wss") => 443,
        _ => 80,
    };
    let port = uri.port_u16().unwrap_or(usual);
    Ok(root.join(format!("worker-{host}-{port}")))
}

fn load_worker_config(
    join: &WorkerJoinArgs,
    directory: &std::path::Path,
    context: &mut CommandContext,
) -> Result<Config, CliFailure> {
    // Without --config the worker has no servers, even if a default file exists.
    let mut config = match context.config_path() {
        None => Config::default(),
        Some(path) => {
            let vault = SecretVault::open(directory, &context.env);
            bowline_config::load_config_with(Some(path), &context.env, &vault)?
        }
    };
    for warning in &config.warnings {
        context.out.write_warning(&warning.message);
    }
    for broken in &config.broken_servers {
        context.out.write_warning(&up::broken_server_line(broken));
    }
    config.listen_override = match join.listen.as_slice() {
        [] => vec![DEFAULT_LISTEN.into()],
        given => given.to_vec(),
    };
    Ok(config)
}

/// Prints readiness and the endpoint.
fn print_ready(
    join: &WorkerJoinArgs,
    options: &WorkerOptions,
    worker: &Worker,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    let run = &worker.gateway().run;
    let mailbox = worker.client().mailbox();
    let is_connected = worker.client().is_connected();
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "mcp": run.mcp,
        "token_file": run.token_file,
        "pid": run.pid,
        "hub": options.hub,
        "mailbox": mailbox,
        "connected": is_connected,
    });
    let hub = match &mailbox {
        Some(mailbox) => format!("{} as {mailbox}", options.hub),
        None => format!("{} (away)", options.hub),
    };
    let lines = [
        format!("bowline {} works for a hub", env!("CARGO_PKG_VERSION")),
        format!("  hub         {hub}"),
        format!("  endpoint    {}", run.mcp),
        format!("  token file  {}", run.token_file.display()),
        "  stop        Ctrl-C".to_owned(),
    ];
    let out = &mut context.out;
    match (join.stdio, out.format()) {
        (false, _) => out.write_result(&ready, |out| {
            lines.iter().try_for_each(|line| out.write_line(line))
        })?,
        // Stdout carries MCP.
        (true, OutputFormat::Json) => out.write_note(&ready.to_string()),
        (true, OutputFormat::Human) => lines.iter().for_each(|line| out.write_note(line)),
    }
    Ok(())
}

/// Runs until a stop signal, and reports events; returns the reason if the hub ended the
/// connection for good.
async fn run_until_stopped(
    join: &WorkerJoinArgs,
    worker: &Worker,
    signals: &mut GatewaySignals,
    context: &mut CommandContext,
) -> Option<BrokerConnectError> {
    let gateway = worker.gateway();
    let mut outcomes = gateway.reloader().subscribe_outcomes();
    let mut hub = ReportedConnection::from_worker(worker);
    let mut changes = worker.client().subscribe_changes();
    let run = gateway.run.clone();
    let starter = GatewayStarter::new(context);
    let client = async {
        match (join.stdio, starter) {
            (true, Ok(starter)) => stdio::serve_own_gateway(&run, starter).await,
            (true, Err(failure)) => Err(failure),
            (false, _) => std::future::pending().await,
        }
    };
    let mut client = std::pin::pin!(client);
    let out = &mut context.out;
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return None,
            _ = signals.interrupt.recv() => return None,
            _ = signals.hangup.recv() => {
                // The outcome arrives through the subscription below.
                if let Err(error) = gateway.reloader().reload(gateway.host()).await {
                    out.write_note(&error.to_string());
                }
            }
            ended = &mut client => {
                if let Err(failure) = ended {
                    out.write_failure(&failure);
                }
                return None;
            }
            Ok(outcome) = outcomes.recv() => up::print_outcome(&outcome, out),
            Ok(()) = changes.changed() => {
                if let Some(error) = worker.client().closed_reason() {
                    return Some(error);
                }
                hub.report_change(worker, out);
            }
        }
    }
}

/// The last reported state of the connection.
struct ReportedConnection {
    is_connected: bool,
}

impl ReportedConnection {
    fn from_worker(worker: &Worker) -> Self {
        Self {
            is_connected: worker.client().is_connected(),
        }
    }

    fn report_change(&mut self, worker: &Worker, out: &mut CliOutput) {
        let is_connected = worker.client().is_connected();
        if std::mem::replace(&mut self.is_connected, is_connected) == is_connected {
            return;
        }
        let name: Arc<str> = worker.client().name();
        match worker.client().mailbox() {
            Some(mailbox) => out.write_note(&format!("hub {name}: connected as {mailbox}")),
            None => out.write_note(&format!("hub {name} is away; it is tried again")),
        }
    }
}

/// Returns whether retrying is pointless.
fn is_permanent(error: &BrokerConnectError) -> bool {
    match error {
        BrokerConnectError::Endpoint(_)
        | BrokerConnectError::Credential(_)
        | BrokerConnectError::Refused(_)
        | BrokerConnectError::Fenced(_)
        | BrokerConnectError::Closed
        | BrokerConnectError::Dial(DialError::Token) => true,
        BrokerConnectError::Dial(DialError::Refused { status }) => {
            matches!(status, 401 | 403 | 404)
        }
        BrokerConnectError::Dial(_)
        | BrokerConnectError::Ended(_)
        | BrokerConnectError::Manifest(_)
        | BrokerConnectError::Timeout => false,
    }
}

fn to_failure(hub: &str, error: &BrokerConnectError) -> CliFailure {
    let reason = display_chain(error);
    let (exit, code) = match error {
        BrokerConnectError::Endpoint(_) => (CliExit::Usage, "usage"),
        BrokerConnectError::Credential(_)
        | BrokerConnectError::Refused(_)
        | BrokerConnectError::Dial(DialError::Token | DialError::Refused { status: 401 }) => {
            (CliExit::Auth, "auth")
        }
        BrokerConnectError::Dial(DialError::Refused { status: 403 }) => {
            (CliExit::Denied, "host_refused")
        }
        BrokerConnectError::Fenced(_) => (CliExit::Unexpected, "fenced"),
        BrokerConnectError::Closed => (CliExit::Unexpected, "unexpected"),
        BrokerConnectError::Dial(_)
        | BrokerConnectError::Ended(_)
        | BrokerConnectError::Manifest(_)
        | BrokerConnectError::Timeout => (CliExit::Unreachable, "unreachable"),
    };
    let failure = CliFailure::new(exit, code, format!("cannot work for hub {hub}: {reason}"));
    match error {
        BrokerConnectError::Fenced(_) => failure
            .with_hint("two workers use one token, and the newer has its place")
            .with_hint("give each its own: bowline token create --principal NAME --role ROLE"),
        BrokerConnectError::Dial(DialError::Refused { status: 404 }) => {
            failure.with_hint("there is no broker at that address")
        }
        BrokerConnectError::Dial(DialError::Refused { status: 403 }) => {
            failure.with_hint(gateway_name_hint(hub))
        }
        _ if exit == CliExit::Auth => {
            failure.with_hint("on the hub: bowline token create --principal NAME --role ROLE")
        }
        _ => failure,
    }
}
