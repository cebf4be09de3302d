//! LRU queues with constant-time operations.
//!
//! Many queues share one arena, so that an entry can be removed from the middle of its queue by
//! slot alone.

/// Position of an entry in the arena, valid until removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LruSlot(usize);

/// A queue of an arena, least recently used entry first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LruQueue {
    oldest: Option<LruSlot>,
    newest: Option<LruSlot>,
    len: usize,
}

impl LruQueue {
    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the queue is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the least recently used entry.
    #[must_use]
    pub const fn oldest(&self) -> Option<LruSlot> {
        self.oldest
    }
}

/// The entries of many queues.
#[derive(Debug)]
pub struct LruArena<T> {
    nodes: Vec<LruNode<T>>,
    /// Free slots.
    free: Vec<LruSlot>,
}

#[derive(Debug)]
struct LruNode<T> {
    older: Option<LruSlot>,
    newer: Option<LruSlot>,
    /// Absent for a free slot.
    value: Option<T>,
}

impl<T> Default for LruArena<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> LruArena<T> {
    /// Adds an entry as most recently used.
    pub fn push(&mut self, queue: &mut LruQueue, value: T) -> LruSlot {
        let node = LruNode {
            older: None,
            newer: None,
            value: Some(value),
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                if let Some(free_node) = self.nodes.get_mut(slot.0) {
                    *free_node = node;
                }
                slot
            }
            None => {
                self.nodes.push(node);
                LruSlot(self.nodes.len() - 1)
            }
        };
        self.link_last(queue, slot);
        slot
    }

    /// Makes an entry the most recently used.
    pub fn touch(&mut self, queue: &mut LruQueue, slot: LruSlot) {
        if queue.newest == Some(slot) {
            return;
        }
        self.unlink(queue, slot);
        self.link_last(queue, slot);
    }

    /// Removes an entry.
    pub fn remove(&mut self, queue: &mut LruQueue, slot: LruSlot) -> Option<T> {
        let value = self.nodes.get_mut(slot.0)?.value.take()?;
        self.unlink(queue, slot);
        self.free.push(slot);
        Some(value)
    }

    /// Returns an entry.
    #[must_use]
    pub fn get(&self, slot: LruSlot) -> Option<&T> {
        self.nodes.get(slot.0)?.value.as_ref()
    }

    /// Returns a mutable entry.
    pub fn get_mut(&mut self, slot: LruSlot) -> Option<&mut T> {
        self.nodes.get_mut(slot.0)?.value.as_mut()
    }

    fn link_last(&mut self, queue: &mut LruQueue, slot: LruSlot) {
        let last = queue.newest.replace(slot);
        if let Some(node) = self.nodes.get_mut(slot.0) {
            (node.older, node.newer) = (last, None);
        }
        match last.and_then(|last| self.nodes.get_mut(last.0)) {
            Some(last) => last.newer = Some(slot),
            None => queue.oldest = Some(slot),
        }
        queue.len += 1;
    }

    fn unlink(&mut self, queue: &mut LruQueue, slot: LruSlot) {
        let Some(node) = self.nodes.get_mut(slot.0) else {
            return;
        };
        let (before, after) = (node.older.take(), node.newer.take());
        match before.and_then(|before| self.nodes.get_mut(before.0)) {
            Some(before) => before.newer = after,
            None => queue.oldest = after,
        }
        match after.and_then(|after| self.nodes.get_mut(after.0)) {
            Some(after) => after.older = before,
            None => queue.newest = before,
        }
        queue.len = queue.len.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(arena: &LruArena<u32>, queue: &LruQueue) -> Vec<u32> {
        let mut at = queue.oldest;
        let mut all = Vec::new();
        while let Some(slot) = at {
            all.push(*arena.get(slot).unwrap());
            at = arena.nodes[slot.0].newer;
        }
        assert_eq!(all.len(), queue.len());
        all
    }

    #[test]
    fn least_recently_used_entry_is_first() {
        let mut arena = LruArena::default();
        let (mut one, mut two) = (LruQueue::default(), LruQueue::default());
        let slots: Vec<_> = (0..4).map(|nth| arena.push(&mut one, nth)).collect();
        let other = arena.push(&mut two, 9);
        arena.touch(&mut one, slots[0]);
        arena.touch(&mut one, slots[2]);
        arena.touch(&mut one, slots[2]);
        assert_eq!(order(&arena, &one), [1, 3, 0, 2]);
        assert_eq!(arena.remove(&mut one, slots[3]), Some(3));
        assert_eq!(arena.remove(&mut one, slots[3]), None);
        assert_eq!(order(&arena, &one), [1, 0, 2]);
        assert_eq!(order(&arena, &two), [9]);
        let again = arena.push(&mut two, 5);
        assert_eq!(again, slots[3], "a free slot is used again");
        assert_eq!(arena.remove(&mut two, other), Some(9));
        assert_eq!(order(&arena, &two), [5]);
        for slot in [slots[1], slots[0], slots[2]] {
            arena.remove(&mut one, slot).unwrap();
        }
        assert_eq!(one, LruQueue::default());
    }

    #[test]
    fn random_steps_match_plain_list() {
        let mut arena = LruArena::default();
        let mut queue = LruQueue::default();
        let mut plain: Vec<(LruSlot, u32)> = Vec::new();
        let mut seed = 7_u32;
        for step in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (seed >> 8) as usize % plain.len().max(1);
            match (seed >> 4) % 3 {
                1 if !plain.is_empty() => {
                    let entry = plain.remove(at);
                    arena.touch(&mut queue, entry.0);
                    plain.push(entry);
                }
                2 if !plain.is_empty() => {
                    let (slot, value) = plain.remove(at);
                    assert_eq!(arena.remove(&mut queue, slot), Some(value));
                }
                _ => plain.push((arena.push(&mut queue, step), step)),
            }
            assert_eq!(queue.oldest(), plain.first().map(|(slot, _)| *slot));
        }
        let values: Vec<_> = plain.iter().map(|(_, value)| *value).collect();
        assert_eq!(order(&arena, &queue), values);
    }
}
