//! Checks the spelling of members of protocol objects during a scan.

use std::collections::HashSet;

use super::{KeyPolicy, UNKNOWN_MEMBERS_MAX};
use crate::case_fold::{MemberValue, fold_name, is_known_folded, member_value};
use crate::string_literal::StringLiteral;

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
