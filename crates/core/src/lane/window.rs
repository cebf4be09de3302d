//! Which stored writes of one lane may be sent now: in order within a stream, side by side across
//! streams.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::time::Now;

/// Messages of one lane that are leased at the same time at most.
pub const WINDOW_MAX: usize = 64;

/// Writes of one lane that are in flight at the same time at most, replays and callers together.
pub const LANE_SENDS_MAX: usize = 32;

/// The oldest undelivered writes of one lane.
///
/// A stream is one session or run: its replays go one after the other. A write whose caller still
/// waits follows the replays before it, and is then in flight together with all such writes.
#[derive(Debug, Default)]
pub struct Window {
    entries: VecDeque<Entry>,
    replays: usize,
    grants: usize,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// Absent for writes of older gateways: nothing of the lane may pass them.
    stream: Option<Arc<str>>,
    state: EntryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// Leased, and not sent.
    Waiting,
    /// Sent by the drain.
    Sending,
    /// Given back until then, and still in front of its stream.
    Resting(Now),
}

/// What to do with a write whose turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The drain sends it: [`Window::send`].
    Replay(u64),
    /// Its caller still waits and sends it: [`Window::grant`].
    Grant(u64),
}

impl Window {
    /// Returns how many messages may be leased beside those that are.
    #[must_use]
    pub fn room(&self) -> usize {
        WINDOW_MAX.saturating_sub(self.entries.len())
    }

    /// Whether no message is left in it. Writes that callers send are not in it any more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a message is in it.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// Adds a leased message behind all others; one that rested is awake again at its old place.
    pub fn push(&mut self, id: u64, stream: Option<Arc<str>>) {
        match self.entries.iter_mut().find(|entry| entry.id == id) {
            Some(entry) if entry.state != EntryState::Sending => entry.state = EntryState::Waiting,
            Some(_) => {}
            None => self.entries.push_back(Entry {
                id,
                stream,
                state: EntryState::Waiting,
            }),
        }
    }

    /// Returns a write whose turn has come, while fewer than `width` are in flight. `is_parked`
    /// says of a message whether its caller still waits.
    pub fn next(&self, width: usize, is_parked: impl Fn(u64) -> bool) -> Option<Turn> {
        if self.replays + self.grants >= width.min(LANE_SENDS_MAX) {
            return None;
        }
        let mut blocked = HashSet::new();
        for (nth, entry) in self.entries.iter().enumerate() {
            let is_blocked = match &entry.stream {
                Some(stream) => blocked.contains(&**stream),
                None => nth > 0,
            };
            if !is_blocked && entry.state == EntryState::Waiting {
                return Some(match is_parked(entry.id) {
                    true => Turn::Grant(entry.id),
                    false => Turn::Replay(entry.id),
                });
            }
            match &entry.stream {
                Some(stream) => blocked.insert(&**stream),
                None => return None,
            };
        }
        None
    }

    /// Counts a message as sent by the drain.
    pub fn send(&mut self, id: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id)
            && entry.state != EntryState::Sending
        {
            entry.state = EntryState::Sending;
            self.replays += 1;
        }
    }

    /// Hands a message to its caller: it is in flight until [`returned`](Self::returned), and in
    /// nobody's way.
    pub fn grant(&mut self, id: u64) {
        self.finish(id);
        self.grants += 1;
    }

    /// Counts so many writes that callers sent as ended.
    pub fn returned(&mut self, count: usize) {
        self.grants = self.grants.saturating_sub(count);
    }

    /// Forgets a message that was delivered, given back for good, or is gone.
    pub fn finish(&mut self, id: u64) {
        if let Some(at) = self.entries.iter().position(|entry| entry.id == id)
            && let Some(entry) = self.entries.remove(at)
            && entry.state == EntryState::Sending
        {
            self.replays = self.replays.saturating_sub(1);
        }
    }

    /// Keeps a message that failed at its place, to be leased again at `until`.
    pub fn rest(&mut self, id: u64, until: Now) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            if entry.state == EntryState::Sending {
                self.replays = self.replays.saturating_sub(1);
            }
            entry.state = EntryState::Resting(until);
        }
    }

    /// Returns when the first message that rests is due.
    #[must_use]
    pub fn due(&self) -> Option<Now> {
        let rests = self.entries.iter().filter_map(|entry| match entry.state {
            EntryState::Resting(until) => Some(until),
            EntryState::Waiting | EntryState::Sending => None,
        });
        rests.min()
    }

    /// Takes out the messages whose rest is over: a lease brings them back, unless they are gone.
    pub fn wake(&mut self, now: Now) -> Vec<u64> {
        let rested = self.entries.iter().filter(|entry| match entry.state {
            EntryState::Resting(until) => until <= now,
            EntryState::Waiting | EntryState::Sending => false,
        });
        rested.map(|entry| entry.id).collect()
    }

    /// Returns the messages that wait behind one of their stream that rests.
    #[must_use]
    pub fn behind_rest(&self) -> Vec<u64> {
        let (mut resting, mut behind) = (HashSet::new(), Vec::new());
        let mut all_rest = false;
        for entry in &self.entries {
            let stream = entry.stream.as_deref();
            let waits = all_rest || stream.is_some_and(|stream| resting.contains(stream));
            match entry.state {
                EntryState::Resting(_) => match stream {
                    Some(stream) => {
                        resting.insert(stream);
                    }
                    None => all_rest = true,
                },
                EntryState::Waiting if waits => behind.push(entry.id),
                EntryState::Waiting | EntryState::Sending => {}
            }
        }
        behind
    }

    /// Returns the messages that are leased and not sent.
    #[must_use]
    pub fn unsent(&self) -> Vec<u64> {
        let waiting = self.entries.iter();
        let waiting = waiting.filter(|entry| entry.state == EntryState::Waiting);
        waiting.map(|entry| entry.id).collect()
    }
}

#[cfg(test)]
mod tests;
