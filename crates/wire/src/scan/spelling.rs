//! The members of the protocol's objects, judged by their spelling while a text is walked.

use std::collections::HashSet;

use super::Keys;
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
        }
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
        if is_known_folded(&folded) {
            return false;
        }
        match self.unknown.last_mut().filter(|(owner, _)| *owner == level) {
            Some((_, seen)) => seen.insert(folded),
            None => {
                self.unknown.push((level, HashSet::from([folded])));
                true
            }
        }
    }

    /// Forgets the object at this level.
    #[inline(always)]
    pub(super) fn close(&mut self, level: usize) {
        if self.free == level + 1 {
            self.free = usize::MAX;
        }
        if !self.unknown.is_empty() {
            self.unknown.pop_if(|(owner, _)| *owner == level);
        }
    }
}
