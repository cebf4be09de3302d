//! The streams of a session's calls, so that a caller that lost one can come back to it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};

use super::end::CallEnd;
use crate::edge::stream::{Label, Source as _};

/// Ended streams that one session keeps.
pub(super) const ENDED_STREAMS_MAX: usize = 16;

/// How long a stream is kept after its end.
pub(super) const KEPT: Duration = Duration::from_secs(60);

/// Streams of calls.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    entries: VecDeque<Entry>,
    /// Set when the session ends: nobody comes back any more.
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    end: Arc<CallEnd>,
    /// When its last message was written.
    ended: Option<Now>,
}

impl Streams {
    /// Adds the stream of a call that is under way.
    pub(super) fn add(&self, end: &Arc<CallEnd>) {
        let mut state = self.state();
        if !state.closed {
            state.entries.push_back(Entry {
                end: Arc::clone(end),
                ended: None,
            });
        }
    }

    /// Notes that a stream has ended; it stays for a while.
    pub(super) fn ended(&self, label: Label, now: Now) {
        let oldest = {
            let entries = &mut self.state().entries;
            for entry in entries.iter_mut() {
                if entry.end.label() == label {
                    entry.ended = Some(now);
                }
            }
            let ended = entries.iter().filter(|entry| entry.ended.is_some()).count();
            let oldest = entries.iter().position(|entry| entry.ended.is_some());
            oldest
                .filter(|_| ended > ENDED_STREAMS_MAX)
                .and_then(|oldest| entries.remove(oldest))
        };
        // Dropped without the lock.
        drop(oldest);
    }

    /// Returns the stream of that name, unless it ended too long ago.
    #[must_use]
    pub(super) fn find(&self, label: Label, now: Now) -> Option<Arc<CallEnd>> {
        let state = self.state();
        let mut entries = state.entries.iter();
        let entry = entries.find(|entry| entry.end.label() == label)?;
        (!is_over(entry, now)).then(|| Arc::clone(&entry.end))
    }

    /// Lets streams go that ended too long ago.
    pub(super) fn sweep(&self, now: Now) {
        let gone: VecDeque<Entry> = {
            let entries = &mut self.state().entries;
            let (gone, stay) = entries.drain(..).partition(|entry| is_over(entry, now));
            *entries = stay;
            gone
        };
        // Dropped without the lock.
        drop(gone);
    }

    /// Ends every stream, because the session ends.
    pub(super) fn close(&self) {
        let entries = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.entries)
        };
        for entry in entries {
            entry.end.line().interrupt();
        }
    }

    /// Returns how many streams somebody reads.
    #[must_use]
    pub(super) fn open_count(&self) -> usize {
        let state = self.state();
        let entries = state.entries.iter();
        entries.filter(|entry| entry.end.line().is_read()).count()
    }

    /// Whether there is no stream to come back to.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.state().entries.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

fn is_over(entry: &Entry, now: Now) -> bool {
    entry
        .ended
        .is_some_and(|ended| now.millis_since(ended) > millis(KEPT))
}
