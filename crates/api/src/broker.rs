//! `/api/v1/broker`: peers, mailboxes and dead letters.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Response of `GET /api/v1/broker`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// Connected peers.
    pub peers: Vec<BrokerPeer>,
    /// Mailboxes with messages.
    pub mailboxes: Vec<Mailbox>,
}

/// A connected peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerPeer {
    /// Mailbox of the peer.
    pub mailbox: String,
    /// Role that the peer states, if any.
    pub role: Option<Arc<str>>,
    /// Time of the connection in milliseconds since 1970.
    pub since_ms: u64,
    /// True if the peer takes messages.
    pub subscribed: bool,
    /// Names of the servers that the peer offers.
    pub offers: Vec<Arc<str>>,
    /// Number of messages delivered and not acknowledged.
    pub unacked: u64,
    /// Number of events dropped because the peer was slow.
    pub events_dropped: u64,
}

/// A mailbox with messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mailbox {
    /// The name.
    pub mailbox: String,
    /// Number of messages waiting for delivery.
    pub waiting: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// Storage time of the oldest message, in milliseconds since 1970.
    pub oldest_ms: Option<u64>,
    /// True if a peer takes the messages.
    pub subscribed: bool,
}

/// Query of `GET /api/v1/broker/dead`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersQuery {
    /// Only dead letters of this mailbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mailbox: Option<String>,
    /// `next` of an earlier response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Response of `GET /api/v1/broker/dead`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLettersResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// Dead letters, oldest first.
    pub letters: Vec<DeadLetterEntry>,
    /// Value of `after` for the next page; `None` on the last page.
    pub next: Option<u64>,
}

/// Response of `GET` and `DELETE /api/v1/broker/dead/{id}` and of
/// `POST /api/v1/broker/dead/{id}/retry`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// The dead letter, as it was before a retry or drop.
    pub letter: DeadLetterEntry,
}

/// A dead letter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterEntry {
    /// Id for the API.
    pub id: String,
    /// Message id assigned by the sender.
    pub message: String,
    /// Mailbox of the receiver.
    pub mailbox: String,
    /// Mailbox of the sender; empty if unknown.
    pub from: String,
    /// Kind of the message; empty if unknown.
    pub kind: String,
    /// Why the message is undeliverable.
    pub reason: String,
    /// Number of delivery attempts.
    pub attempts: u32,
    /// Storage time in milliseconds since 1970.
    pub stored_ms: u64,
    /// Size of the message.
    pub bytes: u64,
    /// Complete message; only in responses about a single dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<Box<RawValue>>,
}
