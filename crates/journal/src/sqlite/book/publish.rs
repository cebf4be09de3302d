//! Stores a message.

use std::sync::Arc;

use super::{Book, Hold};
use crate::engine::{
    At, Draft, JournalError, Known, LANE_MESSAGES_MAX, MessageId, Published, Receipt,
};
use crate::limits::expiry;
use crate::sqlite::fault::Fault;
use crate::sqlite::rows::Slot;
use crate::sqlite::sum::Sum;

impl Book {
    pub(in crate::sqlite) fn publish(
        &mut self,
        draft: &Draft,
        body_sum: Sum,
        at: At,
    ) -> Result<Published, Fault> {
        self.forget_done(at)?;
        if let Some(done) = self.done_before(draft)? {
            return Ok(Published::Known(Known::Done(done)));
        }
        self.load_whole(&draft.lane)?;
        if let Some(known) = self.known(draft, at)? {
            return Ok(Published::Known(known));
        }
        let waiting = self.waiting(draft);
        if waiting >= LANE_MESSAGES_MAX {
            let limit = LANE_MESSAGES_MAX;
            return Err(JournalError::LaneFull { limit }.into());
        }
        let hold = draft.hold.filter(|_| self.is_free(draft, at));
        let position = waiting + 1;
        let row = self.touch(&draft.lane)?;
        row.waiting += 1;
        self.ledger.id += 1;
        self.ledger.place += 1;
        let slot = Slot {
            id: self.ledger.id,
            lane: draft.lane.clone(),
            place: self.ledger.place,
            dedupe: Arc::clone(&draft.dedupe),
            digest: draft.digest,
            attempts: u32::from(hold.is_some()),
            stored_unix_ms: at.unix_ms,
            expires_unix_ms: expiry(draft.ttl, at),
            dead: None,
            body_bytes: draft.body.len() as u64,
            body_sum,
        };
        slot.insert(&self.conn, &draft.body)?;
        let id = MessageId(slot.id);
        let held = hold.map(|hold| {
            self.lease += 1;
            let lease = Some((self.lease, at.now.plus(hold)));
            self.hold(id.0, Some(Hold { lease, due: at.now }));
            let lease = self.lease;
            Receipt { id, lease }
        });
        self.append(slot);
        Ok(Published::Stored { id, position, held })
    }

    /// Takes up a message at the end of its lane.
    fn append(&mut self, slot: Slot) {
        let sum = u128::from_le_bytes(slot.sum());
        if let Some(row) = self.lanes.get_mut(&slot.lane) {
            row.total = row.total.wrapping_add(sum);
        }
        let loaded = self.loaded.entry(slot.lane.clone()).or_default();
        loaded.waiting.push_back((slot.place, slot.id));
        loaded.by_dedupe.insert(slot.dedupe.clone(), slot.id);
        let end = slot.expires_unix_ms.unwrap_or(u64::MAX);
        loaded.soonest = loaded.soonest.min(end);
        self.messages.insert(slot.id, slot);
    }

    fn waiting(&self, draft: &Draft) -> u64 {
        let row = self.lanes.get(&draft.lane);
        row.map_or(0, |row| row.waiting)
    }

    /// Whether nothing waits in the lane: whatever is there is held.
    fn is_free(&self, draft: &Draft, at: At) -> bool {
        let loaded = self.loaded.get(&draft.lane);
        let mut ahead = loaded.into_iter().flat_map(|loaded| &loaded.waiting);
        ahead.all(|(_, id)| self.is_held(*id, at))
    }

    /// Returns how a message of the same id stands.
    fn known(&self, draft: &Draft, at: At) -> Result<Option<Known>, JournalError> {
        let Some(loaded) = self.loaded.get(&draft.lane) else {
            return Ok(None);
        };
        let slot = loaded.by_dedupe.get(&draft.dedupe);
        let Some(slot) = slot.and_then(|id| self.messages.get(id)) else {
            return Ok(None);
        };
        if slot.digest != draft.digest {
            return Err(JournalError::Conflict);
        }
        let id = MessageId(slot.id);
        Ok(Some(match slot.dead {
            Some(_) => Known::Dead(id),
            None => Known::Waiting {
                id,
                position: loaded.position(slot.place),
                held: self.is_held(slot.id, at),
            },
        }))
    }
}
