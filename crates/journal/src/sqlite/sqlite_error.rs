//! Classifies SQLite errors by their effect on the operation and the journal.

use std::sync::Arc;

use rusqlite::{Error, ErrorCode};

use crate::engine::JournalError;

/// Error of an operation on the writer thread.
#[derive(Debug)]
pub(super) enum OperationError {
    /// The operation was rejected; the transaction continues.
    Refused(JournalError),
    /// The disk or SQLite failed; the transaction must be rolled back.
    Disk(Error),
}

impl From<JournalError> for OperationError {
    fn from(error: JournalError) -> Self {
        Self::Refused(error)
    }
}

impl From<Error> for OperationError {
    fn from(error: Error) -> Self {
        Self::Disk(error)
    }
}

/// Effect of a SQLite error on later operations.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SqliteErrorClass {
    /// The disk is full.
    Full,
    /// The disk content is unknown.
    Poisoned,
    /// A row or page is unreadable; the rest is unchanged.
    Damaged,
    /// A different program holds the file lock.
    Busy,
    /// The path no longer names the open file.
    Replaced,
}

/// Classifies a SQLite error.
pub(super) fn classify_error(error: &Error) -> SqliteErrorClass {
    use rusqlite::ffi;
    let Some(inner) = error.sqlite_error() else {
        // The value read cannot be the value written.
        return SqliteErrorClass::Damaged;
    };
    match inner.code {
        ErrorCode::DiskFull => SqliteErrorClass::Full,
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => SqliteErrorClass::Busy,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ConstraintViolation => {
            SqliteErrorClass::Damaged
        }
        ErrorCode::ReadOnly if inner.extended_code == ffi::SQLITE_READONLY_DBMOVED => {
            SqliteErrorClass::Replaced
        }
        ErrorCode::SystemIoFailure => match inner.extended_code {
            // A failed read leaves the disk content unchanged.
            ffi::SQLITE_IOERR_READ
            | ffi::SQLITE_IOERR_SHORT_READ
            | ffi::SQLITE_IOERR_CORRUPTFS
            | ffi::SQLITE_IOERR_DATA => SqliteErrorClass::Damaged,
            _ => SqliteErrorClass::Poisoned,
        },
        _ => SqliteErrorClass::Poisoned,
    }
}

/// Converts a SQLite error to the error returned to the caller.
pub(super) fn to_journal_error(error: &Error) -> JournalError {
    match classify_error(error) {
        SqliteErrorClass::Full => JournalError::DiskFull,
        SqliteErrorClass::Damaged => damaged_error(format!("the journal ({error})")),
        SqliteErrorClass::Replaced => JournalError::Replaced,
        SqliteErrorClass::Poisoned | SqliteErrorClass::Busy => JournalError::Poisoned {
            reason: error.to_string().into(),
        },
    }
}

/// Returns the error for replaced files. SQLite has a code for this case, but does not check in WAL
/// mode.
pub(super) fn files_replaced_error() -> Error {
    let code = rusqlite::ffi::SQLITE_READONLY_DBMOVED;
    Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

/// Returns the error for damaged data.
pub(super) fn damaged_error(what: impl Into<Arc<str>>) -> JournalError {
    JournalError::Damaged { what: what.into() }
}

/// Returns whether the error is only a failed read.
pub(super) fn is_read_error(error: &Error) -> bool {
    classify_error(error) == SqliteErrorClass::Damaged
}
