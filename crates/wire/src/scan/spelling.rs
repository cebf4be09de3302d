//! The members of the protocol's objects, judged by their spelling while a text is walked.

use std::collections::HashSet;

use super::{Keys, UNKNOWN_MEMBERS_MAX};
use crate::fold::{Holds, folded, is_known_folded, known};
use crate::text::Literal;

/// Knows which of the open objects are of the protocol. A plain message costs one look-up for
/// each of their keys and one comparison for every other key, and allocates nothing.
#[derive(Debug)]
pub(super) struct Spelling {
    /// Objects at this level and deeper are not judged: nothing at 0.
    free: usize,
    /// The level of the object whose keys a server chose.
    keyed: usize,
    /// The objects with keys that the protocol does not know: their level and what these keys
    /// fold to.
    unknown: Vec<(usize, HashSet<Vec<u8>>)>,
    /// How many keys these are in all, at most [`UNKNOWN_MEMBERS_MAX`].
    unknown_len: usize,
}

impl Spelling {
    pub(super) const fn new(keys: Keys) -> Self {
        let free = match keys {
            Keys::Message | Keys::Params => usize::MAX,
            Keys::Unique | Keys::UniqueOutside | Keys::Any => 0,
        };
        Self {
            free,
            keyed: usize::MAX,
            unknown: Vec::new(),
            unknown_len: 0,
        }
    }

    /// Whether there are as many unknown keys as may be, which is why the last one was not taken.
    pub(super) const fn is_full(&self) -> bool {
        self.unknown_len >= UNKNOWN_MEMBERS_MAX
    }

    /// Whether the keys of an object at this level are judged.
    #[inline(always)]
    pub(super) const fn judges(&self, level: usize) -> bool {
        level < self.free
    }

    /// Judges a key of an object at this level; false when it must not be taken.
    #[inline]
    pub(super) fn take(&mut self, level: usize, key: Literal<'_>) -> bool {
        self.free = usize::MAX;
        if level <= self.keyed {
            if level == self.keyed {
                return true;
            }
            self.keyed = usize::MAX;
        }
        let holds = match key.escapes {
            0 => known(key.raw),
            _ => known(&key.meaning()),
        };
        match holds {
            Some(Holds::Members) => true,
            Some(Holds::Keyed) => {
                self.keyed = level + 1;
                true
            }
            Some(Holds::Anything) => {
                self.free = level + 1;
                true
            }
            None => {
                self.free = level + 1;
                self.take_unknown(level, key)
            }
        }
    }

    #[cold]
    fn take_unknown(&mut self, level: usize, key: Literal<'_>) -> bool {
        let folded = folded(&key.meaning());
        if self.is_full() || is_known_folded(&folded) {
            return false;
        }
        let added = match self.unknown.last_mut().filter(|(owner, _)| *owner == level) {
            Some((_, seen)) => seen.insert(folded),
            None => {
                self.unknown.push((level, HashSet::from([folded])));
                true
            }
        };
        self.unknown_len += usize::from(added);
        added
    }

    /// Forgets the object at this level.
    #[inline(always)]
    pub(super) fn close(&mut self, level: usize) {
        if self.free == level + 1 {
            self.free = usize::MAX;
        }
        if !self.unknown.is_empty() {
            let closed = self.unknown.pop_if(|(owner, _)| *owner == level);
            let keys = closed.map_or(0, |(_, seen)| seen.len());
            self.unknown_len = self.unknown_len.saturating_sub(keys);
        }
    }
}
