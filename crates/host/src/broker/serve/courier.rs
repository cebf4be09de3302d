//! The way of one stored request back to its mailbox, and of its reply to whoever asked.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::hex::hex;
use bowline_core::mailbox::ID_CHARS_MAX;
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

/// Returns the id of the reply to a request: made of the request's, so that a reply that is sent
/// twice is one message.
#[must_use]
pub fn reply_id(request: &str) -> Arc<str> {
    let id = format!("re.{request}");
    match id.len() <= ID_CHARS_MAX {
        true => id.into(),
        false => format!("re.{}", hex(&Sha256::digest(request))).into(),
    }
}
