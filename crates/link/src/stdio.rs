//! A server as a child process that speaks over its standard streams.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::{Abilities, Ability, CallerEnd};
use bowline_core::era::Era;
use thiserror::Error;
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::desk::{Desk, Events};
use crate::limits::ChildLimits;
use crate::link::{
    Answer, BoxFuture, Exit, Link, LinkError, LinkEvent, Request, ServerInfo, Spawner,
};
use crate::marks::Instance;
use crate::message_limits::{LARGE_BYTES_MAX, LargeLimits};
use crate::modern::listen::Listener;
use crate::modern::{params, rounds};
use crate::peer::{Peer, Stop, read_loop, write_loop};
use crate::processes::Processes;
use crate::sandbox::{Launcher, Sandbox};
use crate::stderr::{LAST_WORDS_LINES, StderrLog, drain, last_words};

mod child;
mod ear;
pub(crate) mod handshake;
pub(crate) mod keeper;
mod opening;
mod process;
mod tree;

pub use child::Child;
pub(crate) use child::command_not_found;
use handshake::Meeting;
pub use opening::Opening;
pub use process::{Identity, Process, Spawn, Streams};

/// How to start a server.
#[derive(Clone, Debug)]
pub struct StdioSpec {
    /// The server's name, for messages.
    pub server: Arc<str>,
    /// The program.
    pub command: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its whole environment; nothing is inherited beside it.
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs; our own directory when absent.
    pub cwd: Option<PathBuf>,
    /// What stands between us and the program, so that no descendant of it survives; absent where
    /// the program is started directly.
    pub reaper: Option<Reaper>,
    /// What the program may use, with all it starts; kept by the reaper, where there is one.
    pub child_limits: ChildLimits,
    /// What the program may reach, with all it starts; enforced by the reaper.
    pub sandbox: Sandbox,
    /// What starts the reaper where the gateway's own ports are closed to the program.
    pub launcher: Option<Launcher>,
    /// The life of the gateway whose mark its processes carry; absent where nobody looks for
    /// processes of former lives.
    pub instance: Option<Instance>,
    /// The one session that this link belongs to; absent where it is shared.
    pub owner: Option<Arc<dyn CallerEnd>>,
    /// Which era its process is met in first.
    pub opening: Opening,
    /// The bounds.
    pub limits: StdioLimits,
}

/// A program that runs `reaper::run` with what follows its own arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaper {
    /// Our own binary.
    pub program: PathBuf,
    /// What makes it a reaper.
    pub args: Vec<OsString>,
}

/// The bounds of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StdioLimits {
    /// The longest line that is read as a message.
    pub line_bytes_max: usize,
    /// The longest lines that are read as messages while a list or a result is waited for.
    pub large: LargeLimits,
    /// The longest line that is thrown away; a longer one ends the link.
    pub discard_bytes_max: usize,
    /// Requests that may wait for an answer at once.
    pub in_flight_max: usize,
    /// Messages that may wait to be written.
    pub queue_frames_max: usize,
    /// Bytes that may wait to be written.
    pub queue_bytes_max: usize,
    /// Events that may wait to be read.
    pub events_max: usize,
    /// How long a child may take to go after its stdin was closed.
    pub stop_stdin: Duration,
    /// How long it may take after it was told to terminate.
    pub stop_term: Duration,
}

impl Default for StdioLimits {
    fn default() -> Self {
        Self {
            line_bytes_max: 8 * 1024 * 1024,
            large: LargeLimits::default(),
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

/// What we say of ourselves in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Our name.
    pub name: Arc<str>,
    /// Our version.
    pub version: Arc<str>,
}

/// Why a server could not be started. Each says what the server did; who shows it names the server.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The process could not be made.
    #[error("cannot run `{command}`")]
    Spawn {
        /// The server.
        server: Arc<str>,
        /// The program.
        command: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The program does not exist, so nothing ran.
    #[error("its program does not exist{}", last_words(.stderr_tail))]
    ProgramNotFound {
        /// The server.
        server: Arc<str>,
        /// What was said about it, with the name of the program.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The process ended before it answered.
    #[error("ended before the handshake: {exit}{}", last_words(.stderr_tail))]
    ExitedBeforeHandshake {
        /// The server.
        server: Arc<str>,
        /// How it ended.
        exit: Exit,
        /// The last lines of its stderr.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The process did not answer in time.
    #[error("did not answer the handshake in time{}", last_words(.stderr_tail))]
    HandshakeTimeout {
        /// The server.
        server: Arc<str>,
        /// The last lines of its stderr.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The server answered `initialize` with an error.
    #[error("refused the handshake with code {code}: {message}")]
    HandshakeRefused {
        /// The server.
        server: Arc<str>,
        /// The JSON-RPC code.
        code: i64,
        /// The server's words.
        message: String,
    },
    /// The server answered with a revision that we do not speak.
    #[error("speaks the unknown revision `{revision}`")]
    UnsupportedRevision {
        /// The server.
        server: Arc<str>,
        /// What it wrote.
        revision: String,
    },
    /// The answer to `initialize` is not one.
    #[error("gave no valid answer to the handshake: {reason}")]
    BadHandshake {
        /// The server.
        server: Arc<str>,
        /// What was wrong with it.
        reason: Arc<str>,
    },
    /// The server was not reached, or said no before the handshake.
    #[error("cannot be used")]
    Refused {
        /// The server.
        server: Arc<str>,
        /// Why.
        #[source]
        source: LinkError,
    },
}

/// A server whose process is made by whoever is asked.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The server's name, for messages.
    pub server: Arc<str>,
    /// The one session that this link belongs to; absent where it is shared.
    pub owner: Option<Arc<dyn CallerEnd>>,
    /// Which era its process is met in first.
    pub opening: Opening,
    /// The bounds.
    pub limits: StdioLimits,
}

/// Starts a child of ours and shakes hands with it. The link lives in tasks of `spawner`; the
/// receiver hears what the server says outside calls.
///
/// # Errors
/// Every failure says what the server did, and leaves no process behind.
pub async fn connect(
    spec: &StdioSpec,
    stderr: Arc<StderrLog>,
    client: ClientInfo,
    deadline: Instant,
    spawner: &dyn Spawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), ConnectError> {
    let seat = Seat {
        server: spec.server.clone(),
        owner: spec.owner.clone(),
        opening: spec.opening,
        limits: spec.limits,
    };
    connect_over(spec, &seat, stderr, client, deadline, spawner).await
}

/// Has a server started and shakes hands with it, like [`connect`], wherever its process runs.
///
/// # Errors
/// Every failure says what the server did, and leaves no process behind.
pub async fn connect_over<S: Spawn + ?Sized>(
    spawn: &S,
    seat: &Seat,
    stderr: Arc<StderrLog>,
    client: ClientInfo,
    deadline: Instant,
    spawner: &dyn Spawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), ConnectError> {
    let log_before = stderr.stamps().newest();
    let mut process = spawn.spawn(deadline).await?;
    let identity = process.identity();
    let peer = Peer::new(seat.server.clone(), seat.limits, seat.owner.clone());
    // Dropped before the end, it kills what was started.
    let mut starting = Starting(Some(peer.clone()));
    let (events, heard) = mpsc::channel(seat.limits.events_max.max(1));
    let events = Arc::new(Events::new(events));
    let mut followed = Vec::new();
    let streams = process.streams();
    if let Some(stdin) = streams.stdin {
        spawner.spawn("link.writer", Box::pin(write_loop(peer.clone(), stdin)));
    }
    if let Some(stdout) = streams.stdout {
        let stamps = stderr.stamps().clone();
        let task = read_loop(peer.clone(), Arc::clone(&events), stamps, stdout);
        followed.push(spawn_followed(spawner, "link.reader", task));
    }
    if let Some(pipe) = streams.stderr {
        let task = drain_while_there(peer.clone(), stderr.clone(), pipe);
        followed.push(spawn_followed(spawner, "link.stderr", task));
    }
    let keeping = keeper::keep(process, peer.clone(), followed, seat.limits);
    spawner.spawn("link.keeper", Box::pin(keeping));

    let meeting = Meeting {
        peer: &peer,
        client: &client,
        abilities: abilities(seat.owner.as_ref()),
        deadline,
    };
    let info = match meeting.meet(seat.opening).await {
        Ok(info) => info,
        Err(failure) => {
            let exit = starting.stop().await;
            let stderr_tail = stderr.tail(log_before, LAST_WORDS_LINES);
            return Err(failure.explain(seat.server.clone(), exit, stderr_tail));
        }
    };
    starting.0 = None;
    let link = StdioLink {
        pid: identity.pid(),
        processes: identity.processes(),
        listener: ear::listen(&info, &peer, events, &client, spawner),
        peer,
        info,
        client,
    };
    if let Some(listener) = &link.listener {
        listener.begun(deadline).await;
    }
    Ok((Arc::new(link), heard))
}

/// A link of one session declares what that session's client can do; one that is shared declares
/// all, since any client may come.
pub(crate) fn abilities(owner: Option<&Arc<dyn CallerEnd>>) -> Abilities {
    let all = || {
        Ability::ALL
            .into_iter()
            .fold(Abilities::default(), Abilities::with)
    };
    owner.map_or_else(all, |owner| owner.abilities())
}

/// Runs a task; what is returned tells when it is over.
fn spawn_followed(
    spawner: &dyn Spawner,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Receiver<()> {
    let (over, follow) = oneshot::channel::<()>();
    let followed = async move {
        task.await;
        drop(over);
    };
    spawner.spawn(name, Box::pin(followed));
    follow
}

/// A descendant that was not killed may hold stderr open for ever; nobody waits for that.
async fn drain_while_there(peer: Arc<Peer>, log: Arc<StderrLog>, pipe: impl AsyncRead + Unpin) {
    tokio::select! {
        biased;
        () = drain(log, pipe) => {}
        _ = peer.ended() => {}
    }
}

/// A link that does not exist yet.
#[derive(Debug)]
struct Starting(Option<Arc<Peer>>);

impl Starting {
    /// Ends the process at once, and waits for its end.
    async fn stop(mut self) -> Exit {
        let Some(peer) = self.0.take() else {
            return Exit::Gone;
        };
        peer.end(Exit::Stopping, Stop::AtOnce);
        peer.ended().await
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(peer) = &self.0 {
            peer.end(Exit::Stopping, Stop::AtOnce);
        }
    }
}

/// A link with a process.
#[derive(Debug)]
struct StdioLink {
    peer: Arc<Peer>,
    pid: u32,
    /// Where they are on this machine.
    processes: Option<Processes>,
    info: ServerInfo,
    client: ClientInfo,
    /// Present where the server is of the modern era.
    listener: Option<Arc<Listener>>,
}

impl Link for StdioLink {
    fn request(&self, mut request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        match (request.era, self.era()) {
            (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => {
                Box::pin(self.peer.request(request))
            }
            (Era::Modern, Era::Legacy) => {
                params::to_legacy(&mut request);
                Box::pin(self.peer.request(request))
            }
            (Era::Legacy, Era::Modern) => {
                let server = self.peer.server();
                let once = |request| self.peer.request(request);
                Box::pin(rounds::drive(server, &self.client, request, once))
            }
        }
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        self.peer.notify(method, params)
    }

    fn is_open(&self) -> bool {
        self.peer.is_open()
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(self.peer.ended())
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        self.peer.end(Exit::Stopping, Stop::Orderly);
        Box::pin(self.peer.ended())
    }

    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn processes(&self) -> Option<Processes> {
        self.processes.filter(|_| self.is_open())
    }

    fn in_flight(&self) -> usize {
        self.peer.in_flight()
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }

    fn listen_to(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        Box::pin(async move {
            match &self.listener {
                Some(listener) => listener.listen_to(uris, deadline).await,
                None => Ok(Vec::new()),
            }
        })
    }
}

impl Drop for StdioLink {
    fn drop(&mut self) {
        self.peer.end(Exit::Stopping, Stop::Orderly);
    }
}
