//! `bowline up`: runs a gateway in the foreground until it is told to stop.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bowline_host::supervisor::State as ServerState;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use crate::assemble::{AssembleError, Gateway};
use crate::config::{self, Config, Env, ServerConfig};
use crate::edge::door::Auth;
use crate::state::{self, State};

/// What `up` was asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file, where one was named.
    pub config: Option<PathBuf>,
    /// The state directory, where one was named.
    pub state: Option<PathBuf>,
    /// Addresses that replace those of the configuration.
    pub listen: Vec<SocketAddr>,
    /// Which servers to run.
    pub servers: Servers,
    /// Whether callers must prove who they are.
    pub auth: Auth,
    /// What to print.
    pub output: Output,
}

/// Which servers to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// Those of the configuration.
    Configured,
    /// The built-in ones, for a first try.
    Demo,
}

/// What `up` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Lines for people.
    Text,
    /// One line of JSON when it serves.
    Json,
}

/// Why there is no gateway.
#[derive(Debug, Error)]
pub enum UpError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The parts cannot be put together.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The system refused something basic.
    #[error("the system refused to {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// How long servers may take before `up` stops reporting on their start.
const REPORT_MAX: Duration = Duration::from_secs(30);

/// Runs a gateway until SIGINT or SIGTERM.
pub fn run(options: &Options, env: &Env, out: &mut dyn Write) -> Result<(), UpError> {
    let system = |action| move |source| UpError::System { action, source };
    // One thread carries all calls: measured, it costs the least CPU per call.
    // See docs/decisions/0002-one-thread.md.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("start a runtime"))?;
    raise_descriptor_limit();
    runtime.block_on(serve(options, env, out))
}

async fn serve(options: &Options, env: &Env, out: &mut dyn Write) -> Result<(), UpError> {
    let system = |source| UpError::System {
        action: "watch for signals",
        source,
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(system)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system)?;
    let mut config = match options.servers {
        Servers::Configured => config::load(options.config.as_deref(), env)?,
        Servers::Demo => demo()?,
    };
    if !options.listen.is_empty() {
        config.listen.clone_from(&options.listen);
    }
    let state = State::open(state::locate(options.state.as_deref(), env)?)?;
    let gateway = Gateway::start(config, state, options.auth, env).await?;
    announce(&gateway, options, out).map_err(|source| UpError::System {
        action: "write to standard output",
        source,
    })?;
    let reporting = report(&gateway, options, out);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = reporting => {}
    }
    let stopping = gateway.stop();
    tokio::select! {
        () = stopping => {}
        // Asked twice: do not wait for servers; their reapers see to them.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Says that the gateway serves, where, and what to try.
fn announce(gateway: &Gateway, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let run = &gateway.run;
    if options.output == Output::Json {
        let line = serde_json::json!({
            "v": 1,
            "event": "ready",
            "mcp": run.mcp,
            "token_file": run.token_file,
            "pid": run.pid,
        });
        writeln!(out, "{line}")?;
        return out.flush();
    }
    writeln!(out, "bowline {} is up", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  endpoint    {}", run.mcp)?;
    writeln!(out, "  token file  {}", run.token_file.display())?;
    if options.auth == Auth::NotForMcp {
        let red = "\u{1b}[31m";
        writeln!(
            out,
            "  {red}authentication is OFF for MCP: every local program may call every tool\u{1b}[0m"
        )?;
    }
    if options.servers == Servers::Demo {
        let own = std::env::current_exe()?;
        let state = options
            .state
            .as_ref()
            .map_or_else(String::new, |state| format!(" --state {}", state.display()));
        writeln!(
            out,
            "  try         {}{state} call demo.add a=2 b=3",
            own.display()
        )?;
    }
    writeln!(out, "  stop        Ctrl-C")?;
    out.flush()
}

/// Tells people how each server's start went, as it goes; then does nothing for ever.
async fn report(gateway: &Gateway, options: &Options, out: &mut dyn Write) {
    if options.output == Output::Text {
        let started = gateway.host().clock().now();
        let mut waiting = gateway.host().servers();
        let deadline = tokio::time::sleep(REPORT_MAX);
        let mut deadline = std::pin::pin!(deadline);
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        while !waiting.is_empty() {
            tokio::select! {
                _ = tick.tick() => {}
                () = deadline.as_mut() => break,
            }
            waiting.retain(|name| {
                let Ok(server) = gateway.host().server(name) else {
                    return false;
                };
                let state = server.state().borrow().clone();
                if !state.is_settled() {
                    return true;
                }
                let took = gateway.host().clock().now().millis_since(started);
                // Nobody reads any more: that is no reason to stop serving.
                let _ = writeln!(out, "{}", started_line(gateway, name, &state, took));
                let _ = out.flush();
                false
            });
        }
    }
    std::future::pending().await
}

fn started_line(gateway: &Gateway, name: &str, state: &ServerState, took_ms: u64) -> String {
    let tools = gateway
        .host()
        .catalog()
        .offer(name)
        .map_or(0, |offer| offer.tools.len());
    match state {
        ServerState::Ready => format!("  + {name:<12} {tools} tools  {took_ms} ms"),
        ServerState::Idle => format!("  o {name:<12} starts on its first call"),
        ServerState::Backoff { reason, .. } | ServerState::Ejected { reason } => {
            format!("  ! {name:<12} {reason}  (bowline logs {name})")
        }
        ServerState::Stopped | ServerState::Starting | ServerState::Draining => {
            format!("  - {name:<12} {}", state.as_str())
        }
    }
}

/// Returns a configuration of two servers that are part of this binary.
fn demo() -> Result<Config, UpError> {
    let own = std::env::current_exe().map_err(AssembleError::OwnPath)?;
    let server = |name: &str, toolset: &str| {
        let args = ["fixture", "--toolset", toolset].map(str::to_owned);
        ServerConfig::new(name, own.clone().into_os_string(), args.to_vec())
    };
    Ok(Config {
        servers: vec![server("demo", "demo"), server("everything", "conformance")],
        ..Config::default()
    })
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
