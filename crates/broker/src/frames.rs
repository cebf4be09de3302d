//! Broker frames: one JSON object per WebSocket text message, distinguished by `kind`.
//!
//! Names and members of the basic frames and of [`MailboxMessage`] match those of existing brokers
//! of this type, so a minimal peer can list and call tools. Extensions are further members and
//! kinds, which such a peer skips. Payloads (`body`) stay raw bytes.

mod broker_request;
mod broker_response;
mod caller_context;
mod decode_frame;
mod encode_frame;
mod mailbox_message;

use std::fmt;
use std::sync::Arc;

use bowline_core::client_handle::ClientCapability;
pub use bowline_wire::FrameError;
use bytes::Bytes;

pub use broker_request::{BrokerArguments, BrokerRequest, CallWithContext, TextArguments};
pub use broker_response::{BrokerResponse, ManifestItem, ResultForm};
pub use caller_context::CallerContext;
pub use mailbox_message::{
    MailboxMessage, MessageBody, MessageDraft, MessageSender, REPLY_KIND, REQUEST_KIND,
};

/// Largest frame in bytes: a result of 8 MiB with overhead.
pub const FRAME_BYTES_MAX: usize = 9 * 1024 * 1024;

/// One frame of either side. Each side skips foreign frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerFrame {
    /// `hello{agent:{session_id, role?}, token, instance?}`: the first frame of a peer.
    Hello(BrokerHello),
    /// `welcome{mailbox, role?, heartbeat_ms, requests_max, frame_bytes_max}`: the peer is
    /// admitted.
    Welcome(BrokerWelcome),
    /// `broker_identity{id}`: identifies the store.
    BrokerIdentity {
        /// Created once per store.
        id: Arc<str>,
    },
    /// `error{reason, id?, code?}`: a frame was refused, or the connection ends.
    Error(BrokerRefusal),
    /// `deliver{to, message}`: store a message.
    Deliver {
        /// The mailbox.
        to: Arc<str>,
        /// The message.
        message: MailboxMessage,
    },
    /// `delivered{id}`: the message is stored durably.
    Delivered {
        /// The message.
        id: Arc<str>,
    },
    /// `subscribe`: push waiting and future messages.
    Subscribe,
    /// `message{message}`: a message from the mailbox.
    Message(MailboxMessage),
    /// `ack{id}`: the message was processed.
    Ack {
        /// The message.
        id: Arc<str>,
    },
    /// `ack_with_receipt{id, request_id}`.
    AckWithReceipt {
        /// The message.
        id: Arc<str>,
        /// Identifies the receipt.
        request_id: Arc<str>,
    },
    /// `ack_result{id, request_id, accepted, reason?}`.
    AckResult {
        /// The message.
        id: Arc<str>,
        /// Identifies the requested receipt.
        request_id: Arc<str>,
        /// Whether a message was removed.
        accepted: bool,
        /// Why not.
        reason: Option<Arc<str>>,
    },
    /// `nak{id, delay_ms?, dead?, reason?}`: redeliver later, or never.
    Nak {
        /// The message.
        id: Arc<str>,
        /// Delay before redelivery.
        delay_ms: u64,
        /// The reason, if the message becomes a dead letter at once.
        dead_letter_reason: Option<Arc<str>>,
    },
    /// `cancel{to?, correlation_id}`: never stored.
    Cancel {
        /// The mailbox holding the request. In a forwarded cancel, the requesting mailbox; absent
        /// for the broker's own requests.
        to: Option<Arc<str>>,
        /// The request.
        correlation_id: Arc<str>,
    },
    /// `list_connected{role?}`.
    ListConnected {
        /// Restricts the list to this role.
        role: Option<Arc<str>>,
    },
    /// `connected{ids}`.
    Connected {
        /// Mailboxes with a live subscriber.
        ids: Vec<Arc<str>>,
    },
    /// `list_dead{limit?}`: dead letters of the peer's own mailbox.
    ListDead {
        /// Maximum number.
        limit: usize,
    },
    /// `dead{letters:[{message, reason}]}`, as raw JSON.
    Dead {
        /// The array.
        dead_letters: Bytes,
    },
    /// `offer{revision, servers:[{name, tools:[..raw definitions..]}]}`, as raw JSON: the servers a
    /// worker offers to the hub. Resent in full after every change.
    Offer {
        /// Increases with each change.
        revision: u64,
        /// The array.
        servers: Bytes,
    },
    /// `changed{revision}`: the sender's manifest changed.
    Changed {
        /// The new revision.
        revision: u64,
    },
    /// `request{id, to?, body, ttl_ms?, caller?}`: live, never stored.
    Request(LiveRequest),
    /// `response{id, body}`.
    Response {
        /// The request.
        id: Arc<str>,
        /// A [`BrokerResponse`].
        body: Bytes,
    },
    /// `event{id, notification}`: a notification of a tool before the response; `id` names a live
    /// or stored request.
    Event {
        /// The request.
        id: Arc<str>,
        /// One whole JSON-RPC notification.
        notification: Bytes,
    },
    /// `question{id, number, request}`: a server request to the waiting caller of a request. Never
    /// stored.
    ServerRequest {
        /// The request, live or stored.
        id: Arc<str>,
        /// Identifies the server request within the request.
        number: u64,
        /// One whole JSON-RPC request.
        request: Bytes,
    },
    /// `answer{id, number, answer?}`: the answer to a server request; absent if unanswered.
    ServerRequestReply {
        /// The request.
        id: Arc<str>,
        /// The server request.
        number: u64,
        /// One whole JSON-RPC response.
        answer: Option<Bytes>,
    },
    /// `withdraw{id, number}`: the server cancels a server request.
    CancelServerRequest {
        /// The request.
        id: Arc<str>,
        /// The server request.
        number: u64,
    },
    /// `lacks{id, ability}`: a server request was refused for a missing client capability.
    MissingCapability {
        /// The request.
        id: Arc<str>,
        /// The missing capability.
        capability: ClientCapability,
    },
    /// `told{server, session?, notification}`: a notification of a worker's server outside
    /// requests.
    SessionNotification {
        /// The server.
        server: Arc<str>,
        /// The target session; absent for all sessions of the hub.
        session: Option<Arc<str>>,
        /// One whole JSON-RPC notification.
        notification: Bytes,
    },
    /// `session{server, session, event}`: an event of a session using a worker's server.
    Session {
        /// The server.
        server: Arc<str>,
        /// The session.
        session: Arc<str>,
        /// The event.
        event: SessionEvent,
    },
    /// An unknown kind.
    Unknown {
        /// The kind.
        kind: Arc<str>,
        /// The response id awaited by the sender, if given.
        request_id: Option<Arc<str>>,
    },
}

/// An event of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// `ended`: the session ended.
    Ended,
    /// `roots_changed`: the client's roots changed.
    RootsChanged,
}

impl SessionEvent {
    /// Returns the wire word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::RootsChanged => "roots_changed",
        }
    }

    /// Parses the wire word; `None` if unknown.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let known = [Self::Ended, Self::RootsChanged];
        known.into_iter().find(|event| event.as_str() == word)
    }
}

/// The first frame of a peer. `Debug` hides the credential.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BrokerHello {
    /// The claimed mailbox; the credential decides.
    pub claimed_mailbox: Arc<str>,
    /// The claimed role; the credential decides.
    pub claimed_role: Option<Arc<str>>,
    /// The credential, if not sent in a header.
    pub token: Option<Arc<str>>,
    /// Distinguishes two starts of one program.
    pub instance: Option<Arc<str>>,
}

impl fmt::Debug for BrokerHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerHello")
            .field("session_id", &self.claimed_mailbox)
            .field("role", &self.claimed_role)
            .field("token", &self.token.as_ref().map(|_| ".."))
            .field("instance", &self.instance)
            .finish()
    }
}

/// The reply to an admitted peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerWelcome {
    /// The peer's mailbox.
    pub mailbox: Arc<str>,
    /// The peer's role.
    pub role: Option<Arc<str>>,
    /// Heartbeat interval of both sides.
    pub heartbeat_ms: u64,
    /// Live requests in flight.
    pub requests_max: usize,
}

/// Why a frame was refused, or the connection ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerRefusal {
    /// One clause for people.
    pub reason: Arc<str>,
    /// The message concerned.
    pub id: Option<Arc<str>>,
    /// One word for machines: `auth`, `expired`, `fenced`, `not_allowed`, `bad_frame`,
    /// `unknown_frame`, `bad_name`, `mailbox_full`, `storage_full`, `too_large`, `conflict`,
    /// `not_stored`, `throttled`,
    /// `shutting_down`.
    pub code: Option<Arc<str>>,
}

/// A live request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveRequest {
    /// Identifies the request on this connection.
    pub id: Arc<str>,
    /// The target; the hub if absent.
    pub to: Option<Arc<str>>,
    /// A [`BrokerRequest`].
    pub body: Bytes,
    /// Lifetime of the request.
    pub ttl_ms: Option<u64>,
    /// The caller; trusted only if set by the hub.
    pub caller: Option<MessageSender>,
}

impl BrokerFrame {
    /// Parses a frame.
    ///
    /// # Errors
    /// The frame is invalid. An unknown kind is [`BrokerFrame::Unknown`].
    pub fn parse(bytes: &Bytes) -> Result<Self, FrameError> {
        decode_frame::parse_frame(bytes)
    }

    /// Writes the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        encode_frame::write_frame(self, out);
    }

    /// Returns the frame as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.write(&mut out);
        out.into()
    }
}

#[cfg(test)]
mod tests;
