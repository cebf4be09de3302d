//! Queues in order of use: every step costs the same however many entries there are.
//!
//! Many queues live in one arena, so that an entry is taken out of the middle of its queue by its
//! slot alone.

/// Where an entry stands in its arena, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(usize);

/// One queue of an arena, the entry that was used longest ago first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Queue {
    first: Option<Slot>,
    last: Option<Slot>,
    len: usize,
}

impl Queue {
    /// Returns how many entries it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the entry that was used longest ago.
    #[must_use]
    pub const fn first(&self) -> Option<Slot> {
        self.first
    }
}

/// The entries of many queues.
#[derive(Debug)]
pub struct Arena<T> {
    nodes: Vec<Node<T>>,
    /// Slots whose entries were removed.
    free: Vec<Slot>,
}

#[derive(Debug)]
struct Node<T> {
    before: Option<Slot>,
    after: Option<Slot>,
    /// Absent where the slot is free.
    value: Option<T>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Arena<T> {
    /// Adds an entry as the one that was used last.
    pub fn push(&mut self, queue: &mut Queue, value: T) -> Slot {
        let node = Node {
            before: None,
            after: None,
            value: Some(value),
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.nodes.get_mut(slot.0) {
                    *place = node;
                }
                slot
            }
            None => {
                self.nodes.push(node);
                Slot(self.nodes.len() - 1)
            }
        };
        self.link_last(queue, slot);
        slot
    }

    /// Makes an entry the one that was used last.
    pub fn touch(&mut self, queue: &mut Queue, slot: Slot) {
        if queue.last == Some(slot) {
            return;
        }
        self.unlink(queue, slot);
        self.link_last(queue, slot);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, queue: &mut Queue, slot: Slot) -> Option<T> {
        let value = self.nodes.get_mut(slot.0)?.value.take()?;
        self.unlink(queue, slot);
        self.free.push(slot);
        Some(value)
    }

    /// Returns an entry.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.nodes.get(slot.0)?.value.as_ref()
    }

    /// Returns an entry to be changed.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.nodes.get_mut(slot.0)?.value.as_mut()
    }

    fn link_last(&mut self, queue: &mut Queue, slot: Slot) {
        let last = queue.last.replace(slot);
        if let Some(node) = self.nodes.get_mut(slot.0) {
            (node.before, node.after) = (last, None);
        }
        match last.and_then(|last| self.nodes.get_mut(last.0)) {
            Some(last) => last.after = Some(slot),
            None => queue.first = Some(slot),
        }
        queue.len += 1;
    }

    fn unlink(&mut self, queue: &mut Queue, slot: Slot) {
        let Some(node) = self.nodes.get_mut(slot.0) else {
            return;
        };
        let (before, after) = (node.before.take(), node.after.take());
        match before.and_then(|before| self.nodes.get_mut(before.0)) {
            Some(before) => before.after = after,
            None => queue.first = after,
        }
        match after.and_then(|after| self.nodes.get_mut(after.0)) {
            Some(after) => after.before = before,
            None => queue.last = before,
        }
        queue.len = queue.len.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(arena: &Arena<u32>, queue: &Queue) -> Vec<u32> {
        let mut at = queue.first;
        let mut all = Vec::new();
        while let Some(slot) = at {
            all.push(*arena.get(slot).unwrap());
            at = arena.nodes[slot.0].after;
        }
        assert_eq!(all.len(), queue.len());
        all
    }

    #[test]
    fn entry_used_longest_ago_comes_first() {
        let mut arena = Arena::default();
        let (mut one, mut two) = (Queue::default(), Queue::default());
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
        assert_eq!(one, Queue::default());
    }

    #[test]
    fn random_steps_match_a_plain_list() {
        let mut arena = Arena::default();
        let mut queue = Queue::default();
        let mut plain: Vec<(Slot, u32)> = Vec::new();
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
            assert_eq!(queue.first(), plain.first().map(|(slot, _)| *slot));
        }
        let values: Vec<_> = plain.iter().map(|(_, value)| *value).collect();
        assert_eq!(order(&arena, &queue), values);
    }
}
