//! `up`: runs a gateway in the foreground.

mod detach;
mod terminal;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::heap::retain_freed_memory;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_host::SpawnOptions;
use bowline_host::supervisor::ServerState;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Interval;

use self::terminal::ControllingTerminal;
use super::{CliExit, CliFailure, CliOutput, CommandContext, UpArgs, demo_server, trust};
use crate::assemble::{AssembleError, Gateway, fix_of_journal};
use crate::cli::OutputFormat;
use crate::telemetry::{self, Telemetry};
use bowline_api::servers::BrokenServer;
use bowline_config::reload::ReloadOutcome;
use bowline_config::secrets::SecretVault;
use bowline_config::state::{self, RunRecord, StateDir};
use bowline_config::{Config, EnvVars};
use bowline_edge::{AuditOpenError, AuthMode};

/// Maximum time `up` reports on starting servers.
const START_REPORT_MAX: Duration = Duration::from_secs(60);

/// Report interval.
const START_REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// Runs a gateway until SIGINT or SIGTERM, or until the terminal is gone.
pub(super) fn run(up: &UpArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    if up.detach {
        return detach::run_detached(up, context);
    }
    if up.for_client || up.detached {
        // Fails for a process group leader, unreached by signals of the terminal.
        let _session = rustix::process::setsid();
    }
    create_server_runtime()?.block_on(run_gateway(up, context))?;
    Ok(CliExit::Ok)
}

async fn run_gateway(up: &UpArgs, context: &mut CommandContext) -> Result<(), CliFailure> {
    let terminal = ControllingTerminal::open_controlling();
    let mut signals = GatewaySignals::register()?;
    let directory = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    let mut config = if up.demo {
        Config::default()
    } else {
        let vault = SecretVault::open(&directory, &context.env);
        if up.for_client {
            bowline_config::load_config_with(context.config_path(), &context.env, &vault)?
        } else {
            trust::load_config(context, &directory, &vault)?
        }
    };
    for warning in &config.warnings {
        context.out.write_warning(&warning.message);
    }
    for broken in &config.broken_servers {
        context.out.write_warning(&broken_server_line(broken));
    }
    if !up.listen.is_empty() {
        config.listen_override.clone_from(&up.listen);
    }
    let auth = if up.insecure_no_auth {
        AuthMode::NotForMcp
    } else {
        AuthMode::Required
    };
    let state = StateDir::open(directory)?;
    let telemetry = start_telemetry(&context.env, &config.telemetry);
    let gateway = Gateway::start(config, state, auth, &context.env, telemetry).await?;
    if up.demo {
        add_demo_server(&gateway).await?;
    }
    print_ready(&gateway.run, up, context, "Ctrl-C")?;
    run_until_stopped(&gateway, &mut signals, terminal.as_ref(), &mut context.out).await;
    context.out.write_note("stopping");
    tokio::select! {
        () = gateway.stop() => {}
        // A second signal skips the wait for servers; reapers end the processes.
        () = signals.wait_for_stop() => {}
    }
    Ok(())
}

/// Adds the server of the demo.
async fn add_demo_server(gateway: &Gateway) -> Result<(), CliFailure> {
    let host = gateway.host();
    let server = demo_server::demo_server(Arc::clone(host.clock()));
    let spawned = host.spawn(server, SpawnOptions::default()).await;
    spawned.map_err(|error| CliFailure::unexpected(error.to_string()))?;
    Ok(())
}

/// The handled signals.
pub(super) struct GatewaySignals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    /// Reloads the config file.
    pub(super) hangup: Signal,
}

impl GatewaySignals {
    pub(super) fn register() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn wait_for_stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Prints readiness, the endpoint, and a command to try.
fn print_ready(
    run: &RunRecord,
    up: &UpArgs,
    context: &mut CommandContext,
    stop: &str,
) -> Result<(), CliFailure> {
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "mcp": run.mcp,
        "token_file": run.token_file,
        "pid": run.pid,
    });
    let mut lines = vec![
        format!("bowline {} is up", env!("CARGO_PKG_VERSION")),
        format!("  endpoint    {}", run.mcp),
        format!("  token file  {}", run.token_file.display()),
    ];
    if up.insecure_no_auth {
        lines.push(
            "  \u{1b}[31mauthentication is OFF: any local program may call any tool\u{1b}[0m"
                .to_owned(),
        );
    }
    if up.demo {
        let own_path = std::env::current_exe().map_err(AssembleError::OwnPath)?;
        let state = context.global.state.as_ref();
        let state = state.map_or_else(String::new, |dir| format!(" --state {}", dir.display()));
        let own_path = own_path.display();
        lines.push(format!(
            "  try         {own_path}{state} call demo.add a=2 b=3"
        ));
    }
    lines.push(format!("  stop        {stop}"));
    context.out.write_result(&ready, |out| {
        lines.iter().try_for_each(|line| out.write_line(line))
    })?;
    Ok(())
}

/// Reports the start of servers.
struct StartReporter {
    starting: Vec<Arc<str>>,
    since: MonotonicTime,
    tick: Interval,
}

impl StartReporter {
    fn new(gateway: &Gateway) -> Self {
        let mut this = Self {
            starting: Vec::new(),
            since: MonotonicTime::default(),
            tick: tokio::time::interval(START_REPORT_INTERVAL),
        };
        this.add_servers(gateway, gateway.host().servers());
        this
    }

    fn add_servers(&mut self, gateway: &Gateway, servers: Vec<Arc<str>>) {
        self.since = gateway.host().clock().now();
        self.starting.extend(servers);
    }

    /// Reports started and failed servers, for a limited time.
    fn report_settled(&mut self, gateway: &Gateway, out: &mut CliOutput) {
        let now = gateway.host().clock().now();
        let took_ms = now.millis_since(self.since);
        if took_ms > to_millis(START_REPORT_MAX) {
            self.starting.clear();
        }
        self.starting.retain(|name| {
            let Ok(server) = gateway.host().server(name) else {
                return false;
            };
            let state = server.subscribe_state().borrow().clone();
            if state.is_settled() {
                out.write_note(&started_line(gateway, name, &state, took_ms));
            }
            !state.is_settled()
        });
    }
}

/// Runs until a stop signal, and reports events.
async fn run_until_stopped(
    gateway: &Gateway,
    signals: &mut GatewaySignals,
    terminal: Option<&ControllingTerminal>,
    out: &mut CliOutput,
) {
    let mut starts = StartReporter::new(gateway);
    let mut outcomes = gateway.reloader().subscribe_outcomes();
    let is_human = out.format() == OutputFormat::Human;
    let GatewaySignals {
        terminate,
        interrupt,
        hangup,
    } = signals;
    loop {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hangup.recv() => {
                if terminal.is_some_and(ControllingTerminal::has_hung_up) {
                    return;
                }
                // The outcome arrives through the subscription below.
                if let Err(error) = gateway.reloader().reload(gateway.host()).await {
                    out.write_note(&error.to_string());
                }
            }
            Ok(outcome) = outcomes.recv() => {
                print_outcome(&outcome, out);
                if let ReloadOutcome::Applied(report) = outcome.as_ref() {
                    let changed = report.applied.changed.iter().map(|one| &one.server);
                    let fresh = report.applied.added.iter().chain(changed);
                    starts.add_servers(gateway, fresh.cloned().collect());
                }
            }
            _ = starts.tick.tick(), if is_human && !starts.starting.is_empty() => {
                starts.report_settled(gateway, out);
            }
        }
    }
}

pub(super) fn print_outcome(outcome: &ReloadOutcome, out: &mut CliOutput) {
    match outcome {
        ReloadOutcome::Applied(report) => {
            for warning in &report.warnings {
                out.write_warning(warning);
            }
            for broken in &report.broken {
                out.write_warning(&broken_server_line(broken));
            }
            out.write_note(&format!("config applied in {} ms", report.took_ms));
            for line in report.summary_lines() {
                out.write_note(&line);
            }
        }
        ReloadOutcome::Refused(refusal) => {
            out.write_note(&refusal.report);
            out.write_note("the config file is not applied; everything stays as it is");
        }
    }
}

pub(super) fn broken_server_line(broken: &BrokenServer) -> String {
    format!("server `{}` is left out: {}", broken.name, broken.reason)
}

fn started_line(gateway: &Gateway, name: &str, state: &ServerState, took_ms: u64) -> String {
    let catalog = gateway.host().catalog();
    let tools = catalog.server(name).map_or(0, |offer| offer.tools.len());
    match state {
        ServerState::Ready => format!("  + {name:<12} {tools} tools  {took_ms} ms"),
        ServerState::Idle => format!("  o {name:<12} starts with its first call"),
        ServerState::Backoff { reason, .. } | ServerState::Ejected { reason } => {
            format!("  ! {name:<12} {reason}  -> bowline logs {name}")
        }
        ServerState::Stopped | ServerState::Starting | ServerState::Draining => {
            format!("  - {name:<12} {}", state.as_str())
        }
    }
}

impl From<AssembleError> for CliFailure {
    fn from(error: AssembleError) -> Self {
        match error {
            AssembleError::State(error) => error.into(),
            AssembleError::Journal(ref source) => {
                let failure = Self::new(CliExit::Unexpected, "journal", error.to_string());
                let cause = std::error::Error::source(source);
                let cause = cause.map(|cause| format!("cause: {cause}"));
                let fix = fix_of_journal(source).map(|fix| format!("fix: {fix}"));
                cause.into_iter().chain(fix).fold(failure, Self::with_hint)
            }
            AssembleError::Audit(AuditOpenError::State(error)) => error.into(),
            AssembleError::Audit(AuditOpenError::Trail(error)) => {
                super::audit_command::unreadable_trail(&error)
                    .with_hint("to do without it: [audit] calls = false")
            }
            AssembleError::Exposed(_) => Self::usage(error.to_string())
                .with_hint("listen on 127.0.0.1 or [::1], or keep authentication on"),
            AssembleError::Listen { ref source, .. } => {
                let busy = source.kind() == io::ErrorKind::AddrInUse;
                let failure = Self::new(CliExit::Unexpected, "listen", error.to_string())
                    .with_hint(format!("cause: {source}"));
                if busy {
                    failure.with_hint("fix: bowline up --listen 127.0.0.1:0 takes a free port")
                } else {
                    failure
                }
            }
            AssembleError::Tls(ref source) => {
                Self::unexpected(error.to_string()).with_hint(format!("cause: {source}"))
            }
            AssembleError::Broker(ref source) => {
                Self::unexpected(error.to_string()).with_hint(format!("cause: {source}"))
            }
            AssembleError::OwnPath(ref source) | AssembleError::Launcher(ref source) => {
                Self::unexpected(error.to_string()).with_hint(format!("cause: {source}"))
            }
        }
    }
}

/// Sets up logging to stderr; `BOWLINE_LOG` sets the filter.
pub(super) fn start_telemetry(
    env: &EnvVars,
    traces: &bowline_config::TelemetryConfig,
) -> Telemetry {
    let format = telemetry::LogFormat::parse(env.text("BOWLINE_LOG_FORMAT"));
    Telemetry::start(env.text("BOWLINE_LOG"), format, traces)
}

/// Prepares this process to serve, and creates the runtime.
pub(super) fn create_server_runtime() -> io::Result<Runtime> {
    raise_descriptor_limit();
    retain_freed_memory();
    // A single thread runs all calls: the least CPU per call in measurements.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Raises the descriptor limit: many sessions need many, and the soft limit is far below the hard
/// one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "descriptor limit not raised"
        );
    }
}
