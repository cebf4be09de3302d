//! The compact index of a lane: one entry for each run of messages, and a fingerprint of each
//! dedupe id. Memory grows by about twelve bytes for a message; the rows themselves stay on disk.
//!
//! A segment keeps the number and the total of the checksums of its rows, so that a row that
//! changes or goes while the journal is open shows when its segment is read again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bowline_core::time::Now;

use super::damaged;
use crate::engine::{JournalError, Lane};
use crate::sqlite::rows::Slot;
use crate::sqlite::sum::Sum;

/// Rows of one segment at most; few in tests, so that they meet what long lanes meet.
pub(super) const SEGMENT_ROWS_MAX: u32 = if cfg!(test) { 4 } else { 128 };

/// A run of messages of a lane, from its first place to that of the next segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// No row of the segment has a place before this.
    pub(super) first: u64,
    /// No row has a number below this.
    pub(super) id_min: u64,
    /// No row that waits expires before this.
    pub(super) soonest: u64,
    /// No row can be handed out before this; where something changes it is 0 again.
    pub(super) quiet_until: Now,
    /// Rows in all, and those that wait or are held; the others are dead letters.
    pub(super) rows: u32,
    pub(super) waiting: u32,
    /// The total of the checksums of all rows.
    pub(super) total: u128,
}

/// What the index needs to know of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) place: u64,
    pub(super) id: u64,
    pub(super) sum: Sum,
    /// When it expires; never where it is a dead letter.
    pub(super) expires: u64,
    pub(super) is_dead: bool,
    pub(super) stored_unix_ms: u64,
    /// The fingerprint of its dedupe id.
    pub(super) print: u32,
}

impl Mark {
    pub(super) fn new(slot: &Slot, sum: Sum, print: u32) -> Self {
        let is_dead = slot.dead.is_some();
        let expires = slot.expires_unix_ms.filter(|_| !is_dead);
        Self {
            place: slot.place,
            id: slot.id,
            sum,
            expires: expires.unwrap_or(u64::MAX),
            is_dead,
            stored_unix_ms: slot.stored_unix_ms,
            print,
        }
    }
}

/// The first message of a lane that waits or is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: u64,
    pub(super) stored_unix_ms: u64,
}

/// What is known of a lane that was read.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// In the order of their places; none is empty.
    pub(super) segments: VecDeque<Segment>,
    pub(super) dedupes: Dedupes,
    /// Rows that wait or are held.
    pub(super) waiting: u64,
    /// Absent where it is to be looked for.
    pub(super) head: Option<Head>,
    /// Rows that cannot be read, by their number.
    pub(super) damaged: BTreeSet<u64>,
    /// How many rows are gone without a trace.
    pub(super) missing: u64,
    /// The first message of a strict lane whose body cannot be read.
    pub(super) unreadable: Option<u64>,
}

impl Loaded {
    /// Says what is wrong with the lane, where something is.
    pub(super) fn check(&self, lane: &Lane) -> Result<(), JournalError> {
        match (self.damaged.first(), self.missing) {
            (Some(id), _) => Err(damaged(format!("message {id} of lane `{lane}`"))),
            (None, 0) => Ok(()),
            (None, 1) => Err(damaged(format!("lane `{lane}`: a message is gone, which"))),
            (None, gone) => Err(damaged(format!(
                "lane `{lane}`: {gone} messages are gone, which"
            ))),
        }
    }

    /// Says why nothing of the lane is handed out, where that is so.
    pub(super) fn check_stopped(&self, lane: &Lane) -> Result<(), JournalError> {
        self.check(lane)?;
        match self.unreadable {
            Some(id) => Err(damaged(format!("message {id} of lane `{lane}`"))),
            None => Ok(()),
        }
    }

    /// Returns which segment a place belongs to.
    pub(super) fn segment_at(&self, place: u64) -> Option<usize> {
        let after = self.segments.partition_point(|one| one.first <= place);
        after.checked_sub(1)
    }

    pub(super) fn segment_mut(&mut self, place: u64) -> Option<&mut Segment> {
        let at = self.segment_at(place)?;
        self.segments.get_mut(at)
    }

    /// Returns the first place after a segment.
    pub(super) fn end_of(&self, at: usize) -> u64 {
        let next = self.segments.get(at + 1);
        next.map_or(u64::MAX, |next| next.first)
    }

    /// Takes up a row behind all others. Returns whether that began a segment.
    pub(super) fn push(&mut self, mark: &Mark) -> bool {
        let last = self.segments.back();
        let is_new = last.is_none_or(|last| last.rows >= SEGMENT_ROWS_MAX);
        if is_new {
            self.segments.push_back(Segment {
                first: mark.place,
                id_min: mark.id,
                soonest: u64::MAX,
                quiet_until: Now(0),
                rows: 0,
                waiting: 0,
                total: 0,
            });
        }
        if self.waiting == 0 && !mark.is_dead {
            self.head = Some(Head {
                id: mark.id,
                stored_unix_ms: mark.stored_unix_ms,
            });
        }
        self.waiting += u64::from(!mark.is_dead);
        if let Some(last) = self.segments.back_mut() {
            last.id_min = last.id_min.min(mark.id);
            last.soonest = last.soonest.min(mark.expires);
            last.quiet_until = Now(0);
            last.rows += 1;
            last.waiting += u32::from(!mark.is_dead);
            last.total = last.total.wrapping_add(u128::from_le_bytes(mark.sum));
        }
        self.dedupes.insert(mark.print, mark.id);
        is_new
    }

    /// Takes a row out. Returns the first place of its segment where that is empty now.
    pub(super) fn take(&mut self, mark: &Mark) -> Option<u64> {
        self.dedupes.remove(mark.print, mark.id);
        if self.head.is_some_and(|head| head.id == mark.id) {
            self.head = None;
        }
        if self.unreadable == Some(mark.id) {
            self.unreadable = None;
        }
        self.waiting = self.waiting.saturating_sub(u64::from(!mark.is_dead));
        let at = self.segment_at(mark.place)?;
        let segment = self.segments.get_mut(at)?;
        segment.rows = segment.rows.saturating_sub(1);
        segment.waiting = segment.waiting.saturating_sub(u32::from(!mark.is_dead));
        segment.total = segment.total.wrapping_sub(u128::from_le_bytes(mark.sum));
        let (first, is_empty) = (segment.first, segment.rows == 0);
        if is_empty {
            self.segments.remove(at);
        }
        is_empty.then_some(first)
    }

    /// Puts a row in the place of what it was before; its place and its id stay.
    pub(super) fn replace(&mut self, was: &Mark, is: &Mark) {
        if is.is_dead && self.head.is_some_and(|head| head.id == is.id) {
            self.head = None;
        }
        if is.is_dead && self.unreadable == Some(is.id) {
            self.unreadable = None;
        }
        self.waiting = self.waiting.saturating_sub(u64::from(!was.is_dead));
        self.waiting += u64::from(!is.is_dead);
        let Some(segment) = self.segment_mut(is.place) else {
            return;
        };
        segment.waiting = segment.waiting.saturating_sub(u32::from(!was.is_dead));
        segment.waiting += u32::from(!is.is_dead);
        let total = segment.total.wrapping_sub(u128::from_le_bytes(was.sum));
        segment.total = total.wrapping_add(u128::from_le_bytes(is.sum));
        segment.soonest = segment.soonest.min(is.expires);
        segment.quiet_until = Now(0);
    }

    /// Returns rows that wait, dead letters, and the total of the checksums of all.
    pub(super) fn totals(&self) -> (u64, u64, u128) {
        let segments = self.segments.iter();
        segments.fold((0, 0, 0), |(waiting, dead, total), one| {
            let dead_here = one.rows.saturating_sub(one.waiting);
            (
                waiting + u64::from(one.waiting),
                dead + u64::from(dead_here),
                u128::wrapping_add(total, one.total),
            )
        })
    }
}

/// Which numbers the messages of a dedupe id may have: by a fingerprint of it, so that an id
/// costs nine bytes however long it is. The row says whether it is the one.
#[derive(Debug, Default)]
pub(super) struct Dedupes {
    /// Numbers are counted from here.
    base: u64,
    ids: HashMap<u32, u32, BuildHasherDefault<Print>>,
    /// Messages whose fingerprint another has, or whose number is too far from the base.
    others: Vec<(u32, u64)>,
}

impl Dedupes {
    pub(super) fn insert(&mut self, print: u32, id: u64) {
        if self.ids.is_empty() {
            // A dead letter that is put back is older than those before it.
            self.base = id.saturating_sub(u64::from(u32::MAX / 2));
        }
        let offset = id.checked_sub(self.base);
        match offset.and_then(|offset| u32::try_from(offset).ok()) {
            Some(offset) if !self.ids.contains_key(&print) => {
                self.ids.insert(print, offset);
            }
            Some(_) | None => self.others.push((print, id)),
        }
    }

    pub(super) fn remove(&mut self, print: u32, id: u64) {
        let offset = self.ids.get(&print).copied();
        if offset.is_some_and(|offset| self.base + u64::from(offset) == id) {
            self.ids.remove(&print);
        } else {
            self.others.retain(|one| *one != (print, id));
        }
        // A lane that was long gives back what it took up.
        if self.ids.len() < self.ids.capacity() / 8 {
            self.ids.shrink_to_fit();
        }
    }

    /// Returns the numbers of messages that may have a dedupe id of this fingerprint.
    pub(super) fn candidates(&self, print: u32) -> impl Iterator<Item = u64> {
        let offset = self.ids.get(&print);
        let one = offset.map(|offset| self.base + u64::from(*offset));
        let others = self.others.iter().filter(move |one| one.0 == print);
        one.into_iter().chain(others.map(|one| one.1))
    }

    /// Whether a message of this number is in the lane.
    pub(super) fn has_id(&self, id: u64) -> bool {
        let mut all = self.ids.values();
        let mut others = self.others.iter();
        all.any(|offset| self.base + u64::from(*offset) == id) || others.any(|one| one.1 == id)
    }
}

/// A fingerprint is a hash already.
#[derive(Debug, Default)]
pub(super) struct Print(u64);

impl Hasher for Print {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u32(&mut self, print: u32) {
        // The table looks at the highest bits and at the lowest ones.
        self.0 = (u64::from(print) << 32) | u64::from(print);
    }
}
