//! Compact index of a lane: an entry per run of messages, and a fingerprint per dedupe id. Memory
//! grows by about twelve bytes per message; the rows stay on disk.
//!
//! A segment keeps the count and the checksum total of its rows, so a row changed or lost while the
//! journal is open is detected when the segment is read again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bowline_core::time::MonotonicTime;

use super::damaged_error;
use crate::engine::{JournalError, LaneName};
use crate::sqlite::checksum::Checksum;
use crate::sqlite::rows::MessageRow;

/// Rows per segment; few in tests, so tests cover long lanes.
pub(super) const SEGMENT_ROWS_MAX: u32 = if cfg!(test) { 4 } else { 128 };

/// Run of messages of a lane, up to the first place of the next segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSegment {
    /// Lower bound of the places of all rows.
    pub(super) first_place: u64,
    /// Lower bound of the message numbers of all rows.
    pub(super) id_min: u64,
    /// Lower bound of the expiry of live rows.
    pub(super) expires_min: u64,
    /// No row can be leased before this time; reset to 0 by any change.
    pub(super) idle_until: MonotonicTime,
    /// Number of rows, and of live rows; the rest are dead letters.
    pub(super) rows: u32,
    pub(super) waiting: u32,
    /// Checksum total of all rows.
    pub(super) total: u128,
}

/// Fields of a row needed by the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedRow {
    pub(super) place: u64,
    pub(super) id: u64,
    pub(super) sum: Checksum,
    /// Expiry time; never for a dead letter.
    pub(super) expires: u64,
    pub(super) is_dead: bool,
    pub(super) stored_unix_ms: u64,
    /// Fingerprint of the dedupe id.
    pub(super) fingerprint: u32,
}

impl IndexedRow {
    pub(super) fn new(slot: &MessageRow, sum: Checksum, fingerprint: u32) -> Self {
        let is_dead = slot.dead.is_some();
        let expires = slot.expires_unix_ms.filter(|_| !is_dead);
        Self {
            place: slot.place,
            id: slot.id,
            sum,
            expires: expires.unwrap_or(u64::MAX),
            is_dead,
            stored_unix_ms: slot.stored_unix_ms,
            fingerprint,
        }
    }
}

/// First live message of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneHead {
    pub(super) id: u64,
    pub(super) stored_unix_ms: u64,
}

/// Index of a loaded lane.
#[derive(Debug, Default)]
pub(super) struct LaneIndex {
    /// Segments in order of place, each non-empty.
    pub(super) segments: VecDeque<LaneSegment>,
    pub(super) dedupes: DedupeIndex,
    /// Live rows.
    pub(super) waiting: u64,
    /// First live message; `None` if unknown.
    pub(super) head: Option<LaneHead>,
    /// Message numbers of unreadable rows.
    pub(super) damaged: BTreeSet<u64>,
    /// Number of rows lost without a trace.
    pub(super) missing: u64,
    /// First message of a strict lane with an unreadable body.
    pub(super) unreadable: Option<u64>,
}

impl LaneIndex {
    /// Fails if the lane is damaged.
    pub(super) fn check_intact(&self, lane: &LaneName) -> Result<(), JournalError> {
        match (self.damaged.first(), self.missing) {
            (Some(id), _) => Err(damaged_error(format!("message {id} of lane `{lane}`"))),
            (None, 0) => Ok(()),
            (None, 1) => Err(damaged_error(format!(
                "lane `{lane}`: a message is gone, which"
            ))),
            (None, gone) => Err(damaged_error(format!(
                "lane `{lane}`: {gone} messages are gone, which"
            ))),
        }
    }

    /// Fails if no message of the lane can be leased because of damage.
    pub(super) fn check_not_stopped(&self, lane: &LaneName) -> Result<(), JournalError> {
        self.check_intact(lane)?;
        match self.unreadable {
            Some(id) => Err(damaged_error(format!("message {id} of lane `{lane}`"))),
            None => Ok(()),
        }
    }

    /// Returns the index of the segment with this place.
    pub(super) fn segment_index(&self, place: u64) -> Option<usize> {
        let after = self
            .segments
            .partition_point(|one| one.first_place <= place);
        after.checked_sub(1)
    }

    pub(super) fn segment_mut(&mut self, place: u64) -> Option<&mut LaneSegment> {
        let at = self.segment_index(place)?;
        self.segments.get_mut(at)
    }

    /// Returns the first place after a segment.
    pub(super) fn segment_end(&self, at: usize) -> u64 {
        let next = self.segments.get(at + 1);
        next.map_or(u64::MAX, |next| next.first_place)
    }

    /// Appends a row. Returns whether the row began a new segment.
    pub(super) fn push_row(&mut self, row: &IndexedRow) -> bool {
        let last = self.segments.back();
        let is_new = last.is_none_or(|last| last.rows >= SEGMENT_ROWS_MAX);
        if is_new {
            self.segments.push_back(LaneSegment {
                first_place: row.place,
                id_min: row.id,
                expires_min: u64::MAX,
                idle_until: MonotonicTime(0),
                rows: 0,
                waiting: 0,
                total: 0,
            });
        }
        if self.waiting == 0 && !row.is_dead {
            self.head = Some(LaneHead {
                id: row.id,
                stored_unix_ms: row.stored_unix_ms,
            });
        }
        self.waiting += u64::from(!row.is_dead);
        if let Some(last) = self.segments.back_mut() {
            last.id_min = last.id_min.min(row.id);
            last.expires_min = last.expires_min.min(row.expires);
            last.idle_until = MonotonicTime(0);
            last.rows += 1;
            last.waiting += u32::from(!row.is_dead);
            last.total = last.total.wrapping_add(u128::from_le_bytes(row.sum));
        }
        self.dedupes.insert(row.fingerprint, row.id);
        is_new
    }

    /// Removes a row. Returns the first place of the segment if the segment is now empty.
    pub(super) fn remove_row(&mut self, row: &IndexedRow) -> Option<u64> {
        self.dedupes.remove(row.fingerprint, row.id);
        if self.head.is_some_and(|head| head.id == row.id) {
            self.head = None;
        }
        if self.unreadable == Some(row.id) {
            self.unreadable = None;
        }
        self.waiting = self.waiting.saturating_sub(u64::from(!row.is_dead));
        let at = self.segment_index(row.place)?;
        let segment = self.segments.get_mut(at)?;
        segment.rows = segment.rows.saturating_sub(1);
        segment.waiting = segment.waiting.saturating_sub(u32::from(!row.is_dead));
        segment.total = segment.total.wrapping_sub(u128::from_le_bytes(row.sum));
        let (first, is_empty) = (segment.first_place, segment.rows == 0);
        if is_empty {
            self.segments.remove(at);
        }
        is_empty.then_some(first)
    }

    /// Replaces a row; place and number stay the same.
    pub(super) fn replace_row(&mut self, before: &IndexedRow, after: &IndexedRow) {
        if after.is_dead && self.head.is_some_and(|head| head.id == after.id) {
            self.head = None;
        }
        if after.is_dead && self.unreadable == Some(after.id) {
            self.unreadable = None;
        }
        self.waiting = self.waiting.saturating_sub(u64::from(!before.is_dead));
        self.waiting += u64::from(!after.is_dead);
        let Some(segment) = self.segment_mut(after.place) else {
            return;
        };
        segment.waiting = segment.waiting.saturating_sub(u32::from(!before.is_dead));
        segment.waiting += u32::from(!after.is_dead);
        let total = segment.total.wrapping_sub(u128::from_le_bytes(before.sum));
        segment.total = total.wrapping_add(u128::from_le_bytes(after.sum));
        segment.expires_min = segment.expires_min.min(after.expires);
        segment.idle_until = MonotonicTime(0);
    }

    /// Returns the number of live rows, of dead letters, and the checksum total.
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

/// Candidate message numbers by fingerprint of the dedupe id: nine bytes per id, regardless of
/// length. The row decides which candidate matches.
#[derive(Debug, Default)]
pub(super) struct DedupeIndex {
    /// Base of the stored offsets.
    base: u64,
    ids: HashMap<u32, u32, BuildHasherDefault<FingerprintHasher>>,
    /// Messages with a shared fingerprint, or too far from the base.
    others: Vec<(u32, u64)>,
}

impl DedupeIndex {
    pub(super) fn insert(&mut self, fingerprint: u32, id: u64) {
        if self.ids.is_empty() {
            // A requeued dead letter has a lower number than the messages before.
            self.base = id.saturating_sub(u64::from(u32::MAX / 2));
        }
        let offset = id.checked_sub(self.base);
        match offset.and_then(|offset| u32::try_from(offset).ok()) {
            Some(offset) if !self.ids.contains_key(&fingerprint) => {
                self.ids.insert(fingerprint, offset);
            }
            Some(_) | None => self.others.push((fingerprint, id)),
        }
    }

    pub(super) fn remove(&mut self, fingerprint: u32, id: u64) {
        let offset = self.ids.get(&fingerprint).copied();
        if offset.is_some_and(|offset| self.base + u64::from(offset) == id) {
            self.ids.remove(&fingerprint);
        } else {
            self.others.retain(|one| *one != (fingerprint, id));
        }
        // A lane that was long returns its memory.
        if self.ids.len() < self.ids.capacity() / 8 {
            self.ids.shrink_to_fit();
        }
    }

    /// Returns the numbers of messages with this fingerprint.
    pub(super) fn candidates(&self, fingerprint: u32) -> impl Iterator<Item = u64> {
        let offset = self.ids.get(&fingerprint);
        let one = offset.map(|offset| self.base + u64::from(*offset));
        let others = self.others.iter().filter(move |one| one.0 == fingerprint);
        one.into_iter().chain(others.map(|one| one.1))
    }

    /// Returns whether the lane has a message with this number.
    pub(super) fn has_id(&self, id: u64) -> bool {
        let mut all = self.ids.values();
        let mut others = self.others.iter();
        all.any(|offset| self.base + u64::from(*offset) == id) || others.any(|one| one.1 == id)
    }
}

/// Hasher for fingerprints, which are hashes already.
#[derive(Debug, Default)]
pub(super) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u32(&mut self, fingerprint: u32) {
        // The hash table uses the highest and the lowest bits.
        self.0 = (u64::from(fingerprint) << 32) | u64::from(fingerprint);
    }
}
