//! `/api/v1/outbox`: queued calls and dead letters.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Query of `GET /api/v1/outbox`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboxQuery {
    /// Only calls to this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Only calls in this state: `queued`, `sending` or `dead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `next` of an earlier response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Response of `GET /api/v1/outbox`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboxResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// Calls, oldest first.
    pub entries: Vec<QueuedCallView>,
    /// Value of `after` for the next page; `None` on the last page.
    pub next: Option<u64>,
}

/// Response of `GET` and `DELETE /api/v1/outbox/{id}` and of `POST /api/v1/outbox/{id}/retry`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuedCallResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// The call; after a drop, as it was before.
    pub entry: QueuedCallView,
}

/// State of a queued call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueuedCallState {
    /// Waiting for delivery.
    #[default]
    Queued,
    /// Being delivered.
    Sending,
    /// Undeliverable; an operator may retry.
    Dead,
    /// Delivered.
    Delivered,
    /// A state that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl QueuedCallState {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        match self {
            Self::Queued => "queued",
            Self::Sending => "sending",
            Self::Dead => "dead",
            Self::Delivered => "delivered",
            Self::Other(word) => word.as_str(),
        }
    }
}

/// A queued call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuedCallView {
    /// Number, as given to the caller.
    pub id: String,
    /// State.
    pub state: QueuedCallState,
    /// Principal.
    pub principal: Arc<str>,
    /// Target server.
    pub server: Arc<str>,
    /// The server's own tool name; empty if unknown.
    pub tool: Arc<str>,
    /// Idempotency key; empty if unknown.
    pub key: Arc<str>,
    /// Position in the lane, from 1; 0 if not waiting.
    pub position: u64,
    /// Number of attempts.
    pub attempts: u32,
    /// Failure: final for a dead call, otherwise the last known to this process.
    pub last_error: Option<Arc<str>>,
    /// Time until the next attempt in milliseconds; `None` if not determined by the clock.
    pub next_try_ms: Option<u64>,
    /// Storage time in milliseconds since 1970; `None` if unknown.
    pub stored_at_ms: Option<u64>,
    /// Age in milliseconds.
    pub age_ms: Option<u64>,
    /// Expiry in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// Delivery time in milliseconds since 1970.
    pub done_at_ms: Option<u64>,
    /// Parameters; only in responses about a single call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
    /// Result if stored; only in responses about a single call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// Queued calls of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerQueueView {
    /// Number of queued calls.
    pub queued: u64,
    /// Number of dead calls.
    pub dead: u64,
    /// Age of the oldest in milliseconds.
    pub oldest_age_ms: Option<u64>,
}
