//! What an error of SQLite means for the operation and for the journal.

use std::sync::Arc;

use rusqlite::{Error, ErrorCode};

use crate::engine::JournalError;

/// Why an operation ended early.
#[derive(Debug)]
pub(super) enum Fault {
    /// It was decided; the transaction goes on.
    Refused(JournalError),
    /// The disk or SQLite failed; the transaction must be taken back.
    Disk(Error),
}

impl From<JournalError> for Fault {
    fn from(error: JournalError) -> Self {
        Self::Refused(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Disk(error)
    }
}

/// What a failure of the disk means for what comes after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// There is no room.
    Full,
    /// Nobody knows what was written.
    Poisoned,
    /// Something cannot be read; the rest is as it was.
    Damaged,
    /// Another program holds the file.
    Busy,
    /// The path no longer names the file that is open.
    Replaced,
}

/// Sorts a failure.
pub(super) fn meaning(error: &Error) -> Meaning {
    use rusqlite::ffi;
    let Some(inner) = error.sqlite_error() else {
        // What was read cannot be what was written.
        return Meaning::Damaged;
    };
    match inner.code {
        ErrorCode::DiskFull => Meaning::Full,
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Meaning::Busy,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ConstraintViolation => {
            Meaning::Damaged
        }
        ErrorCode::ReadOnly if inner.extended_code == ffi::SQLITE_READONLY_DBMOVED => {
            Meaning::Replaced
        }
        ErrorCode::SystemIoFailure => match inner.extended_code {
            // Reading changes nothing: what is on the disk is as it was.
            ffi::SQLITE_IOERR_READ
            | ffi::SQLITE_IOERR_SHORT_READ
            | ffi::SQLITE_IOERR_CORRUPTFS
            | ffi::SQLITE_IOERR_DATA => Meaning::Damaged,
            _ => Meaning::Poisoned,
        },
        _ => Meaning::Poisoned,
    }
}

/// Returns what the caller of the operation is told.
pub(super) fn told(error: &Error) -> JournalError {
    match meaning(error) {
        Meaning::Full => JournalError::Full,
        Meaning::Damaged => damaged(format!("the journal ({error})")),
        Meaning::Replaced => JournalError::Replaced,
        Meaning::Poisoned | Meaning::Busy => JournalError::Poisoned {
            reason: error.to_string().into(),
        },
    }
}

/// The error for files that are not where they were opened. SQLite has a code for this, but does
/// not look in WAL mode.
pub(super) fn replaced() -> Error {
    let code = rusqlite::ffi::SQLITE_READONLY_DBMOVED;
    Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

/// Says what is damaged.
pub(super) fn damaged(what: impl Into<Arc<str>>) -> JournalError {
    JournalError::Damaged { what: what.into() }
}

/// Whether it is only that something cannot be read.
pub(super) fn is_of_read(error: &Error) -> bool {
    meaning(error) == Meaning::Damaged
}
