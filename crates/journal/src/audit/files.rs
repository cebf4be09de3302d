//! The files of a trail: named by their first row, each a database of its own.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::OFlags;

use super::chain::{Hash, Head};
use super::{AuditError, ROW_BYTES_MAX};

/// How long a reader may keep the writer waiting.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// What a new file holds: the rows, and a view of them for people with `sqlite3`.
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

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName {
    /// The number of its first row.
    pub(super) first: u64,
    pub(super) path: PathBuf,
}

impl FileName {
    /// Returns the file that begins with this row.
    pub(super) fn of(directory: &Path, first: u64) -> Self {
        let path = directory.join(format!("audit-{first:012}.db"));
        Self { first, path }
    }

    /// Returns its name without the directory.
    pub(super) fn shown(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Returns the files of a trail, oldest first.
pub(super) fn list(directory: &Path) -> Result<Vec<FileName>, AuditError> {
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
            files.push(FileName { first, path });
        }
    }
    files.sort();
    Ok(files)
}

/// Makes a file that holds no row yet.
pub(super) fn create(file: &FileName) -> Result<Connection, AuditError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    // SQLite gives its other files the mode of this one. One that a failed attempt left behind
    // is empty, and used.
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
    let connection = open(file)?;
    let made = connection.execute_batch(&format!("BEGIN; {SCHEMA} COMMIT;"));
    made.map_err(|source| failed("prepare", file, source))?;
    Ok(connection)
}

/// Opens a file to add to it.
pub(super) fn open(file: &FileName) -> Result<Connection, AuditError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = connect(file, flags)?;
    let set = connection.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 1000;
         PRAGMA journal_size_limit = 67108864;",
    );
    set.map_err(|source| failed("open", file, source))?;
    Ok(connection)
}

/// Opens a file to read it.
pub(super) fn look(file: &FileName) -> Result<Connection, AuditError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    connect(file, flags)
}

fn connect(file: &FileName, flags: OpenFlags) -> Result<Connection, AuditError> {
    // It refuses a link anywhere in the path; those above the directory are the owner's.
    let directory = file.path.parent().unwrap_or_else(|| Path::new("."));
    let real = std::fs::canonicalize(directory).map_err(|source| AuditError::Io {
        action: "resolve",
        path: directory.to_owned(),
        source,
    })?;
    let path = real.join(file.path.file_name().unwrap_or_default());
    let flags = flags | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags);
    let connection = connection.map_err(|source| failed("open", file, source))?;
    let set = connection.busy_timeout(BUSY_WAIT).and_then(|()| {
        connection.execute_batch(
            "PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;
             PRAGMA mmap_size = 0;
             PRAGMA temp_store = MEMORY;",
        )
    });
    set.map_err(|source| failed("open", file, source))?;
    Ok(connection)
}

/// Whether a file was prepared to hold rows; the making of one may have been cut short.
pub(super) fn is_begun(connection: &Connection, file: &FileName) -> Result<bool, AuditError> {
    let begun = connection.table_exists(None, "rows");
    begun.map_err(|source| failed("read", file, source))
}

/// Returns the last row of a file; nothing where it has none.
pub(super) fn last(connection: &Connection, file: &FileName) -> Result<Option<Head>, AuditError> {
    let row = connection.query_row(
        "SELECT seq, hash FROM rows ORDER BY seq DESC LIMIT 1",
        [],
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)),
    );
    let (seq, hash) = match row {
        Ok(row) => row,
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
        Err(source) => return Err(failed("read", file, source)),
    };
    let head = u64::try_from(seq).ok().zip(Hash::of(&hash));
    Ok(head.map(|(seq, hash)| Head { seq, hash }))
}

/// Returns when the first or the last row of a file was noted; 0 where that cannot be read.
pub(super) fn noted_ms(connection: &Connection, end: Walk) -> u64 {
    let order = match end {
        Walk::Forward => "ASC",
        Walk::Backward => "DESC",
    };
    let text = format!("SELECT body->>'at_ms' FROM rows ORDER BY seq {order} LIMIT 1");
    let at_ms = connection.query_row(&text, [], |row| row.get::<_, i64>(0));
    at_ms
        .ok()
        .and_then(|at_ms| u64::try_from(at_ms).ok())
        .unwrap_or(0)
}

/// Returns how large a file is, what waits in its log apart.
pub(super) fn size(connection: &Connection) -> u64 {
    let of = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = of("page_count").unwrap_or(0);
    let size = pages.saturating_mul(of("page_size").unwrap_or(0));
    u64::try_from(size).unwrap_or(0)
}

/// Takes a file away, and what SQLite keeps beside it.
pub(super) fn remove(file: &FileName) -> Result<(), AuditError> {
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

/// One row as it stands in a file.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) seq: u64,
    /// Its text; nothing where it is no text of ours.
    pub(super) body: Option<Vec<u8>>,
    pub(super) hash: Option<Hash>,
}

/// In which order rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    Forward,
    Backward,
}

/// Hands the rows of a file after `after` to `visit`, one at a time, until it has enough.
pub(super) fn walk(
    (connection, file): (&Connection, &FileName),
    walk: Walk,
    after: u64,
    visit: &mut dyn FnMut(Stored) -> bool,
) -> Result<bool, AuditError> {
    let order = match walk {
        Walk::Forward => "ASC",
        Walk::Backward => "DESC",
    };
    let read = |source| failed("read", file, source);
    // Nothing longer than a row of ours is loaded.
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
        let stored = Stored {
            seq: u64::try_from(seq).unwrap_or(0),
            body: bytes(1).map(Vec::from),
            hash: bytes(2).and_then(Hash::of),
        };
        if !visit(stored) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn failed(action: &'static str, file: &FileName, source: rusqlite::Error) -> AuditError {
    let path = file.path.clone();
    AuditError::Sqlite {
        action,
        path,
        source,
    }
}
