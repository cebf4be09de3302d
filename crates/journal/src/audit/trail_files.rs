//! Files of a trail: SQLite databases named by the sequence number of their first row, and the
//! anchor with the head of the trail, so that a truncated end is detected.
//!
//! The anchor has two slots, written alternately, each with a digest, so a power cut leaves at
//! least one valid slot. It is written after the rows are durable and never runs ahead of them.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_core::hex::to_hex;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::OFlags;

use super::AuditError;
use super::audit_row::{ChainHash, ChainHead};
use super::row_block::{self, BLOCK_BYTES_MAX, StoredRow};

/// How long the writer waits for a reader's lock.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Version of the schema and of the rows in it.
const FILE_VERSION: i64 = 2;

/// Schema of a new file: blocks of rows by the number of their first row.
const SCHEMA: &str = "
    PRAGMA application_id = 0x424f5741;
    PRAGMA user_version = 2;
    CREATE TABLE IF NOT EXISTS blocks (
        first_seq INTEGER PRIMARY KEY,
        rows BLOB NOT NULL
    ) STRICT;";

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
///
/// # Errors
/// The file cannot be read, or has the form of another version.
pub(super) fn has_blocks(connection: &Connection, file: &TrailFile) -> Result<bool, AuditError> {
    let read = |source| sqlite_error("read", file, source);
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    match version.map_err(read)? {
        0 => Ok(false),
        FILE_VERSION => connection.table_exists(None, "blocks").map_err(read),
        _ => Err(AuditError::FileVersion(file.path.clone())),
    }
}

/// Returns the head of the last row of a file; `None` for an empty file.
pub(super) fn last_head(
    connection: &Connection,
    file: &TrailFile,
) -> Result<Option<ChainHead>, AuditError> {
    let last = boundary_row(connection, file, ScanDirection::Backward)?;
    Ok(last.and_then(|row| {
        let seq = row.seq;
        row.hash.map(|hash| ChainHead { seq, hash })
    }))
}

/// Returns the timestamp of the first or last row of a file; 0 if unreadable.
pub(super) fn boundary_row_ms(
    connection: &Connection,
    file: &TrailFile,
    end: ScanDirection,
) -> u64 {
    let row = boundary_row(connection, file, end).ok().flatten();
    row.and_then(|row| Some(row.decode()?.at_ms)).unwrap_or(0)
}

/// Returns the first or last row of a file.
pub(super) fn boundary_row(
    connection: &Connection,
    file: &TrailFile,
    end: ScanDirection,
) -> Result<Option<StoredRow>, AuditError> {
    let mut found = None;
    scan_rows(connection, file, end, 0, &mut |row| {
        found = Some(row);
        false
    })?;
    Ok(found)
}

/// Returns the row with this number by position.
pub(super) fn read_row(
    connection: &Connection,
    file: &TrailFile,
    seq: u64,
) -> Result<Option<StoredRow>, AuditError> {
    let mut found = None;
    let before = seq.saturating_sub(1);
    scan_rows(
        connection,
        file,
        ScanDirection::Forward,
        before,
        &mut |row| {
            found = (row.seq == seq).then_some(row);
            false
        },
    )?;
    Ok(found)
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
    // Blocks longer than a trail writes are not loaded. The block of the row after `after` begins
    // with that row or an earlier one.
    let text = format!(
        "SELECT first_seq, iif(octet_length(rows) <= {BLOCK_BYTES_MAX}, rows, NULL)
         FROM blocks
         WHERE first_seq >= coalesce((SELECT max(first_seq) FROM blocks WHERE first_seq <= ?1), 0)
         ORDER BY first_seq {order}"
    );
    let mut query = connection.prepare(&text).map_err(read)?;
    let first = i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX);
    let mut blocks = query.query([first]).map_err(read)?;
    while let Some(block) = blocks.next().map_err(read)? {
        let first_seq: i64 = block.get(0).map_err(read)?;
        let bytes = match block.get_ref(1) {
            Ok(rusqlite::types::ValueRef::Blob(bytes)) => bytes,
            Ok(_) | Err(_) => &[],
        };
        let mut rows = row_block::read_block(u64::try_from(first_seq).unwrap_or(0), bytes);
        rows.retain(|row| row.seq > after);
        if walk == ScanDirection::Backward {
            rows.reverse();
        }
        for row in rows {
            if !visit(row) {
                return Ok(false);
            }
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

/// Name of the anchor file.
pub(super) const ANCHOR_NAME: &str = "head";

/// Bytes of one slot, padding included.
const SLOT_BYTES: u64 = 160;

/// Content of the anchor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnchorRecord {
    /// Last row.
    pub(super) head: ChainHead,
    /// Sequence number of the oldest kept row.
    pub(super) oldest_seq: u64,
}

/// Open anchor file with its next slot.
#[derive(Debug)]
pub(super) struct AnchorFile {
    file: File,
    path: PathBuf,
    writes_second: bool,
}

impl AnchorFile {
    /// Opens the anchor of a trail and returns its record; `None` for a new anchor and for an
    /// anchor without a valid slot.
    pub(super) fn open(directory: &Path) -> Result<(Self, Option<AnchorRecord>), AuditError> {
        let path = directory.join(ANCHOR_NAME);
        let failed = |source| io_error("open", &path, source);
        let is_new = std::fs::symlink_metadata(&path).is_err();
        let mut options_for_write = open_options();
        options_for_write
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options_for_write.open(&path).map_err(failed)?;
        let mut anchor = Self {
            file,
            path: path.clone(),
            writes_second: false,
        };
        if is_new {
            let none = AnchorRecord {
                oldest_seq: 1,
                ..AnchorRecord::default()
            };
            anchor.write(none)?;
            anchor.write(none)?;
            anchor.sync()?;
            return Ok((anchor, None));
        }
        let record = read_anchor(directory)?;
        Ok((anchor, record))
    }

    /// Writes the current end of the trail into the next slot.
    pub(super) fn write(&mut self, record: AnchorRecord) -> Result<(), AuditError> {
        let at = if self.writes_second { SLOT_BYTES } else { 0 };
        let slot = self.file.write_all_at(format_slot(record).as_bytes(), at);
        slot.map_err(|source| io_error("write", &self.path, source))?;
        self.writes_second = !self.writes_second;
        Ok(())
    }

    /// Returns whether the path still names the open file.
    pub(super) fn is_in_place(&self) -> bool {
        let (open, found) = (self.file.metadata(), self.path.symlink_metadata());
        let pair = |about: std::fs::Metadata| (about.dev(), about.ino());
        open.ok().map(pair) == found.ok().map(pair)
    }

    /// Returns the path of the anchor.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the anchor to disk, so a power cut does not lose the record.
    pub(super) fn sync(&self) -> Result<(), AuditError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| io_error("write", &self.path, source))
    }
}

/// Reads the anchor of a trail; `None` if the file is missing or has no valid slot.
pub(super) fn read_anchor(directory: &Path) -> Result<Option<AnchorRecord>, AuditError> {
    let path = directory.join(ANCHOR_NAME);
    let file = match open_options().open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("read", &path, source)),
    };
    let mut text = Vec::new();
    let read = file.take(2 * SLOT_BYTES).read_to_end(&mut text);
    read.map_err(|source| io_error("read", &path, source))?;
    let slots = text.chunks(usize::try_from(SLOT_BYTES).unwrap_or(1));
    let record = slots.filter_map(parse_slot);
    Ok(record.max_by_key(|record| record.head.seq))
}

fn format_slot(record: AnchorRecord) -> String {
    let text = format!("{} {}", record.head, record.oldest_seq);
    let text = format!("{text} {}", slot_digest(&text));
    let width = usize::try_from(SLOT_BYTES - 1).unwrap_or(0);
    format!("{text:<width$}\n")
}

fn parse_slot(slot: &[u8]) -> Option<AnchorRecord> {
    let (text, digest) = std::str::from_utf8(slot)
        .ok()?
        .trim_end()
        .rsplit_once(' ')?;
    if slot_digest(text) != digest {
        return None;
    }
    let (head, from) = text.split_once(' ')?;
    Some(AnchorRecord {
        head: head.parse().ok()?,
        oldest_seq: from.parse().ok()?,
    })
}

fn slot_digest(text: &str) -> String {
    let hash = ChainHash::default().extend(text.as_bytes());
    to_hex(hash.0.first_chunk::<8>().map_or(&[], |some| some))
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(flags.bits().cast_signed());
    options
}

fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> AuditError {
    let path = path.to_owned();
    AuditError::Io {
        action,
        path,
        source,
    }
}
