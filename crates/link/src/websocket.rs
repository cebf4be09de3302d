//! One WebSocket: messages both ways, bounded, with a heartbeat that finds a dead one.
//!
//! Shared by the broker and by executors. A connection costs little while nothing is said.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::link::Spawner;

mod accept;
mod dial;
mod frame;
mod handshake;
mod read;
mod shared;
mod task;

pub use accept::{AcceptError, Caller, accept};
pub use dial::{dial, dial_with};
use frame::Encoder;
pub use handshake::{Agreed, Fault, accept_key, check};
use read::Reader;
use shared::Shared;
use task::Task;

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct SocketLimits {
    /// What our messages are called.
    pub form: Form,
    /// Largest message, in bytes.
    pub message_bytes_max: usize,
    /// Messages that wait to be written.
    pub queue_max: usize,
    /// Bytes that wait to be written.
    pub queue_bytes_max: usize,
    /// How often we ask whether the other side is there.
    pub ping_every: Duration,
    /// How long the other side may say nothing at all, pongs included.
    pub silence_max: Duration,
    /// How long one write may take.
    pub write_timeout: Duration,
}

impl Default for SocketLimits {
    fn default() -> Self {
        Self {
            form: Form::Text,
            message_bytes_max: bowline_wire::broker::FRAME_BYTES_MAX,
            queue_max: 1_024,
            queue_bytes_max: 16 * 1024 * 1024,
            ping_every: Duration::from_secs(10),
            silence_max: Duration::from_secs(25),
            write_timeout: Duration::from_secs(25),
        }
    }
}

/// What our messages are called, and which of the other side's are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each is a text; bytes are skipped.
    Text,
    /// Each of ours is a text; bytes are read as one, and must be one.
    TextOrBytes,
    /// Each is bytes; a text is read as its bytes.
    Binary,
}

/// Which side of the handshake we were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We dialled.
    Client,
    /// We were dialled.
    Server,
}

/// How a connection ended. The first cause is the one that is told, to both halves.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Ended {
    /// The other side closed it, in order.
    #[error("the other side closed it ({code}{})", said(.reason))]
    Closed {
        /// The close code.
        code: u16,
        /// What it said.
        reason: Arc<str>,
    },
    /// The other side is gone without a word, or the network is.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// Nothing was heard for too long.
    #[error("nothing was heard for {} ms", .0.as_millis())]
    Silent(Duration),
    /// The other side does not read.
    #[error("a write took longer than {} ms", .0.as_millis())]
    Stuck(Duration),
    /// The other side broke the rules of the protocol, or sent too much at once.
    #[error("what came is not valid: {0}")]
    Invalid(Arc<str>),
    /// We closed it.
    #[error("it was closed here")]
    Local,
}

fn said(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

/// The writing half; many may hold it.
#[derive(Clone, Debug)]
pub struct Outgoing {
    writers: Arc<Writers>,
}

/// Tells the task when the last writing half is gone.
#[derive(Debug)]
struct Writers(Arc<Shared>);

impl Drop for Writers {
    fn drop(&mut self) {
        self.0.writers_left();
    }
}

impl Outgoing {
    /// Queues a message; waits while too much waits to be written. A message is queued whole or,
    /// where this is dropped before it returns, not at all.
    ///
    /// # Errors
    /// The connection is over, and the message did not leave.
    pub async fn send(&self, message: Bytes) -> Result<(), Ended> {
        self.writers.0.push(message).await
    }

    /// Queues messages that are small together once there is room for all of them, so that they
    /// are written at once. They are queued all or, where this is dropped before, none.
    ///
    /// # Errors
    /// The connection is over, and they did not leave.
    pub async fn send_all(&self, messages: Vec<Bytes>) -> Result<(), Ended> {
        self.writers.0.push_all(messages).await
    }

    /// Queues a message if there is room now; gives it back where there is none.
    ///
    /// # Errors
    /// There is no room, or the connection is over ([`ended`](Self::ended) tells).
    pub fn try_send(&self, message: Bytes) -> Result<(), Bytes> {
        self.writers.0.try_push(message)
    }

    /// Says why and closes, once what was queued is written; returns at once. What comes in
    /// until then is still read; [`over`](Self::over) tells when it is done.
    pub fn close(&self, code: u16, reason: &str) {
        self.writers.0.close(code, reason);
    }

    /// Returns what raises the limit of the messages that come in.
    #[must_use]
    pub fn message_limit(&self) -> MessageLimit {
        MessageLimit(Arc::clone(&self.writers.0))
    }

    /// Returns how it ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.writers.0.ended()
    }

    /// Waits for its end.
    pub async fn over(&self) -> Ended {
        self.writers.0.over().await
    }
}

/// The limit of the messages that come in. It keeps no connection open.
#[derive(Debug)]
pub struct MessageLimit(Arc<Shared>);

impl MessageLimit {
    /// Takes messages of up to so many bytes from now on.
    pub fn allow(&self, message_bytes_max: usize) {
        self.0.allow_message_bytes(message_bytes_max);
    }
}

/// The reading half.
#[derive(Debug)]
pub struct Incoming {
    reader: Reader,
}

impl Incoming {
    /// Returns the next message. While nobody calls this, the other side is slowed down, and is
    /// not taken for dead. Nothing is lost where this is dropped before it returns.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn next(&mut self) -> Result<Bytes, Ended> {
        self.reader.next().await
    }
}

/// Takes over a stream whose handshake is done; `read` is what was read too far. It ends when
/// both halves are dropped, once what was queued is written.
pub fn join<S>(
    stream: S,
    side: Side,
    read: Bytes,
    limits: SocketLimits,
    spawner: &dyn Spawner,
) -> (Outgoing, Incoming)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shared = Arc::new(Shared::new(&limits));
    let (source, stream) = tokio::io::split(stream);
    let task = Task {
        shared: Arc::clone(&shared),
        stream,
        encoder: Encoder::new(side),
        limits,
    };
    spawner.spawn("websocket", Box::pin(task.run()));
    let reader = Reader::new(Arc::clone(&shared), Box::new(source), read, side, &limits);
    let writers = Arc::new(Writers(shared));
    (Outgoing { writers }, Incoming { reader })
}

/// Why there is no connection.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DialError {
    /// Nobody could be reached there.
    #[error("cannot be reached: {0}")]
    Unreachable(Arc<str>),
    /// TLS failed.
    #[error("no trust: {0}")]
    Tls(Arc<str>),
    /// It answered, and is no WebSocket, or does not want us.
    #[error("the upgrade was refused with status {status}")]
    Refused {
        /// The status.
        status: u16,
    },
    /// It took too long.
    #[error("no connection in time")]
    Timeout,
    /// The token holds what no header can.
    #[error("the token cannot be sent in a header")]
    Token,
}
