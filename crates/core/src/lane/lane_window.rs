//! Send order within a lane: sequential within a stream, parallel across streams.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::time::MonotonicTime;

/// Messages of a lane leased at the same time.
pub const WINDOW_MAX: usize = 64;

/// Writes of a lane in flight at the same time, replays and callers together.
pub const LANE_SENDS_MAX: usize = 32;

/// The oldest undelivered writes of a lane.
///
/// A stream is a session or run; replays of a stream are sequential. A write with a waiting
/// caller follows the replays ahead, and then runs in parallel with all such writes.
#[derive(Debug, Default)]
pub struct LaneWindow {
    entries: VecDeque<WindowEntry>,
    replays: usize,
    grants: usize,
}

#[derive(Debug)]
struct WindowEntry {
    id: u64,
    /// Absent for writes of older gateways, which block the whole lane.
    stream: Option<Arc<str>>,
    state: WindowEntryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowEntryState {
    /// Leased, not sent.
    Waiting,
    /// Sent by the drain.
    Sending,
    /// Returned until the given time, still at the head of its stream.
    Delayed(MonotonicTime),
}

/// The next step for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAction {
    /// The drain sends the write: [`LaneWindow::mark_sending`].
    Replay(u64),
    /// The waiting caller sends the write: [`LaneWindow::grant_to_caller`].
    Grant(u64),
}

impl LaneWindow {
    /// Returns how many more messages may be leased.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        WINDOW_MAX.saturating_sub(self.entries.len())
    }

    /// Whether the window holds no message. Granted writes are no longer in the window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the window holds a message.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// Appends a leased message; a delayed message becomes sendable at its old position.
    pub fn push(&mut self, id: u64, stream: Option<Arc<str>>) {
        match self.entries.iter_mut().find(|entry| entry.id == id) {
            Some(entry) if entry.state != WindowEntryState::Sending => {
                entry.state = WindowEntryState::Waiting
            }
            Some(_) => {}
            None => self.entries.push_back(WindowEntry {
                id,
                stream,
                state: WindowEntryState::Waiting,
            }),
        }
    }

    /// Returns the next write to send while fewer than `width` are in flight. `is_parked` returns
    /// whether the caller of a message still waits.
    pub fn next_action(&self, width: usize, is_parked: impl Fn(u64) -> bool) -> Option<SendAction> {
        if self.replays + self.grants >= width.min(LANE_SENDS_MAX) {
            return None;
        }
        let mut blocked = HashSet::new();
        for (nth, entry) in self.entries.iter().enumerate() {
            let is_blocked = match &entry.stream {
                Some(stream) => blocked.contains(&**stream),
                None => nth > 0,
            };
            if !is_blocked && entry.state == WindowEntryState::Waiting {
                return Some(match is_parked(entry.id) {
                    true => SendAction::Grant(entry.id),
                    false => SendAction::Replay(entry.id),
                });
            }
            match &entry.stream {
                Some(stream) => blocked.insert(&**stream),
                None => return None,
            };
        }
        None
    }

    /// Marks a message as sent by the drain.
    pub fn mark_sending(&mut self, id: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id)
            && entry.state != WindowEntryState::Sending
        {
            entry.state = WindowEntryState::Sending;
            self.replays += 1;
        }
    }

    /// Hands a message to its caller: in flight until [`release_grants`](Self::release_grants), and
    /// no longer blocking its stream.
    pub fn grant_to_caller(&mut self, id: u64) {
        self.remove(id);
        self.grants += 1;
    }

    /// Records the end of `count` writes sent by callers.
    pub fn release_grants(&mut self, count: usize) {
        self.grants = self.grants.saturating_sub(count);
    }

    /// Removes a message after delivery, return or loss.
    pub fn remove(&mut self, id: u64) {
        if let Some(at) = self.entries.iter().position(|entry| entry.id == id)
            && let Some(entry) = self.entries.remove(at)
            && entry.state == WindowEntryState::Sending
        {
            self.replays = self.replays.saturating_sub(1);
        }
    }

    /// Keeps a failed message at its position until `until`.
    pub fn delay_until(&mut self, id: u64, until: MonotonicTime) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            if entry.state == WindowEntryState::Sending {
                self.replays = self.replays.saturating_sub(1);
            }
            entry.state = WindowEntryState::Delayed(until);
        }
    }

    /// Returns the earliest end of a delay.
    #[must_use]
    pub fn next_due(&self) -> Option<MonotonicTime> {
        let rests = self.entries.iter().filter_map(|entry| match entry.state {
            WindowEntryState::Delayed(until) => Some(until),
            WindowEntryState::Waiting | WindowEntryState::Sending => None,
        });
        rests.min()
    }

    /// Returns the messages whose delay has ended; a new lease makes them sendable.
    pub fn due_messages(&mut self, now: MonotonicTime) -> Vec<u64> {
        let rested = self.entries.iter().filter(|entry| match entry.state {
            WindowEntryState::Delayed(until) => until <= now,
            WindowEntryState::Waiting | WindowEntryState::Sending => false,
        });
        rested.map(|entry| entry.id).collect()
    }

    /// Returns the messages blocked by a delayed message of their stream.
    #[must_use]
    pub fn blocked_messages(&self) -> Vec<u64> {
        let (mut resting, mut behind) = (HashSet::new(), Vec::new());
        let mut all_rest = false;
        for entry in &self.entries {
            let stream = entry.stream.as_deref();
            let waits = all_rest || stream.is_some_and(|stream| resting.contains(stream));
            match entry.state {
                WindowEntryState::Delayed(_) => match stream {
                    Some(stream) => {
                        resting.insert(stream);
                    }
                    None => all_rest = true,
                },
                WindowEntryState::Waiting if waits => behind.push(entry.id),
                WindowEntryState::Waiting | WindowEntryState::Sending => {}
            }
        }
        behind
    }

    /// Returns the messages leased and not sent.
    #[must_use]
    pub fn unsent_messages(&self) -> Vec<u64> {
        let waiting = self.entries.iter();
        let waiting = waiting.filter(|entry| entry.state == WindowEntryState::Waiting);
        waiting.map(|entry| entry.id).collect()
    }
}

#[cfg(test)]
mod tests;
