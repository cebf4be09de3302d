//! Writer thread of a trail: hashes long bodies, extends the hash chain and commits blocks.

mod resume;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::to_millis;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::watch;

use super::audit_row::{AuditRow, AuditRowKind, ChainHead};
use super::row_block::{RowBlock, RowBuffer};
use super::trail::RowQueue;
use super::trail_files::{self, AnchorFile, AnchorRecord, ScanDirection, TrailFile};
use super::{AuditError, AuditHealth, AuditLimits, LongBodies, UnixClock};
use crate::file_identity::{FileIdentity, sibling_path};

/// Memory kept between batches for the rows of the next.
const SPARE_BYTES_MAX: usize = 1024 * 1024;

/// Writer state visible to the trail handle.
#[derive(Debug, Default)]
pub(super) struct TrailShared {
    health: Mutex<AuditHealth>,
    /// Identities of the open files; empty while no file is open.
    files: Mutex<Vec<FileIdentity>>,
    /// Sequence number of the last row on disk.
    pub(super) head_seq: watch::Sender<u64>,
}

impl TrailShared {
    /// Returns the health of the trail. Also checks for replaced files, since further rows would be
    /// lost.
    pub(super) fn health(&self) -> AuditHealth {
        let mut health = lock(&self.health).clone();
        if health.failure.is_none()
            && let Err(error) = self.check_files()
        {
            health.failure = Some(error.to_string().into());
        }
        health
    }

    /// Fails if a path no longer names the open file.
    fn check_files(&self) -> Result<(), AuditError> {
        let files = lock(&self.files);
        match files.iter().find(|file| !file.is_in_place()) {
            Some(file) => Err(AuditError::Replaced(file.path().to_owned())),
            None => Ok(()),
        }
    }

    pub(super) fn count_lost(&self, rows: u64) {
        lock(&self.health).lost += rows;
    }

    fn update_health(&self, change: impl FnOnce(&mut AuditHealth)) {
        change(&mut lock(&self.health));
    }
}

/// File open for appending.
#[derive(Debug)]
struct OpenTrailFile {
    name: TrailFile,
    connection: Connection,
    /// Timestamp of the first row, in milliseconds since 1970.
    first_row_ms: u64,
}

/// File in which to resume after a disk failure.
#[derive(Clone, Debug)]
enum ResumePoint {
    /// The same file: the disk was full or the file was locked.
    Same(TrailFile),
    /// A new file: the old file can no longer be trusted.
    New(TrailFile),
}

/// Owner of the trail files.
#[derive(Debug)]
pub(super) struct TrailWriter {
    directory: PathBuf,
    limits: AuditLimits,
    clock: DebugClock,
    shared: Arc<TrailShared>,
    anchor: AnchorFile,
    /// `None` after a failure, until the next attempt.
    open_file: Option<OpenTrailFile>,
    resume: Option<ResumePoint>,
    /// Last row on disk, and sequence number of the oldest kept row.
    head: ChainHead,
    oldest_seq: u64,
    /// Rows evicted before their minimum age.
    evicted_early: u64,
    /// Time of the last check for expired rows.
    age_checked_ms: u64,
    /// Lost rows without a gap row yet, and the reason.
    unreported_lost: u64,
    failure_reason: Option<Arc<str>>,
}

/// Clock with a `Debug` implementation.
struct DebugClock(UnixClock);

impl std::fmt::Debug for DebugClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DebugClock")
    }
}

/// Releases queue waiters when the writer thread ends.
struct WriterEndGuard<'a>(&'a RowQueue, Arc<TrailShared>);

impl Drop for WriterEndGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the thread that writes it has ended";
            self.1
                .update_health(|health| health.failure = Some(reason.into()));
        }
        self.0.release_waiters();
    }
}

impl TrailWriter {
    /// Writes batches until the queue is closed.
    pub(super) fn run(mut self, queue: &RowQueue) {
        let _ending = WriterEndGuard(queue, Arc::clone(&self.shared));
        let mut spare = RowBuffer::default();
        loop {
            let idle = self.open_file.is_none().then_some(self.limits.retry_wait);
            let mut batch = queue.take_batch(std::mem::take(&mut spare), idle);
            let (rows, bytes) = (batch.buffer.rows(), batch.buffer.held_bytes());
            batch.buffer.hash_bodies();
            self.write_batch(&mut batch.buffer, batch.is_last);
            batch.buffer.clear(SPARE_BYTES_MAX);
            spare = batch.buffer;
            queue.settle_rows(rows, bytes);
            if batch.is_last {
                break;
            }
            self.enforce_limits();
        }
        self.open_file = None;
        // On failure the anchor lags behind the rows, which is allowed.
        let _synced = self.anchor.sync();
    }

    /// Writes a batch, or counts the batch as lost.
    fn write_batch(&mut self, batch: &mut RowBuffer, last: bool) {
        let lost = batch.rows() as u64;
        if self.open_file.is_none()
            && let Err(error) = self.resume_writing()
        {
            self.handle_failure(&error, lost);
            return;
        }
        if last && self.limits.ring.is_none() {
            let stopped = AuditRow::new(AuditRowKind::Stopped, (self.clock.0)());
            batch.push_row(&stopped, LongBodies::default());
        }
        if let Err(error) = self.append_buffer(batch) {
            self.handle_failure(&error, lost);
        }
    }

    /// Appends a row of the trail itself.
    fn append_own_row(&mut self, mut row: AuditRow<'_>) -> Result<(), AuditError> {
        row.ring = self.limits.ring.map(Into::into);
        let mut buffer = RowBuffer::default();
        buffer.push_row(&row, LongBodies::default());
        self.append_buffer(&mut buffer)
    }

    /// Appends rows to the open file in one transaction.
    fn append_buffer(&mut self, rows: &mut RowBuffer) -> Result<(), AuditError> {
        let Some(open) = self.open_file.as_mut() else {
            return Ok(());
        };
        if rows.rows() == 0 {
            return Ok(());
        }
        let failed = |source| trail_files::sqlite_error("write", &open.name, source);
        self.shared.check_files()?;
        let immediate = TransactionBehavior::Immediate;
        let batch = open
            .connection
            .transaction_with_behavior(immediate)
            .map_err(failed)?;
        let head = {
            let insert = "INSERT INTO blocks (first_seq, rows) VALUES (?1, ?2)";
            let mut insert = batch.prepare_cached(insert).map_err(failed)?;
            rows.chain_rows(self.head, |block: &RowBlock<'_>| {
                let first_seq = i64::try_from(block.first_seq).unwrap_or(i64::MAX);
                let stored = insert.execute((first_seq, block.bytes));
                stored.map(|_inserted| ()).map_err(failed)
            })?
        };
        batch.commit().map_err(failed)?;
        self.record_open_files()?;
        // A file replaced during the commit took the rows along.
        self.shared.check_files()?;
        self.advance_head(head)
    }

    /// Records the identities of the open files once all exist.
    fn record_open_files(&self) -> Result<(), AuditError> {
        let mut files = lock(&self.shared.files);
        let Some(open) = self.open_file.as_ref().filter(|_| files.is_empty()) else {
            return Ok(());
        };
        let log = sibling_path(&open.name.path, "-wal");
        let paths = [&open.name.path, &log, self.anchor.path()];
        let identities = paths.map(|path| {
            let identity = FileIdentity::read(path.to_owned());
            identity.map_err(|_| AuditError::Replaced(path.to_owned()))
        });
        *files = identities.into_iter().collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Publishes the new head and writes the anchor.
    fn advance_head(&mut self, head: ChainHead) -> Result<(), AuditError> {
        self.head = head;
        self.shared.update_health(|health| health.head = head);
        self.shared.head_seq.send_replace(head.seq);
        let from = self.oldest_seq;
        self.anchor.write(AnchorRecord {
            head,
            oldest_seq: from,
        })
    }

    /// Counts rows as lost and closes the file; a gap row follows later.
    fn handle_failure(&mut self, error: &AuditError, lost: u64) {
        let mut reason = error.to_string();
        if let Some(source) = error.source() {
            reason = format!("{reason}: {source}");
        }
        let reason: Arc<str> = reason.into();
        if self.failure_reason.is_none() {
            tracing::error!(lost, reason = %reason, "audit rows lost");
        }
        self.unreported_lost += lost;
        self.shared.count_lost(lost);
        self.shared
            .update_health(|health| health.failure = Some(Arc::clone(&reason)));
        self.failure_reason = Some(reason);
        lock(&self.shared.files).clear();
        if let Some(open) = self.open_file.take() {
            self.resume = Some(if is_transient(error) {
                ResumePoint::Same(open.name)
            } else {
                ResumePoint::New(open.name)
            });
        }
    }

    /// Resumes after a failure, starting with a gap row.
    fn resume_writing(&mut self) -> Result<(), AuditError> {
        let (old, same) = match self.resume.clone() {
            Some(ResumePoint::Same(name)) => (Some(name), true),
            Some(ResumePoint::New(name)) => (Some(name), false),
            None => (None, false),
        };
        let opened = old.and_then(|name| {
            trail_files::open_for_append(&name)
                .ok()
                .map(|file| (name, file))
        });
        if let Some((name, connection)) = opened {
            self.recount_lost(&connection, &name);
            if same {
                self.open_file = Some(OpenTrailFile::resume(name, connection));
            }
        }
        if !self.anchor.is_in_place() {
            (self.anchor, _) = AnchorFile::open(&self.directory)?;
        }
        if self.open_file.is_none() {
            self.begin_file()?;
        }
        let mut gap = AuditRow::new(AuditRowKind::Gap, (self.clock.0)());
        gap.lost = Some(self.unreported_lost);
        let reason = self.failure_reason.clone();
        gap.reason = reason.as_deref().map(Into::into);
        let appended = self.append_own_row(gap);
        if appended.is_err() {
            self.open_file = None;
            lock(&self.shared.files).clear();
            return appended;
        }
        tracing::warn!(lost = self.unreported_lost, "audit trail resumed writing");
        (self.unreported_lost, self.failure_reason, self.resume) = (0, None, None);
        self.shared.update_health(|health| health.failure = None);
        Ok(())
    }

    /// Corrects the count of lost rows: a commit that returned an error may still be on disk.
    fn recount_lost(&mut self, connection: &Connection, name: &TrailFile) {
        let Ok(Some(stored_head)) = trail_files::last_head(connection, name) else {
            return;
        };
        let more = stored_head
            .seq
            .saturating_sub(self.head.seq)
            .min(self.unreported_lost);
        if more > 0 {
            self.head = stored_head;
            self.unreported_lost -= more;
            self.shared
                .update_health(|health| health.lost = health.lost.saturating_sub(more));
        }
    }

    /// Closes the current file and begins the next.
    fn rotate_file(&mut self) {
        lock(&self.shared.files).clear();
        if let Some(open) = self.open_file.take() {
            // On failure the WAL stays beside the file and is read together with the file.
            let fold = "PRAGMA wal_checkpoint(TRUNCATE)";
            let _folded = open.connection.query_row(fold, [], |_| Ok(()));
        }
        if let Err(error) = self.begin_file() {
            self.handle_failure(&error, 0);
        }
    }
}

/// Returns whether the file itself is undamaged.
fn is_transient(error: &AuditError) -> bool {
    let AuditError::Sqlite { source, .. } = error else {
        return false;
    };
    matches!(
        source.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Formats a path for messages.
fn display_path(path: &Path) -> String {
    path.display().to_string()
}

/// Fraction of `age_max` after which the next file begins, so a file is evicted soon after its
/// oldest row expires.
const AGE_PARTS: u64 = 8;

/// Interval between checks of file age.
const AGE_CHECK_INTERVAL: Duration = Duration::from_secs(600);

impl OpenTrailFile {
    /// Resumes a file with existing rows.
    fn resume(name: TrailFile, connection: Connection) -> Self {
        let first_row_ms = trail_files::boundary_row_ms(&connection, &name, ScanDirection::Forward);
        Self {
            name,
            connection,
            first_row_ms,
        }
    }
}

impl TrailWriter {
    /// Begins the next file if the current file is too large or too old, and evicts old files.
    fn enforce_limits(&mut self) {
        let Some(open) = &self.open_file else {
            return;
        };
        let now_ms = (self.clock.0)();
        let is_old = self.limits.age_max.is_some_and(|age| {
            now_ms.saturating_sub(open.first_row_ms) > to_millis(age) / AGE_PARTS
        });
        if is_old || trail_files::database_bytes(&open.connection) >= self.limits.file_bytes_max {
            self.age_checked_ms = now_ms;
            self.rotate_file();
            return;
        }
        if now_ms.abs_diff(self.age_checked_ms) < to_millis(AGE_CHECK_INTERVAL) {
            return;
        }
        self.age_checked_ms = now_ms;
        if let Err(error) = self.evict_files(now_ms) {
            self.handle_failure(&error, 0);
        }
    }

    /// Evicts files beyond the age or count limits.
    fn evict_files(&mut self, now_ms: u64) -> Result<(), AuditError> {
        let old = self.select_evicted(now_ms)?;
        if old.is_empty() {
            return Ok(());
        }
        let (head, from) = (self.head, self.oldest_seq);
        // The anchor must record an eviction before the deletion, or the missing rows look like
        // tampering.
        self.anchor.write(AnchorRecord {
            head,
            oldest_seq: from,
        })?;
        self.anchor.sync()?;
        old.iter().try_for_each(trail_files::delete_trail_file)
    }

    /// Selects files to evict and counts their rows as evicted.
    fn select_evicted(&mut self, now_ms: u64) -> Result<Vec<TrailFile>, AuditError> {
        let limits = self.limits;
        let files = trail_files::list_files(&self.directory)?;
        let hard_max = limits.files_hard_max.max(limits.files_max).max(1);
        let mut old = Vec::new();
        // The newest file is never evicted: the writer appends to this file, or is about to.
        for (at, pair) in files.windows(2).enumerate() {
            let [file, next] = pair else { break };
            let remaining = files.len() - at;
            // A file with unreadable age counts as infinitely old.
            let noted_ms = trail_files::open_for_read(file).map_or(0, |connection| {
                trail_files::boundary_row_ms(&connection, file, ScanDirection::Backward)
            });
            let age_ms = now_ms.saturating_sub(noted_ms);
            let is_young = age_ms < to_millis(limits.age_min);
            let is_over = limits.age_max.is_some_and(|age| age_ms > to_millis(age));
            let is_spare = remaining > limits.files_max.max(1) && !is_young;
            if !is_over && !is_spare && remaining <= hard_max {
                break;
            }
            if !is_over && is_young {
                self.evicted_early += next.first_seq.saturating_sub(file.first_seq);
                tracing::error!(
                    file = file.file_name(),
                    "audit rows evicted before their minimum age to make room"
                );
            }
            self.oldest_seq = self.oldest_seq.max(next.first_seq);
            old.push(file.clone());
        }
        Ok(old)
    }
}

/// Returns the number of rows evicted early, as recorded by the newest file.
fn read_evicted_early(files: &[TrailFile]) -> u64 {
    let newest = files.iter().rev().find_map(|file| {
        let connection = trail_files::open_for_read(file).ok()?;
        trail_files::boundary_row(&connection, file, ScanDirection::Forward).ok()?
    });
    let early = newest.and_then(|row| row.decode()?.let_go_early);
    early.unwrap_or(0)
}
