//! `bowline up`: runs a gateway in the foreground until it is told to stop.

mod detach;
mod terminal;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::heap::keep_freed;
use bowline_core::time::{Now, millis};
use bowline_host::supervisor::State as ServerState;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Interval;

use self::terminal::Terminal;
use super::{Context, Exit, Failure, Out, Up, trust};
use crate::assemble::{AssembleError, Gateway, fix_of_journal};
use crate::audit;
use crate::cli::Format;
use crate::config::{self, Broken, Child, Config, Env, Reach, ServerConfig};
use crate::edge::door::Auth;
use crate::reload::Outcome;
use crate::secrets::Vault;
use crate::state::{self, Run, State};
use crate::telemetry::{self, Telemetry};

/// How long `up` reports on servers that are starting.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// How often it looks.
const REPORT_TICK: Duration = Duration::from_millis(50);

/// Runs a gateway until SIGINT or SIGTERM, or until its terminal is gone.
pub(super) fn run(up: &Up, context: &mut Context) -> Result<Exit, Failure> {
    if up.detach {
        return detach::run(up, context);
    }
    if up.for_client || up.detached {
        // Fails for the leader of a process group, which signals of the terminal do not reach.
        let _session = rustix::process::setsid();
    }
    runtime()?.block_on(serve(up, context))?;
    Ok(Exit::Ok)
}

async fn serve(up: &Up, context: &mut Context) -> Result<(), Failure> {
    let terminal = Terminal::controlling();
    let mut signals = Signals::watch()?;
    let directory = state::locate(context.global.state.as_deref(), &context.env)?;
    let mut config = if up.demo {
        demo()?
    } else {
        let vault = Vault::of(&directory, &context.env);
        if up.for_client {
            config::load_with(context.config(), &context.env, &vault)?
        } else {
            trust::load(context, &directory, &vault)?
        }
    };
    for warning in &config.warnings {
        context.out.warning(&warning.message);
    }
    for broken in &config.broken {
        context.out.warning(&left_out(broken));
    }
    if !up.listen.is_empty() {
        config.listen_instead.clone_from(&up.listen);
    }
    let auth = if up.insecure_no_auth {
        Auth::NotForMcp
    } else {
        Auth::Required
    };
    let state = State::open(directory)?;
    let telemetry = telemetry(&context.env, &config.telemetry);
    let gateway = Gateway::start(config, state, auth, &context.env, telemetry).await?;
    announce(&gateway.run, up, (context, "Ctrl-C"))?;
    attend(&gateway, &mut signals, terminal.as_ref(), &mut context.out).await;
    context.out.note("stopping");
    tokio::select! {
        () = gateway.stop() => {}
        // Asked twice: do not wait for servers; their reapers see to them.
        () = signals.stop() => {}
    }
    Ok(())
}

/// The signals that mean something to a gateway.
pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    /// Asks for the config file to be applied.
    pub(super) hangup: Signal,
}

impl Signals {
    pub(super) fn watch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Says that the gateway serves, where, and what to try.
fn announce(run: &Run, up: &Up, (context, stop): (&mut Context, &str)) -> Result<(), Failure> {
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
        let own = std::env::current_exe().map_err(AssembleError::OwnPath)?;
        let state = context.global.state.as_ref();
        let state = state.map_or_else(String::new, |dir| format!(" --state {}", dir.display()));
        let own = own.display();
        lines.push(format!("  try         {own}{state} call demo.add a=2 b=3"));
    }
    lines.push(format!("  stop        {stop}"));
    context.out.result(&ready, |out| {
        lines.iter().try_for_each(|line| out.line(line))
    })?;
    Ok(())
}

/// Servers of which people are told how their start went.
struct Starts {
    waiting: Vec<Arc<str>>,
    since: Now,
    tick: Interval,
}

impl Starts {
    fn new(gateway: &Gateway) -> Self {
        let mut this = Self {
            waiting: Vec::new(),
            since: Now::default(),
            tick: tokio::time::interval(REPORT_TICK),
        };
        this.add(gateway, gateway.host().servers());
        this
    }

    fn add(&mut self, gateway: &Gateway, servers: Vec<Arc<str>>) {
        self.since = gateway.host().clock().now();
        self.waiting.extend(servers);
    }

    /// Tells of those that have started or failed since; not for ever.
    fn report(&mut self, gateway: &Gateway, out: &mut Out) {
        let now = gateway.host().clock().now();
        let took_ms = now.millis_since(self.since);
        if took_ms > millis(REPORT_MAX) {
            self.waiting.clear();
        }
        self.waiting.retain(|name| {
            let Ok(server) = gateway.host().server(name) else {
                return false;
            };
            let state = server.state().borrow().clone();
            if state.is_settled() {
                out.note(&started_line(gateway, name, &state, took_ms));
            }
            !state.is_settled()
        });
    }
}

/// Serves until told to stop, and tells people what happens.
async fn attend(
    gateway: &Gateway,
    signals: &mut Signals,
    terminal: Option<&Terminal>,
    out: &mut Out,
) {
    let mut starts = Starts::new(gateway);
    let mut outcomes = gateway.reloader().outcomes();
    let is_human = out.format() == Format::Human;
    let Signals {
        terminate,
        interrupt,
        hangup,
    } = signals;
    loop {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hangup.recv() => {
                if terminal.is_some_and(Terminal::is_gone) {
                    return;
                }
                // What comes of it is heard below.
                if let Err(error) = gateway.reloader().reload(gateway.host()).await {
                    out.note(&error.to_string());
                }
            }
            Ok(outcome) = outcomes.recv() => {
                tell(&outcome, out);
                if let Outcome::Applied(report) = outcome.as_ref() {
                    let changed = report.applied.changed.iter().map(|one| &one.server);
                    let fresh = report.applied.added.iter().chain(changed);
                    starts.add(gateway, fresh.cloned().collect());
                }
            }
            _ = starts.tick.tick(), if is_human && !starts.waiting.is_empty() => {
                starts.report(gateway, out);
            }
        }
    }
}

pub(super) fn tell(outcome: &Outcome, out: &mut Out) {
    match outcome {
        Outcome::Applied(report) => {
            for warning in &report.warnings {
                out.warning(warning);
            }
            for broken in &report.broken {
                out.warning(&left_out(broken));
            }
            out.note(&format!("config applied in {} ms", report.took_ms));
            for line in report.lines() {
                out.note(&line);
            }
        }
        Outcome::Refused(refusal) => {
            out.note(&refusal.report);
            out.note("the config file is not applied; everything stays as it is");
        }
    }
}

pub(super) fn left_out(broken: &Broken) -> String {
    format!("server `{}` is left out: {}", broken.name, broken.reason)
}

fn started_line(gateway: &Gateway, name: &str, state: &ServerState, took_ms: u64) -> String {
    let catalog = gateway.host().catalog();
    let tools = catalog.offer(name).map_or(0, |offer| offer.tools.len());
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

/// Returns a configuration of two servers that are part of this binary.
fn demo() -> Result<Config, Failure> {
    let own = std::env::current_exe().map_err(AssembleError::OwnPath)?;
    let server = |name: &str, toolset: &str| {
        let args = ["fixture", "--toolset", toolset].map(str::to_owned);
        let child = Child::new(own.clone().into_os_string(), args.to_vec());
        ServerConfig::new(name, Reach::Child(child))
    };
    Ok(Config {
        servers: vec![server("demo", "demo"), server("everything", "conformance")],
        ..Config::default()
    })
}

impl From<AssembleError> for Failure {
    fn from(error: AssembleError) -> Self {
        match error {
            AssembleError::State(error) => error.into(),
            AssembleError::Journal(ref source) => {
                let failure = Self::new(Exit::Unexpected, "journal", error.to_string());
                let cause = std::error::Error::source(source);
                let cause = cause.map(|cause| format!("cause: {cause}"));
                let fix = fix_of_journal(source).map(|fix| format!("fix: {fix}"));
                cause.into_iter().chain(fix).fold(failure, Self::hint)
            }
            AssembleError::Audit(audit::OpenError::State(error)) => error.into(),
            AssembleError::Audit(audit::OpenError::Trail(error)) => {
                super::audit::unreadable(&error).hint("to do without it: [audit] calls = false")
            }
            AssembleError::Exposed(_) => Self::usage(error.to_string())
                .hint("listen on 127.0.0.1 or [::1], or keep authentication on"),
            AssembleError::Listen { ref source, .. } => {
                let busy = source.kind() == io::ErrorKind::AddrInUse;
                let failure = Self::new(Exit::Unexpected, "listen", error.to_string())
                    .hint(format!("cause: {source}"));
                if busy {
                    failure.hint("fix: bowline up --listen 127.0.0.1:0 takes a free port")
                } else {
                    failure
                }
            }
            AssembleError::Tls(ref source) => {
                Self::unexpected(error.to_string()).hint(format!("cause: {source}"))
            }
            AssembleError::Broker(ref source) => {
                Self::unexpected(error.to_string()).hint(format!("cause: {source}"))
            }
            AssembleError::OwnPath(ref source) | AssembleError::Launcher(ref source) => {
                Self::unexpected(error.to_string()).hint(format!("cause: {source}"))
            }
        }
    }
}

/// What the gateway does is told on stderr; `BOWLINE_LOG` says how much of it.
pub(super) fn telemetry(env: &Env, traces: &config::Telemetry) -> Telemetry {
    let format = telemetry::Format::named(env.text("BOWLINE_LOG_FORMAT"));
    Telemetry::start(env.text("BOWLINE_LOG"), format, traces)
}

/// Makes this process ready to serve, and returns what it serves on.
pub(super) fn runtime() -> io::Result<Runtime> {
    raise_descriptor_limit();
    keep_freed();
    // One thread carries all calls: measured, it costs the least CPU per call.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Many sessions need many descriptors, and the usual soft limit is far below the hard one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "descriptor limit stays"
        );
    }
}
