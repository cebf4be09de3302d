//! The client handle of a call: notifications and server requests go through the handle.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::log_level::LogLevel;
use crate::task_table::TaskRecord;

/// First key of the sessions of a hub's clients, disjoint from the keys of own client sessions.
pub const REMOTE_SESSIONS_FROM: u64 = 1 << 63;

/// Identifies a session within this process. A resumed session gets a new key; 0 stands for
/// clients without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub u64);

/// A client capability needed by a server request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientCapability {
    /// `sampling/createMessage`.
    Sampling,
    /// `sampling/createMessage` with `tools`.
    SamplingTools,
    /// `elicitation/create` with a form.
    ElicitationForm,
    /// `elicitation/create` with a URL to open.
    ElicitationUrl,
    /// `roots/list`.
    Roots,
}

impl ClientCapability {
    /// Every capability.
    pub const ALL: [Self; 5] = [
        Self::Sampling,
        Self::SamplingTools,
        Self::ElicitationForm,
        Self::ElicitationUrl,
        Self::Roots,
    ];
}

/// The capabilities declared by a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientCapabilities(u8);

impl ClientCapabilities {
    /// Adds a capability.
    #[must_use]
    pub const fn with_capability(self, capability: ClientCapability) -> Self {
        Self(self.0 | 1 << capability as u8)
    }

    /// Whether the client declared the capability.
    #[must_use]
    pub const fn supports(self, capability: ClientCapability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }

    /// Whether the client declared any capability.
    #[must_use]
    pub const fn has_any(self) -> bool {
        self.0 != 0
    }

    /// Returns the bit set; [`from_bits`](Self::from_bits) is the inverse.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Parses a bit set; unknown bits are dropped.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        ClientCapability::ALL
            .into_iter()
            .filter(|capability| Self(bits).supports(*capability))
            .fold(Self::default(), Self::with_capability)
    }
}

/// Identifies a server request sent to a client, for cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerRequestId(pub u64);

/// The client of one call, or of a session outside calls. Implemented by the edge; bounded and
/// non-blocking.
pub trait ClientHandle: fmt::Debug + Send + Sync {
    /// Returns the key of the session.
    fn session(&self) -> SessionKey;

    /// Returns a number stable across resumptions of the session, also in a new process, if the
    /// session has a stable id. Collisions are unlikely.
    fn durable_id(&self) -> Option<u64> {
        None
    }

    /// Returns the client's capabilities; none by default.
    fn capabilities(&self) -> ClientCapabilities {
        ClientCapabilities::default()
    }

    /// Returns the minimum level of log messages, if set by the client.
    fn log_level(&self) -> Option<LogLevel> {
        None
    }

    /// Queues one whole JSON-RPC notification; drops the notification if the queue is full.
    fn notify(&self, notification: Bytes);

    /// Sends a server request to the client. Dropping the request refuses it, and the default
    /// implementation drops every request.
    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        drop(server_request);
        None
    }

    /// Notes that a server request was refused for a missing client capability.
    fn note_missing_capability(&self, capability: ClientCapability) {
        let _ = capability;
    }

    /// True for sessionless clients: they answer a server request by retrying the call. Their calls
    /// may come from different programs, so server requests are never shared between calls, and a
    /// call may stay in flight for long.
    fn answers_by_retry(&self) -> bool {
        false
    }

    /// Cancels a server request on behalf of the server.
    fn cancel_request(&self, request_id: ServerRequestId) {
        let _ = request_id;
    }

    /// Notes that the server created a task for the call.
    fn on_task_created(&self, task: &TaskRecord) {
        let _ = task;
    }

    /// Returns the handle of the whole session, for messages outside this call.
    fn session_handle(&self) -> Arc<dyn ClientHandle>;
}

/// A client that takes no notifications and no server requests, only the reply.
#[derive(Clone, Copy, Debug)]
pub struct NullClient {
    session: SessionKey,
    durable_id: Option<u64>,
}

impl NullClient {
    /// Returns the handle of a call of this session.
    #[must_use]
    pub const fn new(session: SessionKey) -> Self {
        Self {
            session,
            durable_id: None,
        }
    }

    /// Sets the durable id of the session.
    #[must_use]
    pub const fn with_durable_id(self, id: u64) -> Self {
        Self {
            durable_id: Some(id),
            ..self
        }
    }
}

impl ClientHandle for NullClient {
    fn session(&self) -> SessionKey {
        self.session
    }

    fn durable_id(&self) -> Option<u64> {
        self.durable_id
    }

    fn notify(&self, _: Bytes) {}

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(*self)
    }
}

/// A server request (sampling, elicitation, roots) awaiting the client's answer.
pub struct ServerRequest {
    /// The whole JSON-RPC request, as sent by the server.
    pub request: Bytes,
    /// Position of the server's id in `request`.
    pub id_at: Range<usize>,
    /// The capability needed from the client.
    pub capability: ClientCapability,
    reply_callback: Option<ReplyCallback>,
}

/// Receives the client's JSON-RPC response with the server's id, or `None` without an answer.
type ReplyCallback = Box<dyn FnOnce(Option<Bytes>) + Send>;

impl ServerRequest {
    /// Returns a server request; `reply` is called exactly once.
    #[must_use]
    pub fn new(
        request: Bytes,
        id_at: Range<usize>,
        capability: ClientCapability,
        reply: impl FnOnce(Option<Bytes>) + Send + 'static,
    ) -> Self {
        Self {
            request,
            id_at,
            capability,
            reply_callback: Some(Box::new(reply)),
        }
    }

    /// Returns the server's id, as written by the server.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        self.request.get(self.id_at.clone()).unwrap_or_default()
    }

    /// Passes on the client's answer: a whole JSON-RPC message with the server's id.
    pub fn respond(mut self, answer: Bytes) {
        if let Some(reply) = self.reply_callback.take() {
            reply(Some(answer));
        }
    }
}

/// Dropping an unanswered request refuses it, so that the server does not wait forever.
impl Drop for ServerRequest {
    fn drop(&mut self) {
        if let Some(reply) = self.reply_callback.take() {
            reply(None);
        }
    }
}

impl fmt::Debug for ServerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRequest")
            .field("ability", &self.capability)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn server_request() -> (ServerRequest, mpsc::Receiver<Option<Bytes>>) {
        let (told, heard) = mpsc::channel();
        let request = Bytes::from_static(br#"{"id":"a","method":"roots/list"}"#);
        let question = ServerRequest::new(request, 6..9, ClientCapability::Roots, move |answer| {
            told.send(answer).unwrap();
        });
        (question, heard)
    }

    #[test]
    fn server_request_is_answered_once_or_refused() {
        let (asked, heard) = server_request();
        assert_eq!(asked.id(), b"\"a\"");
        asked.respond(Bytes::from_static(b"{}"));
        assert_eq!(heard.try_recv(), Ok(Some(Bytes::from_static(b"{}"))));
        assert!(heard.try_recv().is_err(), "told twice");
        let (asked, heard) = server_request();
        drop(asked);
        assert_eq!(heard.try_recv(), Ok(None));
    }

    #[test]
    fn capabilities_round_trip_through_bits() {
        let some = ClientCapabilities::default()
            .with_capability(ClientCapability::Roots)
            .with_capability(ClientCapability::Sampling);
        assert!(
            some.supports(ClientCapability::Roots)
                && !some.supports(ClientCapability::ElicitationUrl)
        );
        assert_eq!(ClientCapabilities::from_bits(some.bits()), some);
        assert_eq!(
            ClientCapabilities::from_bits(0x80),
            ClientCapabilities::default()
        );
        assert!(some.has_any() && !ClientCapabilities::default().has_any());
    }
}
