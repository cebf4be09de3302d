//! Looks through a file that was not closed in order, to see whether its pages hang together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bowline_core::sync::lock;
use rusqlite::{Connection, ErrorCode, InterruptHandle, OpenFlags};

use super::schema;
use super::writer::Shared;
use crate::engine::Health;

/// Files up to this size are looked through before they are used; larger ones meanwhile, in
/// bytes. Rows are checked whenever they are read in any case.
const FIRST_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A check that goes on while the journal is used.
pub(super) struct Check {
    thread: JoinHandle<()>,
    interrupt: InterruptHandle,
    is_done: Arc<AtomicBool>,
}

/// Returns what is wrong with the file, where something is.
pub(super) fn look(conn: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "PRAGMA quick_check(1)";
    let found: String = conn.query_row(sql, [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

/// Whether a file can be looked through before it is used.
pub(super) fn is_small(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|about| about.len() <= FIRST_BYTES_MAX)
}

impl Check {
    /// Begins to look through the file, and poisons the journal where something is wrong.
    pub(super) fn start(path: PathBuf, shared: Arc<Shared>) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let conn = Connection::open_with_flags(path, flags)?;
        schema::set_up(&conn)?;
        let interrupt = conn.get_interrupt_handle();
        let is_done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_done);
        let builder = std::thread::Builder::new().name("journal-check".to_owned());
        let thread = builder.spawn(move || {
            let wrong = match look(&conn) {
                Ok(wrong) => wrong,
                Err(error) if is_interrupted(&error) => return,
                Err(error) => Some(error.to_string()),
            };
            match wrong {
                Some(wrong) => poison(&shared, &wrong),
                None => told.store(true, Ordering::Release),
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

    /// Ends it, and returns whether all was looked at and well.
    pub(super) fn stop(self) -> bool {
        self.interrupt.interrupt();
        let ended = self.thread.join();
        ended.is_ok() && self.is_done.load(Ordering::Acquire)
    }
}

fn is_interrupted(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
}

/// Says that the file is damaged.
pub(super) fn reason(wrong: &str) -> Arc<str> {
    format!("the file is damaged: {wrong}").into()
}

fn poison(shared: &Shared, wrong: &str) {
    let mut health = lock(&shared.health);
    if !matches!(*health, Health::Poisoned(_) | Health::Replaced) {
        *health = Health::Poisoned(reason(wrong));
    }
}
