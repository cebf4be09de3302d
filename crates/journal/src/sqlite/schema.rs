//! Schema of the database file, and migrations of older files.

use rusqlite::Connection;

use super::JournalOpenError;

/// Oldest SQLite without the bug that corrupted the WAL on reset.
const LIBRARY_MIN: i32 = 3_051_003;

/// Prepared statements cached.
const STATEMENTS_MAX: usize = 64;

/// Settings of each connection. The writer runs checkpoints itself: SQLite swallows the error of an
/// automatic checkpoint, and with the error the news of a failed disk.
const PRAGMAS: &str = "
    PRAGMA synchronous = FULL;
    PRAGMA busy_timeout = 5000;
    PRAGMA foreign_keys = ON;
    PRAGMA trusted_schema = OFF;
    PRAGMA cell_size_check = ON;
    PRAGMA mmap_size = 0;
    PRAGMA wal_autocheckpoint = 0;
    PRAGMA journal_size_limit = 67108864;
    PRAGMA temp_store = MEMORY;
    PRAGMA cache_size = -2048;
";

/// Migrations: each entry brings a file from its index to the next version; a new file runs all.
pub(super) const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE ledger (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        clean INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        id INTEGER NOT NULL,
        place INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        dead INTEGER NOT NULL,
        lanes INTEGER NOT NULL,
        lanes_total BLOB NOT NULL,
        done INTEGER NOT NULL,
        done_total BLOB NOT NULL,
        vals INTEGER NOT NULL,
        vals_total BLOB NOT NULL,
        sum BLOB NOT NULL
    ) STRICT;
    CREATE TABLE lane (
        name TEXT PRIMARY KEY,
        waiting INTEGER NOT NULL,
        dead INTEGER NOT NULL,
        oldest INTEGER,
        total BLOB NOT NULL,
        sum BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE message (
        id INTEGER PRIMARY KEY,
        lane TEXT NOT NULL,
        place INTEGER NOT NULL,
        dedupe TEXT NOT NULL,
        digest BLOB NOT NULL,
        attempts INTEGER NOT NULL,
        stored INTEGER NOT NULL,
        expires INTEGER,
        dead TEXT,
        body_bytes INTEGER NOT NULL,
        body_sum BLOB NOT NULL,
        sum BLOB NOT NULL
    ) STRICT;
    CREATE INDEX message_lane ON message (lane, place);
    CREATE INDEX message_dead ON message (id) WHERE dead IS NOT NULL;
    CREATE TABLE body (
        id INTEGER PRIMARY KEY,
        bytes BLOB NOT NULL
    ) STRICT;
    CREATE TABLE done (
        seq INTEGER PRIMARY KEY,
        key BLOB NOT NULL,
        lane INTEGER NOT NULL,
        id INTEGER NOT NULL,
        digest BLOB NOT NULL,
        at INTEGER NOT NULL,
        result_bytes INTEGER,
        result_sum BLOB,
        sum BLOB NOT NULL,
        result BLOB
    ) STRICT;
    CREATE TABLE value (
        revision INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        bytes_len INTEGER NOT NULL,
        bytes_sum BLOB NOT NULL,
        sum BLOB NOT NULL,
        bytes BLOB NOT NULL
    ) STRICT;
",
    "
    ALTER TABLE ledger ADD COLUMN time INTEGER NOT NULL DEFAULT 0;
",
];

/// Refuses a SQLite library too old to be trusted.
pub(super) fn check_library_version() -> Result<(), JournalOpenError> {
    match rusqlite::version_number() {
        number if number < LIBRARY_MIN => Err(JournalOpenError::Library {
            found: rusqlite::version(),
        }),
        _ => Ok(()),
    }
}

/// Sets up a connection for writing.
pub(super) fn set_up_writer(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    debug_assert_eq!(mode, "wal", "a file on a local disk can have a log");
    set_up_connection(conn)
}

/// Applies the settings common to all connections.
pub(super) fn set_up_connection(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(PRAGMAS)
}

/// Returns the version of the file.
pub(super) fn file_version(conn: &Connection) -> rusqlite::Result<usize> {
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

/// Migrates the file, each step atomically.
pub(super) fn migrate(conn: &Connection, steps: &[&str]) -> rusqlite::Result<()> {
    let from = file_version(conn)?;
    for (at, step) in steps.iter().enumerate().skip(from) {
        let to = at + 1;
        let whole = format!("BEGIN IMMEDIATE; {step} PRAGMA user_version = {to}; COMMIT;");
        if let Err(error) = conn.execute_batch(&whole) {
            if !conn.is_autocommit() {
                conn.execute_batch("ROLLBACK")?;
            }
            return Err(error);
        }
    }
    Ok(())
}
