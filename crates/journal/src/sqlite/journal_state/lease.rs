//! Leases messages.

use std::time::Duration;

use bowline_core::time::MonotonicTime;

use super::{JournalState, LeaseState};
use crate::engine::{
    JournalError, LaneName, LeaseOrder, LeaseReceipt, LeasedMessage, MessageId, Timestamps,
};
use crate::sqlite::rows::MessageRow;
use crate::sqlite::sqlite_error::{OperationError, damaged_error};
use crate::validation::duration_between;

impl JournalState {
    pub(in crate::sqlite) fn lease(
        &mut self,
        lane: &LaneName,
        order: LeaseOrder,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> Result<Vec<LeasedMessage>, OperationError> {
        let at = self.elapsed_timestamps(at);
        self.load_intact_lane(lane)?;
        match order {
            LeaseOrder::Strict if max > 0 => self.lease_first(lane, hold, at),
            LeaseOrder::Strict => Ok(Vec::new()),
            LeaseOrder::Any => self.lease_any(lane, max, hold, at),
        }
    }

    /// Leases the first message of a lane. An unreadable first message blocks the lane.
    fn lease_first(
        &mut self,
        lane: &LaneName,
        hold: Duration,
        at: Timestamps,
    ) -> Result<Vec<LeasedMessage>, OperationError> {
        let Some(head) = self.lane_head(lane)? else {
            return Ok(Vec::new());
        };
        let leased = match self.read_message_row(head.id)? {
            Some(slot) if self.is_due(&slot, at) => self.lease_row(&slot, hold, at),
            Some(_) => return Ok(Vec::new()),
            None => Err(damaged_error(format!("message {} of lane `{lane}`", head.id)).into()),
        };
        let unreadable = match &leased {
            Err(OperationError::Refused(_)) => Some(head.id),
            Ok(_) | Err(OperationError::Disk(_)) => None,
        };
        if let Some(loaded) = self.lane_indexes.get_mut(lane) {
            loaded.unreadable = unreadable;
        }
        if unreadable.is_some() {
            self.suspect_lanes.insert(lane.clone());
        }
        leased.map(|delivery| vec![delivery])
    }

    /// Leases messages of a lane, oldest first; unreadable messages are skipped.
    fn lease_any(
        &mut self,
        lane: &LaneName,
        max: usize,
        hold: Duration,
        at: Timestamps,
    ) -> Result<Vec<LeasedMessage>, OperationError> {
        let mut leased = Vec::new();
        let mut damage = None;
        let mut after = None;
        while leased.len() < max
            && let Some(segment) = self.next_segment(lane, after)
        {
            after = Some(segment.first_place);
            if segment.idle_until > at.now {
                continue;
            }
            let mut quiet_until = MonotonicTime(u64::MAX);
            for id in self.load_segment(lane, segment.first_place)? {
                let Some(slot) = self.segment_cache.row(id).cloned() else {
                    continue;
                };
                if leased.len() >= max || !self.is_due(&slot, at) {
                    quiet_until = quiet_until.min(self.due_at(&slot, at));
                    continue;
                }
                match self.lease_row(&slot, hold, at) {
                    Ok(delivery) => leased.push(delivery),
                    Err(OperationError::Refused(error)) => damage = Some(error),
                    Err(error) => return Err(error),
                }
                quiet_until = quiet_until.min(self.due_at(&slot, at));
            }
            let loaded = self.lane_indexes.get_mut(lane);
            if let Some(segment) = loaded.and_then(|one| one.segment_mut(segment.first_place)) {
                segment.idle_until = quiet_until;
            }
        }
        match damage {
            Some(error) if leased.is_empty() => Err(error.into()),
            _ => Ok(leased),
        }
    }

    /// Returns the earliest time of the next lease; never for an expired message.
    fn due_at(&self, slot: &MessageRow, at: Timestamps) -> MonotonicTime {
        if slot.is_expired(at) {
            return MonotonicTime(u64::MAX);
        }
        let hold = self.leases.get(&slot.id);
        let due = hold.map_or(MonotonicTime(0), |hold| hold.due);
        let until = hold
            .and_then(|hold| hold.lease)
            .map_or(MonotonicTime(0), |lease| lease.1);
        due.max(until)
    }

    fn is_due(&self, slot: &MessageRow, at: Timestamps) -> bool {
        !slot.is_expired(at) && self.due_at(slot, at) <= at.now
    }

    fn lease_row(
        &mut self,
        slot: &MessageRow,
        hold: Duration,
        at: Timestamps,
    ) -> Result<LeasedMessage, OperationError> {
        let (id, body) = (slot.id, self.read_body(slot)?);
        let attempts = self.unwritten_attempts.entry(id).or_default();
        *attempts = attempts.saturating_add(1);
        self.last_lease += 1;
        let lease = self.last_lease;
        let until = at.now.plus(hold);
        let due = self.leases.get(&id).map_or(at.now, |hold| hold.due);
        let state = LeaseState {
            lease: Some((lease, until)),
            due,
            lane: slot.lane.clone(),
            place: slot.place,
        };
        self.change_lease(id, Some(state));
        Ok(LeasedMessage {
            receipt: LeaseReceipt {
                id: MessageId(id),
                lease,
            },
            dedupe: slot.dedupe.clone(),
            body,
            attempts: self.total_attempts(slot),
            stored_unix_ms: slot.stored_unix_ms,
            expires_unix_ms: slot.expires_unix_ms,
            age: duration_between(slot.stored_unix_ms, at.unix_ms),
            remaining: slot
                .expires_unix_ms
                .map(|end| duration_between(at.unix_ms, end)),
        })
    }

    /// Checks a receipt and returns the message number. An expired lease stays valid until the
    /// message is leased again.
    pub(super) fn check_receipt(&self, receipt: LeaseReceipt) -> Result<u64, JournalError> {
        let hold = self.leases.get(&receipt.id.0).and_then(|hold| hold.lease);
        match hold {
            Some((lease, _)) if lease == receipt.lease => Ok(receipt.id.0),
            _ => Err(JournalError::LeaseLost),
        }
    }
}
