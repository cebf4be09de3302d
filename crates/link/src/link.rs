//! The `Link` trait: one live connection with a server, its requests, responses and errors.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_core::BoxFuture;
use bowline_core::call::{BodyKind, RequestMessage, ServerResponse};
use bowline_core::client_handle::SessionKey;
use bowline_core::era::{Era, HeaderParams};
use bowline_wire::jsonrpc::{write_error, write_result};
use bowline_wire::mcp::Revision;
use bytes::Bytes;
use tokio::time::Instant;

use crate::child_limits::ByteSize;
use crate::demux::ResponseKind;
use crate::process_usage::ProcessSet;

mod link_error;
pub use self::link_error::{InputRequestError, LinkError, NotSentReason};

/// One request to a server.
#[derive(Clone, Debug)]
pub struct LinkRequest {
    /// The method.
    pub method: Cow<'static, str>,
    /// Parameters, caller's id and client, as the call brought them.
    pub message: RequestMessage,
    /// A string in the parameters that is replaced on the wire.
    pub rename: Option<ParamRename>,
    /// Deadline of the response.
    pub deadline: Instant,
    /// Idempotency header, for HTTP servers.
    pub idempotency_header: Option<Box<IdempotencyHeader>>,
    /// Caller identity, for peers that authorize themselves.
    pub caller_identity: Option<Box<CallerIdentity>>,
    /// Arguments that are repeated as headers, for modern HTTP servers.
    pub header_params: HeaderParams,
}

/// Identity of the caller in this gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerIdentity {
    /// Principal name.
    pub principal: Arc<str>,
    /// Effective role.
    pub role: Option<Arc<str>>,
    /// Run of the call.
    pub run: Option<Arc<str>>,
}

/// An idempotency key as a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyHeader {
    /// Header name.
    pub name: Arc<str>,
    /// Idempotency key.
    pub value: Arc<str>,
}

impl LinkRequest {
    /// Returns a request of the gateway itself, without a client; empty `params` for none.
    #[must_use]
    pub const fn new_internal(method: &'static str, params: Bytes, deadline: Instant) -> Self {
        Self {
            method: Cow::Borrowed(method),
            message: RequestMessage::new(params),
            rename: None,
            deadline,
            idempotency_header: None,
            caller_identity: None,
            header_params: None,
        }
    }
}

/// A JSON string that is replaced on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamRename {
    /// Position, including the quotes.
    pub at: Range<usize>,
    /// Replacement.
    pub to: Arc<str>,
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkExit {
    /// The process exited by itself.
    Status(i32),
    /// The process was ended by a signal.
    Signal(i32),
    /// The server closed its output or input while its process lived on; it was stopped.
    Closed,
    /// A line exceeded the discard limit; the process was killed.
    Overrun,
    /// The process tree exceeded its memory limit and was killed.
    OverMemory {
        /// The limit.
        bytes_max: u64,
    },
    /// The process tree exceeded its process limit and was killed.
    OverProcesses {
        /// The limit.
        processes_max: u64,
    },
    /// The program does not exist; no process ran.
    ProgramNotFound,
    /// The gateway stops the link; the process has not exited yet.
    Stopping,
    /// The process is gone, with unknown status.
    Gone,
    /// The executor of the process is gone, or was away for too long.
    Away,
}

impl fmt::Display for LinkExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) if *signal == rustix::process::Signal::XFSZ.as_raw() => {
                write!(f, "it wrote a larger file than it may (signal {signal})")
            }
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
            Self::Closed => f.write_str("it closed its streams"),
            Self::Overrun => f.write_str("it wrote a line without end"),
            Self::OverMemory { bytes_max } => {
                write!(f, "it used more than {} of memory", ByteSize(*bytes_max))
            }
            Self::OverProcesses { processes_max } => {
                write!(f, "it had more than {processes_max} processes")
            }
            Self::ProgramNotFound => f.write_str("the program does not exist"),
            Self::Stopping => f.write_str("it is being stopped"),
            Self::Gone => f.write_str("it is gone"),
            Self::Away => f.write_str("the executor that ran it is gone"),
        }
    }
}

/// Events of a server outside calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The tool list changed. Several changes may merge, but none is lost.
    ToolsChanged,
    /// The prompt list changed; merged likewise.
    PromptsChanged,
    /// The resource list changed; merged likewise.
    ResourcesChanged,
    /// A resource changed.
    ResourceUpdated {
        /// Resource URI.
        uri: Arc<str>,
        /// Raw notification.
        notification: Bytes,
    },
    /// A task changed.
    TaskStatus {
        /// Task id.
        task: Arc<str>,
        /// Raw notification.
        notification: Bytes,
    },
    /// A notification for a session without a call in flight.
    SessionNotification {
        /// Session.
        session: SessionKey,
        /// Raw notification.
        notification: Bytes,
    },
    /// The server forgot the session, and a new session was opened: state that was set between
    /// calls must be set again. Several resets may merge, but none is lost.
    SessionReset,
    /// A server request was refused because calls of several sessions were in flight. Several may
    /// merge, but none is lost.
    UnattributedRequest,
    /// Raw `notifications/message` without a single session.
    Log(Bytes),
    /// Any different notification, raw.
    Other(Bytes),
}

/// Server information from the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Negotiated revision.
    pub revision: Revision,
    /// Raw result of `initialize`; for a modern server, the result of `server/discover` with
    /// `serverInfo` moved from `_meta` to its legacy position.
    pub initialize: Bytes,
    /// `serverInfo.name`, or empty.
    pub name: Arc<str>,
    /// `serverInfo.version`, or empty.
    pub version: Arc<str>,
}

/// One live connection with a server, shared by many callers.
pub trait Link: fmt::Debug + Send + Sync {
    /// Sends a request and waits for the response. Dropping the future cancels the request: an
    /// unsent request is removed, a sent request is cancelled at the server.
    fn request(&self, request: LinkRequest) -> BoxFuture<'_, Result<ServerResponse, LinkError>>;

    /// Queues a notification without waiting.
    ///
    /// # Errors
    /// `Closed`, or `NotSent` when the queue is full.
    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError>;

    /// Whether requests are accepted.
    fn is_open(&self) -> bool;

    /// Waits until the link has closed.
    fn wait_closed(&self) -> BoxFuture<'_, LinkExit>;

    /// Stops the server gracefully and waits for its end; may be called again.
    fn close(&self) -> BoxFuture<'_, LinkExit>;

    /// Returns the process id of the server, if any.
    fn pid(&self) -> Option<u32>;

    /// Returns the processes of a child server.
    fn processes(&self) -> Option<ProcessSet> {
        None
    }

    /// Handles the end of a session that may have used this link; ignored by links without session
    /// state.
    fn on_session_ended(&self, session: SessionKey) {
        let _ = session;
    }

    /// Handles a roots change of a session's client; ignored likewise.
    fn on_roots_changed(&self, session: SessionKey) {
        let _ = session;
    }

    /// Returns the number of requests in flight.
    fn in_flight(&self) -> usize;

    /// Returns the server information.
    fn server_info(&self) -> &ServerInfo;

    /// Returns the era of the server.
    fn era(&self) -> Era {
        self.server_info().revision.era()
    }

    /// Replaces the resource subscriptions at a modern server and waits for its acknowledgement.
    /// Returns the acknowledged URIs. List changes are always subscribed. Legacy servers use
    /// requests instead, and return no URIs here.
    fn subscribe_resources(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        let _ = (uris, deadline);
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Longest list or result as a single message.
pub const LARGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Limits of large responses; the usual limit applies if larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeResponseLimits {
    /// Bytes of a list.
    pub list_bytes_max: usize,
    /// Bytes of a tool result.
    pub result_bytes_max: usize,
    /// Bytes of a resource or a prompt.
    pub content_bytes_max: usize,
}

impl Default for LargeResponseLimits {
    fn default() -> Self {
        Self {
            list_bytes_max: LARGE_BYTES_MAX,
            result_bytes_max: 0,
            content_bytes_max: 0,
        }
    }
}

impl LargeResponseLimits {
    /// Returns the limit of a kind; at least `usual`.
    pub(crate) fn bytes_max(&self, kind: ResponseKind, usual: usize) -> usize {
        match kind {
            ResponseKind::List => self.list_bytes_max.max(usual),
            ResponseKind::Result => self.result_bytes_max.max(usual),
            ResponseKind::Content => self.content_bytes_max.max(usual),
            ResponseKind::Other => usual,
        }
    }
}

impl LinkRequest {
    /// Writes the response with a result, which is JSON.
    #[must_use]
    pub fn result_response(&self, result: &[u8]) -> ServerResponse {
        let mut bytes = Vec::new();
        let body_at = write_result(&mut bytes, &self.message.id, result);
        ServerResponse {
            body: BodyKind::Result,
            body_at,
            bytes: bytes.into(),
            era: Era::Legacy,
        }
    }

    /// Writes the response with an error; `data` is JSON.
    #[must_use]
    pub fn error_response(&self, code: i64, message: &str, data: Option<&[u8]>) -> ServerResponse {
        let mut bytes = Vec::new();
        let body_at = write_error(&mut bytes, Some(&self.message.id), code, message, data);
        ServerResponse {
            body: BodyKind::Error,
            body_at,
            bytes: bytes.into(),
            era: Era::Legacy,
        }
    }
}

/// Counts a request in flight until dropped.
#[derive(Debug)]
pub struct InFlightGuard<'a>(&'a AtomicUsize);

impl<'a> InFlightGuard<'a> {
    /// Counts a request in `in_flight`.
    #[must_use]
    pub fn new(in_flight: &'a AtomicUsize) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
