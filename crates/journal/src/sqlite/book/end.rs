//! Ends messages, gives them back, and buries and revives them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::millis;
use bytes::Bytes;

use super::{Book, Hold};
use crate::engine::{
    At, DEAD_MAX, EXPIRE_MAX, Entry, JournalError, LANE_MESSAGES_MAX, Lane, MessageId, Receipt,
    SHOWN_BYTES_MAX,
};
use crate::limits::expiry;
use crate::sqlite::fault::Fault;
use crate::sqlite::rows::Slot;

/// Rows that one look for messages past their time reads at most in lanes that were not read
/// before; the rest is read by the looks that follow.
const EXPIRE_LOAD_ROWS_MAX: u64 = 20_000;

/// How often it is written how far time went, where nothing else is written.
const TIME_WRITTEN_EVERY: Duration = Duration::from_secs(10 * 60);

impl Book {
    pub(in crate::sqlite) fn ack(
        &mut self,
        receipt: Receipt,
        result: Option<&Bytes>,
        at: At,
    ) -> Result<(), Fault> {
        let at = self.moment(at);
        let id = self.held(receipt)?;
        let slot = self.find(id)?.ok_or(JournalError::Lapsed)?;
        self.leave(&slot)?;
        self.remember(&slot, result, at)?;
        self.forget_done(at)
    }

    pub(in crate::sqlite) fn nak(
        &mut self,
        receipt: Receipt,
        delay: Duration,
        at: At,
    ) -> Result<(), Fault> {
        let id = self.held(receipt)?;
        let due = at.now.plus(delay);
        // One that is due at once needs no note.
        let hold = self.holds.get(&id).filter(|_| due > at.now);
        let hold = hold.map(|hold| Hold {
            lease: None,
            due,
            ..hold.clone()
        });
        self.hold(id, hold);
        Ok(())
    }

    pub(in crate::sqlite) fn bury(
        &mut self,
        receipt: Receipt,
        reason: &Arc<str>,
    ) -> Result<(), Fault> {
        let id = self.held(receipt)?;
        let slot = self.find(id)?.ok_or(JournalError::Lapsed)?;
        self.kill(&slot, reason)
    }

    pub(in crate::sqlite) fn withdraw(&mut self, receipt: Receipt) -> Result<(), Fault> {
        let id = self.held(receipt)?;
        let slot = self.find(id)?.ok_or(JournalError::Lapsed)?;
        self.leave(&slot)
    }

    pub(in crate::sqlite) fn remove(&mut self, id: MessageId, at: At) -> Result<(), Fault> {
        match self.find(id.0) {
            Ok(Some(_)) if self.is_held(id.0, at) => Err(JournalError::Lapsed.into()),
            Ok(Some(slot)) => self.leave(&slot),
            Ok(None) => Err(JournalError::Unknown.into()),
            Err(error) => self.remove_damaged(id.0, error),
        }
    }

    /// Takes a row away that cannot be read; its lane goes on when it was the last such one.
    fn remove_damaged(&mut self, id: u64, error: Fault) -> Result<(), Fault> {
        let mut loaded = self.loaded.iter();
        let lane = loaded.find(|(_, loaded)| loaded.damaged.contains(&id));
        let Some(lane) = lane.map(|(lane, _)| lane.clone()) else {
            return Err(error);
        };
        self.touch(&lane)?;
        Slot::delete(&self.conn, id)?;
        let Some(loaded) = self.loaded.get_mut(&lane) else {
            return Err(error);
        };
        loaded.damaged.remove(&id);
        if loaded.damaged.is_empty() && loaded.missing == 0 {
            let (waiting, dead, total) = loaded.totals();
            let row = self.touch(&lane)?;
            let dead_before = row.dead;
            (row.total, row.waiting, row.dead) = (total, waiting, dead);
            self.ledger.dead = self.ledger.dead.saturating_sub(dead_before) + dead;
        }
        Ok(())
    }

    /// Takes a message out of its lane and off the disk.
    fn leave(&mut self, slot: &Slot) -> Result<(), Fault> {
        let row = self.touch(&slot.lane)?;
        row.total = row.total.wrapping_sub(u128::from_le_bytes(slot.sum()));
        match slot.dead {
            Some(_) => {
                row.dead = row.dead.saturating_sub(1);
                self.ledger.dead = self.ledger.dead.saturating_sub(1);
            }
            None => row.waiting = row.waiting.saturating_sub(1),
        }
        self.given.remove(&slot.id);
        Slot::delete(&self.conn, slot.id)?;
        self.take_out(slot);
        self.hold(slot.id, None);
        Ok(())
    }

    /// Makes a message a dead letter.
    fn kill(&mut self, slot: &Slot, reason: &Arc<str>) -> Result<(), Fault> {
        let dead = Slot {
            dead: Some(Arc::clone(reason)),
            attempts: self.attempts(slot),
            ..slot.clone()
        };
        let row = self.touch(&dead.lane)?;
        row.waiting = row.waiting.saturating_sub(1);
        row.dead += 1;
        self.ledger.dead += 1;
        dead.update(&self.conn)?;
        self.replace(slot, &dead)?;
        self.given.remove(&dead.id);
        self.hold(dead.id, None);
        self.thin_dead()
    }

    /// Forgets the oldest dead letters where there are too many.
    fn thin_dead(&mut self) -> Result<(), Fault> {
        while self.ledger.dead > DEAD_MAX {
            let Some(oldest) = Slot::oldest_dead(&self.conn)? else {
                break;
            };
            // One that cannot be read stays until somebody removes it.
            let Ok(Some(slot)) = self.find(oldest) else {
                break;
            };
            self.leave(&slot)?;
        }
        Ok(())
    }

    pub(in crate::sqlite) fn revive(
        &mut self,
        id: MessageId,
        ttl: Option<Duration>,
        at: At,
    ) -> Result<(), Fault> {
        let at = self.moment(at);
        let slot = self.find(id.0)?.filter(|slot| slot.dead.is_some());
        let slot = slot.ok_or(JournalError::Unknown)?;
        let row = self.lanes.get(&slot.lane);
        if row.is_some_and(|row| row.waiting >= LANE_MESSAGES_MAX) {
            let limit = LANE_MESSAGES_MAX;
            return Err(JournalError::LaneFull { limit }.into());
        }
        self.begin()?;
        self.ledger.place += 1;
        self.ledger.dead = self.ledger.dead.saturating_sub(1);
        let alive = Slot {
            dead: None,
            place: self.ledger.place,
            expires_unix_ms: expiry(ttl, at),
            ..slot.clone()
        };
        let row = self.touch(&alive.lane)?;
        row.total = row.total.wrapping_sub(u128::from_le_bytes(slot.sum()));
        row.dead = row.dead.saturating_sub(1);
        row.waiting += 1;
        alive.update(&self.conn)?;
        self.take_out(&slot);
        self.append(alive);
        Ok(())
    }

    pub(in crate::sqlite) fn expire(&mut self, prefix: &str, at: At) -> Result<Vec<Entry>, Fault> {
        let at = self.moment(at);
        if self.time.last().saturating_sub(self.written.time) >= millis(TIME_WRITTEN_EVERY) {
            // The commit that follows writes it.
            self.begin()?;
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        for slot in self.past(prefix, at)? {
            bytes += slot.body_bytes;
            if bytes > SHOWN_BYTES_MAX && !entries.is_empty() {
                break;
            }
            let mut entry = self.shown(&slot, at)?;
            let reason = Arc::from("expired");
            self.kill(&slot, &reason)?;
            (entry.standing, entry.position) = (crate::engine::Standing::Dead(reason), 0);
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Returns messages that are past their time and that nobody holds, the oldest so many. A lane
    /// that is damaged stays as it is.
    fn past(&mut self, prefix: &str, at: At) -> Result<Vec<Slot>, Fault> {
        let mut segments = Vec::new();
        for lane in self.load_prefix(prefix, Some(EXPIRE_LOAD_ROWS_MAX))? {
            let loaded = self.loaded.get(&lane);
            let Some(loaded) = loaded.filter(|loaded| loaded.check(&lane).is_ok()) else {
                continue;
            };
            let past = loaded.segments.iter();
            let past = past.filter(|one| one.waiting > 0 && one.soonest <= at.unix_ms);
            segments.extend(past.map(|one| (one.id_min, lane.clone(), one.first)));
        }
        segments.sort_unstable();
        let mut past: BTreeMap<u64, Slot> = BTreeMap::new();
        for (id_min, lane, first) in segments {
            let last = past.last_key_value().map(|(id, _)| *id);
            if past.len() >= EXPIRE_MAX && last.is_some_and(|last| last < id_min) {
                break;
            }
            match self.past_of(&lane, first, at) {
                Ok(found) => past.extend(found.into_iter().map(|slot| (slot.id, slot))),
                Err(Fault::Refused(_)) => continue,
                Err(error) => return Err(error),
            }
            while past.len() > EXPIRE_MAX {
                past.pop_last();
            }
        }
        Ok(past.into_values().collect())
    }

    /// Returns those of one segment, and notes when the next of it is past its time.
    fn past_of(&mut self, lane: &Lane, first: u64, at: At) -> Result<Vec<Slot>, Fault> {
        let (mut past, mut soonest) = (Vec::new(), u64::MAX);
        for id in self.window(lane, first)? {
            let Some(slot) = self.windows.slot(id) else {
                continue;
            };
            soonest = soonest.min(slot.expires_unix_ms.unwrap_or(u64::MAX));
            if slot.is_past(at) && !self.is_held(id, at) {
                past.push(slot.clone());
            }
        }
        let loaded = self.loaded.get_mut(lane);
        if let Some(segment) = loaded.and_then(|loaded| loaded.segment_mut(first)) {
            segment.soonest = soonest;
        }
        Ok(past)
    }
}
