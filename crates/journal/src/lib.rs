//! Durable state: lanes and mailboxes, results by idempotency key, values with compare-and-set, and
//! the audit trail.
//!
//! [`Journal`] is the common contract. [`SqliteJournal`] stores everything on disk,
//! [`MemoryJournal`] in memory for tests and hosts without a disk. The crate knows nothing of MCP:
//! a message is bytes, and a lane is a name. Without the feature `sqlite` there is nothing on disk:
//! [`MemoryJournal`] and [`audit::MemoryAuditTrail`].

pub mod audit;
pub mod contract;
pub mod elapsed;
pub mod engine;
#[cfg(feature = "sqlite")]
mod file_identity;
pub mod memory;
mod principal_record;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod validation;
mod watches;

pub use engine::{
    CompletedMessage, Duplicate, ExpectedRevision, Journal, JournalError, JournalFuture,
    JournalHealth, LaneName, LaneStats, LeaseOrder, LeaseReceipt, LeasedMessage, MessageDraft,
    MessageFilter, MessageId, MessageStatus, MessageView, PublishOutcome, RevisionWatch,
    StoppedLane, Timestamps, VersionedValue,
};
pub use memory::MemoryJournal;
pub use principal_record::PrincipalRecord;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteJournal;
