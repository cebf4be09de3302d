//! Reads what is on the disk, and notices what is not as it was left.

use std::collections::{BTreeSet, HashMap};
use std::hash::RandomState;

use rusqlite::Connection;

use super::segments::{Loaded, Mark, SEGMENT_ROWS_MAX};
use super::windows::Windows;
use super::{Book, Change};
use crate::elapsed::ElapsedTime;
use crate::engine::{JournalError, Lane};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::{LaneRow, Ledger, Slot};
use crate::sqlite::sum::Tally;

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
            windows: Windows::default(),
            prints: RandomState::new(),
            time: ElapsedTime::resume(ledger.time),
            suspects: BTreeSet::new(),
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

    /// Reads the messages of a lane, where that was not done before. A lane that is empty costs
    /// nothing.
    pub(super) fn load(&mut self, lane: &Lane) -> Result<(), Fault> {
        if self.loaded.contains_key(lane) {
            return Ok(());
        }
        let Some(row) = self.lanes.get(lane).copied() else {
            return match self.lanes_suspect {
                true => Err(damaged(format!("the row of lane `{lane}` or of another")).into()),
                false => Ok(()),
            };
        };
        let loaded = match self.by_index(lane, row) {
            Some((loaded, slots)) => {
                if let Some(first) = loaded.segments.front() {
                    self.windows.insert(lane, first.first, slots);
                }
                loaded
            }
            None => self.by_scan(lane, row)?,
        };
        if loaded.check(lane).is_err() {
            self.suspects.insert(lane.clone());
        }
        self.loaded.insert(lane.clone(), loaded);
        Ok(())
    }

    /// Returns the index of a lane and the rows of its first segment, where all of its messages
    /// are there and whole.
    fn by_index(&self, lane: &Lane, row: LaneRow) -> Option<(Loaded, Vec<Slot>)> {
        let mut loaded = Loaded::default();
        let mut slots = Vec::new();
        let mut is_whole = true;
        let mut last = None;
        let read = Slot::each_of_lane(&self.conn, lane, |read| {
            let Ok((slot, sum)) = read else {
                is_whole = false;
                return false;
            };
            is_whole = slot.lane == *lane && last < Some(slot.place);
            last = Some(slot.place);
            loaded.push(&Mark::new(&slot, sum, self.print(&slot.dedupe)));
            if slots.len() < SEGMENT_ROWS_MAX as usize {
                slots.push(Slot {
                    lane: lane.clone(),
                    ..slot
                });
            }
            is_whole
        });
        let is_all = read.is_ok() && is_whole && is_all(&loaded, row);
        is_all.then_some((loaded, slots))
    }

    /// Looks through all messages for those of a lane, since the index did not lead to all.
    fn by_scan(&mut self, lane: &Lane, row: LaneRow) -> Result<Loaded, Fault> {
        let mut damaged = BTreeSet::new();
        // A page in the middle that cannot be read ends the scan: then some are missing.
        let _cut_short = Slot::each_of_lane(&self.conn, lane, |read| {
            damaged.extend(read.err());
            true
        });
        let (mut marks, mut failed) = (Vec::new(), None);
        let _cut_short = Slot::each(&self.conn, 0, |read| {
            match read {
                Ok((slot, sum)) => {
                    // The index may have led to a message of another lane, which is whole.
                    damaged.remove(&slot.id);
                    if slot.lane == *lane {
                        marks.push(Mark::new(&slot, sum, self.print(&slot.dedupe)));
                    }
                }
                Err(id) => match Slot::lane_of(&self.conn, id) {
                    Ok(Some(of)) if of == *lane => {
                        damaged.insert(id);
                    }
                    Ok(_) => {}
                    Err(error) => failed = Some(error),
                },
            }
            failed.is_none()
        });
        failed.map_or(Ok(()), Err)?;
        marks.sort_unstable_by_key(|mark| mark.place);
        let mut loaded = Loaded::default();
        for mark in &marks {
            loaded.push(mark);
        }
        let known = marks.len() as u64 + damaged.len() as u64;
        loaded.missing = row.count().saturating_sub(known);
        loaded.damaged = damaged;
        if loaded.damaged.is_empty() && is_all(&loaded, row) {
            // All are there, so it is the index that is wrong; it is made anew before anything is
            // written.
            self.index_is_wrong = true;
        } else if loaded.damaged.is_empty() && loaded.missing == 0 {
            loaded.missing = 1;
        }
        Ok(loaded)
    }

    /// Reads a lane, and refuses where something of it is damaged.
    pub(super) fn load_whole(&mut self, lane: &Lane) -> Result<(), Fault> {
        self.load(lane)?;
        let loaded = self.loaded.get(lane);
        loaded.map_or(Ok(()), |loaded| loaded.check(lane))?;
        Ok(())
    }

    /// Reads lanes whose names begin so, and returns those that were read, in order: all, or where
    /// there is a limit one lane and others until they have so many rows together.
    pub(super) fn load_prefix(
        &mut self,
        prefix: &str,
        rows_max: Option<u64>,
    ) -> Result<Vec<Lane>, Fault> {
        let lanes = self.lanes.iter();
        let lanes = lanes.filter(|(lane, _)| lane.as_str().starts_with(prefix));
        let mut lanes: Vec<_> = lanes
            .map(|(lane, row)| (lane.clone(), row.count()))
            .collect();
        lanes.sort_unstable();
        let mut rows: u64 = 0;
        let mut read = Vec::with_capacity(lanes.len());
        for (lane, count) in lanes {
            if !self.loaded.contains_key(&lane) {
                if rows > 0 && rows_max.is_some_and(|most| rows.saturating_add(count) > most) {
                    continue;
                }
                rows = rows.saturating_add(count);
                self.load(&lane)?;
            }
            read.push(lane);
        }
        Ok(read)
    }

    /// Finds a message, and reads its lane. Where no message of this number is to be found, all
    /// lanes are read, so that one that is gone from the disk shows.
    pub(super) fn find(&mut self, id: u64) -> Result<Option<Slot>, Fault> {
        if let Some(slot) = self.windows.slot(id) {
            return Ok(Some(slot.clone()));
        }
        if id == 0 || id > self.ledger.id {
            return Ok(None);
        }
        if let Some(slot) = self.read_slot(id)?
            && self.lanes.contains_key(&slot.lane)
        {
            self.load(&slot.lane)?;
            return Ok(Some(slot));
        }
        if self.loaded.len() < self.lanes.len() {
            self.load_prefix("", None)?;
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
            if loaded.damaged.contains(&id) || loaded.dedupes.has_id(id) {
                return Err(damaged(format!("message {id} of lane `{lane}`")));
            }
            if loaded.missing > 0 {
                loaded.check(lane)?;
            }
        }
        Ok(())
    }
}

/// Whether the messages that were read are all of the lane, and as they were left.
fn is_all(loaded: &Loaded, row: LaneRow) -> bool {
    loaded.totals() == (row.waiting, row.dead, row.total)
}
