//! Link to a server as a child process over its standard streams.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::client_handle::{ClientCapabilities, ClientCapability, ClientHandle};
use bowline_core::era::Era;
use bowline_runtime::TaskSpawner;
use mcp_handshake::StdioHandshake;
use thiserror::Error;
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::child_limits::ChildLimits;
use crate::demux::{Demux, LinkEventSender};
use crate::link::{
    LARGE_BYTES_MAX, LargeResponseLimits, Link, LinkError, LinkEvent, LinkExit, LinkRequest,
    ServerInfo,
};
use crate::modern::change_listen::ChangeListener;
use crate::modern::{era_params, input_rounds};
use crate::process_mark::GatewayInstance;
use crate::process_usage::ProcessSet;
use crate::rpc::{RpcConnection, StopMode, read_loop, write_loop};
use crate::sandbox::{ReaperLauncher, SandboxPolicy};
use crate::stderr::{LAST_WORDS_LINES, StderrLog, drain_stderr, last_words};

mod child_process;
pub(crate) mod mcp_handshake;
mod negotiation;
pub(crate) mod process_monitor;
mod process_tree;
mod server_process;
mod stdio_listen;

pub use child_process::ChildProcess;
#[cfg(feature = "sandbox")]
pub(crate) use child_process::command_not_found_text;
pub use negotiation::EraNegotiation;
pub use server_process::{ProcessIdentity, ProcessSpawner, ProcessStreams, ServerProcess};

/// Configuration of a stdio server.
#[derive(Clone, Debug)]
pub struct StdioSpec {
    /// Server name, for messages.
    pub server: Arc<str>,
    /// Program.
    pub command: OsString,
    /// Arguments.
    pub args: Vec<OsString>,
    /// Complete environment; nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; the gateway's own if absent.
    pub cwd: Option<PathBuf>,
    /// Reaper that ends all descendants of the program; absent to start the program directly.
    pub reaper: Option<ReaperCommand>,
    /// Resource limits of the program and its descendants, enforced by the reaper.
    pub child_limits: ChildLimits,
    /// Sandbox of the program and its descendants, enforced by the reaper.
    pub sandbox: SandboxPolicy,
    /// Launcher of the reaper, if the gateway's own ports are denied to the program.
    pub launcher: Option<ReaperLauncher>,
    /// Gateway instance in the process mark; absent if orphans of earlier runs are not searched.
    pub instance: Option<GatewayInstance>,
    /// Session that owns the link exclusively; absent for a shared link.
    pub owner: Option<Arc<dyn ClientHandle>>,
    /// Era negotiation.
    pub negotiation: EraNegotiation,
    /// Limits.
    pub limits: StdioLimits,
}

/// A program that runs `reaper::run` with the arguments after its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaperCommand {
    /// The gateway binary.
    pub program: PathBuf,
    /// Arguments that select the reaper mode.
    pub args: Vec<OsString>,
}

/// Limits of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StdioLimits {
    /// Longest line that is read as a message.
    pub line_bytes_max: usize,
    /// Longest lines while a list or a result is pending.
    pub large: LargeResponseLimits,
    /// Longest line that is discarded; a longer line ends the link.
    pub discard_bytes_max: usize,
    /// Requests in flight.
    pub in_flight_max: usize,
    /// Queued messages.
    pub queue_frames_max: usize,
    /// Queued bytes.
    pub queue_bytes_max: usize,
    /// Queued events.
    pub events_max: usize,
    /// Grace of a child after its stdin is closed.
    pub stop_stdin: Duration,
    /// Grace of a child after SIGTERM.
    pub stop_term: Duration,
}

impl Default for StdioLimits {
    fn default() -> Self {
        Self {
            line_bytes_max: 8 * 1024 * 1024,
            large: LargeResponseLimits::default(),
            discard_bytes_max: 2 * LARGE_BYTES_MAX,
            in_flight_max: 256,
            queue_frames_max: 256,
            queue_bytes_max: 16 * 1024 * 1024,
            events_max: 64,
            stop_stdin: Duration::from_secs(3),
            stop_term: Duration::from_secs(2),
        }
    }
}

/// The gateway's identity in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Name.
    pub name: Arc<str>,
    /// Version.
    pub version: Arc<str>,
}

/// Why a server could not be started. Describes the server's failure; callers add the server name.
#[derive(Debug, Error)]
pub enum LinkConnectError {
    /// The process could not be started.
    #[error("cannot run `{command}`")]
    Spawn {
        /// The server.
        server: Arc<str>,
        /// The program.
        command: String,
        /// System error.
        #[source]
        source: io::Error,
    },
    /// The program does not exist; nothing ran.
    #[error("its program does not exist{}", last_words(.stderr_tail))]
    ProgramNotFound {
        /// The server.
        server: Arc<str>,
        /// Error output with the program name.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The process exited before the handshake.
    #[error("ended before the handshake: {exit}{}", last_words(.stderr_tail))]
    ExitedBeforeHandshake {
        /// The server.
        server: Arc<str>,
        /// Exit of the process.
        exit: LinkExit,
        /// Last lines of stderr.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The handshake timed out.
    #[error("did not answer the handshake in time{}", last_words(.stderr_tail))]
    HandshakeTimeout {
        /// The server.
        server: Arc<str>,
        /// Last lines of stderr.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The server rejected `initialize`.
    #[error("refused the handshake with code {code}: {message}")]
    HandshakeRefused {
        /// The server.
        server: Arc<str>,
        /// JSON-RPC code.
        code: i64,
        /// Error message.
        message: String,
    },
    /// The server speaks an unsupported revision.
    #[error("speaks the unknown revision `{revision}`")]
    UnsupportedRevision {
        /// The server.
        server: Arc<str>,
        /// Revision of the server.
        revision: String,
    },
    /// The response to `initialize` is invalid.
    #[error("gave no valid answer to the handshake: {reason}")]
    BadHandshake {
        /// The server.
        server: Arc<str>,
        /// Reason.
        reason: Arc<str>,
    },
    /// The server is unreachable, or refused before the handshake.
    #[error("cannot be used")]
    Refused {
        /// The server.
        server: Arc<str>,
        /// Cause.
        #[source]
        source: LinkError,
    },
}

/// Options of a stdio link whose process comes from any spawner.
#[derive(Clone, Debug)]
pub struct StdioOptions {
    /// Server name, for messages.
    pub server: Arc<str>,
    /// Session that owns the link exclusively; absent for a shared link.
    pub owner: Option<Arc<dyn ClientHandle>>,
    /// Era negotiation.
    pub negotiation: EraNegotiation,
    /// Limits.
    pub limits: StdioLimits,
}

/// Starts a child process and performs the handshake. The link runs in tasks of `spawner`; the
/// receiver gets events outside calls.
///
/// # Errors
/// Every error describes the server's failure; no process is left running.
pub async fn connect(
    spec: &StdioSpec,
    stderr: Arc<StderrLog>,
    client: ClientInfo,
    deadline: Instant,
    spawner: &dyn TaskSpawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), LinkConnectError> {
    let options = StdioOptions {
        server: spec.server.clone(),
        owner: spec.owner.clone(),
        negotiation: spec.negotiation,
        limits: spec.limits,
    };
    connect_process(spec, &options, stderr, client, deadline, spawner).await
}

/// Starts a server and performs the handshake like [`connect`], with any process spawner.
///
/// # Errors
/// Every error describes the server's failure; no process is left running.
pub async fn connect_process<S: ProcessSpawner + ?Sized>(
    spawn: &S,
    options: &StdioOptions,
    stderr: Arc<StderrLog>,
    client: ClientInfo,
    deadline: Instant,
    spawner: &dyn TaskSpawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), LinkConnectError> {
    let log_before = stderr.sequencer().newest_seq();
    let mut process = spawn.spawn(deadline).await?;
    let identity = process.identity();
    let rpc = RpcConnection::new(
        options.server.clone(),
        options.limits,
        options.owner.clone(),
    );
    // Dropping the guard early kills the process.
    let mut starting = StartupGuard(Some(rpc.clone()));
    let (events, event_receiver) = mpsc::channel(options.limits.events_max.max(1));
    let events = Arc::new(LinkEventSender::new(events));
    let mut followed = Vec::new();
    let streams = process.take_streams();
    if let Some(stdin) = streams.stdin {
        spawner.spawn("link.writer", Box::pin(write_loop(rpc.clone(), stdin)));
    }
    if let Some(stdout) = streams.stdout {
        let stamps = stderr.sequencer().clone();
        let task = read_loop(rpc.clone(), Arc::clone(&events), stamps, stdout);
        followed.push(spawn_tracked(spawner, "link.reader", task));
    }
    if let Some(pipe) = streams.stderr {
        let task = drain_until_end(rpc.clone(), stderr.clone(), pipe);
        followed.push(spawn_tracked(spawner, "link.stderr", task));
    }
    let monitor_task =
        process_monitor::monitor_process(process, rpc.clone(), followed, options.limits);
    spawner.spawn("link.process_monitor", Box::pin(monitor_task));

    let handshake = StdioHandshake {
        rpc: &rpc,
        client: &client,
        capabilities: declared_capabilities(options.owner.as_ref()),
        deadline,
    };
    let info = match handshake.negotiate(options.negotiation).await {
        Ok(info) => info,
        Err(failure) => {
            let exit = starting.stop().await;
            let stderr_tail = stderr.tail(log_before, LAST_WORDS_LINES);
            return Err(failure.into_connect_error(options.server.clone(), exit, stderr_tail));
        }
    };
    starting.0 = None;
    let link = StdioLink {
        pid: identity.pid(),
        processes: identity.processes(),
        listener: stdio_listen::start_listener(&info, &rpc, events, &client, spawner),
        rpc,
        info,
        client,
    };
    if let Some(listener) = &link.listener {
        listener.wait_started(deadline).await;
    }
    Ok((Arc::new(link), event_receiver))
}

/// Returns the client capabilities to declare: the owner's, or all for a shared link, as any client
/// may use it.
pub(crate) fn declared_capabilities(owner: Option<&Arc<dyn ClientHandle>>) -> ClientCapabilities {
    let all = || {
        ClientCapability::ALL.into_iter().fold(
            ClientCapabilities::default(),
            ClientCapabilities::with_capability,
        )
    };
    owner.map_or_else(all, |owner| owner.capabilities())
}

/// Spawns a task; the receiver resolves at its end.
fn spawn_tracked(
    spawner: &dyn TaskSpawner,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Receiver<()> {
    let (done_sender, done_receiver) = oneshot::channel::<()>();
    let followed = async move {
        task.await;
        drop(done_sender);
    };
    spawner.spawn(name, Box::pin(followed));
    done_receiver
}

/// Drains stderr until the link ends: a surviving descendant may hold the pipe open forever.
async fn drain_until_end(
    peer: Arc<RpcConnection>,
    log: Arc<StderrLog>,
    pipe: impl AsyncRead + Unpin,
) {
    tokio::select! {
        biased;
        () = drain_stderr(log, pipe) => {}
        _ = peer.wait_ended() => {}
    }
}

/// Guard of a link during its start.
#[derive(Debug)]
struct StartupGuard(Option<Arc<RpcConnection>>);

impl StartupGuard {
    /// Kills the process, and waits for its exit.
    async fn stop(mut self) -> LinkExit {
        let Some(peer) = self.0.take() else {
            return LinkExit::Gone;
        };
        peer.begin_shutdown(LinkExit::Stopping, StopMode::Immediate);
        peer.wait_ended().await
    }
}

impl Drop for StartupGuard {
    fn drop(&mut self) {
        if let Some(peer) = &self.0 {
            peer.begin_shutdown(LinkExit::Stopping, StopMode::Immediate);
        }
    }
}

/// A link with a process.
#[derive(Debug)]
struct StdioLink {
    rpc: Arc<RpcConnection>,
    pid: u32,
    /// Processes on this machine.
    processes: Option<ProcessSet>,
    info: ServerInfo,
    client: ClientInfo,
    /// Present for a modern server.
    listener: Option<Arc<ChangeListener>>,
}

impl Link for StdioLink {
    fn request(
        &self,
        mut request: LinkRequest,
    ) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        match (request.message.era, self.info.revision.era()) {
            (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => {
                Box::pin(self.rpc.request(request))
            }
            (Era::Modern, Era::Legacy) => {
                era_params::to_legacy(&mut request);
                Box::pin(self.rpc.request(request))
            }
            (Era::Legacy, Era::Modern) => {
                let server = self.rpc.server_name();
                let once = |request| self.rpc.request(request);
                Box::pin(input_rounds::request_with_rounds(
                    server,
                    &self.client,
                    request,
                    once,
                ))
            }
        }
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        self.rpc.notify(method, params)
    }

    fn is_open(&self) -> bool {
        self.rpc.is_open()
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(self.rpc.wait_ended())
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        self.rpc
            .begin_shutdown(LinkExit::Stopping, StopMode::Graceful);
        Box::pin(self.rpc.wait_ended())
    }

    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn processes(&self) -> Option<ProcessSet> {
        self.processes.filter(|_| self.is_open())
    }

    fn in_flight(&self) -> usize {
        self.rpc.in_flight()
    }

    fn server_info(&self) -> &ServerInfo {
        &self.info
    }

    fn subscribe_resources(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        Box::pin(async move {
            match &self.listener {
                Some(listener) => listener.set_resources(uris, deadline).await,
                None => Ok(Vec::new()),
            }
        })
    }
}

impl Drop for StdioLink {
    fn drop(&mut self) {
        self.rpc
            .begin_shutdown(LinkExit::Stopping, StopMode::Graceful);
    }
}
