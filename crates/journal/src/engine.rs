//! The contract of every engine: what it promises when it says that something is stored.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::Now;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::watch;

/// A future behind a pointer, so that a trait can hand it out.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an operation gives, once it is durable.
pub type Pending<'a, T> = BoxFuture<'a, Result<T, JournalError>>;

/// Longest name of a lane, in bytes.
pub const LANE_BYTES_MAX: usize = 256;

/// Longest dedupe id and longest key of a value, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// Largest body of a message, kept result and value, in bytes.
pub const BODY_BYTES_MAX: usize = 9 * 1024 * 1024;

/// Messages that wait in one lane at most.
pub const LANE_MESSAGES_MAX: u64 = 50_000;

/// Dead letters that are kept at most in all; the oldest go first.
pub const DEAD_MAX: u64 = 50_000;

/// How long it is remembered that a message was done, and what came of it.
pub const DONE_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Ends of messages that are remembered at most; the oldest go first.
pub const DONE_MAX: u64 = 50_000;

/// Results of ended messages that are kept at most in all, in bytes; the oldest go first.
pub const DONE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Messages that one call makes dead letters at most because they are past their time.
pub const EXPIRE_MAX: usize = 256;

/// Bodies that one call shows at most, in bytes; one body is always shown.
pub const SHOWN_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// A moment, on both clocks.
///
/// Leases and delays go by the monotonic one and are void when the journal is opened anew: then
/// everything that waits is due. What must hold over a restart, like the time until which a
/// message is worth sending, goes by elapsed time: the monotonic clock while the journal is open,
/// and the wall clock, within limits, over the time that it was closed. A wall clock that jumps
/// expires nothing by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// On the clock of this process.
    pub now: Now,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// The name of an ordered queue; a mailbox is one whose messages may be handed out side by side.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(Arc<str>);

impl Lane {
    /// Returns the lane of this name: 1 to [`LANE_BYTES_MAX`] bytes without control characters.
    ///
    /// # Errors
    /// The name cannot be one.
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

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Numbers the messages of a journal in the order in which they were stored; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// A message to be stored.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Where it goes.
    pub lane: Lane,
    /// Two drafts of one lane with the same id are the same message; with other bodies they are a
    /// conflict.
    pub dedupe: Arc<str>,
    /// What two drafts of the same id must agree on. Bodies may differ in what does not count.
    pub digest: [u8; 32],
    /// What it says.
    pub body: Bytes,
    /// How long it is worth delivering; for ever where absent.
    pub ttl: Option<Duration>,
    /// Asks to hold the message from the start, as if it were leased for so long: granted only
    /// where nothing waits in the lane, so that nobody overtakes.
    pub hold: Option<Duration>,
}

/// What became of a draft. It is durable when this is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is stored.
    Stored {
        /// Its number.
        id: MessageId,
        /// How many are before it in its lane, itself counted: the first is 1.
        position: u64,
        /// What proves that the caller holds it, where it asked to and nothing waited.
        held: Option<Receipt>,
    },
    /// The same message was stored before, and this is how it stands.
    Known(Known),
}

/// How a message stands that was stored before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It waits, or somebody holds it.
    Waiting {
        /// Its number.
        id: MessageId,
        /// How many are before it, itself counted.
        position: u64,
        /// Whether somebody holds it.
        held: bool,
    },
    /// It is a dead letter.
    Dead(MessageId),
    /// It was done.
    Done(Done),
}

/// How a message ended that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its number.
    pub id: MessageId,
    /// What came of it, where that was kept.
    pub result: Option<Bytes>,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Proves that its holder was given a message; worth nothing once the lease has run out and the
/// message was handed to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The message.
    pub id: MessageId,
    /// Which of its leases.
    pub lease: u64,
}

/// Which messages of a lane may be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Only the first, and only when it is due and nobody holds it: an outbox.
    Strict,
    /// All that are due and that nobody holds, the oldest first: a mailbox.
    Any,
}

/// A message that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// What proves it.
    pub receipt: Receipt,
    /// Its dedupe id.
    pub dedupe: Arc<str>,
    /// What it says.
    pub body: Bytes,
    /// How often it was handed out, this time counted.
    pub attempts: u32,
    /// When it was stored, in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// Until when it is worth delivering, likewise.
    pub expires_unix_ms: Option<u64>,
    /// How long ago it was stored, by elapsed time.
    pub age: Duration,
    /// How much longer it is worth delivering, by elapsed time.
    pub left: Option<Duration>,
}

/// How a stored message stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It waits its turn.
    Waiting,
    /// Somebody holds it.
    Held,
    /// It is a dead letter, for the reason that was given.
    Dead(Arc<str>),
    /// What is on the disk is not what was written; the rest of the entry may be empty. It can be
    /// removed.
    Damaged,
}

/// A message as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub id: MessageId,
    /// Its lane.
    pub lane: Lane,
    /// Its dedupe id.
    pub dedupe: Arc<str>,
    /// How it stands.
    pub standing: Standing,
    /// How many are before it, itself counted; 0 for a dead letter, and where a message of the
    /// lane is damaged.
    pub position: u64,
    /// What it says.
    pub body: Bytes,
    /// How often it was handed out.
    pub attempts: u32,
    /// When it was stored, in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// Until when it is worth delivering, likewise.
    pub expires_unix_ms: Option<u64>,
}

/// Which messages to show.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Those of lanes whose names begin so.
    pub lanes: String,
    /// Those after this one.
    pub after: Option<MessageId>,
    /// Dead letters only, or only those that are not; both where absent.
    pub dead: Option<bool>,
    /// So many at most.
    pub limit: usize,
}

/// A lane as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Its name.
    pub lane: Lane,
    /// Messages that wait or are held.
    pub waiting: u64,
    /// Its dead letters.
    pub dead: u64,
    /// When the first that waits was stored, in milliseconds since 1970.
    pub oldest_unix_ms: Option<u64>,
}

/// A lane of which nothing is handed out, since a message of it is damaged on the disk. It goes
/// on when that message is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedLane {
    /// Its name.
    pub lane: Lane,
    /// What is damaged, in words.
    pub reason: Arc<str>,
}

/// What a value must be for it to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever it is.
    Any,
    /// There is none.
    Absent,
    /// The one with this revision.
    Revision(u64),
}

/// A value and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Grows with every change of any key, and is never used again.
    pub revision: u64,
    /// The value.
    pub bytes: Bytes,
}

/// Sees that something under a prefix changed: the newest revision there. What it was is to be
/// read; changes in between may be seen as one.
pub type Watch = watch::Receiver<u64>;

/// What an engine can do at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything.
    Good,
    /// There is no room: nothing new is taken, what is there can be ended.
    Full,
    /// It no longer knows what is on the disk; it must be opened anew.
    Poisoned(Arc<str>),
    /// Its files were deleted, moved or replaced while they were open; it must be opened anew.
    Replaced,
}

/// Why an operation did not take effect. Whatever it was about is as it was before, unless it is
/// `Poisoned` or `Replaced`: then a restart will tell.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JournalError {
    /// A name is empty, too long, or holds what no name can.
    #[error("a name is empty, too long, or holds control characters")]
    BadName,
    /// A body is larger than may be stored.
    #[error("{bytes} bytes are more than the {bytes_max} that can be stored")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        bytes_max: usize,
    },
    /// The lane is full.
    #[error("{limit} messages wait in the lane already")]
    LaneFull {
        /// How many may wait.
        limit: u64,
    },
    /// A message of this id says something else.
    #[error("a message with the same id says something else")]
    Conflict,
    /// The value is not the one that was expected.
    #[error("the value was changed by somebody else")]
    Changed,
    /// The receipt is of a lease that ran out, or the message is gone.
    #[error("the message is no longer held under this receipt")]
    Lapsed,
    /// There is no message of this number.
    #[error("there is no such message")]
    Unknown,
    /// There is no room on the disk for anything new.
    #[error("there is no room left on the disk")]
    Full,
    /// What was read is not what was written.
    #[error("{what} is damaged on the disk")]
    Damaged {
        /// Which row, in words.
        what: Arc<str>,
    },
    /// The disk failed; nothing can be promised until the journal is opened anew.
    #[error("the journal cannot be written: {reason}")]
    Poisoned {
        /// What the system said.
        reason: Arc<str>,
    },
    /// The files are not where they were opened, so that the next start would not find what is
    /// written to them, nor what was written before.
    #[error("the files of the journal were deleted, moved or replaced while it was open")]
    Replaced,
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}

/// Something that remembers.
///
/// Every change is durable when its future ends well, and takes effect as a whole or not at all.
/// A future that is dropped may or may not have taken effect. No operation waits for another
/// message to come.
pub trait Journal: fmt::Debug + Send + Sync {
    /// Stores a message.
    fn publish(&self, draft: Draft, at: At) -> Pending<'_, Published>;

    /// Hands out up to `max` messages of a lane; nobody else is given them for `hold`. Messages
    /// past their time are not handed out; see [`expire`](Self::expire).
    fn lease<'a>(
        &'a self,
        lane: &'a Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Pending<'a, Vec<Delivery>>;

    /// Ends a message that was done, and remembers under its dedupe id what came of it.
    fn ack(&self, receipt: Receipt, result: Option<Bytes>, at: At) -> Pending<'_, ()>;

    /// Gives a message back; it keeps its place, and is due again after `delay`.
    fn nak(&self, receipt: Receipt, delay: Duration, at: At) -> Pending<'_, ()>;

    /// Makes a message that is held a dead letter: it is kept, and stands in nobody's way.
    fn bury(&self, receipt: Receipt, reason: Arc<str>, at: At) -> Pending<'_, ()>;

    /// Puts a dead letter back, behind all others of its lane, with another `ttl` from now on.
    fn revive(&self, id: MessageId, ttl: Option<Duration>, at: At) -> Pending<'_, ()>;

    /// Forgets a message that nobody holds, or a dead letter; its dedupe id is free again.
    fn remove(&self, id: MessageId, at: At) -> Pending<'_, ()>;

    /// Forgets a message that is held: it was never to be done. Its dedupe id is free again.
    fn withdraw(&self, receipt: Receipt, at: At) -> Pending<'_, ()>;

    /// Makes dead letters of messages of these lanes that nobody holds and that are past their
    /// time, oldest first, and returns them: up to [`EXPIRE_MAX`] and [`SHOWN_BYTES_MAX`] a time.
    fn expire<'a>(&'a self, lanes: &'a str, at: At) -> Pending<'a, Vec<Entry>>;

    /// Returns all lanes whose names begin so and that are not empty.
    fn lanes<'a>(&'a self, prefix: &'a str, at: At) -> Pending<'a, Vec<LaneView>>;

    /// Returns how many bytes the bodies of each lane have whose name begins so. It is for quotas:
    /// rows that are damaged count as they are written.
    fn lane_bytes<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<(Lane, u64)>>;

    /// Returns messages, oldest first; fewer than were asked for where they are larger than
    /// [`SHOWN_BYTES_MAX`] together, but none only where there is none left.
    fn inspect(&self, filter: Filter, at: At) -> Pending<'_, Vec<Entry>>;

    /// Returns one message.
    fn entry(&self, id: MessageId, at: At) -> Pending<'_, Option<Entry>>;

    /// Returns how a message ended that was done, by its lane and dedupe id.
    fn result<'a>(&'a self, lane: &'a Lane, dedupe: &'a str) -> Pending<'a, Option<Done>>;

    /// Returns a value.
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Value>>;

    /// Returns the keys that begin so, sorted, `limit` at most, with their values.
    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> Pending<'a, Vec<(Arc<str>, Value)>>;

    /// Sets a value where it is the expected one, and returns its revision; without `bytes` the
    /// key is forgotten.
    fn put<'a>(&'a self, key: &'a str, bytes: Option<Bytes>, expect: Expect) -> Pending<'a, u64>;

    /// Returns what sees every change of a value whose key begins so.
    fn watch(&self, prefix: &str) -> Watch;

    /// Returns what it can do at the moment. Looks whether the files are still in place.
    fn health(&self) -> Health;

    /// Returns the lanes that are known to be stopped by damage, sorted; an engine that cannot
    /// lose what it holds has none.
    fn stopped_lanes(&self) -> Vec<StoppedLane> {
        Vec::new()
    }

    /// Writes what is still to be written and takes no more; later operations are `Closed`.
    fn close(&self) -> BoxFuture<'_, ()>;
}
