//! Handle of an audit trail: a queue of notes, bounded in rows and bytes, with a writer thread
//! behind.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_core::sync::lock;
use tokio::sync::{Notify, watch};

use super::audit_row::AuditRow;
use super::trail_writer::{TrailShared, TrailWriter};
use super::{AuditError, AuditHealth, AuditLimits, RowRenderer, UnixClock};

/// Size above which a note counts as large.
const LARGE_NOTE_BYTES_MIN: usize = 64 * 1024;

/// Queued item.
#[derive(Debug)]
pub(super) enum TrailEntry<E> {
    /// Note to be rendered on the trail's thread.
    Note(E),
    /// Row rendered inline by the caller.
    Row(Box<AuditRow<'static>>),
}

/// Append-only trail of rows on disk; closed on drop.
pub struct FileAuditTrail<E> {
    directory: PathBuf,
    queue: Arc<NoteQueue<TrailEntry<E>>>,
    render: RowRenderer<E>,
    shared: Arc<TrailShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<E: Send + 'static> FileAuditTrail<E> {
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
        render: RowRenderer<E>,
    ) -> Result<Self, AuditError> {
        let queue = Arc::new(NoteQueue::new(limits));
        let shared = Arc::new(TrailShared::default());
        let writer = TrailWriter::open(directory, limits, wall, Arc::clone(&shared))?;
        let (notes, named) = (Arc::clone(&queue), std::thread::Builder::new());
        let named = named.name("audit".to_owned());
        let rendering = Arc::clone(&render);
        let thread = named.spawn(move || writer.run(&notes, &rendering));
        let thread = thread.map_err(|source| AuditError::Io {
            action: "start a thread for",
            path: directory.to_owned(),
            source,
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            queue,
            render,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns whether a caller may append a note without waiting.
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Waits for room in the queue.
    pub async fn wait_for_room(&self) {
        self.queue.wait_for_room().await;
    }

    /// Queues a note of `bytes` bytes. Never waits: callers that can wait call
    /// [`wait_for_room`](Self::wait_for_room) before the work to be recorded.
    pub fn append_note(&self, note: E, bytes: usize) {
        let is_large = bytes > LARGE_NOTE_BYTES_MIN;
        let (entry, bytes) = if is_large && !self.queue.has_large_room(bytes) {
            let row = (self.render)(&note).into_owned();
            (TrailEntry::Row(Box::new(row)), LARGE_NOTE_BYTES_MIN)
        } else {
            (TrailEntry::Note(note), bytes)
        };
        if !self.queue.push(entry, bytes) {
            self.shared.count_lost(1);
        }
    }

    /// Waits until every note appended so far is on disk or lost.
    pub async fn flush(&self) {
        self.queue.flush().await;
    }

    /// Writes all queued notes and the closing row, then refuses further notes.
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
}

impl<E> FileAuditTrail<E> {
    fn join_thread(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of the thread is reported through its health.
            let _ended = thread.join();
        }
    }
}

impl<E> Drop for FileAuditTrail<E> {
    fn drop(&mut self) {
        self.queue.close();
        self.join_thread();
    }
}

impl<E> fmt::Debug for FileAuditTrail<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileAuditTrail")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Queue between callers that append notes and the writer thread.
#[derive(Debug)]
pub(super) struct NoteQueue<E> {
    limits: AuditLimits,
    inner: Mutex<NoteQueueInner<E>>,
    /// Wakes the writer.
    writer_wake: Condvar,
    /// Set while callers should wait; read on every call.
    is_full: AtomicBool,
    /// Wakes callers that wait for room.
    room_freed: Notify,
    /// Number of notes written or lost so far.
    settled: watch::Sender<u64>,
}

#[derive(Debug)]
struct NoteQueueInner<E> {
    notes: Vec<E>,
    /// Unsettled notes and their bytes, including the batch in the writer's hands.
    rows: usize,
    bytes: usize,
    /// Notes accepted so far.
    noted_count: u64,
    /// A caller waits in `flush`.
    flush_requested: bool,
    is_closed: bool,
}

/// Notes for one write.
#[derive(Debug)]
pub(super) struct NoteBatch<E> {
    pub(super) notes: Vec<E>,
    pub(super) bytes: usize,
    /// No batch follows.
    pub(super) is_last: bool,
}

impl<E> NoteQueue<E> {
    pub(super) fn new(limits: AuditLimits) -> Self {
        Self {
            limits,
            inner: Mutex::new(NoteQueueInner {
                notes: Vec::with_capacity(limits.batch_rows_max),
                rows: 0,
                bytes: 0,
                noted_count: 0,
                flush_requested: false,
                is_closed: false,
            }),
            writer_wake: Condvar::new(),
            is_full: AtomicBool::new(false),
            room_freed: Notify::new(),
            settled: watch::Sender::new(0),
        }
    }

    /// Returns whether a caller may append a note without waiting.
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

    /// Returns whether a large note of `bytes` may be queued unrendered.
    pub(super) fn has_large_room(&self, bytes: usize) -> bool {
        lock(&self.inner).bytes.saturating_add(bytes) <= self.limits.large_bytes_max
    }

    /// Queues a note even without room: the caller waited before, or can no longer wait. Returns
    /// `false` if the queue is closed.
    pub(super) fn push(&self, note: E, bytes: usize) -> bool {
        let mut inner = lock(&self.inner);
        if inner.is_closed {
            return false;
        }
        inner.notes.push(note);
        inner.noted_count += 1;
        inner.rows += 1;
        inner.bytes += bytes;
        let waiting = inner.notes.len();
        if inner.rows >= self.limits.rows_max || inner.bytes >= self.limits.bytes_max {
            self.is_full.store(true, Ordering::Relaxed);
        }
        drop(inner);
        // The first note wakes the writer, which then waits for more; a full batch wakes it again.
        if waiting == 1 || waiting == self.limits.batch_rows_max {
            self.writer_wake.notify_one();
        }
        true
    }

    /// Waits for notes, and then up to `batch_wait` for more.
    ///
    /// With `idle`, the wait ends after `idle` even if the batch is empty.
    pub(super) fn take_batch(&self, spare: Vec<E>, idle: Option<Duration>) -> NoteBatch<E> {
        let mut inner = lock(&self.inner);
        let nothing = |inner: &mut NoteQueueInner<E>| {
            inner.notes.is_empty() && !inner.is_closed && !inner.flush_requested
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
                !inner.notes.is_empty()
                    && inner.notes.len() < enough
                    && !inner.is_closed
                    && !inner.flush_requested
            });
        inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        inner.flush_requested = false;
        let notes = std::mem::replace(&mut inner.notes, spare);
        NoteBatch {
            notes,
            bytes: inner.bytes,
            is_last: inner.is_closed,
        }
    }

    /// Frees the room of notes that were written or lost.
    pub(super) fn settle_notes(&self, rows: usize, bytes: usize) {
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

    /// Waits until every note accepted so far is written or lost.
    pub(super) async fn flush(&self) {
        let noted = {
            let mut inner = lock(&self.inner);
            inner.flush_requested = true;
            inner.noted_count
        };
        self.writer_wake.notify_one();
        let mut settled = self.settled.subscribe();
        // `self` owns the sender, so waiting cannot fail.
        let _ = settled.wait_for(|settled| *settled >= noted).await;
    }

    /// Closes the queue: new notes are refused, the writer drains the rest.
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

    /// Returns the number of unsettled notes.
    pub(super) fn queued_rows(&self) -> usize {
        lock(&self.inner).rows
    }
}
