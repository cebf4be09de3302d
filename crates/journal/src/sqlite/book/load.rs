//! Reads what is on the disk, and notices what is not as it was left.

use std::collections::HashMap;

use rusqlite::Connection;

use super::{Book, Change, Loaded};
use crate::engine::{JournalError, Lane};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::{LaneRow, Ledger, Slot};
use crate::sqlite::sum::{Sum, Tally};

/// From so many messages on lanes are read together.
const AT_ONCE_MIN: u64 = 2_000;

impl Book {
    /// Opens the book of a file that is up to date. Reads the lanes, but none of their messages.
    pub(in crate::sqlite) fn open(
        conn: Connection,
        ledger: Ledger,
    ) -> Result<Self, rusqlite::Error> {
        let mut lanes = HashMap::new();
        let mut tally = Tally::default();
        for (lane, row) in LaneRow::all(&conn)?.into_iter().flatten() {
            tally.add(row.sum(&lane));
            lanes.insert(lane, row);
        }
        Ok(Self {
            conn,
            ledger,
            written: ledger,
            lanes_suspect: tally != ledger.lanes,
            lanes,
            loaded: HashMap::new(),
            messages: std::collections::BTreeMap::new(),
            holds: HashMap::new(),
            lease: 0,
            given: HashMap::new(),
            dones: None,
            values: None,
            index_is_wrong: false,
            change: Change::default(),
            news: Vec::new(),
            #[cfg(test)]
            fails_commits: false,
        })
    }

    /// Says that the journal is in use: whoever finds it so after a crash knows of the crash.
    pub(in crate::sqlite) fn mark_used(&mut self) -> Result<(), rusqlite::Error> {
        self.ledger.clean = false;
        self.ledger.epoch = self.ledger.epoch.wrapping_add(1);
        // Leases are numbered from here on, so that no receipt of an earlier life fits.
        self.lease = self.ledger.epoch << 32;
        self.ledger.write(&self.conn)?;
        self.written = self.ledger;
        Ok(())
    }

    pub(in crate::sqlite) const fn revision(&self) -> u64 {
        self.ledger.revision
    }

    /// Reads the messages of a lane, where that was not done before.
    pub(super) fn load(&mut self, lane: &Lane) -> Result<(), Fault> {
        if self.loaded.contains_key(lane) {
            return Ok(());
        }
        let Some(row) = self.lanes.get(lane).copied() else {
            if self.lanes_suspect {
                return Err(damaged(format!("the row of lane `{lane}` or of another")).into());
            }
            self.loaded.insert(lane.clone(), Loaded::default());
            return Ok(());
        };
        let (slots, found) = match self.by_index(lane, row) {
            Some(slots) => (slots, Loaded::default()),
            None => self.by_scan(lane, row)?,
        };
        self.take_up(lane, slots, found);
        Ok(())
    }

    /// Returns the messages of a lane where all of them are there and whole.
    fn by_index(&self, lane: &Lane, row: LaneRow) -> Option<Vec<Slot>> {
        let slots = Slot::of_lane(&self.conn, lane).ok()?;
        let slots: Vec<_> = slots.into_iter().collect::<Result<_, _>>().ok()?;
        all_of(slots, row)
    }

    /// Looks through all messages for those of a lane, since the index did not lead to all.
    fn by_scan(&mut self, lane: &Lane, row: LaneRow) -> Result<(Vec<Slot>, Loaded), Fault> {
        let mut found = Loaded::default();
        let mut slots = Vec::new();
        // A page in the middle that cannot be read ends the scan: then some are missing.
        let all = Slot::all(&self.conn).unwrap_or_default();
        let by_index = Slot::of_lane(&self.conn, lane).unwrap_or_default();
        let claims = by_index.into_iter().filter_map(Result::err);
        found.damaged.extend(claims);
        for one in all {
            match one {
                Ok((slot, sum)) => {
                    // The index may have led to a message of another lane, which is whole.
                    found.damaged.remove(&slot.id);
                    if slot.lane == *lane {
                        slots.push((slot, sum));
                    }
                }
                Err(id) => {
                    if Slot::lane_of(&self.conn, id)?.is_some_and(|of| of == *lane) {
                        found.damaged.insert(id);
                    }
                }
            }
        }
        let known = slots.len() as u64 + found.damaged.len() as u64;
        found.missing = row.count().saturating_sub(known);
        let is_all = found.damaged.is_empty() && is_all(&slots, row);
        if is_all {
            // All are there, so it is the index that is wrong; it is made anew before anything is
            // written.
            self.index_is_wrong = true;
        } else if found.damaged.is_empty() && found.missing == 0 {
            found.missing = 1;
        }
        let slots = slots.into_iter().map(|(slot, _)| slot).collect();
        Ok((slots, found))
    }

    fn take_up(&mut self, lane: &Lane, slots: Vec<Slot>, mut loaded: Loaded) {
        let mut waiting = Vec::with_capacity(slots.len());
        loaded.soonest = u64::MAX;
        for slot in slots {
            loaded.by_dedupe.insert(slot.dedupe.clone(), slot.id);
            match slot.dead {
                Some(_) => {
                    loaded.dead.insert(slot.id);
                }
                None => {
                    waiting.push((slot.place, slot.id));
                    let end = slot.expires_unix_ms.unwrap_or(u64::MAX);
                    loaded.soonest = loaded.soonest.min(end);
                }
            }
            self.messages.insert(slot.id, slot);
        }
        waiting.sort_unstable();
        loaded.waiting = waiting.into();
        self.loaded.insert(lane.clone(), loaded);
    }

    /// Reads a lane, and refuses where something of it is damaged.
    pub(super) fn load_whole(&mut self, lane: &Lane) -> Result<(), Fault> {
        self.load(lane)?;
        let loaded = self.loaded.get(lane);
        loaded.map_or(Ok(()), |loaded| loaded.check(lane))?;
        Ok(())
    }

    /// Reads all lanes whose names begin so, and returns them in order.
    pub(super) fn load_prefix(&mut self, prefix: &str) -> Result<Vec<Lane>, Fault> {
        let lanes = self.lanes.keys();
        let mut lanes: Vec<Lane> = lanes
            .filter(|lane| lane.as_str().starts_with(prefix))
            .cloned()
            .collect();
        lanes.sort_unstable();
        self.load_many(&lanes);
        for lane in &lanes {
            self.load(lane)?;
        }
        Ok(lanes)
    }

    /// Reads lanes in one go where they are many messages together; what is not right is left to
    /// be read lane by lane.
    fn load_many(&mut self, lanes: &[Lane]) {
        let fresh = lanes.iter().filter(|lane| !self.loaded.contains_key(*lane));
        let mut fresh: HashMap<&Lane, Vec<(Slot, Sum)>> =
            fresh.map(|lane| (lane, Vec::new())).collect();
        let rows = fresh.keys().filter_map(|lane| self.lanes.get(*lane));
        if fresh.len() < 2 || rows.map(LaneRow::count).sum::<u64>() < AT_ONCE_MIN {
            return;
        }
        let Ok(all) = Slot::all(&self.conn) else {
            return;
        };
        for (slot, sum) in all.into_iter().flatten() {
            if let Some(slots) = fresh.get_mut(&slot.lane) {
                slots.push((slot, sum));
            }
        }
        for (lane, slots) in fresh {
            let row = self.lanes.get(lane).copied().unwrap_or_default();
            if let Some(slots) = all_of(slots, row) {
                self.take_up(lane, slots, Loaded::default());
            }
        }
    }

    /// Reads the lane of a message. Where no message of this number is to be found, all lanes are
    /// read, so that one that is gone from the disk shows.
    pub(super) fn find(&mut self, id: u64) -> Result<Option<Slot>, Fault> {
        if let Some(slot) = self.messages.get(&id) {
            return Ok(Some(slot.clone()));
        }
        if id == 0 || id > self.ledger.id {
            return Ok(None);
        }
        if let Ok(Some(lane)) = Slot::lane_of(&self.conn, id)
            && self.lanes.contains_key(&lane)
        {
            self.load(&lane)?;
        }
        if let Some(slot) = self.messages.get(&id) {
            return Ok(Some(slot.clone()));
        }
        self.load_prefix("")?;
        if let Some(slot) = self.messages.get(&id) {
            return Ok(Some(slot.clone()));
        }
        self.check_absent(id)?;
        Ok(None)
    }

    /// Refuses to say that there is no such message where it may be the one that is gone.
    fn check_absent(&self, id: u64) -> Result<(), JournalError> {
        if self.lanes_suspect {
            return Err(damaged("the row of a lane"));
        }
        for (lane, loaded) in &self.loaded {
            if loaded.damaged.contains(&id) {
                return Err(damaged(format!("message {id} of lane `{lane}`")));
            }
            if loaded.missing > 0 {
                loaded.check(lane)?;
            }
        }
        Ok(())
    }
}

/// Returns the messages where they are all of the lane, and as they were left.
fn all_of(slots: Vec<(Slot, Sum)>, row: LaneRow) -> Option<Vec<Slot>> {
    let is_all = is_all(&slots, row);
    is_all.then(|| slots.into_iter().map(|(slot, _)| slot).collect())
}

fn is_all(slots: &[(Slot, Sum)], row: LaneRow) -> bool {
    let mut tally = Tally::default();
    let mut dead = 0;
    for (slot, sum) in slots {
        tally.add(*sum);
        dead += u64::from(slot.dead.is_some());
    }
    tally.count == row.count() && tally.total == row.total && dead == row.dead
}
