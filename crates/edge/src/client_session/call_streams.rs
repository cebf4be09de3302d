//! Streams of a session's calls, kept for resumption.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::{MonotonicTime, to_millis};

use super::session_handle::SessionCallHandle;
use crate::event_stream::{EventSource as _, StreamLabel};

/// Maximum number of ended streams per session.
pub(super) const ENDED_STREAMS_MAX: usize = 16;

/// Retention time of an ended stream.
pub(super) const STREAM_TTL: Duration = Duration::from_secs(60);

/// Streams of calls.
#[derive(Debug, Default)]
pub(super) struct CallStreams(Mutex<CallStreamsState>);

#[derive(Debug, Default)]
struct CallStreamsState {
    /// Oldest first.
    entries: VecDeque<CallStream>,
    /// Set when the session ends: no client can return.
    closed: bool,
}

#[derive(Debug)]
struct CallStream {
    handle: Arc<SessionCallHandle>,
    /// Time of the last message.
    ended_at: Option<MonotonicTime>,
}

impl CallStreams {
    /// Adds the stream of a call in flight.
    pub(super) fn insert(&self, handle: &Arc<SessionCallHandle>) {
        let mut state = self.lock_state();
        if !state.closed {
            state.entries.push_back(CallStream {
                handle: Arc::clone(handle),
                ended_at: None,
            });
        }
    }

    /// Marks a stream as ended; the stream is kept for a while.
    pub(super) fn mark_ended(&self, label: StreamLabel, now: MonotonicTime) {
        let oldest = {
            let entries = &mut self.lock_state().entries;
            for entry in entries.iter_mut() {
                if entry.handle.label() == label {
                    entry.ended_at = Some(now);
                }
            }
            let ended_count = entries
                .iter()
                .filter(|entry| entry.ended_at.is_some())
                .count();
            let oldest = entries.iter().position(|entry| entry.ended_at.is_some());
            oldest
                .filter(|_| ended_count > ENDED_STREAMS_MAX)
                .and_then(|oldest| entries.remove(oldest))
        };
        // Dropped outside the lock.
        drop(oldest);
    }

    /// Returns the stream with this label, unless expired.
    #[must_use]
    pub(super) fn find_open(
        &self,
        label: StreamLabel,
        now: MonotonicTime,
    ) -> Option<Arc<SessionCallHandle>> {
        let state = self.lock_state();
        let mut entries = state.entries.iter();
        let entry = entries.find(|entry| entry.handle.label() == label)?;
        (!is_expired(entry, now)).then(|| Arc::clone(&entry.handle))
    }

    /// Removes expired streams.
    pub(super) fn sweep(&self, now: MonotonicTime) {
        let expired: VecDeque<CallStream> = {
            let entries = &mut self.lock_state().entries;
            let (expired, live) = entries.drain(..).partition(|entry| is_expired(entry, now));
            *entries = live;
            expired
        };
        // Dropped outside the lock.
        drop(expired);
    }

    /// Ends every stream, because the session ends.
    pub(super) fn close(&self) {
        let entries = {
            let mut state = self.lock_state();
            state.closed = true;
            std::mem::take(&mut state.entries)
        };
        for entry in entries {
            entry.handle.buffer().detach_reader();
        }
    }

    /// Returns the number of streams with a reader.
    #[must_use]
    pub(super) fn open_count(&self) -> usize {
        let state = self.lock_state();
        let entries = state.entries.iter();
        entries
            .filter(|entry| entry.handle.buffer().has_reader())
            .count()
    }

    /// Returns whether no stream can be resumed.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.lock_state().entries.is_empty()
    }

    fn lock_state(&self) -> MutexGuard<'_, CallStreamsState> {
        lock(&self.0)
    }
}

fn is_expired(entry: &CallStream, now: MonotonicTime) -> bool {
    entry
        .ended_at
        .is_some_and(|ended_at| now.millis_since(ended_at) > to_millis(STREAM_TTL))
}
