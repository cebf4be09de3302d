//! Settles messages: ack, nak, dead-lettering, requeueing, removal and expiry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::to_millis;
use bytes::Bytes;

use super::{JournalState, LeaseState};
use crate::engine::{
    DEAD_LETTERS_MAX, EXPIRE_MAX, JournalError, LANE_MESSAGES_MAX, LISTED_BYTES_MAX, LaneName,
    LeaseReceipt, MessageId, MessageView, Timestamps,
};
use crate::sqlite::rows::MessageRow;
use crate::sqlite::sqlite_error::OperationError;
use crate::validation::expiry_unix_ms;

/// Rows read per expiry scan at most in lanes not loaded before; later scans read the rest.
const EXPIRE_LOAD_ROWS_MAX: u64 = 20_000;

/// Interval for writing elapsed time when nothing else is written.
const TIME_WRITE_INTERVAL: Duration = Duration::from_secs(10 * 60);

impl JournalState {
    pub(in crate::sqlite) fn ack(
        &mut self,
        receipt: LeaseReceipt,
        result: Option<&Bytes>,
        at: Timestamps,
    ) -> Result<(), OperationError> {
        let at = self.elapsed_timestamps(at);
        let id = self.check_receipt(receipt)?;
        let slot = self.find_message(id)?.ok_or(JournalError::LeaseLost)?;
        self.delete_from_lane(&slot)?;
        self.record_completed(&slot, result, at)?;
        self.evict_completed(at)
    }

    pub(in crate::sqlite) fn nak(
        &mut self,
        receipt: LeaseReceipt,
        delay: Duration,
        at: Timestamps,
    ) -> Result<(), OperationError> {
        let id = self.check_receipt(receipt)?;
        let due = at.now.plus(delay);
        // A message due at once needs no entry.
        let hold = self.leases.get(&id).filter(|_| due > at.now);
        let hold = hold.map(|hold| LeaseState {
            lease: None,
            due,
            ..hold.clone()
        });
        self.change_lease(id, hold);
        Ok(())
    }

    pub(in crate::sqlite) fn dead_letter(
        &mut self,
        receipt: LeaseReceipt,
        reason: &Arc<str>,
    ) -> Result<(), OperationError> {
        let id = self.check_receipt(receipt)?;
        let slot = self.find_message(id)?.ok_or(JournalError::LeaseLost)?;
        self.mark_dead(&slot, reason)
    }

    pub(in crate::sqlite) fn discard_leased(
        &mut self,
        receipt: LeaseReceipt,
    ) -> Result<(), OperationError> {
        let id = self.check_receipt(receipt)?;
        let slot = self.find_message(id)?.ok_or(JournalError::LeaseLost)?;
        self.delete_from_lane(&slot)
    }

    pub(in crate::sqlite) fn remove_message(
        &mut self,
        id: MessageId,
        at: Timestamps,
    ) -> Result<(), OperationError> {
        match self.find_message(id.0) {
            Ok(Some(_)) if self.is_leased(id.0, at) => Err(JournalError::LeaseLost.into()),
            Ok(Some(slot)) => self.delete_from_lane(&slot),
            Ok(None) => Err(JournalError::NotFound.into()),
            Err(error) => self.remove_damaged(id.0, error),
        }
    }

    /// Removes an unreadable row; the lane resumes after its last damaged row is removed.
    fn remove_damaged(&mut self, id: u64, error: OperationError) -> Result<(), OperationError> {
        let mut loaded = self.lane_indexes.iter();
        let lane = loaded.find(|(_, loaded)| loaded.damaged.contains(&id));
        let Some(lane) = lane.map(|(lane, _)| lane.clone()) else {
            return Err(error);
        };
        self.touch_lane(&lane)?;
        MessageRow::delete(&self.conn, id)?;
        let Some(loaded) = self.lane_indexes.get_mut(&lane) else {
            return Err(error);
        };
        loaded.damaged.remove(&id);
        if loaded.damaged.is_empty() && loaded.missing == 0 {
            let (waiting, dead, total) = loaded.totals();
            let row = self.touch_lane(&lane)?;
            let dead_before = row.dead;
            (row.total, row.waiting, row.dead) = (total, waiting, dead);
            self.ledger.dead = self.ledger.dead.saturating_sub(dead_before) + dead;
        }
        Ok(())
    }

    /// Removes a message from its lane and from disk.
    fn delete_from_lane(&mut self, slot: &MessageRow) -> Result<(), OperationError> {
        let row = self.touch_lane(&slot.lane)?;
        row.total = row.total.wrapping_sub(u128::from_le_bytes(slot.checksum()));
        match slot.dead {
            Some(_) => {
                row.dead = row.dead.saturating_sub(1);
                self.ledger.dead = self.ledger.dead.saturating_sub(1);
            }
            None => row.waiting = row.waiting.saturating_sub(1),
        }
        self.unwritten_attempts.remove(&slot.id);
        MessageRow::delete(&self.conn, slot.id)?;
        self.remove_from_index(slot);
        self.change_lease(slot.id, None);
        Ok(())
    }

    /// Turns a message into a dead letter.
    fn mark_dead(&mut self, slot: &MessageRow, reason: &Arc<str>) -> Result<(), OperationError> {
        let dead = MessageRow {
            dead: Some(Arc::clone(reason)),
            attempts: self.total_attempts(slot),
            ..slot.clone()
        };
        let row = self.touch_lane(&dead.lane)?;
        row.waiting = row.waiting.saturating_sub(1);
        row.dead += 1;
        self.ledger.dead += 1;
        dead.update(&self.conn)?;
        self.replace_message(slot, &dead)?;
        self.unwritten_attempts.remove(&dead.id);
        self.change_lease(dead.id, None);
        self.evict_dead_letters()
    }

    /// Evicts the oldest dead letters beyond the limit.
    fn evict_dead_letters(&mut self) -> Result<(), OperationError> {
        while self.ledger.dead > DEAD_LETTERS_MAX {
            let Some(oldest) = MessageRow::oldest_dead_letter(&self.conn)? else {
                break;
            };
            // An unreadable dead letter stays until removed explicitly.
            let Ok(Some(slot)) = self.find_message(oldest) else {
                break;
            };
            self.delete_from_lane(&slot)?;
        }
        Ok(())
    }

    pub(in crate::sqlite) fn requeue(
        &mut self,
        id: MessageId,
        ttl: Option<Duration>,
        at: Timestamps,
    ) -> Result<(), OperationError> {
        let at = self.elapsed_timestamps(at);
        let slot = self.find_message(id.0)?.filter(|slot| slot.dead.is_some());
        let slot = slot.ok_or(JournalError::NotFound)?;
        let row = self.lanes.get(&slot.lane);
        if row.is_some_and(|row| row.waiting >= LANE_MESSAGES_MAX) {
            let limit = LANE_MESSAGES_MAX;
            return Err(JournalError::LaneFull { limit }.into());
        }
        self.begin_transaction()?;
        self.ledger.place += 1;
        self.ledger.dead = self.ledger.dead.saturating_sub(1);
        let alive = MessageRow {
            dead: None,
            place: self.ledger.place,
            expires_unix_ms: expiry_unix_ms(ttl, at),
            ..slot.clone()
        };
        let row = self.touch_lane(&alive.lane)?;
        row.total = row.total.wrapping_sub(u128::from_le_bytes(slot.checksum()));
        row.dead = row.dead.saturating_sub(1);
        row.waiting += 1;
        alive.update(&self.conn)?;
        self.remove_from_index(&slot);
        self.append_to_lane(alive);
        Ok(())
    }

    pub(in crate::sqlite) fn expire_messages(
        &mut self,
        prefix: &str,
        at: Timestamps,
    ) -> Result<Vec<MessageView>, OperationError> {
        let at = self.elapsed_timestamps(at);
        if self
            .elapsed
            .last_ms()
            .saturating_sub(self.written_ledger.time)
            >= to_millis(TIME_WRITE_INTERVAL)
        {
            // The following commit writes the time.
            self.begin_transaction()?;
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        for slot in self.find_expired(prefix, at)? {
            bytes += slot.body_bytes;
            if bytes > LISTED_BYTES_MAX && !entries.is_empty() {
                break;
            }
            let mut entry = self.read_view(&slot, at)?;
            let reason = Arc::from("expired");
            self.mark_dead(&slot, &reason)?;
            (entry.status, entry.position) = (crate::engine::MessageStatus::DeadLetter(reason), 0);
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Returns the oldest expired, unleased messages. A damaged lane is skipped.
    fn find_expired(
        &mut self,
        prefix: &str,
        at: Timestamps,
    ) -> Result<Vec<MessageRow>, OperationError> {
        let mut segments = Vec::new();
        for lane in self.load_lanes(prefix, Some(EXPIRE_LOAD_ROWS_MAX))? {
            let loaded = self.lane_indexes.get(&lane);
            let Some(loaded) = loaded.filter(|loaded| loaded.check_intact(&lane).is_ok()) else {
                continue;
            };
            let past = loaded.segments.iter();
            let past = past.filter(|one| one.waiting > 0 && one.expires_min <= at.unix_ms);
            segments.extend(past.map(|one| (one.id_min, lane.clone(), one.first_place)));
        }
        segments.sort_unstable();
        let mut past: BTreeMap<u64, MessageRow> = BTreeMap::new();
        for (id_min, lane, first) in segments {
            let last = past.last_key_value().map(|(id, _)| *id);
            if past.len() >= EXPIRE_MAX && last.is_some_and(|last| last < id_min) {
                break;
            }
            match self.find_expired_in_segment(&lane, first, at) {
                Ok(found) => past.extend(found.into_iter().map(|slot| (slot.id, slot))),
                Err(OperationError::Refused(_)) => continue,
                Err(error) => return Err(error),
            }
            while past.len() > EXPIRE_MAX {
                past.pop_last();
            }
        }
        Ok(past.into_values().collect())
    }

    /// Returns the expired messages of a segment and records the next expiry of the segment.
    fn find_expired_in_segment(
        &mut self,
        lane: &LaneName,
        first: u64,
        at: Timestamps,
    ) -> Result<Vec<MessageRow>, OperationError> {
        let (mut past, mut soonest) = (Vec::new(), u64::MAX);
        for id in self.load_segment(lane, first)? {
            let Some(slot) = self.segment_cache.row(id) else {
                continue;
            };
            soonest = soonest.min(slot.expires_unix_ms.unwrap_or(u64::MAX));
            if slot.is_expired(at) && !self.is_leased(id, at) {
                past.push(slot.clone());
            }
        }
        let loaded = self.lane_indexes.get_mut(lane);
        if let Some(segment) = loaded.and_then(|loaded| loaded.segment_mut(first)) {
            segment.expires_min = soonest;
        }
        Ok(past)
    }
}
