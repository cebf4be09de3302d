//! `bowline up`: runs a gateway in the foreground until it is told to stop.

use std::io;
use std::time::Duration;

use bowline_host::supervisor::State as ServerState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Context, Exit, Failure, Out, Up};
use crate::assemble::{AssembleError, Gateway};
use crate::cli::Format;
use crate::config::{self, Child, Config, Reach, ServerConfig};
use crate::edge::door::Auth;
use crate::state::{self, State};

/// How long `up` reports on servers that are starting.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// How often it looks.
const REPORT_TICK: Duration = Duration::from_millis(50);

/// Runs a gateway until SIGINT or SIGTERM.
pub(super) fn run(up: &Up, context: &mut Context) -> Result<Exit, Failure> {
    log_to_stderr(context);
    // One thread carries all calls: measured, it costs the least CPU per call.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    raise_descriptor_limit();
    runtime.block_on(serve(up, context))?;
    Ok(Exit::Ok)
}

async fn serve(up: &Up, context: &mut Context) -> Result<(), Failure> {
    let mut stop = Stop::watch()?;
    let mut config = if up.demo {
        demo()?
    } else {
        config::load(context.config(), &context.env)?
    };
    for warning in &config.warnings {
        context.out.warning(&warning.message);
    }
    for broken in &config.broken {
        let line = format!("server `{}` is left out: {}", broken.name, broken.reason);
        context.out.warning(&line);
    }
    if !up.listen.is_empty() {
        config.listen.clone_from(&up.listen);
    }
    let auth = if up.insecure_no_auth {
        Auth::NotForMcp
    } else {
        Auth::Required
    };
    let state = State::open(state::locate(
        context.global.state.as_deref(),
        &context.env,
    )?)?;
    let gateway = Gateway::start(config, state, auth, &context.env).await?;
    announce(&gateway, up, context)?;
    tokio::select! {
        () = stop.told() => {}
        () = report(&gateway, &mut context.out) => {}
    }
    context.out.note("stopping");
    tokio::select! {
        () = gateway.stop() => {}
        // Asked twice: do not wait for servers; their reapers see to them.
        () = stop.told() => {}
    }
    Ok(())
}

/// The signals that mean stop.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn watch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Says that the gateway serves, where, and what to try.
fn announce(gateway: &Gateway, up: &Up, context: &mut Context) -> Result<(), Failure> {
    let run = &gateway.run;
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
    lines.push("  stop        Ctrl-C".to_owned());
    context.out.result(&ready, |out| {
        lines.iter().try_for_each(|line| out.line(line))
    })?;
    Ok(())
}

/// Tells people how each server's start went, as it goes; then does nothing for ever.
async fn report(gateway: &Gateway, out: &mut Out) {
    if out.format() == Format::Human {
        let started = gateway.host().clock().now();
        let mut waiting = gateway.host().servers();
        let mut tick = tokio::time::interval(REPORT_TICK);
        let ticks_max = REPORT_MAX.as_millis() / REPORT_TICK.as_millis();
        for _ in 0..ticks_max {
            tick.tick().await;
            waiting.retain(|name| {
                let Ok(server) = gateway.host().server(name) else {
                    return false;
                };
                let state = server.state().borrow().clone();
                if state.is_settled() {
                    let took_ms = gateway.host().clock().now().millis_since(started);
                    out.note(&started_line(gateway, name, &state, took_ms));
                }
                !state.is_settled()
            });
            if waiting.is_empty() {
                break;
            }
        }
    }
    std::future::pending().await
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
            AssembleError::OwnPath(ref source) => {
                Self::unexpected(error.to_string()).hint(format!("cause: {source}"))
            }
        }
    }
}

/// What the gateway does is told on stderr; `BOWLINE_LOG` says how much of it.
fn log_to_stderr(context: &Context) {
    let filter = context.env.text("BOWLINE_LOG").unwrap_or("warn");
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false);
    // Fails only when the program that embeds us has its own.
    let _ = subscriber.try_init();
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
