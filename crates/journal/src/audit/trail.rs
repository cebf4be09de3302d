//! The trail as those who note things see it: a queue, and a thread behind it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bowline_core::sync::lock;
use tokio::sync::watch;

use super::queue::Queue;
use super::row::Row;
use super::writer::{Shared, Writer};
use super::{AuditError, Health, Limits, Render, Wall};

/// A note that keeps more bytes alive is large.
const LARGE_NOTE_BYTES_MIN: usize = 64 * 1024;

/// What waits to be written.
#[derive(Debug)]
pub(super) enum Entry<E> {
    /// A note that the trail's thread renders.
    Note(E),
    /// A row that was rendered when it was noted.
    Row(Box<Row<'static>>),
}

/// An append-only trail of rows on disk. Dropped, it is closed.
pub struct Trail<E> {
    directory: PathBuf,
    queue: Arc<Queue<Entry<E>>>,
    render: Render<E>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<E: Send + 'static> Trail<E> {
    /// Opens the trail of a directory that is ours alone, and goes on where it ended.
    ///
    /// What is found missing is written down as a gap, and the trail goes on.
    ///
    /// # Errors
    /// The files cannot be made, or nothing can be written to them.
    pub fn open(
        directory: &Path,
        limits: Limits,
        wall: Wall,
        render: Render<E>,
    ) -> Result<Self, AuditError> {
        let queue = Arc::new(Queue::new(limits));
        let shared = Arc::new(Shared::default());
        let writer = Writer::open(directory, limits, wall, Arc::clone(&shared))?;
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

    /// Whether whoever is about to note something may go on at once.
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        self.queue.room().await;
    }

    /// Takes a note that keeps so many bytes alive. Never waits: those who can, wait for
    /// [`room`](Self::room) before they begin what they will note.
    pub fn note(&self, note: E, bytes: usize) {
        let is_large = bytes > LARGE_NOTE_BYTES_MIN;
        let (entry, bytes) = if is_large && !self.queue.has_bytes(bytes) {
            let row = (self.render)(&note).into_owned();
            (Entry::Row(Box::new(row)), LARGE_NOTE_BYTES_MIN)
        } else {
            (Entry::Note(note), bytes)
        };
        if !self.queue.push(entry, bytes) {
            self.shared.lose(1);
        }
    }

    /// Waits until what was noted so far is on disk, or lost.
    pub async fn flush(&self) {
        self.queue.flush().await;
    }

    /// Writes what was noted, says that this was all, and takes no more.
    pub async fn close(&self) {
        self.queue.close();
        self.queue.ended().await;
        self.join();
    }

    /// Returns how it does.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            waiting: self.queue.waiting(),
            ..self.shared.health()
        }
    }

    /// Returns a receiver of the number of the last row on disk.
    #[must_use]
    pub fn heads(&self) -> watch::Receiver<u64> {
        self.shared.heads.subscribe()
    }

    /// Returns where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl<E> Trail<E> {
    fn join(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            // What it had to tell it told.
            let _ended = thread.join();
        }
    }
}

impl<E> Drop for Trail<E> {
    fn drop(&mut self) {
        self.queue.close();
        self.join();
    }
}

impl<E> fmt::Debug for Trail<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trail")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
