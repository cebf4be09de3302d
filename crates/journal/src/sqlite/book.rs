//! What the writer knows of messages: a compact index of each lane, and the rows that were used
//! last. A lane is read and checked as a whole when it is first needed; a row that is read again
//! later is checked by itself and by the totals of its segment, so that no decision rests on a
//! page that may have changed.
//!
//! A change is made here and in an open transaction at once. When the transaction fails, what it
//! touched is forgotten here and read again from the disk.

mod done;
mod end;
#[cfg(test)]
mod faults;
mod lease;
mod load;
mod publish;
mod segments;
mod show;
mod values;
mod windows;

use std::collections::{BTreeSet, HashMap};
use std::hash::RandomState;
use std::sync::Arc;

use bowline_core::time::Now;
use rusqlite::Connection;

use self::done::Dones;
use self::segments::{Head, Loaded};
use self::values::Values;
use self::windows::Windows;
use super::fault::{Fault, damaged};
use super::rows::{LaneRow, Ledger, Slot};
use crate::elapsed::ElapsedTime;
use crate::engine::{At, Lane, StoppedLane};

/// Messages whose attempts are not written yet at most; then they are, by themselves.
const GIVEN_MAX: usize = 4096;

/// Everything about one journal.
#[derive(Debug)]
pub(super) struct Book {
    conn: Connection,
    ledger: Ledger,
    /// The ledger as it is on the disk.
    written: Ledger,
    /// All lanes that are not empty.
    lanes: HashMap<Lane, LaneRow>,
    /// Whether a row of a lane is damaged or gone: then a lane that is not there may be that one.
    lanes_suspect: bool,
    /// Those whose messages were read.
    loaded: HashMap<Lane, Loaded>,
    /// The messages that are in memory.
    windows: Windows,
    /// What fingerprints of dedupe ids are made with.
    prints: RandomState,
    /// By which messages expire.
    time: ElapsedTime,
    /// Lanes that may be stopped for damage; which of them are is looked at when they are shown.
    suspects: BTreeSet<Lane>,
    /// Who holds what and what is not due yet; void when the file is opened anew.
    holds: HashMap<u64, Hold>,
    lease: u64,
    /// How often messages were handed out since that was last written. It is written along with
    /// the next change: what is lost is one delivery more, which is allowed.
    given: HashMap<u64, u32>,
    dones: Option<Dones>,
    values: Option<Values>,
    /// Whether the index of lanes was found not to lead to all messages.
    index_is_wrong: bool,
    change: Change,
    /// Changed values whose watchers are to be told once it is durable.
    pub(super) news: Vec<(Arc<str>, u64)>,
    #[cfg(test)]
    fails_commits: bool,
}

/// What the open transaction has changed.
#[derive(Debug, Default)]
struct Change {
    is_open: bool,
    /// Whether the index of lanes was made anew.
    made_index: bool,
    /// The lanes that were touched, as they were.
    lanes: HashMap<Lane, Option<LaneRow>>,
    /// Holds that were changed, as they were, in the order of the changes.
    holds: Vec<(u64, Option<Hold>)>,
    /// The attempts that are written in it.
    given: HashMap<u64, u32>,
}

/// Who holds a message, and when it is due.
#[derive(Clone, Debug)]
struct Hold {
    /// The newest lease and until when it holds.
    lease: Option<(u64, Now)>,
    /// Not handed out before.
    due: Now,
    /// Where the message is.
    lane: Lane,
    place: u64,
}

impl Book {
    fn is_held(&self, id: u64, at: At) -> bool {
        let hold = self.holds.get(&id).and_then(|hold| hold.lease);
        hold.is_some_and(|(_, until)| at.now < until)
    }

    /// Changes who holds a message; nobody where `hold` is absent.
    fn hold(&mut self, id: u64, hold: Option<Hold>) {
        let was = self.set_hold(id, hold);
        self.change.holds.push((id, was));
    }

    fn set_hold(&mut self, id: u64, hold: Option<Hold>) -> Option<Hold> {
        let place = hold.as_ref().map(|hold| (hold.lane.clone(), hold.place));
        let was = match hold {
            Some(hold) => self.holds.insert(id, hold),
            None => self.holds.remove(&id),
        };
        let before = was.as_ref().map(|hold| (hold.lane.clone(), hold.place));
        for (lane, place) in place.into_iter().chain(before) {
            let loaded = self.loaded.get_mut(&lane);
            if let Some(segment) = loaded.and_then(|loaded| loaded.segment_mut(place)) {
                segment.quiet_until = Now(0);
            }
        }
        was
    }

    /// Returns the moment by which messages expire, and notes how far time went.
    fn moment(&mut self, at: At) -> At {
        let unix_ms = self.time.advance(at);
        At { unix_ms, ..at }
    }

    /// Returns the lanes of which nothing is handed out since something of them is damaged.
    pub(super) fn stopped_lanes(&mut self) -> Vec<StoppedLane> {
        let loaded = &self.loaded;
        let reason = |lane: &Lane| Some(loaded.get(lane)?.check_stopped(lane).err()?.to_string());
        self.suspects.retain(|lane| reason(lane).is_some());
        let stopped = self.suspects.iter().filter_map(|lane| {
            Some(StoppedLane {
                lane: lane.clone(),
                reason: reason(lane)?.into(),
            })
        });
        stopped.collect()
    }

    fn begin(&mut self) -> Result<(), rusqlite::Error> {
        if !self.change.is_open {
            self.conn.execute_batch("BEGIN IMMEDIATE")?;
            self.change.is_open = true;
            if self.index_is_wrong {
                self.conn.execute_batch("REINDEX message")?;
                self.index_is_wrong = false;
                self.change.made_index = true;
            }
        }
        Ok(())
    }

    /// Begins to change a lane, and returns its counters.
    fn touch(&mut self, lane: &Lane) -> Result<&mut LaneRow, rusqlite::Error> {
        self.begin()?;
        let was = self.lanes.get(lane).copied();
        self.change.lanes.entry(lane.clone()).or_insert(was);
        Ok(self.lanes.entry(lane.clone()).or_default())
    }

    /// How often a message was handed out.
    fn attempts(&self, slot: &Slot) -> u32 {
        let more = self.given.get(&slot.id).copied().unwrap_or(0);
        slot.attempts.saturating_add(more)
    }

    /// Writes what is to be written and makes it durable.
    pub(super) fn commit(&mut self) -> Result<(), rusqlite::Error> {
        if !self.change.is_open && self.given.len() < GIVEN_MAX {
            self.change = Change::default();
            return Ok(());
        }
        self.write_and_commit()
    }

    fn write_and_commit(&mut self) -> Result<(), rusqlite::Error> {
        self.begin()?;
        self.write_attempts()?;
        self.write_lanes()?;
        self.ledger.clean = false;
        self.ledger.time = self.time.last();
        if self.ledger != self.written {
            self.ledger.write(&self.conn)?;
        }
        #[cfg(test)]
        self.fail_commit()?;
        self.conn.execute_batch("COMMIT")?;
        self.written = self.ledger;
        self.change = Change::default();
        Ok(())
    }

    fn write_attempts(&mut self) -> Result<(), rusqlite::Error> {
        let given = std::mem::take(&mut self.given);
        self.change.given.clone_from(&given);
        for (id, more) in given {
            // One that cannot be read is not handed out again; how often it was is not missed.
            let slot = match self.read_slot(id) {
                Ok(slot) => slot.filter(|slot| self.lanes.contains_key(&slot.lane)),
                Err(Fault::Disk(error)) => return Err(error),
                Err(Fault::Refused(_)) => None,
            };
            let Some(slot) = slot else {
                continue;
            };
            let is = Slot {
                attempts: slot.attempts.saturating_add(more),
                ..slot.clone()
            };
            is.update_attempts(&self.conn)?;
            self.replace(&slot, &is)?;
        }
        Ok(())
    }

    fn write_lanes(&mut self) -> Result<(), rusqlite::Error> {
        let lanes: Vec<_> = self.change.lanes.keys().cloned().collect();
        for lane in lanes {
            let head = match self.head(&lane) {
                Ok(head) => head.map(|head: Head| head.stored_unix_ms),
                Err(Fault::Disk(error)) => return Err(error),
                // A row was damaged meanwhile: the first that waits is as it was known before.
                Err(Fault::Refused(_)) => self.lanes.get(&lane).and_then(|row| row.oldest),
            };
            let Some(is) = self.lanes.get_mut(&lane) else {
                continue;
            };
            is.oldest = head;
            if let Some(Some(was)) = self.change.lanes.get(&lane) {
                self.ledger.lanes.take(was.sum(&lane));
            }
            if is.count() == 0 {
                LaneRow::delete(&self.conn, &lane)?;
                self.lanes.remove(&lane);
                // What is known of an empty lane is that it is empty.
                self.unload(&lane);
            } else {
                is.write(&self.conn, &lane)?;
                self.ledger.lanes.add(is.sum(&lane));
            }
        }
        Ok(())
    }

    /// Takes back what the transaction has changed.
    pub(super) fn rollback(&mut self) -> Result<(), rusqlite::Error> {
        let change = std::mem::take(&mut self.change);
        self.news.clear();
        self.ledger = self.written;
        for (id, more) in change.given {
            let given = self.given.entry(id).or_default();
            *given = given.saturating_add(more);
        }
        for (id, was) in change.holds.into_iter().rev() {
            self.set_hold(id, was);
        }
        for (lane, was) in change.lanes {
            match was {
                Some(row) => self.lanes.insert(lane.clone(), row),
                None => self.lanes.remove(&lane),
            };
            self.unload(&lane);
        }
        self.dones = None;
        self.values = None;
        self.index_is_wrong |= change.made_index;
        match self.conn.is_autocommit() {
            true => Ok(()),
            false => self.conn.execute_batch("ROLLBACK"),
        }
    }

    /// Reads a body and sees that it is the one that was stored.
    fn body(&self, slot: &Slot) -> Result<bytes::Bytes, Fault> {
        let what = || damaged(format!("message {} of lane `{}`", slot.id, slot.lane));
        let body = match slot.body(&self.conn) {
            Ok(body) => body.ok_or_else(what)?,
            Err(error) if super::fault::is_of_read(&error) => return Err(what().into()),
            Err(error) => return Err(error.into()),
        };
        let is_whole = body.len() as u64 == slot.body_bytes;
        match is_whole && super::sum::of_bytes(&body) == slot.body_sum {
            true => Ok(body.into()),
            false => Err(what().into()),
        }
    }

    /// Returns how many pages of the log are not in the file yet.
    pub(super) fn log_pages(&self) -> Result<u64, rusqlite::Error> {
        self.checkpoint("NOOP")
    }

    /// Moves the log into the file, and returns how many pages could not be moved.
    pub(super) fn checkpoint(&self, how: &str) -> Result<u64, rusqlite::Error> {
        let sql = format!("PRAGMA wal_checkpoint({how})");
        let mut statement = self.conn.prepare_cached(&sql)?;
        let (log, moved) =
            statement.query_row([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
        Ok(u64::try_from(log.saturating_sub(moved)).unwrap_or(0))
    }

    /// Returns the bytes of the file that hold something, and those that hold nothing.
    pub(super) fn size(&self) -> Result<(u64, u64), rusqlite::Error> {
        let number = |name: &str| {
            let sql = format!("PRAGMA {name}");
            let found = self.conn.query_row(&sql, [], |row| row.get::<_, i64>(0));
            found.map(|number| u64::try_from(number).unwrap_or(0))
        };
        let (page, free) = (number("page_size")?, number("freelist_count")?);
        let used = number("page_count")?.saturating_sub(free);
        Ok((used * page, free * page))
    }

    /// Writes the file anew without what holds nothing, and gives the room back to the disk.
    pub(super) fn shrink(&self) -> Result<(), rusqlite::Error> {
        self.conn.execute_batch("VACUUM")?;
        self.checkpoint("TRUNCATE").map(drop)
    }

    /// Marks the file as closed in order, or as one to be looked through, and empties its log.
    pub(super) fn close(mut self, is_checked: bool) -> Result<(), rusqlite::Error> {
        if !self.given.is_empty() {
            self.write_and_commit()?;
        }
        self.ledger.clean = is_checked;
        self.ledger.time = self.time.last();
        self.ledger.write(&self.conn)?;
        self.checkpoint("TRUNCATE")?;
        self.conn.close().map_err(|(_, error)| error)
    }
}
