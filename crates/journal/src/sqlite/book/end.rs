//! Ends messages, gives them back, and buries and revives them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Book, Hold};
use crate::engine::{
    At, DEAD_MAX, EXPIRE_MAX, Entry, JournalError, LANE_MESSAGES_MAX, MessageId, Receipt,
    SHOWN_BYTES_MAX,
};
use crate::limits::expiry;
use crate::sqlite::fault::Fault;
use crate::sqlite::rows::Slot;

impl Book {
    pub(in crate::sqlite) fn ack(
        &mut self,
        receipt: Receipt,
        result: Option<&Bytes>,
        at: At,
    ) -> Result<(), Fault> {
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
        self.hold(id, Some(Hold { lease: None, due }));
        Ok(())
    }

    pub(in crate::sqlite) fn bury(
        &mut self,
        receipt: Receipt,
        reason: &Arc<str>,
    ) -> Result<(), Fault> {
        let id = self.held(receipt)?;
        let slot = self.find(id)?.ok_or(JournalError::Lapsed)?;
        self.kill(slot, reason)
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
            let ids = loaded.waiting.iter().map(|(_, id)| id).chain(&loaded.dead);
            let slots = ids.filter_map(|id| self.messages.get(id));
            let sums = slots.map(|slot| u128::from_le_bytes(slot.sum()));
            let total = sums.fold(0, u128::wrapping_add);
            let waiting = loaded.waiting.len() as u64;
            let dead = loaded.dead.len() as u64;
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
        if let Some(loaded) = self.loaded.get_mut(&slot.lane) {
            loaded.by_dedupe.remove(&slot.dedupe);
        }
        self.messages.remove(&slot.id);
        self.hold(slot.id, None);
        Ok(())
    }

    /// Takes a message out of the order of its lane.
    fn take_out(&mut self, slot: &Slot) {
        if let Some(loaded) = self.loaded.get_mut(&slot.lane) {
            loaded.dead.remove(&slot.id);
            if let (None, Ok(at)) = (&slot.dead, loaded.index(slot.place)) {
                loaded.waiting.remove(at);
            }
        }
    }

    /// Makes a message a dead letter.
    fn kill(&mut self, slot: Slot, reason: &Arc<str>) -> Result<(), Fault> {
        let was = u128::from_le_bytes(slot.sum());
        self.take_out(&slot);
        let dead = Slot {
            dead: Some(Arc::clone(reason)),
            attempts: self.attempts(&slot),
            ..slot
        };
        let is = u128::from_le_bytes(dead.sum());
        let row = self.touch(&dead.lane)?;
        row.total = row.total.wrapping_sub(was).wrapping_add(is);
        row.waiting = row.waiting.saturating_sub(1);
        row.dead += 1;
        self.ledger.dead += 1;
        dead.update(&self.conn)?;
        self.given.remove(&dead.id);
        self.hold(dead.id, None);
        if let Some(loaded) = self.loaded.get_mut(&dead.lane) {
            loaded.dead.insert(dead.id);
        }
        self.messages.insert(dead.id, dead);
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
        let slot = self.find(id.0)?.filter(|slot| slot.dead.is_some());
        let slot = slot.ok_or(JournalError::Unknown)?;
        let row = self.lanes.get(&slot.lane);
        if row.is_some_and(|row| row.waiting >= LANE_MESSAGES_MAX) {
            let limit = LANE_MESSAGES_MAX;
            return Err(JournalError::LaneFull { limit }.into());
        }
        let was = u128::from_le_bytes(slot.sum());
        self.begin()?;
        self.ledger.place += 1;
        self.ledger.dead = self.ledger.dead.saturating_sub(1);
        let alive = Slot {
            dead: None,
            place: self.ledger.place,
            expires_unix_ms: expiry(ttl, at),
            ..slot
        };
        let is = u128::from_le_bytes(alive.sum());
        let row = self.touch(&alive.lane)?;
        row.total = row.total.wrapping_sub(was).wrapping_add(is);
        row.dead = row.dead.saturating_sub(1);
        row.waiting += 1;
        alive.update(&self.conn)?;
        if let Some(loaded) = self.loaded.get_mut(&alive.lane) {
            loaded.dead.remove(&alive.id);
            loaded.waiting.push_back((alive.place, alive.id));
            let end = alive.expires_unix_ms.unwrap_or(u64::MAX);
            loaded.soonest = loaded.soonest.min(end);
        }
        self.messages.insert(alive.id, alive);
        Ok(())
    }

    pub(in crate::sqlite) fn expire(&mut self, prefix: &str, at: At) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for id in self.past(prefix, at)? {
            let Some(slot) = self.messages.get(&id).cloned() else {
                continue;
            };
            bytes += slot.body_bytes;
            if entries.len() >= EXPIRE_MAX || (bytes > SHOWN_BYTES_MAX && !entries.is_empty()) {
                break;
            }
            let mut entry = self.shown(&slot, at)?;
            let reason = Arc::from("expired");
            self.kill(slot, &reason)?;
            (entry.standing, entry.position) = (crate::engine::Standing::Dead(reason), 0);
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Returns those that are past their time and that nobody holds, oldest first. A lane that is
    /// damaged stays as it is.
    fn past(&mut self, prefix: &str, at: At) -> Result<Vec<u64>, Fault> {
        let mut past = Vec::new();
        for lane in self.load_prefix(prefix)? {
            let Some(loaded) = self.loaded.get_mut(&lane) else {
                continue;
            };
            if loaded.soonest > at.unix_ms || loaded.check(&lane).is_err() {
                continue;
            }
            let mut soonest = u64::MAX;
            for (_, id) in &loaded.waiting {
                let Some(slot) = self.messages.get(id) else {
                    continue;
                };
                soonest = soonest.min(slot.expires_unix_ms.unwrap_or(u64::MAX));
                let hold = self.holds.get(id).and_then(|hold| hold.lease);
                if slot.is_past(at) && hold.is_none_or(|(_, until)| at.now >= until) {
                    past.push(*id);
                }
            }
            loaded.soonest = soonest;
        }
        past.sort_unstable();
        Ok(past)
    }
}
