//! Rows that are only ever added, each bound to the one before it by a hash.
//!
//! [`Trail`] keeps them in files of their own, written behind those who note them: a note costs a
//! short lock, and everything else (reading, hashing, the disk) happens on the trail's thread.
//! [`verify`] reads the files without a trail and names the first row that is not as it was
//! written. Whoever can write all of the files can forge all of it; a [`Head`] that was noted
//! elsewhere finds that as well.

mod anchor;
mod chain;
mod files;
mod memory;
mod queue;
mod read;
mod rings;
mod row;
#[cfg(test)]
mod tests;
mod trail;
mod verify;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

pub use chain::{Hash, Head};
pub use memory::Memory;
pub use read::{Filter, Kept, Page, RowText, newest, page, span};
pub use rings::{Cursor, DENIALS, ExpectedHeads, Merged, Verdicts, denials};
pub use row::{Kind, Payload, Row};
pub use trail::Trail;
pub use verify::{Broken, Damage, Verdict, verify};

/// Longest row in bytes; what is longer was not written by us.
const ROW_BYTES_MAX: usize = 1024 * 1024;

/// Turns what was noted into a row: on the trail's thread, or at once where a large note finds no
/// room.
pub type Render<E> = Arc<dyn for<'a> Fn(&'a E) -> Row<'a> + Send + Sync>;

/// Tells the wall clock, in milliseconds since 1970.
pub type Wall = Arc<dyn Fn() -> u64 + Send + Sync>;

/// How much a trail takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Notes that wait to be written before callers wait for room.
    pub rows_max: usize,
    /// Bytes that these keep alive before callers wait for room.
    pub bytes_max: usize,
    /// Bytes that may be kept alive when a large note is taken as it is; beyond, it is rendered at
    /// once and its bytes are let go, so that large ones never have others wait for room.
    pub large_bytes_max: usize,
    /// Notes that are enough to be written at once.
    pub batch_rows_max: usize,
    /// How long a note waits for others to be written with it.
    pub batch_wait: Duration,
    /// How long nothing is tried after the disk failed.
    pub retry_wait: Duration,
    /// Size at which a file is followed by the next.
    pub file_bytes_max: u64,
    /// Files that are kept, unless their rows are too young to be let go.
    pub files_max: usize,
    /// Files that are kept at most, however young their rows are.
    pub files_hard_max: usize,
    /// Rows that are younger are kept up to `files_hard_max`.
    pub age_min: Duration,
    /// Rows that are older are let go, room or not; never where absent.
    pub age_max: Option<Duration>,
    /// What its rows name as their ring; absent for the ring of the calls.
    pub ring: Option<&'static str>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows_max: 16_384,
            bytes_max: 32 * 1024 * 1024,
            large_bytes_max: 8 * 1024 * 1024,
            batch_rows_max: 1_024,
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

/// How a trail does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why rows are not written at present, or what was found missing at the start.
    pub trouble: Option<Arc<str>>,
    /// Rows that are lost in this life of the trail.
    pub lost: u64,
    /// Rows that wait to be written.
    pub waiting: usize,
    /// The last row that is on disk.
    pub head: Head,
}

/// Why a trail cannot be kept or read.
#[derive(Debug, Error)]
pub enum AuditError {
    /// The file system refused.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of rows refused.
    #[error("cannot {action} `{path}`")]
    Sqlite {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A path no longer names the file that is open, so that nobody would find what is written.
    #[error("`{0}` was deleted, moved or replaced while it was open")]
    Replaced(PathBuf),
    /// The head beside the files is gone or cannot be read.
    #[error("`{0}` does not hold the head of the trail")]
    NoAnchor(PathBuf),
    /// A row cannot be put into words.
    #[error("a row cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
}
