//! The thread that writes: renders what was noted, binds it to what is there, and commits.

mod begin;
mod keep;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::watch;

use super::anchor::{Anchor, Anchored};
use super::chain::Head;
use super::files::{self, FileName};
use super::queue::Queue;
use super::row::{Kind, Row};
use super::trail::Entry;
use super::{AuditError, Health, Limits, Render, Wall};
use crate::file_identity::{FileIdentity, beside};

/// What others see of the writer.
#[derive(Debug, Default)]
pub(super) struct Shared {
    health: Mutex<Health>,
    /// The files that are written to, as they were opened; none while nothing is written.
    files: Mutex<Vec<FileIdentity>>,
    /// The number of the last row on disk.
    pub(super) heads: watch::Sender<u64>,
}

impl Shared {
    /// Returns how the trail does. Looks whether its files are still in place: what is written
    /// next would be lost.
    pub(super) fn health(&self) -> Health {
        let mut health = lock(&self.health).clone();
        if health.trouble.is_none()
            && let Err(error) = self.check_files()
        {
            health.trouble = Some(error.to_string().into());
        }
        health
    }

    /// Fails where a path no longer names the file that is open there.
    fn check_files(&self) -> Result<(), AuditError> {
        let files = lock(&self.files);
        match files.iter().find(|file| !file.is_in_place()) {
            Some(file) => Err(AuditError::Replaced(file.path().to_owned())),
            None => Ok(()),
        }
    }

    pub(super) fn lose(&self, rows: u64) {
        lock(&self.health).lost += rows;
    }

    fn tell(&self, change: impl FnOnce(&mut Health)) {
        change(&mut lock(&self.health));
    }
}

/// A file that rows are added to.
#[derive(Debug)]
struct Open {
    name: FileName,
    connection: Connection,
    /// When its first row was noted, in milliseconds since 1970.
    begun_ms: u64,
}

/// Where to go on after the disk failed.
#[derive(Clone, Debug)]
enum Resume {
    /// In the file that there was: it had no room, or was not ours for a while.
    Same(FileName),
    /// In a new one: what the old one says of itself cannot be believed any more.
    New(FileName),
}

/// Owns the files.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    limits: Limits,
    wall: WallClock,
    shared: Arc<Shared>,
    anchor: Anchor,
    /// Absent after a failure, until it is tried again.
    file: Option<Open>,
    resume: Option<Resume>,
    /// The last row that is on disk, and the oldest one that is kept.
    head: Head,
    from: u64,
    /// Rows that were let go before their time.
    early: u64,
    /// When it was last looked for rows that are too old.
    looked_ms: u64,
    /// Rows that are lost and of which no row tells yet, and why.
    owed: u64,
    why: Option<Arc<str>>,
}

/// A clock that shows nothing of itself.
struct WallClock(Wall);

impl std::fmt::Debug for WallClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WallClock")
    }
}

/// Lets nobody wait for a writer that is gone.
struct Ending<'a, E>(&'a Queue<E>, Arc<Shared>);

impl<E> Drop for Ending<'_, E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "the thread that writes it has ended";
            self.1.tell(|health| health.trouble = Some(why.into()));
        }
        self.0.end();
    }
}

impl Writer {
    /// Writes what comes until nothing comes any more.
    pub(super) fn run<E>(mut self, queue: &Queue<Entry<E>>, render: &Render<E>) {
        let _ending = Ending(queue, Arc::clone(&self.shared));
        let mut spare = Vec::new();
        loop {
            let idle = self.file.is_none().then_some(self.limits.retry_wait);
            let mut batch = queue.take(std::mem::take(&mut spare), idle);
            let rows = batch.notes.len();
            self.write(&batch.notes, render, batch.last);
            batch.notes.clear();
            batch.notes.shrink_to(self.limits.batch_rows_max);
            spare = batch.notes;
            queue.settle(rows, batch.bytes);
            if batch.last {
                break;
            }
            self.keep_limits();
        }
        self.file = None;
        // Failing, it lags behind the rows, which is allowed.
        let _synced = self.anchor.sync();
    }

    /// Writes a batch, or counts it as lost.
    fn write<E>(&mut self, notes: &[Entry<E>], render: &Render<E>, last: bool) {
        let lost = notes.len() as u64;
        if self.file.is_none()
            && let Err(error) = self.recover()
        {
            self.fail(&error, lost);
            return;
        }
        let is_told = last && self.limits.ring.is_none();
        let stopped = is_told.then(|| Row::new(Kind::Stopped, (self.wall.0)()));
        let rows = notes.iter().map(|entry| match entry {
            Entry::Note(note) => render(note),
            Entry::Row(row) => row.as_ref().clone(),
        });
        let rows = rows.chain(stopped);
        if let Err(error) = self.append(rows) {
            self.fail(&error, lost);
        }
    }

    /// Adds rows to the open file, all of them or none.
    fn append<'a>(&mut self, rows: impl Iterator<Item = Row<'a>>) -> Result<(), AuditError> {
        let Some(open) = self.file.as_mut() else {
            return Ok(());
        };
        let failed = |source| files::failed("write", &open.name, source);
        let mut head = self.head;
        let mut body = Vec::new();
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        self.shared.check_files()?;
        let immediate = TransactionBehavior::Immediate;
        let batch = open
            .connection
            .transaction_with_behavior(immediate)
            .map_err(failed)?;
        {
            let insert = "INSERT INTO rows (seq, body, hash) VALUES (?1, ?2, ?3)";
            let mut insert = batch.prepare(insert).map_err(failed)?;
            for mut row in rows {
                row.seq = head.seq + 1;
                row.ring = self.limits.ring.map(Into::into);
                body.clear();
                serde_json::to_writer(&mut body, &row).map_err(AuditError::Unwritable)?;
                head = head.then(&body);
                let text = std::str::from_utf8(&body).unwrap_or_default();
                let seq = i64::try_from(head.seq).unwrap_or(i64::MAX);
                insert
                    .execute((seq, text, &head.hash.0[..]))
                    .map_err(failed)?;
            }
        }
        batch.commit().map_err(failed)?;
        self.note_files()?;
        // A file that went meanwhile took the rows with it.
        self.shared.check_files()?;
        self.advance(head)
    }

    /// Notes which files are written to, once they are all there.
    fn note_files(&self) -> Result<(), AuditError> {
        let mut files = lock(&self.shared.files);
        let Some(open) = self.file.as_ref().filter(|_| files.is_empty()) else {
            return Ok(());
        };
        let log = beside(&open.name.path, "-wal");
        let paths = [&open.name.path, &log, self.anchor.path()];
        let found = paths.map(|path| {
            let identity = FileIdentity::read(path.to_owned());
            identity.map_err(|_| AuditError::Replaced(path.to_owned()))
        });
        *files = found.into_iter().collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Says how far it is.
    fn advance(&mut self, head: Head) -> Result<(), AuditError> {
        self.head = head;
        self.shared.tell(|health| health.head = head);
        self.shared.heads.send_replace(head.seq);
        let from = self.from;
        self.anchor.write(Anchored { head, from })
    }

    /// Counts rows as lost and lets the file go; a row will tell of it.
    fn fail(&mut self, error: &AuditError, lost: u64) {
        let mut why = error.to_string();
        if let Some(source) = error.source() {
            why = format!("{why}: {source}");
        }
        let why: Arc<str> = why.into();
        if self.why.is_none() {
            tracing::error!(lost, reason = %why, "audit rows are lost");
        }
        self.owed += lost;
        self.shared.lose(lost);
        self.shared
            .tell(|health| health.trouble = Some(Arc::clone(&why)));
        self.why = Some(why);
        lock(&self.shared.files).clear();
        if let Some(open) = self.file.take() {
            self.resume = Some(if is_passing(error) {
                Resume::Same(open.name)
            } else {
                Resume::New(open.name)
            });
        }
    }

    /// Tries to go on after a failure, first of all by telling of it.
    fn recover(&mut self) -> Result<(), AuditError> {
        let (old, same) = match self.resume.clone() {
            Some(Resume::Same(name)) => (Some(name), true),
            Some(Resume::New(name)) => (Some(name), false),
            None => (None, false),
        };
        let opened = old.and_then(|name| files::open(&name).ok().map(|file| (name, file)));
        if let Some((name, connection)) = opened {
            self.count_again(&connection, &name);
            if same {
                self.file = Some(Open::resume(name, connection));
            }
        }
        if !self.anchor.is_in_place() {
            (self.anchor, _) = Anchor::open(&self.directory)?;
        }
        if self.file.is_none() {
            self.begin()?;
        }
        let mut gap = Row::new(Kind::Gap, (self.wall.0)());
        gap.lost = Some(self.owed);
        let why = self.why.clone();
        gap.reason = why.as_deref().map(Into::into);
        let told = self.append(std::iter::once(gap));
        if told.is_err() {
            self.file = None;
            lock(&self.shared.files).clear();
            return told;
        }
        tracing::warn!(lost = self.owed, "audit rows are written again");
        (self.owed, self.why, self.resume) = (0, None, None);
        self.shared.tell(|health| health.trouble = None);
        Ok(())
    }

    /// A batch whose end was an error may be there all the same: then it is not lost.
    fn count_again(&mut self, connection: &Connection, name: &FileName) {
        let Ok(Some(found)) = files::last(connection, name) else {
            return;
        };
        let more = found.seq.saturating_sub(self.head.seq).min(self.owed);
        if more > 0 {
            self.head = found;
            self.owed -= more;
            self.shared
                .tell(|health| health.lost = health.lost.saturating_sub(more));
        }
    }

    /// Goes on in a new file.
    fn rotate(&mut self) {
        lock(&self.shared.files).clear();
        if let Some(open) = self.file.take() {
            // Failing, the file stays as it is: its log belongs to it and is read with it.
            let fold = "PRAGMA wal_checkpoint(TRUNCATE)";
            let _folded = open.connection.query_row(fold, [], |_| Ok(()));
        }
        if let Err(error) = self.begin() {
            self.fail(&error, 0);
        }
    }
}

/// Whether the file itself is as good as before.
fn is_passing(error: &AuditError) -> bool {
    let AuditError::Sqlite { source, .. } = error else {
        return false;
    };
    matches!(
        source.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Returns the path of a directory for people.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
