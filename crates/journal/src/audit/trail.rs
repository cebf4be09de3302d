//! Handle of an audit trail: a queue of rows, bounded in rows and bytes, with a writer thread
//! behind. Callers encode their row into a buffer that they exchange with the writer, so a row
//! allocates nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_core::sync::lock;
use tokio::sync::{Notify, watch};

use super::audit_row::AuditRow;
use super::row_block::RowBuffer;
use super::trail_writer::{TrailShared, TrailWriter};
use super::{AuditError, AuditHealth, AuditLimits, LongBodies, UnixClock};

/// Append-only trail of rows on disk; closed on drop.
pub struct FileAuditTrail {
    directory: PathBuf,
    /// Name of the ring in every row; absent for the ring of calls.
    ring: Option<&'static str>,
    queue: Arc<RowQueue>,
    shared: Arc<TrailShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl FileAuditTrail {
    /// Opens the trail in a private directory and continues after the last row.
    ///
    /// Missing rows are recorded as a gap row, and the trail continues.
    ///
    /// # Errors
    /// The files cannot be created or written.
    pub fn open(
        directory: &Path,
        limits: AuditLimits,
        wall: UnixClock,
    ) -> Result<Self, AuditError> {
        let queue = Arc::new(RowQueue::new(limits));
        let shared = Arc::new(TrailShared::default());
        let writer = TrailWriter::open(directory, limits, wall, Arc::clone(&shared))?;
        let (rows, named) = (Arc::clone(&queue), std::thread::Builder::new());
        let named = named.name("audit".to_owned());
        let thread = named.spawn(move || writer.run(&rows));
        let thread = thread.map_err(|source| AuditError::Io {
            action: "start a thread for",
            path: directory.to_owned(),
            source,
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            ring: limits.ring,
            queue,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns whether a caller may append a row without waiting.
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Waits for room in the queue.
    pub async fn wait_for_room(&self) {
        self.queue.wait_for_room().await;
    }

    /// Queues a row; its digests of `bodies` are filled in behind the calls. Never waits: callers
    /// that can wait call [`wait_for_room`](Self::wait_for_room) before the work to be recorded.
    pub fn append(&self, mut row: AuditRow<'_>, bodies: LongBodies) {
        row.ring = self.ring.map(Into::into);
        if !self.queue.push(&mut row, bodies) {
            self.shared.count_lost(1);
        }
    }

    /// Waits until every row appended so far is on disk or lost.
    pub async fn flush(&self) {
        self.queue.flush().await;
    }

    /// Writes all queued rows and the closing row, then refuses further rows.
    pub async fn close(&self) {
        self.queue.close();
        self.queue.wait_closed().await;
        self.join_thread();
    }

    /// Returns the health of the trail.
    #[must_use]
    pub fn health(&self) -> AuditHealth {
        AuditHealth {
            queued: self.queue.queued_rows(),
            ..self.shared.health()
        }
    }

    /// Returns a receiver of the last sequence number on disk.
    #[must_use]
    pub fn head_updates(&self) -> watch::Receiver<u64> {
        self.shared.head_seq.subscribe()
    }

    /// Returns the directory of the trail files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn join_thread(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of the thread is reported through its health.
            let _ended = thread.join();
        }
    }
}

impl Drop for FileAuditTrail {
    fn drop(&mut self) {
        self.queue.close();
        self.join_thread();
    }
}

impl fmt::Debug for FileAuditTrail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileAuditTrail")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Queue between callers that append rows and the writer thread.
#[derive(Debug)]
pub(super) struct RowQueue {
    limits: AuditLimits,
    inner: Mutex<RowQueueInner>,
    /// Wakes the writer.
    writer_wake: Condvar,
    /// Set while callers should wait; read on every call.
    is_full: AtomicBool,
    /// Wakes callers that wait for room.
    room_freed: Notify,
    /// Number of rows written or lost so far.
    settled: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct RowQueueInner {
    buffer: RowBuffer,
    /// Unsettled rows and their bytes, including the batch in the writer's hands.
    rows: usize,
    bytes: usize,
    /// Rows accepted so far.
    accepted_count: u64,
    /// A caller waits in `flush`.
    flush_requested: bool,
    is_closed: bool,
}

/// Rows for one write.
#[derive(Debug)]
pub(super) struct RowBatch {
    pub(super) buffer: RowBuffer,
    /// No batch follows.
    pub(super) is_last: bool,
}

impl RowQueue {
    pub(super) fn new(limits: AuditLimits) -> Self {
        Self {
            limits,
            inner: Mutex::default(),
            writer_wake: Condvar::new(),
            is_full: AtomicBool::new(false),
            room_freed: Notify::new(),
            settled: watch::Sender::new(0),
        }
    }

    /// Returns whether a caller may append a row without waiting.
    pub(super) fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::Relaxed)
    }

    /// Waits for room.
    pub(super) async fn wait_for_room(&self) {
        loop {
            let notified = self.room_freed.notified();
            if self.has_room() {
                return;
            }
            notified.await;
        }
    }

    /// Queues a row even without room: the caller waited before, or can no longer wait. Long bodies
    /// are kept for the writer to hash as long as they fit, and hashed here otherwise. Returns
    /// `false` if the queue is closed.
    pub(super) fn push(&self, row: &mut AuditRow<'_>, mut bodies: LongBodies) -> bool {
        if !bodies.is_empty() && !self.has_body_room(bodies.len()) {
            bodies.hash_into(row);
        }
        let mut inner = lock(&self.inner);
        if inner.is_closed {
            return false;
        }
        let held = inner.buffer.held_bytes();
        inner.buffer.push_row(row, bodies);
        inner.accepted_count += 1;
        inner.rows += 1;
        inner.bytes += inner.buffer.held_bytes() - held;
        let waiting = inner.buffer.rows();
        if inner.rows >= self.limits.rows_max || inner.bytes >= self.limits.bytes_max {
            self.is_full.store(true, Ordering::Relaxed);
        }
        drop(inner);
        // The first row wakes the writer, which then waits for more; a full batch wakes it again.
        if waiting == 1 || waiting == self.limits.batch_rows_max {
            self.writer_wake.notify_one();
        }
        true
    }

    /// Returns whether bodies of `bytes` may be kept for the writer.
    fn has_body_room(&self, bytes: usize) -> bool {
        lock(&self.inner).bytes.saturating_add(bytes) <= self.limits.body_bytes_max
    }

    /// Waits for rows, and then up to `batch_wait` for more. `spare` is an empty buffer for the
    /// rows that follow.
    ///
    /// With `idle`, the wait ends after `idle` even if the batch is empty.
    pub(super) fn take_batch(&self, spare: RowBuffer, idle: Option<Duration>) -> RowBatch {
        let mut inner = lock(&self.inner);
        let nothing = |inner: &mut RowQueueInner| {
            inner.buffer.rows() == 0 && !inner.is_closed && !inner.flush_requested
        };
        inner = match idle {
            None => {
                let waited = self.writer_wake.wait_while(inner, nothing);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Some(idle) => {
                let waited = self.writer_wake.wait_timeout_while(inner, idle, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let enough = self.limits.batch_rows_max;
        let waited = self
            .writer_wake
            .wait_timeout_while(inner, self.limits.batch_wait, |inner| {
                inner.buffer.rows() > 0
                    && inner.buffer.rows() < enough
                    && !inner.is_closed
                    && !inner.flush_requested
            });
        inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        inner.flush_requested = false;
        RowBatch {
            buffer: std::mem::replace(&mut inner.buffer, spare),
            is_last: inner.is_closed,
        }
    }

    /// Frees the room of rows that were written or lost.
    pub(super) fn settle_rows(&self, rows: usize, bytes: usize) {
        let mut inner = lock(&self.inner);
        inner.rows = inner.rows.saturating_sub(rows);
        inner.bytes = inner.bytes.saturating_sub(bytes);
        let full = inner.rows >= self.limits.rows_max || inner.bytes >= self.limits.bytes_max;
        self.is_full.store(full, Ordering::Relaxed);
        drop(inner);
        self.settled.send_modify(|settled| *settled += rows as u64);
        if !full {
            self.room_freed.notify_waiters();
        }
    }

    /// Waits until every row accepted so far is written or lost.
    pub(super) async fn flush(&self) {
        let accepted = {
            let mut inner = lock(&self.inner);
            inner.flush_requested = true;
            inner.accepted_count
        };
        self.writer_wake.notify_one();
        let mut settled = self.settled.subscribe();
        // `self` owns the sender, so waiting cannot fail.
        let _ = settled.wait_for(|settled| *settled >= accepted).await;
    }

    /// Closes the queue: new rows are refused, the writer drains the rest.
    pub(super) fn close(&self) {
        lock(&self.inner).is_closed = true;
        self.writer_wake.notify_one();
    }

    /// Releases all waiters after the writer ended.
    pub(super) fn release_waiters(&self) {
        lock(&self.inner).is_closed = true;
        self.is_full.store(false, Ordering::Relaxed);
        self.settled.send_replace(u64::MAX);
        self.room_freed.notify_waiters();
    }

    /// Waits until the writer ended.
    pub(super) async fn wait_closed(&self) {
        let mut settled = self.settled.subscribe();
        // `self` owns the sender, so waiting cannot fail.
        let _ = settled.wait_for(|settled| *settled == u64::MAX).await;
    }

    /// Returns the number of unsettled rows.
    pub(super) fn queued_rows(&self) -> usize {
        lock(&self.inner).rows
    }
}
