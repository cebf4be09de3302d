//! Contract of every journal engine: operations, types, limits and durability guarantees.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::time::MonotonicTime;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::watch;

/// Future of a journal operation; resolves once the operation is durable.
pub type JournalFuture<'a, T> = BoxFuture<'a, Result<T, JournalError>>;

/// Longest name of a lane, in bytes.
pub const LANE_BYTES_MAX: usize = 256;

/// Longest dedupe id and longest key of a value, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// Largest message body, kept result and value, in bytes.
pub const BODY_BYTES_MAX: usize = 9 * 1024 * 1024;

/// Queued messages per lane at most.
pub const LANE_MESSAGES_MAX: u64 = 50_000;

/// Dead letters kept in total; the oldest are evicted first.
pub const DEAD_LETTERS_MAX: u64 = 50_000;

/// How long a completed message and its result are remembered.
pub const COMPLETED_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Completed messages remembered at most; the oldest are evicted first.
pub const COMPLETED_MAX: u64 = 50_000;

/// Bytes of kept results in total; the oldest are evicted first.
pub const COMPLETED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Messages expired per call at most.
pub const EXPIRE_MAX: usize = 256;

/// Bytes of bodies returned per call at most; the first body is always returned.
pub const LISTED_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// A moment on both clocks.
///
/// Leases and delays use the monotonic clock and are void after a reopen: every queued message is
/// then due. Times that must survive a restart, such as message expiry, use elapsed time: the
/// monotonic clock while the journal is open, plus the wall clock, within limits, for the time
/// while the journal was closed. A wall clock jump alone expires nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// Monotonic clock of this process.
    pub now: MonotonicTime,
    /// Wall clock in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Name of an ordered queue. A mailbox is a lane whose messages are leased in any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneName(Arc<str>);

impl LaneName {
    /// Returns the lane with this name: 1 to [`LANE_BYTES_MAX`] bytes without control characters.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(name: &str) -> Result<Self, JournalError> {
        let fits = (1..=LANE_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        match fits {
            true => Ok(Self(name.into())),
            false => Err(JournalError::BadName),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Number of a message, in order of publication; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// Message to publish.
#[derive(Clone, Debug)]
pub struct MessageDraft {
    /// Target lane.
    pub lane: LaneName,
    /// Dedupe id: two drafts of a lane with the same id are the same message; with different
    /// digests the second is a conflict.
    pub dedupe: Arc<str>,
    /// Digest that drafts with the same id must share. Bodies may differ in insignificant parts.
    pub digest: [u8; 32],
    /// Message body.
    pub body: Bytes,
    /// Time until expiry; `None` never expires.
    pub ttl: Option<Duration>,
    /// Requests a lease of this duration on publication. Granted only if nothing is queued in the
    /// lane, so no message is overtaken.
    pub lease: Option<Duration>,
}

/// Outcome of a publication; durable once returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The message was stored.
    Stored {
        /// Message number.
        id: MessageId,
        /// Position in the lane, starting at 1.
        position: u64,
        /// Receipt of the requested lease, if granted.
        receipt: Option<LeaseReceipt>,
    },
    /// The same message was published before.
    Duplicate(Duplicate),
}

/// Current state of a message published before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Duplicate {
    /// Queued or leased.
    Queued {
        /// Message number.
        id: MessageId,
        /// Position in the lane, starting at 1.
        position: u64,
        /// Whether the message is leased.
        is_leased: bool,
    },
    /// Dead letter.
    DeadLetter(MessageId),
    /// Completed.
    Completed(CompletedMessage),
}

/// Completed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedMessage {
    /// Message number.
    pub id: MessageId,
    /// Result passed to `ack`, if any.
    pub result: Option<Bytes>,
    /// Completion time in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Proof of a lease. Void once the lease expired and the message was leased again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseReceipt {
    /// Leased message.
    pub id: MessageId,
    /// Lease number.
    pub lease: u64,
}

/// Which messages of a lane can be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOrder {
    /// Only the first message, and only when due and not leased: an outbox.
    Strict,
    /// All messages that are due and not leased, oldest first: a mailbox.
    Any,
}

/// Message with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedMessage {
    /// Receipt for `ack` and `nak`.
    pub receipt: LeaseReceipt,
    /// Dedupe id.
    pub dedupe: Arc<str>,
    /// Message body.
    pub body: Bytes,
    /// Number of leases so far, including this lease.
    pub attempts: u32,
    /// Publication time in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// Expiry time in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
    /// Time since publication, by elapsed time.
    pub age: Duration,
    /// Time until expiry, by elapsed time.
    pub remaining: Option<Duration>,
}

/// Status of a stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// Queued.
    Queued,
    /// Leased by a consumer.
    Leased,
    /// Dead letter, with the recorded reason.
    DeadLetter(Arc<str>),
    /// The stored row is damaged; fields of the view may be empty. The message can be removed.
    Damaged,
}

/// Stored message as returned by queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageView {
    /// Message number.
    pub id: MessageId,
    /// Lane of the message.
    pub lane: LaneName,
    /// Dedupe id.
    pub dedupe: Arc<str>,
    /// Message status.
    pub status: MessageStatus,
    /// Position in the lane, starting at 1; 0 for a dead letter and in a lane with a damaged
    /// message.
    pub position: u64,
    /// Message body.
    pub body: Bytes,
    /// Number of leases so far.
    pub attempts: u32,
    /// Publication time in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// Expiry time in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
}

/// Filter of a message query.
#[derive(Clone, Debug, Default)]
pub struct MessageFilter {
    /// Prefix of lane names.
    pub lanes: String,
    /// Only messages after this number.
    pub after: Option<MessageId>,
    /// Only dead letters, or only live messages; `None` matches both.
    pub dead: Option<bool>,
    /// Messages returned at most.
    pub limit: usize,
}

/// Counters of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// Lane name.
    pub lane: LaneName,
    /// Queued and leased messages.
    pub queued: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Publication time of the first queued message, in milliseconds since 1970.
    pub oldest_unix_ms: Option<u64>,
}

/// Lane stopped by a damaged message: nothing is leased until the message is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedLane {
    /// Lane name.
    pub lane: LaneName,
    /// Description of the damage.
    pub reason: Arc<str>,
}

/// Precondition of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedRevision {
    /// No precondition.
    Any,
    /// The key must be absent.
    Absent,
    /// The value must have this revision.
    Revision(u64),
}

/// Value with its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    /// Revision number; increases with every change of any key and is never reused.
    pub revision: u64,
    /// Value bytes.
    pub bytes: Bytes,
}

/// Watch on a key prefix: carries the newest revision below the prefix. Receivers read the changed
/// values themselves; several changes may collapse into a single notification.
pub type RevisionWatch = watch::Receiver<u64>;

/// Health of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalHealth {
    /// All operations succeed.
    Good,
    /// The disk is full: new data is refused, existing messages can still be settled.
    DiskFull,
    /// A write or sync failed, so the disk content is unknown; the journal must be reopened.
    Poisoned(Arc<str>),
    /// The files were deleted, moved or replaced while open; the journal must be reopened.
    Replaced,
}

/// Error of a journal operation. A failed operation leaves the state unchanged, except after
/// `Poisoned` and `Replaced`, where only a reopen shows the state.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JournalError {
    /// A name is empty, too long, or contains control characters.
    #[error("a name is empty, too long, or holds control characters")]
    BadName,
    /// A body, result or value exceeds the size limit.
    #[error("{bytes} bytes are more than the {bytes_max} that can be stored")]
    TooLarge {
        /// Actual size.
        bytes: usize,
        /// Size limit.
        bytes_max: usize,
    },
    /// The lane is full.
    #[error("{limit} messages wait in the lane already")]
    LaneFull {
        /// Message limit of a lane.
        limit: u64,
    },
    /// A message with the same dedupe id has a different digest.
    #[error("a message with the same id says something else")]
    Conflict,
    /// The value does not have the expected revision.
    #[error("the value was changed by somebody else")]
    RevisionMismatch,
    /// The receipt's lease was replaced, or the message is gone.
    #[error("the message is no longer held under this receipt")]
    LeaseLost,
    /// No message has this number.
    #[error("there is no such message")]
    NotFound,
    /// The disk has no room for new data.
    #[error("there is no room left on the disk")]
    DiskFull,
    /// A stored row does not match its checksum.
    #[error("{what} is damaged on the disk")]
    Damaged {
        /// Description of the damaged row.
        what: Arc<str>,
    },
    /// The disk failed; nothing is acknowledged until the journal is reopened.
    #[error("the journal cannot be written: {reason}")]
    Poisoned {
        /// Error of the operating system.
        reason: Arc<str>,
    },
    /// The paths no longer name the open files, so the next start would find neither new nor
    /// earlier writes.
    #[error("the files of the journal were deleted, moved or replaced while it was open")]
    Replaced,
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}

/// Durable queues and values.
///
/// A change is durable and atomic once its future resolves with `Ok`. A dropped future may or may
/// not have taken effect. No operation waits for future messages.
pub trait Journal: fmt::Debug + Send + Sync {
    /// Publishes a message.
    fn publish(&self, draft: MessageDraft, at: Timestamps) -> JournalFuture<'_, PublishOutcome>;

    /// Leases up to `max` messages of a lane for `hold`. Expired messages are not leased; see
    /// [`expire_messages`](Self::expire_messages).
    fn lease<'a>(
        &'a self,
        lane: &'a LaneName,
        order: LeaseOrder,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<LeasedMessage>>;

    /// Completes a leased message and stores the result under its dedupe id.
    fn ack(
        &self,
        receipt: LeaseReceipt,
        result: Option<Bytes>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()>;

    /// Returns a leased message to its position; due again after `delay`.
    fn nak(&self, receipt: LeaseReceipt, delay: Duration, at: Timestamps) -> JournalFuture<'_, ()>;

    /// Turns a leased message into a dead letter: kept, but no longer in the lane's order.
    fn dead_letter(
        &self,
        receipt: LeaseReceipt,
        reason: Arc<str>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()>;

    /// Requeues a dead letter at the end of its lane, with a new `ttl`.
    fn requeue(
        &self,
        id: MessageId,
        ttl: Option<Duration>,
        at: Timestamps,
    ) -> JournalFuture<'_, ()>;

    /// Removes an unleased message or a dead letter and frees its dedupe id.
    fn remove_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, ()>;

    /// Discards a leased message without completing it and frees its dedupe id.
    fn discard_leased(&self, receipt: LeaseReceipt, at: Timestamps) -> JournalFuture<'_, ()>;

    /// Turns expired, unleased messages of the lanes with this prefix into dead letters, oldest
    /// first, and returns up to [`EXPIRE_MAX`] messages and [`LISTED_BYTES_MAX`] bytes per call.
    fn expire_messages<'a>(
        &'a self,
        lanes: &'a str,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<MessageView>>;

    /// Returns the counters of all non-empty lanes with this prefix.
    fn lane_stats<'a>(
        &'a self,
        prefix: &'a str,
        at: Timestamps,
    ) -> JournalFuture<'a, Vec<LaneStats>>;

    /// Returns the body bytes of each lane with this prefix. Used for quotas: damaged rows count
    /// with their stored length.
    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> JournalFuture<'a, Vec<(LaneName, u64)>>;

    /// Returns matching messages, oldest first. A page is shorter than the limit if its bodies
    /// exceed [`LISTED_BYTES_MAX`], and empty only at the end.
    fn list_messages(
        &self,
        filter: MessageFilter,
        at: Timestamps,
    ) -> JournalFuture<'_, Vec<MessageView>>;

    /// Returns a message by number.
    fn get_message(&self, id: MessageId, at: Timestamps) -> JournalFuture<'_, Option<MessageView>>;

    /// Returns a completed message by lane and dedupe id.
    fn get_result<'a>(
        &'a self,
        lane: &'a LaneName,
        dedupe: &'a str,
    ) -> JournalFuture<'a, Option<CompletedMessage>>;

    /// Returns a value.
    fn get_value<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<VersionedValue>>;

    /// Returns up to `limit` keys with this prefix, sorted, with their values.
    fn list_values<'a>(
        &'a self,
        prefix: &'a str,
        limit: usize,
    ) -> JournalFuture<'a, Vec<(Arc<str>, VersionedValue)>>;

    /// Sets a value if `expect` holds, and returns the new revision; without `bytes` the key is
    /// deleted.
    fn put_value<'a>(
        &'a self,
        key: &'a str,
        bytes: Option<Bytes>,
        expect: ExpectedRevision,
    ) -> JournalFuture<'a, u64>;

    /// Returns a watch on all keys with this prefix.
    fn watch_prefix(&self, prefix: &str) -> RevisionWatch;

    /// Returns the health of the engine. Also checks for replaced files.
    fn health(&self) -> JournalHealth;

    /// Returns the lanes known to be stopped by damage, sorted; always empty for engines without
    /// durable storage.
    fn stopped_lanes(&self) -> Vec<StoppedLane> {
        Vec::new()
    }

    /// Writes pending changes and closes the journal; later operations fail with `Closed`.
    fn close(&self) -> BoxFuture<'_, ()>;
}
