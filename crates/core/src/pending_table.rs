//! Pending requests of one link.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table of waiters by request id.
///
/// Invariant: ids are never reused within a table, so a late or duplicate response cannot reach the
/// waiter of a different request.
#[derive(Debug)]
pub struct PendingTable<W> {
    next_id: u64,
    /// Concurrent requests.
    entries_max: usize,
    entries: HashMap<u64, PendingEntry<W>, BuildHasherDefault<IdHasher>>,
}

#[derive(Debug)]
struct PendingEntry<W> {
    waiter: W,
    send_state: SendState,
}

/// Hasher for sequential ids. Peers cannot choose the ids, so one multiplication to spread them
/// suffices.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // Golden ratio; the high bits, used to select the bucket, change with each id.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Whether a request may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// Not sent: the server cannot have seen the request.
    NotSent,
    /// At least a part may have been written.
    MaybeSent,
}

impl<W> PendingTable<W> {
    /// Returns an empty table.
    #[must_use]
    pub fn new(entries_max: usize) -> Self {
        Self {
            next_id: 1,
            entries_max,
            entries: HashMap::default(),
        }
    }

    /// Registers a waiter before its request is sent and returns the id; returns the waiter if the
    /// table is full.
    pub fn register(&mut self, waiter: W) -> Result<u64, W> {
        if self.entries.len() >= self.entries_max {
            return Err(waiter);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.entries.insert(
            id,
            PendingEntry {
                waiter,
                send_state: SendState::NotSent,
            },
        );
        Ok(id)
    }

    /// Marks a request as about to be written; returns `false` for a cancelled request, which need
    /// not be written.
    pub fn mark_sent(&mut self, id: u64) -> bool {
        match self.entries.get_mut(&id) {
            Some(waiting) => {
                waiting.send_state = SendState::MaybeSent;
                true
            }
            None => false,
        }
    }

    /// Returns the waiter of `id`.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&W> {
        self.entries.get(&id).map(|waiting| &waiting.waiter)
    }

    /// Returns the mutable waiter of `id`.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut W> {
        self.entries.get_mut(&id).map(|waiting| &mut waiting.waiter)
    }

    /// Iterates over all waiters, unordered.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.entries
            .iter()
            .map(|(id, waiting)| (*id, &waiting.waiter))
    }

    /// Removes the waiter of `id` after a response or a cancellation.
    pub fn take(&mut self, id: u64) -> Option<(W, SendState)> {
        let waiting = self.entries.remove(&id)?;
        Some((waiting.waiter, waiting.send_state))
    }

    /// Removes all waiters after the loss of the link.
    pub fn drain(&mut self) -> impl Iterator<Item = (W, SendState)> + '_ {
        self.entries
            .drain()
            .map(|(_, waiting)| (waiting.waiter, waiting.send_state))
    }

    /// Returns the number of pending requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no request is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_taken_once() {
        let mut pending = PendingTable::new(8);
        let one = pending.register("one").unwrap();
        let two = pending.register("two").unwrap();
        assert_ne!(one, two);
        assert_eq!(pending.take(one), Some(("one", SendState::NotSent)));
        assert_eq!(pending.take(one), None, "a second answer finds nobody");
        let three = pending.register("three").unwrap();
        assert!(three > two);
        assert_eq!(pending.get(two), Some(&"two"));
    }

    #[test]
    fn cancelled_request_is_not_marked_sent() {
        let mut pending = PendingTable::new(8);
        let id = pending.register(()).unwrap();
        assert!(pending.mark_sent(id));
        assert_eq!(pending.take(id), Some(((), SendState::MaybeSent)));
        assert!(!pending.mark_sent(id));
    }

    #[test]
    fn full_table_returns_waiter() {
        let mut pending = PendingTable::new(1);
        pending.register('a').unwrap();
        assert_eq!(pending.register('b'), Err('b'));
        assert_eq!(pending.drain().count(), 1);
        assert!(pending.is_empty());
    }
}
