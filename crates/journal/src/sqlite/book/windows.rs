//! The rows that are in memory: whole segments, those that were used last, so many in all.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;

use super::segments::{Head, Loaded, Mark, Segment};
use super::{Book, damaged};
use crate::engine::Lane;
use crate::sqlite::fault::{Fault, is_of_read};
use crate::sqlite::rows::Slot;

/// Messages that are in memory at most, without their bodies; those of the segments that were
/// used longest ago go first. Few in tests likewise.
const SLOTS_MAX: usize = if cfg!(test) { 12 } else { 16_384 };

/// The segments that are in memory.
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_lane: HashMap<Lane, BTreeMap<u64, Window>>,
    /// Which was used last: lane and first place, by the tick of its last use.
    order: BTreeMap<u64, (Lane, u64)>,
    tick: u64,
    slots: HashMap<u64, Slot>,
}

/// One segment: its rows in the order of their places.
#[derive(Debug, Default)]
struct Window {
    rows: Vec<WindowRow>,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct WindowRow {
    id: u64,
    is_dead: bool,
}

impl WindowRow {
    const fn new(slot: &Slot) -> Self {
        Self {
            id: slot.id,
            is_dead: slot.dead.is_some(),
        }
    }
}

impl Windows {
    pub(super) fn slot(&self, id: u64) -> Option<&Slot> {
        self.slots.get(&id)
    }

    /// Notes that a segment was used, and returns whether it is in memory.
    fn touch(&mut self, lane: &Lane, first: u64) -> bool {
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

    /// Takes up a segment, and lets others go where that are too many.
    pub(super) fn insert(&mut self, lane: &Lane, first: u64, slots: Vec<Slot>) {
        self.evict(lane, first);
        self.tick += 1;
        let window = Window {
            rows: slots.iter().map(WindowRow::new).collect(),
            used: self.tick,
        };
        let windows = self.by_lane.entry(lane.clone()).or_default();
        windows.insert(first, window);
        self.order.insert(self.tick, (lane.clone(), first));
        self.slots
            .extend(slots.into_iter().map(|slot| (slot.id, slot)));
        while self.slots.len() > SLOTS_MAX
            && self.order.len() > 1
            && let Some((_, (lane, first))) = self.order.pop_first()
        {
            self.evict(&lane, first);
        }
    }

    /// Lets a segment go.
    pub(super) fn evict(&mut self, lane: &Lane, first: u64) {
        let Some(windows) = self.by_lane.get_mut(lane) else {
            return;
        };
        let window = windows.remove(&first);
        if windows.is_empty() {
            self.by_lane.remove(lane);
        }
        for row in window.iter().flat_map(|window| &window.rows) {
            self.slots.remove(&row.id);
        }
        if let Some(window) = window {
            self.order.remove(&window.used);
        }
    }

    /// Lets all segments of a lane go.
    pub(super) fn evict_lane(&mut self, lane: &Lane) {
        for (_, window) in self.by_lane.remove(lane).into_iter().flatten() {
            self.order.remove(&window.used);
            for row in &window.rows {
                self.slots.remove(&row.id);
            }
        }
    }

    /// Adds a row to a segment that is in memory.
    fn push(&mut self, first: u64, slot: &Slot) {
        let windows = self.by_lane.get_mut(&slot.lane);
        if let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) {
            window.rows.push(WindowRow::new(slot));
            self.slots.insert(slot.id, slot.clone());
        }
    }

    /// Takes a row out of a segment.
    fn take(&mut self, first: u64, slot: &Slot) {
        self.slots.remove(&slot.id);
        let windows = self.by_lane.get_mut(&slot.lane);
        if let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) {
            window.rows.retain(|row| row.id != slot.id);
        }
    }

    /// Puts a row in the place of what it was before.
    fn replace(&mut self, first: u64, slot: &Slot) {
        let windows = self.by_lane.get_mut(&slot.lane);
        let Some(window) = windows.and_then(|windows| windows.get_mut(&first)) else {
            return;
        };
        for row in window.rows.iter_mut().filter(|row| row.id == slot.id) {
            *row = WindowRow::new(slot);
        }
        self.slots.insert(slot.id, slot.clone());
    }

    /// Returns the messages of a segment that is in memory, in order.
    pub(super) fn slots_of(&self, lane: &Lane, first: u64) -> impl Iterator<Item = &Slot> {
        let rows = self.rows(lane, first).iter();
        rows.filter_map(|row| self.slots.get(&row.id))
    }

    fn rows(&self, lane: &Lane, first: u64) -> &[WindowRow] {
        let windows = self.by_lane.get(lane);
        let window = windows.and_then(|windows| windows.get(&first));
        window.map_or(&[], |window| &window.rows)
    }
}

impl Book {
    /// Returns the fingerprint of a dedupe id. It differs from start to start, so that nobody can
    /// choose ids that share one.
    pub(super) fn print(&self, dedupe: &str) -> u32 {
        let hash = self.prints.hash_one(dedupe);
        (hash >> 32) as u32
    }

    pub(super) fn mark(&self, slot: &Slot) -> Mark {
        Mark::new(slot, slot.sum(), self.print(&slot.dedupe))
    }

    /// Returns a message that is in memory or on the disk, and whole.
    pub(super) fn read_slot(&self, id: u64) -> Result<Option<Slot>, Fault> {
        if let Some(slot) = self.windows.slot(id) {
            return Ok(Some(slot.clone()));
        }
        match Slot::by_id(&self.conn, id) {
            Ok(found) => Ok(found),
            Err(error) if is_of_read(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes up a message at the end of its lane.
    pub(super) fn append(&mut self, slot: Slot) {
        let mark = self.mark(&slot);
        if let Some(row) = self.lanes.get_mut(&slot.lane) {
            row.total = row.total.wrapping_add(u128::from_le_bytes(mark.sum));
        }
        let loaded = self.loaded.entry(slot.lane.clone()).or_default();
        let is_new = loaded.push(&mark);
        let Some(last) = loaded.segments.back() else {
            return;
        };
        // What follows is read when its turn comes; the first is needed next.
        let first = last.first;
        match is_new && loaded.segments.len() == 1 {
            true => {
                let lane = slot.lane.clone();
                self.windows.insert(&lane, first, vec![slot]);
            }
            false => self.windows.push(first, &slot),
        }
    }

    /// Takes a message out of the order of its lane.
    pub(super) fn take_out(&mut self, slot: &Slot) {
        let mark = self.mark(slot);
        let Some(loaded) = self.loaded.get_mut(&slot.lane) else {
            return;
        };
        let at = loaded.segment_at(slot.place);
        let first = at.and_then(|at| loaded.segments.get(at));
        if let Some(first) = first.map(|segment| segment.first) {
            self.windows.take(first, slot);
        }
        if let Some(first) = loaded.take(&mark) {
            self.windows.evict(&slot.lane, first);
        }
    }

    /// Puts a message in the place of what it was before, in memory and in the total of its lane.
    pub(super) fn replace(&mut self, was: &Slot, is: &Slot) -> Result<(), rusqlite::Error> {
        let (was, mark) = (self.mark(was), self.mark(is));
        let row = self.touch(&is.lane)?;
        let total = row.total.wrapping_sub(u128::from_le_bytes(was.sum));
        row.total = total.wrapping_add(u128::from_le_bytes(mark.sum));
        let Some(loaded) = self.loaded.get_mut(&is.lane) else {
            return Ok(());
        };
        loaded.replace(&was, &mark);
        let at = loaded.segment_at(is.place);
        if let Some(segment) = at.and_then(|at| loaded.segments.get(at)) {
            self.windows.replace(segment.first, is);
        }
        Ok(())
    }

    /// Brings a segment into memory, and returns its rows that wait or are held, in order.
    pub(super) fn window(&mut self, lane: &Lane, first: u64) -> Result<Vec<u64>, Fault> {
        if !self.windows.touch(lane, first) {
            self.read_window(lane, first)?;
        }
        let rows = self.windows.rows(lane, first).iter();
        let waiting = rows.filter(|row| !row.is_dead);
        Ok(waiting.map(|row| row.id).collect())
    }

    fn read_window(&mut self, lane: &Lane, first: u64) -> Result<(), Fault> {
        let loaded = self.loaded.get(lane);
        let found = loaded.and_then(|loaded| {
            let at = loaded.segment_at(first)?;
            Some((loaded, *loaded.segments.get(at)?, loaded.end_of(at)))
        });
        let Some((loaded, segment, end)) = found else {
            return Ok(());
        };
        let span = (segment.first, end);
        let is_whole = |slots: &Vec<Slot>| {
            let sums = slots.iter().map(|slot| u128::from_le_bytes(slot.sum()));
            let total = sums.fold(0, u128::wrapping_add);
            slots.len() as u64 == u64::from(segment.rows) && total == segment.total
        };
        let by_index = read(Slot::between(&self.conn, lane, span, true), loaded);
        if let Some(slots) = by_index.filter(is_whole) {
            self.windows.insert(lane, first, slots);
            return Ok(());
        }
        let by_scan = read(Slot::between(&self.conn, lane, span, false), loaded);
        if let Some(slots) = by_scan.filter(is_whole) {
            // It is the index that is wrong; it is made anew before anything is written.
            self.index_is_wrong = true;
            self.windows.insert(lane, first, slots);
            return Ok(());
        }
        // A row changed or went while the journal was open: what is left is looked at anew.
        self.unload(lane);
        self.load_whole(lane)?;
        Err(damaged(format!("lane `{lane}`")).into())
    }

    /// Returns the first message of a lane that waits or is held.
    pub(super) fn head(&mut self, lane: &Lane) -> Result<Option<Head>, Fault> {
        let Some(loaded) = self.loaded.get(lane).filter(|loaded| loaded.waiting > 0) else {
            return Ok(None);
        };
        if loaded.head.is_some() {
            return Ok(loaded.head);
        }
        let Some(segment) = self.next_segment(lane, None) else {
            return Ok(None);
        };
        let waiting = self.window(lane, segment.first)?;
        let slot = waiting.first().and_then(|id| self.windows.slot(*id));
        let head = slot.map(|slot| Head {
            id: slot.id,
            stored_unix_ms: slot.stored_unix_ms,
        });
        if let Some(loaded) = self.loaded.get_mut(lane) {
            loaded.head = head;
        }
        Ok(head)
    }

    /// Returns the next segment of a lane in which something waits, after one or from the first.
    pub(super) fn next_segment(&self, lane: &Lane, after: Option<u64>) -> Option<Segment> {
        let loaded = self.loaded.get(lane)?;
        let from = after.and_then(|first| loaded.segment_at(first));
        let from = from.map_or(0, |at| at + 1);
        let mut segments = loaded.segments.iter().skip(from);
        segments.find(|one| one.waiting > 0).copied()
    }

    /// How many are before a message, itself counted; 0 where nobody knows, since one is damaged.
    pub(super) fn position(&mut self, slot: &Slot) -> Result<u64, Fault> {
        let loaded = self.loaded.get(&slot.lane);
        let whole = loaded.filter(|one| one.damaged.is_empty() && one.missing == 0);
        let Some((loaded, at)) = whole.and_then(|one| Some((one, one.segment_at(slot.place)?)))
        else {
            return Ok(0);
        };
        let before = loaded.segments.iter().take(at);
        let before: u64 = before.map(|one| u64::from(one.waiting)).sum();
        let Some(first) = loaded.segments.get(at).map(|one| one.first) else {
            return Ok(0);
        };
        let waiting = self.window(&slot.lane, first)?;
        let here = waiting.iter().position(|id| *id == slot.id);
        Ok(here.map_or(0, |here| before + here as u64 + 1))
    }

    /// Forgets what is known of a lane; it is read again when it is needed.
    pub(super) fn unload(&mut self, lane: &Lane) {
        self.loaded.remove(lane);
        self.windows.evict_lane(lane);
    }
}

/// Returns the rows of a segment that are whole; none where one is damaged that was not before.
fn read(
    rows: Result<Vec<Result<Slot, u64>>, rusqlite::Error>,
    loaded: &Loaded,
) -> Option<Vec<Slot>> {
    let known = |row: &Result<Slot, u64>| {
        let id = row.as_ref().err();
        id.is_none_or(|id| !loaded.damaged.contains(id))
    };
    rows.ok()?
        .into_iter()
        .filter(known)
        .collect::<Result<_, _>>()
        .ok()
}
