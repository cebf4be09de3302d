//! What was noted and is not written yet: bounded in rows and bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use bowline_core::sync::lock;
use tokio::sync::{Notify, watch};

use super::Limits;

/// The notes between those who make them and the thread that writes them.
#[derive(Debug)]
pub(super) struct Queue<E> {
    limits: Limits,
    inner: Mutex<Inner<E>>,
    /// Wakes the writer.
    wake: Condvar,
    /// Set while callers should wait; read by every call.
    full: AtomicBool,
    /// Wakes those who wait for room.
    room: Notify,
    /// How many notes were written or lost so far.
    settled: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner<E> {
    notes: Vec<E>,
    /// Notes that are not settled, those the writer has in hand included, and what they hold.
    rows: usize,
    bytes: usize,
    /// How many were noted so far.
    noted: u64,
    /// Somebody waits for what was noted to be written.
    flush: bool,
    closed: bool,
}

/// What the writer is to do.
#[derive(Debug)]
pub(super) struct Batch<E> {
    pub(super) notes: Vec<E>,
    pub(super) bytes: usize,
    /// Nothing comes after it.
    pub(super) last: bool,
}

impl<E> Queue<E> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            inner: Mutex::new(Inner {
                notes: Vec::with_capacity(limits.batch_rows_max),
                rows: 0,
                bytes: 0,
                noted: 0,
                flush: false,
                closed: false,
            }),
            wake: Condvar::new(),
            full: AtomicBool::new(false),
            room: Notify::new(),
            settled: watch::Sender::new(0),
        }
    }

    /// Whether whoever is about to note something may go on at once.
    pub(super) fn has_room(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }

    /// Waits until there is room.
    pub(super) async fn room(&self) {
        loop {
            let notified = self.room.notified();
            if self.has_room() {
                return;
            }
            notified.await;
        }
    }

    /// Whether a large note that keeps so many bytes alive is taken as it is.
    pub(super) fn has_bytes(&self, bytes: usize) -> bool {
        lock(&self.inner).bytes.saturating_add(bytes) <= self.limits.large_bytes_max
    }

    /// Takes a note, room or not: whoever makes it waited before, or can wait no more. `false`
    /// where nothing is written any more.
    pub(super) fn push(&self, note: E, bytes: usize) -> bool {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return false;
        }
        inner.notes.push(note);
        inner.noted += 1;
        inner.rows += 1;
        inner.bytes += bytes;
        let waiting = inner.notes.len();
        if inner.rows >= self.limits.rows_max || inner.bytes >= self.limits.bytes_max {
            self.full.store(true, Ordering::Relaxed);
        }
        drop(inner);
        // The first one wakes the writer, who then waits for others; so many are enough.
        if waiting == 1 || waiting == self.limits.batch_rows_max {
            self.wake.notify_one();
        }
        true
    }

    /// Waits for notes, and a little longer for more of them.
    ///
    /// With `idle`, it returns after that time with whatever there is, be it nothing.
    pub(super) fn take(&self, spare: Vec<E>, idle: Option<Duration>) -> Batch<E> {
        let mut inner = lock(&self.inner);
        let nothing =
            |inner: &mut Inner<E>| inner.notes.is_empty() && !inner.closed && !inner.flush;
        inner = match idle {
            None => {
                let waited = self.wake.wait_while(inner, nothing);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Some(idle) => {
                let waited = self.wake.wait_timeout_while(inner, idle, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let enough = self.limits.batch_rows_max;
        let waited = self
            .wake
            .wait_timeout_while(inner, self.limits.batch_wait, |inner| {
                !inner.notes.is_empty()
                    && inner.notes.len() < enough
                    && !inner.closed
                    && !inner.flush
            });
        inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        inner.flush = false;
        let notes = std::mem::replace(&mut inner.notes, spare);
        Batch {
            notes,
            bytes: inner.bytes,
            last: inner.closed,
        }
    }

    /// Frees the room of notes that were written, or lost for good.
    pub(super) fn settle(&self, rows: usize, bytes: usize) {
        let mut inner = lock(&self.inner);
        inner.rows = inner.rows.saturating_sub(rows);
        inner.bytes = inner.bytes.saturating_sub(bytes);
        let full = inner.rows >= self.limits.rows_max || inner.bytes >= self.limits.bytes_max;
        self.full.store(full, Ordering::Relaxed);
        drop(inner);
        self.settled.send_modify(|settled| *settled += rows as u64);
        if !full {
            self.room.notify_waiters();
        }
    }

    /// Waits until what was noted so far is written, or lost.
    pub(super) async fn flush(&self) {
        let noted = {
            let mut inner = lock(&self.inner);
            inner.flush = true;
            inner.noted
        };
        self.wake.notify_one();
        let mut settled = self.settled.subscribe();
        // The sender is ours.
        let _ = settled.wait_for(|settled| *settled >= noted).await;
    }

    /// Takes no more notes, and lets everybody go on.
    pub(super) fn close(&self) {
        lock(&self.inner).closed = true;
        self.wake.notify_one();
    }

    /// Lets everybody go on who waits for anything, because nothing is written any more.
    pub(super) fn end(&self) {
        lock(&self.inner).closed = true;
        self.full.store(false, Ordering::Relaxed);
        self.settled.send_replace(u64::MAX);
        self.room.notify_waiters();
    }

    /// Waits until nothing is written any more.
    pub(super) async fn ended(&self) {
        let mut settled = self.settled.subscribe();
        // The sender is ours.
        let _ = settled.wait_for(|settled| *settled == u64::MAX).await;
    }

    /// Returns how many notes wait.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.inner).rows
    }
}
