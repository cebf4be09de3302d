//! Publishes messages.

use std::sync::Arc;

use super::{JournalState, LeaseState};
use crate::engine::{
    Duplicate, JournalError, LANE_MESSAGES_MAX, LaneName, LeaseReceipt, MessageDraft, MessageId,
    PublishOutcome, Timestamps,
};
use crate::sqlite::checksum::Checksum;
use crate::sqlite::rows::MessageRow;
use crate::sqlite::sqlite_error::{OperationError, damaged_error};
use crate::validation::expiry_unix_ms;

impl JournalState {
    pub(in crate::sqlite) fn publish(
        &mut self,
        draft: &MessageDraft,
        body_sum: Checksum,
        at: Timestamps,
    ) -> Result<PublishOutcome, OperationError> {
        let at = self.elapsed_timestamps(at);
        self.evict_completed(at)?;
        if let Some(done) = self.find_completed_duplicate(draft)? {
            return Ok(PublishOutcome::Duplicate(Duplicate::Completed(done)));
        }
        self.load_intact_lane(&draft.lane)?;
        if let Some(duplicate) = self.find_duplicate(draft, at)? {
            return Ok(PublishOutcome::Duplicate(duplicate));
        }
        let waiting = self.queued_count(draft);
        if waiting >= LANE_MESSAGES_MAX {
            let limit = LANE_MESSAGES_MAX;
            return Err(JournalError::LaneFull { limit }.into());
        }
        let hold = match draft.lease {
            Some(hold) => self.is_lane_free(&draft.lane, at)?.then_some(hold),
            None => None,
        };
        let position = waiting + 1;
        let row = self.touch_lane(&draft.lane)?;
        row.waiting += 1;
        self.ledger.id += 1;
        self.ledger.place += 1;
        let slot = MessageRow {
            id: self.ledger.id,
            lane: draft.lane.clone(),
            place: self.ledger.place,
            dedupe: Arc::clone(&draft.dedupe),
            digest: draft.digest,
            attempts: u32::from(hold.is_some()),
            stored_unix_ms: at.unix_ms,
            expires_unix_ms: expiry_unix_ms(draft.ttl, at),
            dead: None,
            body_bytes: draft.body.len() as u64,
            body_sum,
        };
        slot.insert(&self.conn, &draft.body)?;
        let id = MessageId(slot.id);
        let receipt = hold.map(|hold| {
            self.last_lease += 1;
            let receipt = LeaseState {
                lease: Some((self.last_lease, at.now.plus(hold))),
                due: at.now,
                lane: slot.lane.clone(),
                place: slot.place,
            };
            self.change_lease(id.0, Some(receipt));
            let lease = self.last_lease;
            LeaseReceipt { id, lease }
        });
        self.append_to_lane(slot);
        Ok(PublishOutcome::Stored {
            id,
            position,
            receipt,
        })
    }

    fn queued_count(&self, draft: &MessageDraft) -> u64 {
        let row = self.lanes.get(&draft.lane);
        row.map_or(0, |row| row.waiting)
    }

    /// Returns whether the lane has no queued message: every message is leased.
    fn is_lane_free(&mut self, lane: &LaneName, at: Timestamps) -> Result<bool, OperationError> {
        let waiting = self
            .lane_indexes
            .get(lane)
            .map_or(0, |loaded| loaded.waiting);
        if waiting > self.leases.len() as u64 {
            return Ok(false);
        }
        match self.lane_head(lane)? {
            None => return Ok(true),
            Some(head) if !self.is_leased(head.id, at) => return Ok(false),
            Some(_) => {}
        }
        let mut after = None;
        while let Some(segment) = self.next_segment(lane, after) {
            let ids = self.load_segment(lane, segment.first_place)?;
            if ids.iter().any(|id| !self.is_leased(*id, at)) {
                return Ok(false);
            }
            after = Some(segment.first_place);
        }
        Ok(true)
    }

    /// Returns the status of a message with the same dedupe id.
    fn find_duplicate(
        &mut self,
        draft: &MessageDraft,
        at: Timestamps,
    ) -> Result<Option<Duplicate>, OperationError> {
        let fingerprint = self.fingerprint(&draft.dedupe);
        let Some(loaded) = self.lane_indexes.get(&draft.lane) else {
            return Ok(None);
        };
        let ids: Vec<_> = loaded.dedupes.candidates(fingerprint).collect();
        for id in ids {
            let Some(slot) = self.read_message_row(id)? else {
                // The row existed when the lane was loaded.
                self.unload_lane(&draft.lane);
                self.load_intact_lane(&draft.lane)?;
                return Err(damaged_error(format!("message {id} of lane `{}`", draft.lane)).into());
            };
            if slot.dedupe == draft.dedupe {
                return self.duplicate_status(&slot, draft, at).map(Some);
            }
        }
        Ok(None)
    }

    fn duplicate_status(
        &mut self,
        slot: &MessageRow,
        draft: &MessageDraft,
        at: Timestamps,
    ) -> Result<Duplicate, OperationError> {
        if slot.digest != draft.digest {
            return Err(JournalError::Conflict.into());
        }
        let id = MessageId(slot.id);
        Ok(match slot.dead {
            Some(_) => Duplicate::DeadLetter(id),
            None => Duplicate::Queued {
                id,
                position: self.queue_position(slot)?,
                is_leased: self.is_leased(slot.id, at),
            },
        })
    }
}
