//! Checks of the keys of open objects during a scan: duplicates, and the spelling of members of
//! protocol objects.

use std::borrow::Cow;
use std::collections::HashSet;

use foldhash::quality::RandomState;

use super::{DEPTH_MAX, KeyPolicy, OPEN_KEYS_MAX, UNKNOWN_MEMBERS_MAX};
use crate::case_fold::{MemberValue, fold_name, is_known_folded, member_value};
use crate::string_literal::StringLiteral;

/// Number of keys per object compared directly; further keys are hashed.
const COMPARED_KEYS_MAX: usize = 16;

/// Keys of all open objects kept without allocation.
const INLINE_KEYS_MAX: usize = 24;

/// The hashed keys of one object, with a random seed.
type HashedKeys<'a> = HashSet<Cow<'a, [u8]>, RandomState>;

/// The keys of each open object.
#[derive(Debug)]
pub(super) struct SeenKeys<'a> {
    inline: [&'a [u8]; INLINE_KEYS_MAX],
    spill: Vec<&'a [u8]>,
    len: usize,
    /// Start of the compared keys of the object at each depth. At most
    /// `DEPTH_MAX * COMPARED_KEYS_MAX` keys exist, so 16 bits suffice.
    starts: [u16; DEPTH_MAX],
    /// Objects with many or escaped keys: depth and keys. Each set is dropped with its object,
    /// because clearing a large set for many small objects would cost more.
    hashed: Vec<(usize, HashedKeys<'a>)>,
    /// Number of hashed keys in all open objects, at most [`OPEN_KEYS_MAX`].
    hashed_len: usize,
}

impl<'a> SeenKeys<'a> {
    pub(super) const fn new() -> Self {
        Self {
            inline: [&[]; INLINE_KEYS_MAX],
            spill: Vec::new(),
            len: 0,
            starts: [0; DEPTH_MAX],
            hashed: Vec::new(),
            hashed_len: 0,
        }
    }

    /// Whether the limit of hashed keys is reached, the reason for refusing the last key.
    pub(super) const fn is_full(&self) -> bool {
        self.hashed_len >= OPEN_KEYS_MAX
    }

    /// Begins the object at `depth`.
    #[inline]
    pub(super) fn open(&mut self, depth: usize) {
        if let Some(start) = self.starts.get_mut(depth) {
            *start = u16::try_from(self.len).unwrap_or(u16::MAX);
        }
    }

    /// Drops the keys of the object at `depth`.
    #[inline]
    pub(super) fn close(&mut self, depth: usize) {
        self.truncate(self.start(depth));
        if let Some((_, keys)) = self.hashed.pop_if(|(owner, _)| *owner == depth) {
            self.hashed_len = self.hashed_len.saturating_sub(keys.len());
        }
    }

    /// Adds a key to the object at `depth`; false for a duplicate, or at the limit.
    #[inline]
    pub(super) fn insert(&mut self, depth: usize, key: StringLiteral<'a>) -> bool {
        let start = self.start(depth);
        let hashes = self.hashed.last().is_some_and(|(owner, _)| *owner == depth);
        if hashes || key.escapes > 0 || self.len - start >= COMPARED_KEYS_MAX {
            return self.insert_hashed(depth, start, key);
        }
        if self.keys_from(start).any(|known| known == key.raw) {
            return false;
        }
        match self.inline.get_mut(self.len) {
            Some(slot) => *slot = key.raw,
            None => self.spill.push(key.raw),
        }
        self.len += 1;
        true
    }

    #[cold]
    fn insert_hashed(&mut self, depth: usize, start: usize, key: StringLiteral<'a>) -> bool {
        if self.hashed.last().is_none_or(|(owner, _)| *owner != depth) {
            let keys: HashSet<_, _> = self.keys_from(start).map(Cow::Borrowed).collect();
            self.hashed_len += keys.len();
            self.hashed.push((depth, keys));
            self.truncate(start);
        }
        let full = self.is_full();
        let Some((_, keys)) = self.hashed.last_mut() else {
            return false;
        };
        let added = !full && keys.insert(key.unescape());
        self.hashed_len += usize::from(added);
        added
    }

    #[inline]
    fn start(&self, depth: usize) -> usize {
        self.starts.get(depth).copied().map_or(0, usize::from)
    }

    #[inline]
    fn keys_from(&self, start: usize) -> impl Iterator<Item = &'a [u8]> {
        let inline = self.inline.get(start..self.len.min(INLINE_KEYS_MAX));
        let spill = self.spill.get(start.saturating_sub(INLINE_KEYS_MAX)..);
        let inline = inline.unwrap_or_default().iter();
        inline.chain(spill.unwrap_or_default()).copied()
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        self.len = len;
        self.spill.truncate(len.saturating_sub(INLINE_KEYS_MAX));
    }
}

/// Tracks the open protocol objects. A plain message costs one lookup per protocol key and one
/// comparison per remaining key, without allocation.
#[derive(Debug)]
pub(super) struct SpellingCheck {
    /// Objects at this level and deeper are unchecked; 0 disables the check.
    unchecked_from: usize,
    /// The level of an object with server-chosen keys.
    keyed_level: usize,
    /// Objects with unknown keys: level and folded keys.
    unknown_keys: Vec<(usize, HashSet<Vec<u8>>)>,
    /// Total number of unknown keys, at most [`UNKNOWN_MEMBERS_MAX`].
    unknown_count: usize,
}

impl SpellingCheck {
    pub(super) const fn new(keys: KeyPolicy) -> Self {
        let unchecked_from = match keys {
            KeyPolicy::Message | KeyPolicy::Params => usize::MAX,
            KeyPolicy::Unique | KeyPolicy::UniqueOutermost | KeyPolicy::Any => 0,
        };
        Self {
            unchecked_from,
            keyed_level: usize::MAX,
            unknown_keys: Vec::new(),
            unknown_count: 0,
        }
    }

    /// Whether the limit of unknown keys is reached, the reason for refusing the last key.
    pub(super) const fn is_full(&self) -> bool {
        self.unknown_count >= UNKNOWN_MEMBERS_MAX
    }

    /// Whether keys at this level are checked.
    #[inline(always)]
    pub(super) const fn is_checked(&self, level: usize) -> bool {
        level < self.unchecked_from
    }

    /// Checks a key at this level; false to refuse.
    #[inline]
    pub(super) fn check_key(&mut self, level: usize, key: StringLiteral<'_>) -> bool {
        self.unchecked_from = usize::MAX;
        if level <= self.keyed_level {
            if level == self.keyed_level {
                return true;
            }
            self.keyed_level = usize::MAX;
        }
        let holds = match key.escapes {
            0 => member_value(key.raw),
            _ => member_value(&key.unescape()),
        };
        match holds {
            Some(MemberValue::Members) => true,
            Some(MemberValue::Keyed) => {
                self.keyed_level = level + 1;
                true
            }
            Some(MemberValue::Opaque) => {
                self.unchecked_from = level + 1;
                true
            }
            None => {
                self.unchecked_from = level + 1;
                self.check_unknown_key(level, key)
            }
        }
    }

    #[cold]
    fn check_unknown_key(&mut self, level: usize, key: StringLiteral<'_>) -> bool {
        let folded = fold_name(&key.unescape());
        if self.is_full() || is_known_folded(&folded) {
            return false;
        }
        let added = match self
            .unknown_keys
            .last_mut()
            .filter(|(owner, _)| *owner == level)
        {
            Some((_, seen)) => seen.insert(folded),
            None => {
                self.unknown_keys.push((level, HashSet::from([folded])));
                true
            }
        };
        self.unknown_count += usize::from(added);
        added
    }

    /// Drops the object at this level.
    #[inline(always)]
    pub(super) fn close(&mut self, level: usize) {
        if self.unchecked_from == level + 1 {
            self.unchecked_from = usize::MAX;
        }
        if !self.unknown_keys.is_empty() {
            let closed = self.unknown_keys.pop_if(|(owner, _)| *owner == level);
            let keys = closed.map_or(0, |(_, seen)| seen.len());
            self.unknown_count = self.unknown_count.saturating_sub(keys);
        }
    }
}
