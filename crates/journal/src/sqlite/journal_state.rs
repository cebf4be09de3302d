//! State of the writer thread: a compact index per lane and a cache of recently used rows.
//!
//! A lane is read and verified as a whole on first use. A row read again later is verified by its
//! checksum and by the totals of its segment, so no decision relies on a page that may have
//! changed.
//!
//! A change is applied here and to the open transaction together. When the transaction fails, the
//! touched state is dropped and read again from disk.

mod completed;
#[cfg(test)]
mod fault_injection;
mod inspect;
mod lease;
mod load_lane;
mod publish;
mod segment_cache;
mod segments;
mod settle;
mod values;

use std::collections::{BTreeSet, HashMap};
use std::hash::RandomState;
use std::sync::Arc;

use bowline_core::time::MonotonicTime;
use rusqlite::Connection;

use self::completed::CompletedIndex;
use self::segment_cache::SegmentCache;
use self::segments::{LaneHead, LaneIndex};
use self::values::ValueIndex;
use super::rows::{LaneRow, LedgerRow, MessageRow};
use super::sqlite_error::{OperationError, damaged_error};
use crate::elapsed::ElapsedTime;
use crate::engine::{LaneName, StoppedLane, Timestamps};

/// Messages with unwritten attempts at most; beyond, the attempts are written without a change.
const UNWRITTEN_ATTEMPTS_MAX: usize = 4096;

/// Complete state of a SQLite journal.
#[derive(Debug)]
pub(super) struct JournalState {
    conn: Connection,
    ledger: LedgerRow,
    /// Ledger as written on disk.
    written_ledger: LedgerRow,
    /// All non-empty lanes.
    lanes: HashMap<LaneName, LaneRow>,
    /// Whether a lane row is damaged or missing, so an unknown lane may be the missing lane.
    lane_rows_suspect: bool,
    /// Indexes of lanes read so far.
    lane_indexes: HashMap<LaneName, LaneIndex>,
    /// Messages in memory.
    segment_cache: SegmentCache,
    /// Hash keys for fingerprints of dedupe ids.
    fingerprint_keys: RandomState,
    /// Clock for message expiry.
    elapsed: ElapsedTime,
    /// Lanes possibly stopped by damage; verified when listed.
    suspect_lanes: BTreeSet<LaneName>,
    /// Leases and delays by message number; void after a reopen.
    leases: HashMap<u64, LeaseState>,
    last_lease: u64,
    /// Leases granted since the attempts were last written. Written with the next change: a lost
    /// counter costs at most an extra delivery, which is allowed.
    unwritten_attempts: HashMap<u64, u32>,
    completed: Option<CompletedIndex>,
    value_index: Option<ValueIndex>,
    /// Whether the lane index was found incomplete.
    index_is_broken: bool,
    changes: TransactionChanges,
    /// Changed values, to be announced to watches once durable.
    pub(super) changed_values: Vec<(Arc<str>, u64)>,
    #[cfg(test)]
    fails_commits: bool,
}

/// Undo information of the open transaction.
#[derive(Debug, Default)]
struct TransactionChanges {
    is_open: bool,
    /// Whether the lane index was rebuilt.
    rebuilt_index: bool,
    /// Touched lanes with their previous rows.
    lanes: HashMap<LaneName, Option<LaneRow>>,
    /// Previous leases, in order of change.
    leases: Vec<(u64, Option<LeaseState>)>,
    /// Attempts written by the transaction.
    attempts: HashMap<u64, u32>,
}

/// Lease of a message and its due time.
#[derive(Clone, Debug)]
struct LeaseState {
    /// Newest lease and its end.
    lease: Option<(u64, MonotonicTime)>,
    /// Earliest time of the next lease.
    due: MonotonicTime,
    /// Lane and place of the message.
    lane: LaneName,
    place: u64,
}

impl JournalState {
    fn is_leased(&self, id: u64, at: Timestamps) -> bool {
        let hold = self.leases.get(&id).and_then(|hold| hold.lease);
        hold.is_some_and(|(_, until)| at.now < until)
    }

    /// Replaces the lease of a message and records the previous lease for a rollback.
    fn change_lease(&mut self, id: u64, hold: Option<LeaseState>) {
        let previous = self.swap_lease(id, hold);
        self.changes.leases.push((id, previous));
    }

    fn swap_lease(&mut self, id: u64, hold: Option<LeaseState>) -> Option<LeaseState> {
        let place = hold.as_ref().map(|hold| (hold.lane.clone(), hold.place));
        let previous = match hold {
            Some(hold) => self.leases.insert(id, hold),
            None => self.leases.remove(&id),
        };
        let before = previous
            .as_ref()
            .map(|hold| (hold.lane.clone(), hold.place));
        for (lane, place) in place.into_iter().chain(before) {
            let loaded = self.lane_indexes.get_mut(&lane);
            if let Some(segment) = loaded.and_then(|loaded| loaded.segment_mut(place)) {
                segment.idle_until = MonotonicTime(0);
            }
        }
        previous
    }

    /// Advances elapsed time and returns `at` with elapsed time in place of the wall clock.
    fn elapsed_timestamps(&mut self, at: Timestamps) -> Timestamps {
        let unix_ms = self.elapsed.advance(at);
        Timestamps { unix_ms, ..at }
    }

    /// Returns the lanes stopped by damage.
    pub(super) fn stopped_lanes(&mut self) -> Vec<StoppedLane> {
        let loaded = &self.lane_indexes;
        let reason =
            |lane: &LaneName| Some(loaded.get(lane)?.check_not_stopped(lane).err()?.to_string());
        self.suspect_lanes.retain(|lane| reason(lane).is_some());
        let stopped = self.suspect_lanes.iter().filter_map(|lane| {
            Some(StoppedLane {
                lane: lane.clone(),
                reason: reason(lane)?.into(),
            })
        });
        stopped.collect()
    }

    fn begin_transaction(&mut self) -> Result<(), rusqlite::Error> {
        if !self.changes.is_open {
            self.conn.execute_batch("BEGIN IMMEDIATE")?;
            self.changes.is_open = true;
            if self.index_is_broken {
                self.conn.execute_batch("REINDEX message")?;
                self.index_is_broken = false;
                self.changes.rebuilt_index = true;
            }
        }
        Ok(())
    }

    /// Records a lane as changed and returns its counters.
    fn touch_lane(&mut self, lane: &LaneName) -> Result<&mut LaneRow, rusqlite::Error> {
        self.begin_transaction()?;
        let previous = self.lanes.get(lane).copied();
        self.changes.lanes.entry(lane.clone()).or_insert(previous);
        Ok(self.lanes.entry(lane.clone()).or_default())
    }

    /// Returns the number of leases of a message, including unwritten attempts.
    fn total_attempts(&self, slot: &MessageRow) -> u32 {
        let more = self.unwritten_attempts.get(&slot.id).copied().unwrap_or(0);
        slot.attempts.saturating_add(more)
    }

    /// Writes pending changes and commits the transaction.
    pub(super) fn commit(&mut self) -> Result<(), rusqlite::Error> {
        if !self.changes.is_open && self.unwritten_attempts.len() < UNWRITTEN_ATTEMPTS_MAX {
            self.changes = TransactionChanges::default();
            return Ok(());
        }
        self.write_and_commit()
    }

    fn write_and_commit(&mut self) -> Result<(), rusqlite::Error> {
        self.begin_transaction()?;
        self.write_attempts()?;
        self.write_lanes()?;
        self.ledger.clean = false;
        self.ledger.time = self.elapsed.last_ms();
        if self.ledger != self.written_ledger {
            self.ledger.write(&self.conn)?;
        }
        #[cfg(test)]
        self.fail_commit()?;
        self.conn.execute_batch("COMMIT")?;
        self.written_ledger = self.ledger;
        self.changes = TransactionChanges::default();
        Ok(())
    }

    fn write_attempts(&mut self) -> Result<(), rusqlite::Error> {
        let attempts = std::mem::take(&mut self.unwritten_attempts);
        self.changes.attempts.clone_from(&attempts);
        for (id, more) in attempts {
            // An unreadable message is not leased again, so its attempts are not needed.
            let slot = match self.read_message_row(id) {
                Ok(slot) => slot.filter(|slot| self.lanes.contains_key(&slot.lane)),
                Err(OperationError::Disk(error)) => return Err(error),
                Err(OperationError::Refused(_)) => None,
            };
            let Some(slot) = slot else {
                continue;
            };
            let updated = MessageRow {
                attempts: slot.attempts.saturating_add(more),
                ..slot.clone()
            };
            updated.update_attempts(&self.conn)?;
            self.replace_message(&slot, &updated)?;
        }
        Ok(())
    }

    fn write_lanes(&mut self) -> Result<(), rusqlite::Error> {
        let lanes: Vec<_> = self.changes.lanes.keys().cloned().collect();
        for lane in lanes {
            let head = match self.lane_head(&lane) {
                Ok(head) => head.map(|head: LaneHead| head.stored_unix_ms),
                Err(OperationError::Disk(error)) => return Err(error),
                // A row was damaged meanwhile: keep the last known head.
                Err(OperationError::Refused(_)) => self.lanes.get(&lane).and_then(|row| row.oldest),
            };
            let Some(current) = self.lanes.get_mut(&lane) else {
                continue;
            };
            current.oldest = head;
            if let Some(Some(previous)) = self.changes.lanes.get(&lane) {
                self.ledger.lanes.subtract(previous.checksum(&lane));
            }
            if current.count() == 0 {
                LaneRow::delete(&self.conn, &lane)?;
                self.lanes.remove(&lane);
                // An empty lane needs no index.
                self.unload_lane(&lane);
            } else {
                current.write(&self.conn, &lane)?;
                self.ledger.lanes.add(current.checksum(&lane));
            }
        }
        Ok(())
    }

    /// Rolls back the transaction and restores the previous state.
    pub(super) fn rollback(&mut self) -> Result<(), rusqlite::Error> {
        let change = std::mem::take(&mut self.changes);
        self.changed_values.clear();
        self.ledger = self.written_ledger;
        for (id, more) in change.attempts {
            let attempts = self.unwritten_attempts.entry(id).or_default();
            *attempts = attempts.saturating_add(more);
        }
        for (id, previous) in change.leases.into_iter().rev() {
            self.swap_lease(id, previous);
        }
        for (lane, previous) in change.lanes {
            match previous {
                Some(row) => self.lanes.insert(lane.clone(), row),
                None => self.lanes.remove(&lane),
            };
            self.unload_lane(&lane);
        }
        self.completed = None;
        self.value_index = None;
        self.index_is_broken |= change.rebuilt_index;
        match self.conn.is_autocommit() {
            true => Ok(()),
            false => self.conn.execute_batch("ROLLBACK"),
        }
    }

    /// Reads a body and verifies length and checksum.
    fn read_body(&self, slot: &MessageRow) -> Result<bytes::Bytes, OperationError> {
        let damaged = || damaged_error(format!("message {} of lane `{}`", slot.id, slot.lane));
        let body = match slot.read_body(&self.conn) {
            Ok(body) => body.ok_or_else(damaged)?,
            Err(error) if super::sqlite_error::is_read_error(&error) => {
                return Err(damaged().into());
            }
            Err(error) => return Err(error.into()),
        };
        let is_whole = body.len() as u64 == slot.body_bytes;
        match is_whole && super::checksum::checksum_bytes(&body) == slot.body_sum {
            true => Ok(body.into()),
            false => Err(damaged().into()),
        }
    }

    /// Returns the number of WAL pages not yet checkpointed.
    pub(super) fn wal_pages(&self) -> Result<u64, rusqlite::Error> {
        self.checkpoint("NOOP")
    }

    /// Checkpoints the WAL and returns the number of pages left.
    pub(super) fn checkpoint(&self, mode: &str) -> Result<u64, rusqlite::Error> {
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let mut statement = self.conn.prepare_cached(&sql)?;
        let (log, moved) =
            statement.query_row([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
        Ok(u64::try_from(log.saturating_sub(moved)).unwrap_or(0))
    }

    /// Returns the used and the free bytes of the file.
    pub(super) fn file_usage(&self) -> Result<(u64, u64), rusqlite::Error> {
        let number = |name: &str| {
            let sql = format!("PRAGMA {name}");
            let value = self.conn.query_row(&sql, [], |row| row.get::<_, i64>(0));
            value.map(|number| u64::try_from(number).unwrap_or(0))
        };
        let (page, free) = (number("page_size")?, number("freelist_count")?);
        let used = number("page_count")?.saturating_sub(free);
        Ok((used * page, free * page))
    }

    /// Rewrites the file without free pages and returns the space to the disk.
    pub(super) fn vacuum(&self) -> Result<(), rusqlite::Error> {
        self.conn.execute_batch("VACUUM")?;
        self.checkpoint("TRUNCATE").map(drop)
    }

    /// Closes the file, marks the file as clean if checked, and truncates the WAL.
    pub(super) fn close(mut self, is_checked: bool) -> Result<(), rusqlite::Error> {
        if !self.unwritten_attempts.is_empty() {
            self.write_and_commit()?;
        }
        self.ledger.clean = is_checked;
        self.ledger.time = self.elapsed.last_ms();
        self.ledger.write(&self.conn)?;
        self.checkpoint("TRUNCATE")?;
        self.conn.close().map_err(|(_, error)| error)
    }
}
