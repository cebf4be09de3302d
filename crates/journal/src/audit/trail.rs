//! Handle of an audit trail: a bounded note queue with a writer thread behind.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bowline_core::sync::lock;
use tokio::sync::watch;

use super::audit_row::AuditRow;
use super::note_queue::NoteQueue;
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
