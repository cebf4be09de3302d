//! Integrity check of the database pages after an unclean shutdown.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bowline_core::sync::lock;
use rusqlite::{Connection, ErrorCode, InterruptHandle, OpenFlags};

use super::schema;
use super::sqlite_writer::SqliteShared;
use crate::engine::JournalHealth;

/// Files up to this size are checked before use; larger files in the background, in bytes. Row
/// checksums are verified on every read in either case.
const FIRST_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Background integrity check.
pub(super) struct IntegrityCheck {
    thread: JoinHandle<()>,
    interrupt: InterruptHandle,
    is_done: Arc<AtomicBool>,
}

/// Runs `quick_check` and returns the first problem.
pub(super) fn quick_check(conn: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "PRAGMA quick_check(1)";
    let outcome: String = conn.query_row(sql, [], |row| row.get(0))?;
    Ok((outcome != "ok").then_some(outcome))
}

/// Returns whether a file is small enough for a check before use.
pub(super) fn is_small(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|about| about.len() <= FIRST_BYTES_MAX)
}

impl IntegrityCheck {
    /// Starts the check; a problem poisons the journal.
    pub(super) fn start(path: PathBuf, shared: Arc<SqliteShared>) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let conn = Connection::open_with_flags(path, flags)?;
        schema::set_up_connection(&conn)?;
        let interrupt = conn.get_interrupt_handle();
        let is_done = Arc::new(AtomicBool::new(false));
        let done_flag = Arc::clone(&is_done);
        let builder = std::thread::Builder::new().name("journal-check".to_owned());
        let thread = builder.spawn(move || {
            let wrong = match quick_check(&conn) {
                Ok(wrong) => wrong,
                Err(error) if is_interrupted(&error) => return,
                Err(error) => Some(error.to_string()),
            };
            match wrong {
                Some(wrong) => poison_health(&shared, &wrong),
                None => done_flag.store(true, Ordering::Release),
            }
        });
        let thread =
            thread.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(Self {
            thread,
            interrupt,
            is_done,
        })
    }

    /// Stops the check and returns whether the check completed without a problem.
    pub(super) fn stop(self) -> bool {
        self.interrupt.interrupt();
        let joined = self.thread.join();
        joined.is_ok() && self.is_done.load(Ordering::Acquire)
    }
}

fn is_interrupted(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
}

/// Formats the reason for a corrupt file.
pub(super) fn corruption_reason(wrong: &str) -> Arc<str> {
    format!("the file is damaged: {wrong}").into()
}

fn poison_health(shared: &SqliteShared, wrong: &str) {
    let mut health = lock(&shared.health);
    if !matches!(
        *health,
        JournalHealth::Poisoned(_) | JournalHealth::Replaced
    ) {
        *health = JournalHealth::Poisoned(corruption_reason(wrong));
    }
}
