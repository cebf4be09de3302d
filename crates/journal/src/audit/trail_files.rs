//! Files of a trail: SQLite databases named by the sequence number of their first row.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::OFlags;

use super::chain::{ChainHash, ChainHead};
use super::{AuditError, ROW_BYTES_MAX};

/// How long the writer waits for a reader's lock.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Schema of a new file: the rows, and a readable view for use with `sqlite3`.
const SCHEMA: &str = "
    PRAGMA application_id = 0x424f5741;
    PRAGMA user_version = 1;
    CREATE TABLE IF NOT EXISTS rows (
        seq INTEGER PRIMARY KEY,
        body TEXT NOT NULL,
        hash BLOB NOT NULL
    ) STRICT;
    CREATE VIEW IF NOT EXISTS said AS SELECT
        seq,
        datetime((body->>'at_ms') / 1000, 'unixepoch') AS at,
        body->>'kind' AS kind,
        body->>'principal' AS principal,
        body->>'server' AS server,
        body->>'name' AS name,
        body->>'outcome' AS outcome,
        lower(hex(hash)) AS hash
    FROM rows;";

/// Path of a trail file and its first row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrailFile {
    /// Sequence number of the first row.
    pub(super) first_seq: u64,
    pub(super) path: PathBuf,
}

impl TrailFile {
    /// Returns the file for rows from `first` on.
    pub(super) fn new(directory: &Path, first_seq: u64) -> Self {
        let path = directory.join(format!("audit-{first_seq:012}.db"));
        Self { first_seq, path }
    }

    /// Returns the file name without the directory.
    pub(super) fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Lists the files of a trail, oldest first.
pub(super) fn list_files(directory: &Path) -> Result<Vec<TrailFile>, AuditError> {
    let failed = |source| AuditError::Io {
        action: "look into",
        path: directory.to_owned(),
        source,
    };
    let mut files = Vec::new();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let first = name.to_str().and_then(|name| {
            let digits = name.strip_prefix("audit-")?.strip_suffix(".db")?;
            digits.parse().ok()
        });
        if let Some(first) = first {
            let path = directory.join(name);
            files.push(TrailFile {
                first_seq: first,
                path,
            });
        }
    }
    files.sort();
    Ok(files)
}

/// Creates a file without rows.
pub(super) fn create_file(file: &TrailFile) -> Result<Connection, AuditError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    // SQLite copies the mode of the database to its WAL and shared-memory files. An empty file left
    // behind by a failed attempt is reused.
    options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags);
    options.open(&file.path).map_err(|source| AuditError::Io {
        action: "create",
        path: file.path.clone(),
        source,
    })?;
    let connection = open_for_append(file)?;
    let made = connection.execute_batch(&format!("BEGIN; {SCHEMA} COMMIT;"));
    made.map_err(|source| sqlite_error("prepare", file, source))?;
    Ok(connection)
}

/// Opens a file for appending.
pub(super) fn open_for_append(file: &TrailFile) -> Result<Connection, AuditError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = open_connection(file, flags)?;
    let set = connection.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 1000;
         PRAGMA journal_size_limit = 67108864;",
    );
    set.map_err(|source| sqlite_error("open", file, source))?;
    Ok(connection)
}

/// Opens a file for reading.
pub(super) fn open_for_read(file: &TrailFile) -> Result<Connection, AuditError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    open_connection(file, flags)
}

fn open_connection(file: &TrailFile, flags: OpenFlags) -> Result<Connection, AuditError> {
    // SQLITE_OPEN_NOFOLLOW rejects a symlink anywhere in the path. Symlinks above the directory
    // belong to the owner and are resolved first.
    let directory = file.path.parent().unwrap_or_else(|| Path::new("."));
    let real = std::fs::canonicalize(directory).map_err(|source| AuditError::Io {
        action: "resolve",
        path: directory.to_owned(),
        source,
    })?;
    let path = real.join(file.path.file_name().unwrap_or_default());
    let flags = flags | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags);
    let connection = connection.map_err(|source| sqlite_error("open", file, source))?;
    let set = connection.busy_timeout(BUSY_WAIT).and_then(|()| {
        connection.execute_batch(
            "PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;
             PRAGMA mmap_size = 0;
             PRAGMA temp_store = MEMORY;",
        )
    });
    set.map_err(|source| sqlite_error("open", file, source))?;
    Ok(connection)
}

/// Returns whether the file has its table; creation may have been interrupted.
pub(super) fn has_rows_table(
    connection: &Connection,
    file: &TrailFile,
) -> Result<bool, AuditError> {
    let exists = connection.table_exists(None, "rows");
    exists.map_err(|source| sqlite_error("read", file, source))
}

/// Returns the head of the last row of a file; `None` for an empty file.
pub(super) fn last_head(
    connection: &Connection,
    file: &TrailFile,
) -> Result<Option<ChainHead>, AuditError> {
    let row = connection.query_row(
        "SELECT seq, hash FROM rows ORDER BY seq DESC LIMIT 1",
        [],
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)),
    );
    let (seq, hash) = match row {
        Ok(row) => row,
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
        Err(source) => return Err(sqlite_error("read", file, source)),
    };
    let head = u64::try_from(seq).ok().zip(ChainHash::from_bytes(&hash));
    Ok(head.map(|(seq, hash)| ChainHead { seq, hash }))
}

/// Returns the timestamp of the first or last row of a file; 0 if unreadable.
pub(super) fn boundary_row_ms(connection: &Connection, end: ScanDirection) -> u64 {
    let order = match end {
        ScanDirection::Forward => "ASC",
        ScanDirection::Backward => "DESC",
    };
    let text = format!("SELECT body->>'at_ms' FROM rows ORDER BY seq {order} LIMIT 1");
    let at_ms = connection.query_row(&text, [], |row| row.get::<_, i64>(0));
    at_ms
        .ok()
        .and_then(|at_ms| u64::try_from(at_ms).ok())
        .unwrap_or(0)
}

/// Returns the size of the database file, without the WAL.
pub(super) fn database_bytes(connection: &Connection) -> u64 {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = pragma("page_count").unwrap_or(0);
    let size = pages.saturating_mul(pragma("page_size").unwrap_or(0));
    u64::try_from(size).unwrap_or(0)
}

/// Deletes a file together with its WAL and shared-memory files.
pub(super) fn delete_trail_file(file: &TrailFile) -> Result<(), AuditError> {
    for suffix in ["", "-wal", "-shm"] {
        let mut path = file.path.clone().into_os_string();
        path.push(suffix);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                let path = path.into();
                return Err(AuditError::Io {
                    action: "remove",
                    path,
                    source,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Row as stored in a file.
#[derive(Debug)]
pub(super) struct StoredRow {
    pub(super) seq: u64,
    /// Row text; `None` if missing or too long to be valid.
    pub(super) body: Option<Vec<u8>>,
    pub(super) hash: Option<ChainHash>,
}

/// Scan order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanDirection {
    Forward,
    Backward,
}

/// Passes the rows after `after` to `visit`, until `visit` returns false. Returns whether the scan
/// reached the end.
pub(super) fn scan_rows(
    connection: &Connection,
    file: &TrailFile,
    walk: ScanDirection,
    after: u64,
    visit: &mut dyn FnMut(StoredRow) -> bool,
) -> Result<bool, AuditError> {
    let order = match walk {
        ScanDirection::Forward => "ASC",
        ScanDirection::Backward => "DESC",
    };
    let read = |source| sqlite_error("read", file, source);
    // Values longer than a valid row are not loaded.
    let text = format!(
        "SELECT seq, iif(octet_length(body) <= {ROW_BYTES_MAX}, body, NULL),
                iif(octet_length(hash) = 32, hash, NULL)
         FROM rows WHERE seq > ?1 ORDER BY seq {order}"
    );
    let mut query = connection.prepare(&text).map_err(read)?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let mut rows = query.query([after]).map_err(read)?;
    while let Some(row) = rows.next().map_err(read)? {
        let bytes = |column| match row.get_ref(column) {
            Ok(rusqlite::types::ValueRef::Text(it) | rusqlite::types::ValueRef::Blob(it)) => {
                Some(it)
            }
            Ok(_) | Err(_) => None,
        };
        let seq: i64 = row.get(0).map_err(read)?;
        let stored = StoredRow {
            seq: u64::try_from(seq).unwrap_or(0),
            body: bytes(1).map(Vec::from),
            hash: bytes(2).and_then(ChainHash::from_bytes),
        };
        if !visit(stored) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn sqlite_error(
    action: &'static str,
    file: &TrailFile,
    source: rusqlite::Error,
) -> AuditError {
    let path = file.path.clone();
    AuditError::Sqlite {
        action,
        path,
        source,
    }
}
