//! Cache of message rows: whole segments, least recently used evicted first.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, Hash};

use super::segments::{IndexedRow, LaneHead, LaneIndex, LaneSegment};
use super::{JournalState, damaged_error};
use crate::engine::LaneName;
use crate::sqlite::rows::MessageRow;
use crate::sqlite::sqlite_error::{OperationError, is_read_error};

/// Message rows in memory at most, without bodies; least recently used segments are evicted first.
/// Few in tests.
const CACHED_ROWS_MAX: usize = if cfg!(test) { 12 } else { 16_384 };

/// Cached segments.
#[derive(Debug, Default)]
pub(super) struct SegmentCache {
    by_lane: HashMap<LaneName, BTreeMap<u64, CachedSegment>>,
    /// Lane and first place of each segment, by the tick of its last use.
    order: BTreeMap<u64, (LaneName, u64)>,
    tick: u64,
    rows: HashMap<u64, MessageRow>,
}

/// Cached segment with its rows in order of place.
#[derive(Debug, Default)]
struct CachedSegment {
    rows: Vec<CachedRow>,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct CachedRow {
    id: u64,
    is_dead: bool,
}

impl CachedRow {
    const fn new(slot: &MessageRow) -> Self {
        Self {
            id: slot.id,
            is_dead: slot.dead.is_some(),
        }
    }
}

impl SegmentCache {
    pub(super) fn row(&self, id: u64) -> Option<&MessageRow> {
        self.rows.get(&id)
    }

    /// Marks a segment as used and returns whether the segment is cached.
    fn touch_segment(&mut self, lane: &LaneName, first: u64) -> bool {
        let windows = self.by_lane.get_mut(lane);
        let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) else {
            return false;
        };
        self.tick += 1;
        let name = self.order.remove(&window.used);
        window.used = self.tick;
        let name = name.unwrap_or_else(|| (lane.clone(), first));
        self.order.insert(self.tick, name);
        true
    }

    /// Caches a segment and evicts older segments beyond the limit.
    pub(super) fn insert_segment(&mut self, lane: &LaneName, first: u64, slots: Vec<MessageRow>) {
        self.evict_segment(lane, first);
        self.tick += 1;
        let window = CachedSegment {
            rows: slots.iter().map(CachedRow::new).collect(),
            used: self.tick,
        };
        let windows = self.by_lane.entry(lane.clone()).or_default();
        windows.insert(first, window);
        self.order.insert(self.tick, (lane.clone(), first));
        self.rows
            .extend(slots.into_iter().map(|slot| (slot.id, slot)));
        while self.rows.len() > CACHED_ROWS_MAX
            && self.order.len() > 1
            && let Some((_, (lane, first))) = self.order.pop_first()
        {
            self.evict_segment(&lane, first);
        }
    }

    /// Evicts a segment.
    pub(super) fn evict_segment(&mut self, lane: &LaneName, first: u64) {
        let Some(windows) = self.by_lane.get_mut(lane) else {
            return;
        };
        let window = windows.remove(&first);
        if windows.is_empty() {
            self.by_lane.remove(lane);
        }
        for row in window.iter().flat_map(|window| &window.rows) {
            self.rows.remove(&row.id);
        }
        if let Some(window) = window {
            self.order.remove(&window.used);
        }
    }

    /// Evicts all segments of a lane.
    pub(super) fn evict_lane(&mut self, lane: &LaneName) {
        for (_, window) in self.by_lane.remove(lane).into_iter().flatten() {
            self.order.remove(&window.used);
            for row in &window.rows {
                self.rows.remove(&row.id);
            }
        }
    }

    /// Adds a row to a cached segment.
    fn push_row(&mut self, first: u64, slot: &MessageRow) {
        let windows = self.by_lane.get_mut(&slot.lane);
        if let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) {
            window.rows.push(CachedRow::new(slot));
            self.rows.insert(slot.id, slot.clone());
        }
    }

    /// Removes a row from a cached segment.
    fn remove_row(&mut self, first: u64, slot: &MessageRow) {
        self.rows.remove(&slot.id);
        let windows = self.by_lane.get_mut(&slot.lane);
        if let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) {
            window.rows.retain(|row| row.id != slot.id);
        }
    }

    /// Replaces a row of a cached segment.
    fn replace_row(&mut self, first: u64, slot: &MessageRow) {
        let windows = self.by_lane.get_mut(&slot.lane);
        let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) else {
            return;
        };
        for row in window.rows.iter_mut().filter(|row| row.id == slot.id) {
            *row = CachedRow::new(slot);
        }
        self.rows.insert(slot.id, slot.clone());
    }

    /// Returns the messages of a cached segment, in order.
    pub(super) fn segment_rows(
        &self,
        lane: &LaneName,
        first: u64,
    ) -> impl Iterator<Item = &MessageRow> {
        let rows = self.cached_rows(lane, first).iter();
        rows.filter_map(|row| self.rows.get(&row.id))
    }

    fn cached_rows(&self, lane: &LaneName, first: u64) -> &[CachedRow] {
        let windows = self.by_lane.get(lane);
        let window = windows.and_then(|windows| windows.get(&first));
        window.map_or(&[], |window| &window.rows)
    }
}

impl JournalState {
    /// Returns the fingerprint of a dedupe id or of a completed key. Hash keys change at every
    /// start, so clients cannot choose colliding ids.
    pub(super) fn fingerprint(&self, id: impl Hash) -> u32 {
        let hash = self.fingerprint_keys.hash_one(id);
        (hash >> 32) as u32
    }

    pub(super) fn to_indexed_row(&self, slot: &MessageRow) -> IndexedRow {
        IndexedRow::new(slot, slot.checksum(), self.fingerprint(&slot.dedupe))
    }

    /// Returns a message row from cache or disk; `None` if absent or damaged.
    pub(super) fn read_message_row(&self, id: u64) -> Result<Option<MessageRow>, OperationError> {
        if let Some(slot) = self.segment_cache.row(id) {
            return Ok(Some(slot.clone()));
        }
        match MessageRow::read_by_id(&self.conn, id) {
            Ok(row) => Ok(row),
            Err(error) if is_read_error(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends a message to its lane.
    pub(super) fn append_to_lane(&mut self, slot: MessageRow) {
        let indexed = self.to_indexed_row(&slot);
        if let Some(row) = self.lanes.get_mut(&slot.lane) {
            row.total = row.total.wrapping_add(u128::from_le_bytes(indexed.sum));
        }
        let loaded = self.lane_indexes.entry(slot.lane.clone()).or_default();
        let is_new = loaded.push_row(&indexed);
        let Some(last) = loaded.segments.back() else {
            return;
        };
        // Later segments are read when needed; the first segment is needed next.
        let first = last.first_place;
        match is_new && loaded.segments.len() == 1 {
            true => {
                let lane = slot.lane.clone();
                self.segment_cache.insert_segment(&lane, first, vec![slot]);
            }
            false => self.segment_cache.push_row(first, &slot),
        }
    }

    /// Removes a message from the index and the cache.
    pub(super) fn remove_from_index(&mut self, slot: &MessageRow) {
        let indexed = self.to_indexed_row(slot);
        let Some(loaded) = self.lane_indexes.get_mut(&slot.lane) else {
            return;
        };
        let at = loaded.segment_index(slot.place);
        let first = at.and_then(|at| loaded.segments.get(at));
        if let Some(first) = first.map(|segment| segment.first_place) {
            self.segment_cache.remove_row(first, slot);
        }
        if let Some(first) = loaded.remove_row(&indexed) {
            self.segment_cache.evict_segment(&slot.lane, first);
        }
    }

    /// Replaces a message in the index, the cache and the total of its lane.
    pub(super) fn replace_message(
        &mut self,
        before: &MessageRow,
        after: &MessageRow,
    ) -> Result<(), rusqlite::Error> {
        let (before, indexed_after) = (self.to_indexed_row(before), self.to_indexed_row(after));
        let row = self.touch_lane(&after.lane)?;
        let total = row.total.wrapping_sub(u128::from_le_bytes(before.sum));
        row.total = total.wrapping_add(u128::from_le_bytes(indexed_after.sum));
        let Some(loaded) = self.lane_indexes.get_mut(&after.lane) else {
            return Ok(());
        };
        loaded.replace_row(&before, &indexed_after);
        let at = loaded.segment_index(after.place);
        if let Some(segment) = at.and_then(|at| loaded.segments.get(at)) {
            self.segment_cache.replace_row(segment.first_place, after);
        }
        Ok(())
    }

    /// Caches a segment and returns the numbers of its live rows, in order.
    pub(super) fn load_segment(
        &mut self,
        lane: &LaneName,
        first: u64,
    ) -> Result<Vec<u64>, OperationError> {
        if !self.segment_cache.touch_segment(lane, first) {
            self.read_segment(lane, first)?;
        }
        let rows = self.segment_cache.cached_rows(lane, first).iter();
        let waiting = rows.filter(|row| !row.is_dead);
        Ok(waiting.map(|row| row.id).collect())
    }

    fn read_segment(&mut self, lane: &LaneName, first: u64) -> Result<(), OperationError> {
        let loaded = self.lane_indexes.get(lane);
        let located = loaded.and_then(|loaded| {
            let at = loaded.segment_index(first)?;
            Some((loaded, *loaded.segments.get(at)?, loaded.segment_end(at)))
        });
        let Some((loaded, segment, end)) = located else {
            return Ok(());
        };
        let place_range = segment.first_place..end;
        let is_whole = |slots: &Vec<MessageRow>| {
            let sums = slots
                .iter()
                .map(|slot| u128::from_le_bytes(slot.checksum()));
            let total = sums.fold(0, u128::wrapping_add);
            slots.len() as u64 == u64::from(segment.rows) && total == segment.total
        };
        let by_index = MessageRow::read_range(&self.conn, lane, place_range.clone(), true);
        let by_index = collect_intact(by_index, loaded);
        if let Some(slots) = by_index.filter(is_whole) {
            self.segment_cache.insert_segment(lane, first, slots);
            return Ok(());
        }
        let by_scan = MessageRow::read_range(&self.conn, lane, place_range, false);
        let by_scan = collect_intact(by_scan, loaded);
        if let Some(slots) = by_scan.filter(is_whole) {
            // The index is broken; it is rebuilt before the next write.
            self.index_is_broken = true;
            self.segment_cache.insert_segment(lane, first, slots);
            return Ok(());
        }
        // A row changed or vanished while the journal was open: reload the lane.
        self.unload_lane(lane);
        self.load_intact_lane(lane)?;
        Err(damaged_error(format!("lane `{lane}`")).into())
    }

    /// Returns the first live message of a lane.
    pub(super) fn lane_head(
        &mut self,
        lane: &LaneName,
    ) -> Result<Option<LaneHead>, OperationError> {
        let Some(loaded) = self
            .lane_indexes
            .get(lane)
            .filter(|loaded| loaded.waiting > 0)
        else {
            return Ok(None);
        };
        if loaded.head.is_some() {
            return Ok(loaded.head);
        }
        let Some(segment) = self.next_segment(lane, None) else {
            return Ok(None);
        };
        let waiting = self.load_segment(lane, segment.first_place)?;
        let slot = waiting.first().and_then(|id| self.segment_cache.row(*id));
        let head = slot.map(|slot| LaneHead {
            id: slot.id,
            stored_unix_ms: slot.stored_unix_ms,
        });
        if let Some(loaded) = self.lane_indexes.get_mut(lane) {
            loaded.head = head;
        }
        Ok(head)
    }

    /// Returns the next segment with live rows after `after`, or the first.
    pub(super) fn next_segment(&self, lane: &LaneName, after: Option<u64>) -> Option<LaneSegment> {
        let loaded = self.lane_indexes.get(lane)?;
        let from = after.and_then(|first| loaded.segment_index(first));
        let from = from.map_or(0, |at| at + 1);
        let mut segments = loaded.segments.iter().skip(from);
        segments.find(|one| one.waiting > 0).copied()
    }

    /// Returns the position of a message, starting at 1; 0 if unknown because a row is damaged.
    pub(super) fn queue_position(&mut self, slot: &MessageRow) -> Result<u64, OperationError> {
        let loaded = self.lane_indexes.get(&slot.lane);
        let whole = loaded.filter(|one| one.damaged.is_empty() && one.missing == 0);
        let Some((loaded, at)) = whole.and_then(|one| Some((one, one.segment_index(slot.place)?)))
        else {
            return Ok(0);
        };
        let before = loaded.segments.iter().take(at);
        let before: u64 = before.map(|one| u64::from(one.waiting)).sum();
        let Some(first) = loaded.segments.get(at).map(|one| one.first_place) else {
            return Ok(0);
        };
        let waiting = self.load_segment(&slot.lane, first)?;
        let index = waiting.iter().position(|id| *id == slot.id);
        Ok(index.map_or(0, |index| before + index as u64 + 1))
    }

    /// Drops the index and the cached rows of a lane.
    pub(super) fn unload_lane(&mut self, lane: &LaneName) {
        self.lane_indexes.remove(lane);
        self.segment_cache.evict_lane(lane);
    }
}

/// Returns the intact rows of a segment; `None` if a row is newly damaged.
fn collect_intact(
    rows: Result<Vec<Result<MessageRow, u64>>, rusqlite::Error>,
    loaded: &LaneIndex,
) -> Option<Vec<MessageRow>> {
    let is_expected = |row: &Result<MessageRow, u64>| {
        let id = row.as_ref().err();
        id.is_none_or(|id| !loaded.damaged.contains(id))
    };
    rows.ok()?
        .into_iter()
        .filter(is_expected)
        .collect::<Result<_, _>>()
        .ok()
}
