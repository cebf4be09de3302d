//! Who waits for which answer on one link.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table of waiters by the id under which their request travels.
///
/// Invariant: an id is given out once in the life of a table, so a late or second answer can never
/// reach the waiter of another request.
#[derive(Debug)]
pub struct Pending<W> {
    next: u64,
    /// Requests that may wait at once.
    waiters_max: usize,
    waiters: HashMap<u64, Waiting<W>, BuildHasherDefault<Spread>>,
}

#[derive(Debug)]
struct Waiting<W> {
    waiter: W,
    sent: Sent,
}

/// Hashes ids that we count up ourselves: nobody outside can choose them, so it need only spread
/// them, which one multiplication does.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The golden ratio; its high bits, by which the table finds a bucket, change with each id.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Whether a request may have left this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is still ours: the server cannot have seen it.
    No,
    /// Some of it may be in the pipe.
    Perhaps,
}

impl<W> Pending<W> {
    /// Returns an empty table.
    #[must_use]
    pub fn new(waiters_max: usize) -> Self {
        Self {
            next: 1,
            waiters_max,
            waiters: HashMap::default(),
        }
    }

    /// Registers a waiter before its request is sent and returns its id; gives the waiter back
    /// when too many wait already.
    pub fn register(&mut self, waiter: W) -> Result<u64, W> {
        if self.waiters.len() >= self.waiters_max {
            return Err(waiter);
        }
        let id = self.next;
        self.next += 1;
        self.waiters.insert(
            id,
            Waiting {
                waiter,
                sent: Sent::No,
            },
        );
        Ok(id)
    }

    /// Notes that a request is about to be written; `false` when nobody waits for it any more,
    /// in which case it need not be written at all.
    pub fn mark_sent(&mut self, id: u64) -> bool {
        match self.waiters.get_mut(&id) {
            Some(waiting) => {
                waiting.sent = Sent::Perhaps;
                true
            }
            None => false,
        }
    }

    /// Returns the waiter of `id` without ending its wait.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&W> {
        self.waiters.get(&id).map(|waiting| &waiting.waiter)
    }

    /// Returns the waiter of `id`, to be changed without ending its wait.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut W> {
        self.waiters.get_mut(&id).map(|waiting| &mut waiting.waiter)
    }

    /// Returns everyone who waits, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.waiters
            .iter()
            .map(|(id, waiting)| (*id, &waiting.waiter))
    }

    /// Ends the wait for `id`, because it is answered or given up.
    pub fn take(&mut self, id: u64) -> Option<(W, Sent)> {
        let waiting = self.waiters.remove(&id)?;
        Some((waiting.waiter, waiting.sent))
    }

    /// Ends every wait, because the link is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = (W, Sent)> + '_ {
        self.waiters
            .drain()
            .map(|(_, waiting)| (waiting.waiter, waiting.sent))
    }

    /// Returns how many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_never_reused_and_answers_are_taken_once() {
        let mut pending = Pending::new(8);
        let one = pending.register("one").unwrap();
        let two = pending.register("two").unwrap();
        assert_ne!(one, two);
        assert_eq!(pending.take(one), Some(("one", Sent::No)));
        assert_eq!(pending.take(one), None, "a second answer finds nobody");
        let three = pending.register("three").unwrap();
        assert!(three > two);
        assert_eq!(pending.get(two), Some(&"two"));
    }

    #[test]
    fn what_was_given_up_before_it_was_written_need_not_be_written() {
        let mut pending = Pending::new(8);
        let id = pending.register(()).unwrap();
        assert!(pending.mark_sent(id));
        assert_eq!(pending.take(id), Some(((), Sent::Perhaps)));
        assert!(!pending.mark_sent(id));
    }

    #[test]
    fn a_full_table_gives_the_waiter_back() {
        let mut pending = Pending::new(1);
        pending.register('a').unwrap();
        assert_eq!(pending.register('b'), Err('b'));
        assert_eq!(pending.drain().count(), 1);
        assert!(pending.is_empty());
    }
}
