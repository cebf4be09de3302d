//! Append-only audit log whose rows form a hash chain.
//!
//! [`FileAuditTrail`] stores rows in SQLite files of a dedicated directory. Appending a row encodes
//! it into a buffer behind a short lock; the chain and disk writes run on the trail's own thread,
//! for many rows at a time, and rows become JSON when they are read. [`verify_trail`]
//! reads the files without a running trail and reports the first damaged row. A user with write
//! access to all files can forge the whole chain; comparing with a [`ChainHead`] recorded elsewhere
//! detects the forgery.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;
#[cfg(feature = "sqlite")]
use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "sqlite")]
use thiserror::Error;

mod audit_row;
mod memory_trail;
#[cfg(feature = "sqlite")]
mod rings;
#[cfg(feature = "sqlite")]
mod row_block;
mod row_encoding;
#[cfg(feature = "sqlite")]
mod row_reader;
#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests;
#[cfg(feature = "sqlite")]
mod trail;
#[cfg(feature = "sqlite")]
mod trail_files;
#[cfg(feature = "sqlite")]
mod trail_writer;
#[cfg(feature = "sqlite")]
mod verify;

pub use audit_row::{
    AuditPayload, AuditRow, AuditRowKind, BodyDigest, ChainHash, ChainHead, RowScope,
};
pub use memory_trail::MemoryAuditTrail;
#[cfg(feature = "sqlite")]
pub use rings::{
    AuditCursor, DENIALS_RING, ExpectedHeads, MergedPage, RingReports, denials_directory,
};
#[cfg(feature = "sqlite")]
pub use row_reader::{
    AuditFilter, AuditPage, RowExportError, RowText, export_rows, read_newest, read_page,
};
#[cfg(feature = "sqlite")]
pub use trail::FileAuditTrail;
#[cfg(feature = "sqlite")]
pub use verify::{BrokenRow, RowDamage, VerifyReport, verify_trail};

#[cfg(feature = "sqlite")]
/// Longest row in bytes; a longer row was not written by Bowline.
const ROW_BYTES_MAX: usize = 1024 * 1024;

/// Bodies of a call that are too long to hash on the thread of the call: the trail hashes them, as
/// far as its row has [`BodyDigest::PENDING`] in their places.
#[derive(Clone, Debug, Default)]
pub struct LongBodies {
    /// The arguments.
    pub arguments: Option<Bytes>,
    /// The result or error.
    pub result: Option<Bytes>,
}

impl LongBodies {
    #[cfg(feature = "sqlite")]
    const fn is_empty(&self) -> bool {
        self.arguments.is_none() && self.result.is_none()
    }

    #[cfg(feature = "sqlite")]
    fn len(&self) -> usize {
        let bodies = [&self.arguments, &self.result];
        bodies.into_iter().flatten().map(Bytes::len).sum()
    }

    /// Hashes the bodies now.
    fn hash_into(&mut self, row: &mut AuditRow<'_>) {
        for (digest, body) in [
            (&mut row.arguments, self.arguments.take()),
            (&mut row.result, self.result.take()),
        ] {
            if let Some(body) = body {
                *digest = Some(BodyDigest::from_body(&body));
            }
        }
    }
}

#[cfg(feature = "sqlite")]
/// Returns the wall clock in milliseconds since 1970.
pub type UnixClock = Arc<dyn Fn() -> u64 + Send + Sync>;

#[cfg(feature = "sqlite")]
/// Limits of a trail: queue, batch size, file rotation and retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditLimits {
    /// Queued rows before callers wait for room.
    pub rows_max: usize,
    /// Bytes of queued rows before callers wait for room.
    pub bytes_max: usize,
    /// Bytes of the queue up to which long bodies are kept for the writer to hash. Beyond, a body
    /// is hashed by its caller and freed, so long bodies never make rows wait.
    pub body_bytes_max: usize,
    /// Rows that fill a batch and start a write at once.
    pub batch_rows_max: usize,
    /// How long the first row of a batch waits for more rows.
    pub batch_wait: Duration,
    /// Pause before the next attempt after a disk failure.
    pub retry_wait: Duration,
    /// File size that starts the next file.
    pub file_bytes_max: u64,
    /// Files kept, unless rows are younger than `age_min`.
    pub files_max: usize,
    /// Files kept at most, regardless of row age.
    pub files_hard_max: usize,
    /// Age below which rows are kept up to `files_hard_max`.
    pub age_min: Duration,
    /// Age above which rows are evicted; `None` disables eviction by age.
    pub age_max: Option<Duration>,
    /// Ring name written into each row; absent for the ring of calls.
    pub ring: Option<&'static str>,
}

#[cfg(feature = "sqlite")]
impl Default for AuditLimits {
    fn default() -> Self {
        Self {
            rows_max: 16_384,
            bytes_max: 32 * 1024 * 1024,
            body_bytes_max: 8 * 1024 * 1024,
            batch_rows_max: 4_096,
            batch_wait: Duration::from_millis(100),
            retry_wait: Duration::from_secs(1),
            file_bytes_max: 256 * 1024 * 1024,
            files_max: 4,
            files_hard_max: 16,
            age_min: Duration::ZERO,
            age_max: None,
            ring: None,
        }
    }
}

#[cfg(feature = "sqlite")]
/// Health of a trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditHealth {
    /// Why rows are not written at present, or damage found at start.
    pub failure: Option<Arc<str>>,
    /// Rows lost since the trail was opened.
    pub lost: u64,
    /// Rows queued for writing.
    pub queued: usize,
    /// Last row on disk.
    pub head: ChainHead,
}

#[cfg(feature = "sqlite")]
/// Error of an audit trail: opening, writing or reading failed.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A file system operation failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// Attempted action.
        action: &'static str,
        /// Affected file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A SQLite operation on a trail file failed.
    #[error("cannot {action} `{path}`")]
    Sqlite {
        /// Attempted action.
        action: &'static str,
        /// Affected file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The path no longer names the open file, so later readers would not find new rows.
    #[error("`{0}` was deleted, moved or replaced while it was open")]
    Replaced(PathBuf),
    /// The anchor file is missing or unreadable.
    #[error("`{0}` does not hold the head of the trail")]
    NoAnchor(PathBuf),
    /// The file has the form of another version of Bowline, which alone can read it.
    #[error("`{0}` was written by another version of Bowline")]
    FileVersion(PathBuf),
}
