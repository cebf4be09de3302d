//! Sink for the reply to one stored request, and for the ack or nak of the request.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::hex::to_hex;
use sha2::{Digest as _, Sha256};

use crate::frames::BrokerResponse;

/// Stores the reply to one request and settles the request: through the journal on a hub, over the
/// connection on a worker.
pub trait ReplySink: Send + Sync {
    /// Stores the reply in the caller's mailbox; durable when the future resolves.
    ///
    /// A request may get several replies, equal ones or, after a crash, different ones: the reply
    /// id derives from the request ([`reply_id`]), so only the first reply counts.
    fn store_reply<'a>(
        &'a self,
        response: &'a BrokerResponse,
    ) -> BoxFuture<'a, Result<(), ReplyError>>;

    /// Acks the request: no redelivery.
    fn ack(&self) -> BoxFuture<'_, ()>;

    /// Returns the request to the mailbox; redelivered after `delay`.
    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()>;

    /// Turns the request into a dead letter.
    fn dead_letter(&self, reason: Arc<str>) -> BoxFuture<'_, ()>;
}

/// Why a reply is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// Refused permanently: the mailbox is full or missing.
    Refused(Arc<str>),
    /// The reply exceeds the message size limit.
    TooLarge,
    /// The connection was lost; the request will be redelivered.
    Lost,
}

/// Bytes of the digest in a reply id.
const REPLY_ID_BYTES: usize = 16;

/// Returns the id of the reply to a request of `caller`. The id derives from both, so a reply sent
/// twice is one message, and replies to two callers differ.
#[must_use]
pub fn reply_id(caller: &str, request: &str) -> Arc<str> {
    let whole: [u8; 32] = Sha256::new()
        .chain_update(caller)
        .chain_update([0])
        .chain_update(request)
        .finalize()
        .into();
    let digest: [u8; REPLY_ID_BYTES] = whole.first_chunk().copied().unwrap_or_default();
    format!("re-{}", to_hex(&digest)).into()
}
