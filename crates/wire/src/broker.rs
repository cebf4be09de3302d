//! Broker frames: one JSON object per text message of a WebSocket, told apart by `kind`.
//!
//! Names and fields of the first frames and of [`Letter`] are those that other brokers of this
//! kind use, so that a peer which knows only them can list and call tools; what we add are further
//! members and further kinds, which such a peer skips. Payloads (`body`) stay the bytes that came.

mod answer;
mod ask;
mod context;
mod letter;
mod read;
mod write;

use std::fmt;
use std::sync::Arc;

pub use crate::frame::FrameError;
use bowline_core::caller::Ability;
use bytes::Bytes;

pub use answer::{Answer, Item, Said};
pub use ask::{Arguments, Ask, TextArguments, Told};
pub use context::Context;
pub use letter::{Draft, From, Letter, REPLY, REQUEST};

/// Largest frame, in bytes: a result of 8 MiB and what stands around it.
pub const FRAME_BYTES_MAX: usize = 9 * 1024 * 1024;

/// One frame, of either side. What one side sends the other skips where it is not meant for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// `hello{agent:{session_id, role?}, token, instance?}`: the first of a peer.
    Hello(Hello),
    /// `welcome{mailbox, role?, heartbeat_ms, requests_max, frame_bytes_max}`: it was let in.
    Welcome(Welcome),
    /// `broker_identity{id}`: which store this is.
    BrokerIdentity {
        /// Made once per store.
        id: Arc<str>,
    },
    /// `error{reason, id?, code?}`: a frame was refused, or the connection ends.
    Error(Refusal),
    /// `deliver{to, message}`: to be stored.
    Deliver {
        /// The mailbox.
        to: Arc<str>,
        /// What goes there.
        letter: Letter,
    },
    /// `delivered{id}`: it is stored durably.
    Delivered {
        /// The message.
        id: Arc<str>,
    },
    /// `subscribe`: push what waits, and what comes.
    Subscribe,
    /// `message{message}`: from the mailbox.
    Message(Letter),
    /// `ack{id}`: it was dealt with.
    Ack {
        /// The message.
        id: Arc<str>,
    },
    /// `ack_with_receipt{id, request_id}`.
    AckWithReceipt {
        /// The message.
        id: Arc<str>,
        /// Names the receipt.
        request_id: Arc<str>,
    },
    /// `ack_result{id, request_id, accepted, reason?}`.
    AckResult {
        /// The message.
        id: Arc<str>,
        /// Which receipt was asked for.
        request_id: Arc<str>,
        /// Whether something was removed.
        accepted: bool,
        /// Why not.
        reason: Option<Arc<str>>,
    },
    /// `nak{id, delay_ms?, dead?, reason?}`: give it again later, or never.
    Nak {
        /// The message.
        id: Arc<str>,
        /// After how long.
        delay_ms: u64,
        /// Whether it becomes a dead letter at once, and why.
        dead: Option<Arc<str>>,
    },
    /// `cancel{to?, correlation_id}`: never stored.
    Cancel {
        /// The mailbox that has the request. Where the broker passes it on, the mailbox whose
        /// request it is; absent where it is the broker's own.
        to: Option<Arc<str>>,
        /// The request.
        correlation_id: Arc<str>,
    },
    /// `list_connected{role?}`.
    ListConnected {
        /// Those of this role only.
        role: Option<Arc<str>>,
    },
    /// `connected{ids}`.
    Connected {
        /// Mailboxes with a live subscriber.
        ids: Vec<Arc<str>>,
    },
    /// `list_dead{limit?}`: what of one's own mailbox could not be delivered.
    ListDead {
        /// So many at most.
        limit: usize,
    },
    /// `dead{letters:[{message, reason}]}`, whole as raw JSON.
    Dead {
        /// The array.
        letters: Bytes,
    },
    /// `offer{revision, servers:[{name, tools:[..raw definitions..]}]}`, whole as raw JSON: what a
    /// worker has for the hub. Sent again whole when it changes.
    Offer {
        /// Grows with each change.
        revision: u64,
        /// The array.
        servers: Bytes,
    },
    /// `changed{revision}`: the other's manifest is another now.
    Changed {
        /// Which.
        revision: u64,
    },
    /// `request{id, to?, body, ttl_ms?, caller?}`: live, never stored.
    Request(Request),
    /// `response{id, body}`.
    Response {
        /// The request.
        id: Arc<str>,
        /// An [`Answer`].
        body: Bytes,
    },
    /// `event{id, notification}`: what a tool says before it answers; `id` is that of a live
    /// request or of a stored one.
    Event {
        /// The request.
        id: Arc<str>,
        /// One whole JSON-RPC notification.
        notification: Bytes,
    },
    /// `question{id, number, request}`: what a server asks whoever waits for the answer of this
    /// request, while it waits. Never stored.
    Question {
        /// The request, live or stored.
        id: Arc<str>,
        /// Names the question among those of this request.
        number: u64,
        /// One whole JSON-RPC request.
        request: Bytes,
    },
    /// `answer{id, number, answer?}`: what was answered to a question; nothing where nobody does.
    Answer {
        /// The request.
        id: Arc<str>,
        /// The question.
        number: u64,
        /// One whole JSON-RPC answer.
        answer: Option<Bytes>,
    },
    /// `withdraw{id, number}`: its server takes a question back.
    Withdraw {
        /// The request.
        id: Arc<str>,
        /// The question.
        number: u64,
    },
    /// `lacks{id, ability}`: a server wanted to ask what the caller of a request cannot be asked.
    Lacks {
        /// The request.
        id: Arc<str>,
        /// What the caller would have to be able to do.
        ability: Ability,
    },
    /// `told{server, session?, notification}`: what a server of a worker says between requests.
    Told {
        /// The server.
        server: Arc<str>,
        /// The session that it is for; those that the hub looks after where absent.
        session: Option<Arc<str>>,
        /// One whole JSON-RPC notification.
        notification: Bytes,
    },
    /// `session{server, session, event}`: what became of a session for which a server of a worker
    /// was asked.
    Session {
        /// The server.
        server: Arc<str>,
        /// The session.
        session: Arc<str>,
        /// What.
        event: SessionEvent,
    },
    /// A kind that is not known here.
    Other {
        /// Which.
        kind: Arc<str>,
        /// Names the response that its sender waits for, where it says so.
        request_id: Option<Arc<str>>,
    },
}

/// What becomes of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// `ended`: it is over.
    Ended,
    /// `roots_changed`: its client has other roots now.
    RootsChanged,
}

impl SessionEvent {
    /// Returns the word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::RootsChanged => "roots_changed",
        }
    }

    /// Returns what a word means; nothing where it is not known.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let known = [Self::Ended, Self::RootsChanged];
        known.into_iter().find(|event| event.as_str() == word)
    }
}

/// The first frame of a peer. What it shows of itself leaves the credential out.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hello {
    /// The mailbox it claims; the credential decides.
    pub session_id: Arc<str>,
    /// The role it claims; the credential decides.
    pub role: Option<Arc<str>>,
    /// The credential, where it was not in a header.
    pub token: Option<Arc<str>>,
    /// Tells two starts of one program apart.
    pub instance: Option<Arc<str>>,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("session_id", &self.session_id)
            .field("role", &self.role)
            .field("token", &self.token.as_ref().map(|_| ".."))
            .field("instance", &self.instance)
            .finish()
    }
}

/// What a peer is told that was let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// Its mailbox.
    pub mailbox: Arc<str>,
    /// Its role.
    pub role: Option<Arc<str>>,
    /// How often each side says that it is there.
    pub heartbeat_ms: u64,
    /// Live requests it may have in flight.
    pub requests_max: usize,
}

/// Why a frame was refused, or a connection ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// One clause for people.
    pub reason: Arc<str>,
    /// The message it is about.
    pub id: Option<Arc<str>>,
    /// One word for machines: `auth`, `expired`, `fenced`, `not_allowed`, `bad_frame`,
    /// `unknown_frame`, `bad_name`, `mailbox_full`, `storage_full`, `too_large`, `conflict`,
    /// `not_stored`, `throttled`,
    /// `shutting_down`.
    pub code: Option<Arc<str>>,
}

/// A live request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Names it on this connection.
    pub id: Arc<str>,
    /// Who is to answer; the hub where absent.
    pub to: Option<Arc<str>>,
    /// An [`Ask`].
    pub body: Bytes,
    /// How long an answer is of use.
    pub ttl_ms: Option<u64>,
    /// Who asks, stamped by the hub; worth nothing from anybody else.
    pub caller: Option<From>,
}

impl Frame {
    /// Reads a frame.
    ///
    /// # Errors
    /// It cannot be read. A kind that is not known is [`Frame::Other`].
    pub fn read(bytes: &Bytes) -> Result<Self, FrameError> {
        read::frame(bytes)
    }

    /// Writes a frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        write::frame(self, out);
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
