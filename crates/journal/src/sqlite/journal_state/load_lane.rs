//! Loads lanes from disk and detects damaged or missing rows.

use std::collections::{BTreeSet, HashMap};
use std::hash::RandomState;

use rusqlite::Connection;

use super::segment_cache::SegmentCache;
use super::segments::{IndexedRow, LaneIndex, SEGMENT_ROWS_MAX};
use super::{JournalState, TransactionChanges};
use crate::elapsed::ElapsedTime;
use crate::engine::{JournalError, LaneName};
use crate::sqlite::checksum::ChecksumTotal;
use crate::sqlite::rows::{LaneRow, LedgerRow, MessageRow};
use crate::sqlite::sqlite_error::{OperationError, damaged_error};

impl JournalState {
    /// Opens the state of a migrated file. Reads the lane rows, but no messages.
    pub(in crate::sqlite) fn open(
        conn: Connection,
        ledger: LedgerRow,
    ) -> Result<Self, rusqlite::Error> {
        let mut lanes = HashMap::new();
        let mut total = ChecksumTotal::default();
        for (lane, row) in LaneRow::read_all(&conn)?.into_iter().flatten() {
            total.add(row.checksum(&lane));
            lanes.insert(lane, row);
        }
        Ok(Self {
            conn,
            ledger,
            written_ledger: ledger,
            lane_rows_suspect: total != ledger.lanes,
            lanes,
            lane_indexes: HashMap::new(),
            segment_cache: SegmentCache::default(),
            fingerprint_keys: RandomState::new(),
            elapsed: ElapsedTime::resume(ledger.time),
            suspect_lanes: BTreeSet::new(),
            leases: HashMap::new(),
            last_lease: 0,
            unwritten_attempts: HashMap::new(),
            completed: None,
            value_index: None,
            index_is_broken: false,
            changes: TransactionChanges::default(),
            changed_values: Vec::new(),
            #[cfg(test)]
            fails_commits: false,
        })
    }

    /// Marks the journal as in use, so a crash is detected at the next start.
    pub(in crate::sqlite) fn mark_open(&mut self) -> Result<(), rusqlite::Error> {
        self.ledger.clean = false;
        self.ledger.epoch = self.ledger.epoch.wrapping_add(1);
        // Lease numbers start at the epoch, so receipts of earlier runs never match.
        self.last_lease = self.ledger.epoch << 32;
        self.ledger.write(&self.conn)?;
        self.written_ledger = self.ledger;
        Ok(())
    }

    pub(in crate::sqlite) const fn revision(&self) -> u64 {
        self.ledger.revision
    }

    /// Loads the messages of a lane, unless loaded. An empty lane costs nothing.
    pub(super) fn load_lane(&mut self, lane: &LaneName) -> Result<(), OperationError> {
        if self.lane_indexes.contains_key(lane) {
            return Ok(());
        }
        let Some(row) = self.lanes.get(lane).copied() else {
            return match self.lane_rows_suspect {
                true => {
                    Err(damaged_error(format!("the row of lane `{lane}` or of another")).into())
                }
                false => Ok(()),
            };
        };
        let loaded = match self.read_lane_by_index(lane, row) {
            Some((loaded, slots)) => {
                if let Some(first) = loaded.segments.front() {
                    self.segment_cache
                        .insert_segment(lane, first.first_place, slots);
                }
                loaded
            }
            None => self.read_lane_by_scan(lane, row)?,
        };
        if loaded.check_intact(lane).is_err() {
            self.suspect_lanes.insert(lane.clone());
        }
        self.lane_indexes.insert(lane.clone(), loaded);
        Ok(())
    }

    /// Returns the index of a lane and the rows of its first segment, if every message is present
    /// and intact.
    fn read_lane_by_index(
        &self,
        lane: &LaneName,
        row: LaneRow,
    ) -> Option<(LaneIndex, Vec<MessageRow>)> {
        let mut loaded = LaneIndex::default();
        let mut slots = Vec::new();
        let mut is_whole = true;
        let mut last = None;
        let read = MessageRow::visit_lane(&self.conn, lane, |read| {
            let Ok((slot, sum)) = read else {
                is_whole = false;
                return false;
            };
            is_whole = slot.lane == *lane && last < Some(slot.place);
            last = Some(slot.place);
            loaded.push_row(&IndexedRow::new(&slot, sum, self.fingerprint(&slot.dedupe)));
            if slots.len() < SEGMENT_ROWS_MAX as usize {
                slots.push(MessageRow {
                    lane: lane.clone(),
                    ..slot
                });
            }
            is_whole
        });
        let is_all = read.is_ok() && is_whole && is_complete(&loaded, row);
        is_all.then_some((loaded, slots))
    }

    /// Scans all messages for a lane, because the SQL index missed some.
    fn read_lane_by_scan(
        &mut self,
        lane: &LaneName,
        row: LaneRow,
    ) -> Result<LaneIndex, OperationError> {
        let mut damaged = BTreeSet::new();
        // An unreadable page ends the scan early: the remaining messages count as missing.
        let _cut_short = MessageRow::visit_lane(&self.conn, lane, |read| {
            damaged.extend(read.err());
            true
        });
        let (mut rows, mut failed) = (Vec::new(), None);
        let _cut_short = MessageRow::visit_all(&self.conn, 0, |read| {
            match read {
                Ok((slot, sum)) => {
                    // The index may have led to an intact message of a different lane.
                    damaged.remove(&slot.id);
                    if slot.lane == *lane {
                        rows.push(IndexedRow::new(&slot, sum, self.fingerprint(&slot.dedupe)));
                    }
                }
                Err(id) => match MessageRow::claimed_lane(&self.conn, id) {
                    Ok(Some(claimed)) if claimed == *lane => {
                        damaged.insert(id);
                    }
                    Ok(_) => {}
                    Err(error) => failed = Some(error),
                },
            }
            failed.is_none()
        });
        failed.map_or(Ok(()), Err)?;
        rows.sort_unstable_by_key(|indexed| indexed.place);
        let mut loaded = LaneIndex::default();
        for indexed in &rows {
            loaded.push_row(indexed);
        }
        let accounted = rows.len() as u64 + damaged.len() as u64;
        loaded.missing = row.count().saturating_sub(accounted);
        loaded.damaged = damaged;
        if loaded.damaged.is_empty() && is_complete(&loaded, row) {
            // All messages exist, so the index is broken; it is rebuilt before the next write.
            self.index_is_broken = true;
        } else if loaded.damaged.is_empty() && loaded.missing == 0 {
            loaded.missing = 1;
        }
        Ok(loaded)
    }

    /// Loads a lane and fails if any part is damaged.
    pub(super) fn load_intact_lane(&mut self, lane: &LaneName) -> Result<(), OperationError> {
        self.load_lane(lane)?;
        let loaded = self.lane_indexes.get(lane);
        loaded.map_or(Ok(()), |loaded| loaded.check_intact(lane))?;
        Ok(())
    }

    /// Loads lanes with this prefix and returns the loaded lanes in order: all lanes, or with
    /// `rows_max` at least one lane and more up to this number of rows.
    pub(super) fn load_lanes(
        &mut self,
        prefix: &str,
        rows_max: Option<u64>,
    ) -> Result<Vec<LaneName>, OperationError> {
        let lanes = self.lanes.iter();
        let lanes = lanes.filter(|(lane, _)| lane.as_str().starts_with(prefix));
        let mut lanes: Vec<_> = lanes
            .map(|(lane, row)| (lane.clone(), row.count()))
            .collect();
        lanes.sort_unstable();
        let mut rows: u64 = 0;
        let mut read = Vec::with_capacity(lanes.len());
        for (lane, count) in lanes {
            if !self.lane_indexes.contains_key(&lane) {
                if rows > 0 && rows_max.is_some_and(|most| rows.saturating_add(count) > most) {
                    continue;
                }
                rows = rows.saturating_add(count);
                self.load_lane(&lane)?;
            }
            read.push(lane);
        }
        Ok(read)
    }

    /// Finds a message and loads its lane. If no message has this number, all lanes are loaded, so
    /// a message missing on disk is detected.
    pub(super) fn find_message(&mut self, id: u64) -> Result<Option<MessageRow>, OperationError> {
        if let Some(slot) = self.segment_cache.row(id) {
            return Ok(Some(slot.clone()));
        }
        if id == 0 || id > self.ledger.id {
            return Ok(None);
        }
        if let Some(slot) = self.read_message_row(id)?
            && self.lanes.contains_key(&slot.lane)
        {
            self.load_lane(&slot.lane)?;
            return Ok(Some(slot));
        }
        if self.lane_indexes.len() < self.lanes.len() {
            self.load_lanes("", None)?;
        }
        self.check_absent(id)?;
        Ok(None)
    }

    /// Fails if the absent message may be a damaged or missing message.
    fn check_absent(&self, id: u64) -> Result<(), JournalError> {
        if self.lane_rows_suspect {
            return Err(damaged_error("the row of a lane"));
        }
        for (lane, loaded) in &self.lane_indexes {
            if loaded.damaged.contains(&id) || loaded.dedupes.has_id(id) {
                return Err(damaged_error(format!("message {id} of lane `{lane}`")));
            }
            if loaded.missing > 0 {
                loaded.check_intact(lane)?;
            }
        }
        Ok(())
    }
}

/// Returns whether the messages read match the recorded totals of the lane.
fn is_complete(loaded: &LaneIndex, row: LaneRow) -> bool {
    loaded.totals() == (row.waiting, row.dead, row.total)
}
