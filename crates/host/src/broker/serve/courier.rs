//! The way of one stored request back to its mailbox, and of its reply to whoever asked.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::hex::hex;
use bowline_link::BoxFuture;
use bowline_wire::broker::Answer;
use sha2::{Digest as _, Sha256};

/// Carries the reply of one request, and ends the request: over the journal in a hub, over a
/// connection elsewhere.
pub trait Courier: Send + Sync {
    /// Stores the reply in the mailbox of who asked; it is durable when this returns.
    ///
    /// A request may be answered more than once, by the same answer or after a crash by another:
    /// replies are named after their requests ([`reply_id`]), so that only the first counts.
    fn reply<'a>(&'a self, answer: &'a Answer) -> BoxFuture<'a, Result<(), ReplyError>>;

    /// Ends the request: it does not come again.
    fn ack(&self) -> BoxFuture<'_, ()>;

    /// Gives the request back; it comes again after `delay`.
    fn put_back(&self, delay: Duration) -> BoxFuture<'_, ()>;

    /// Makes the request a dead letter.
    fn bury(&self, reason: Arc<str>) -> BoxFuture<'_, ()>;
}

/// Why a reply is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// It was refused, and would be again: the mailbox is full, or there is none.
    Refused(Arc<str>),
    /// It is larger than a message may be.
    TooLarge,
    /// The way is lost; the request comes again on another.
    Lost,
}

/// Bytes of the digest that names a reply.
const NAME_BYTES: usize = 16;

/// Returns the id of the reply to a request of `caller`: made of both, so that a reply that is sent
/// twice is one message, and those to two callers are two.
#[must_use]
pub fn reply_id(caller: &str, request: &str) -> Arc<str> {
    let whole: [u8; 32] = Sha256::new()
        .chain_update(caller)
        .chain_update([0])
        .chain_update(request)
        .finalize()
        .into();
    let digest: [u8; NAME_BYTES] = whole.first_chunk().copied().unwrap_or_default();
    format!("re-{}", hex(&digest)).into()
}
