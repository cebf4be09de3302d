//! WebSocket connection: bounded messages in both directions, with a heartbeat.
//!
//! Shared by the broker and executors. An idle connection needs little memory.

use std::sync::Arc;
use std::time::Duration;

use bowline_runtime::TaskSpawner;
use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

pub mod close_codes;
mod frame_codec;
mod message_reader;
mod socket_state;
mod upgrade;
mod upgrade_accept;
mod websocket_dial;
mod writer_task;

use frame_codec::FrameEncoder;
use message_reader::MessageReader;
use socket_state::WebSocketShared;
pub use upgrade::{UpgradeError, UpgradeResponse, accept_key, check_upgrade};
pub use upgrade_accept::{UpgradeRequest, WebSocketAcceptError, accept_upgrade};
pub use websocket_dial::{dial, dial_with_tls};
use writer_task::WriterTask;

/// Largest message, in bytes, by default: a result of 8 MiB with its envelope.
pub const MESSAGE_BYTES_MAX: usize = 9 * 1024 * 1024;

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct WebSocketLimits {
    /// Format of our messages.
    pub format: MessageFormat,
    /// Largest message, in bytes.
    pub message_bytes_max: usize,
    /// Queued messages.
    pub queue_max: usize,
    /// Queued bytes.
    pub queue_bytes_max: usize,
    /// Ping interval.
    pub ping_interval: Duration,
    /// Longest silence of the peer, including pongs.
    pub silence_max: Duration,
    /// Timeout of a write.
    pub write_timeout: Duration,
}

impl Default for WebSocketLimits {
    fn default() -> Self {
        Self {
            format: MessageFormat::Text,
            message_bytes_max: MESSAGE_BYTES_MAX,
            queue_max: 1_024,
            queue_bytes_max: 16 * 1024 * 1024,
            ping_interval: Duration::from_secs(10),
            silence_max: Duration::from_secs(25),
            write_timeout: Duration::from_secs(25),
        }
    }
}

/// Format of our messages, and of accepted peer messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFormat {
    /// Text only; binary messages are ignored.
    Text,
    /// We send text; binary messages are accepted if they are UTF-8.
    TextOrBytes,
    /// We send binary; text is accepted as bytes.
    Binary,
}

/// Our role in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketRole {
    /// We dialled.
    Client,
    /// We were dialled.
    Server,
}

/// Why a connection ended. The first cause wins, for both halves.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The peer closed the connection.
    #[error("the other side closed it ({code}{})", reason_suffix(.reason))]
    Closed {
        /// The close code.
        code: u16,
        /// Close reason of the peer.
        reason: Arc<str>,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// The peer was silent for too long.
    #[error("nothing was heard for {} ms", .0.as_millis())]
    Silent(Duration),
    /// The peer does not read.
    #[error("a write took longer than {} ms", .0.as_millis())]
    Stuck(Duration),
    /// The peer violated the protocol or a limit.
    #[error("what came is not valid: {0}")]
    Invalid(Arc<str>),
    /// We closed the connection.
    #[error("it was closed here")]
    Local,
}

fn reason_suffix(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

/// Writing half; cheap to clone.
#[derive(Clone, Debug)]
pub struct WebSocketSender {
    guard: Arc<SenderGuard>,
}

/// Notifies the task when the last writing half is dropped.
#[derive(Debug)]
struct SenderGuard(Arc<WebSocketShared>);

impl Drop for SenderGuard {
    fn drop(&mut self) {
        self.0.on_senders_dropped();
    }
}

impl WebSocketSender {
    /// Queues a message; waits while the queue is full. Dropping the future before it returns
    /// queues nothing.
    ///
    /// # Errors
    /// The connection has ended; the message was not sent.
    pub async fn send(&self, message: Bytes) -> Result<(), DisconnectReason> {
        self.guard.0.push(message).await
    }

    /// Queues several small messages for a write, once all of them fit. Dropping the future
    /// before it returns queues none.
    ///
    /// # Errors
    /// The connection has ended; no message was sent.
    pub async fn send_all(&self, messages: Vec<Bytes>) -> Result<(), DisconnectReason> {
        self.guard.0.push_all(messages).await
    }

    /// Queues a message if it fits now; returns the message otherwise.
    ///
    /// # Errors
    /// The queue is full, or the connection has ended (see
    /// [`disconnect_reason`](Self::disconnect_reason)).
    pub fn try_send(&self, message: Bytes) -> Result<(), Bytes> {
        self.guard.0.try_push(message)
    }

    /// Closes the connection after the queued messages; returns at once. Input is still read until
    /// then; [`wait_closed`](Self::wait_closed) resolves afterwards.
    pub fn close(&self, code: u16, reason: &str) {
        self.guard.0.close(code, reason);
    }

    /// Returns a handle that raises the limit of incoming messages.
    #[must_use]
    pub fn message_limit(&self) -> MessageLimit {
        MessageLimit(Arc::clone(&self.guard.0))
    }

    /// Returns the cause of the disconnect, or `None` while connected.
    #[must_use]
    pub fn disconnect_reason(&self) -> Option<DisconnectReason> {
        self.guard.0.disconnect_reason()
    }

    /// Waits for the end of the connection.
    pub async fn wait_closed(&self) -> DisconnectReason {
        self.guard.0.wait_closed().await
    }
}

/// Limit of incoming messages. Does not keep the connection open.
#[derive(Debug)]
pub struct MessageLimit(Arc<WebSocketShared>);

impl MessageLimit {
    /// Sets the largest accepted message.
    pub fn set_max(&self, message_bytes_max: usize) {
        self.0.set_message_bytes_max(message_bytes_max);
    }
}

/// Reading half.
#[derive(Debug)]
pub struct WebSocketReceiver {
    reader: MessageReader,
}

impl WebSocketReceiver {
    /// Returns the next message. Without calls, the peer is slowed down but not considered dead.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn next(&mut self) -> Result<Bytes, DisconnectReason> {
        self.reader.next().await
    }
}

/// The two halves of a connection.
#[derive(Debug)]
pub struct WebSocketConnection {
    /// Writing half.
    pub sender: WebSocketSender,
    /// Reading half.
    pub receiver: WebSocketReceiver,
}

/// Takes a stream after the handshake; `read` is input beyond the handshake. The connection ends
/// when both halves are dropped, after the queued messages are written.
pub fn open_websocket<S>(
    stream: S,
    side: WebSocketRole,
    read: Bytes,
    limits: WebSocketLimits,
    spawner: &dyn TaskSpawner,
) -> WebSocketConnection
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shared = Arc::new(WebSocketShared::new(&limits));
    let (source, stream) = tokio::io::split(stream);
    let task = WriterTask {
        shared: Arc::clone(&shared),
        stream,
        encoder: FrameEncoder::new(side),
        limits,
    };
    spawner.spawn("websocket", Box::pin(task.run()));
    let reader = MessageReader::new(Arc::clone(&shared), Box::new(source), read, side, &limits);
    let writers = Arc::new(SenderGuard(shared));
    WebSocketConnection {
        sender: WebSocketSender { guard: writers },
        receiver: WebSocketReceiver { reader },
    }
}

/// Why dialling failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DialError {
    /// The server is unreachable.
    #[error("cannot be reached: {0}")]
    Unreachable(Arc<str>),
    /// TLS failed.
    #[error("no trust: {0}")]
    Tls(Arc<str>),
    /// The server refused the upgrade.
    #[error("the upgrade was refused with status {status}")]
    Refused {
        /// HTTP status.
        status: u16,
    },
    /// Dialling timed out.
    #[error("no connection in time")]
    Timeout,
    /// The token cannot be a header value.
    #[error("the token cannot be sent in a header")]
    Token,
}
