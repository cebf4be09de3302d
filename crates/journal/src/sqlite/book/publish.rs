//! Stores a message.

use std::sync::Arc;

use super::{Book, Hold};
use crate::engine::{
    At, Draft, JournalError, Known, LANE_MESSAGES_MAX, Lane, MessageId, Published, Receipt,
};
use crate::limits::expiry;
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::Slot;
use crate::sqlite::sum::Sum;

impl Book {
    pub(in crate::sqlite) fn publish(
        &mut self,
        draft: &Draft,
        body_sum: Sum,
        at: At,
    ) -> Result<Published, Fault> {
        let at = self.moment(at);
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
        let hold = match draft.hold {
            Some(hold) => self.is_free(&draft.lane, at)?.then_some(hold),
            None => None,
        };
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
            let held = Hold {
                lease: Some((self.lease, at.now.plus(hold))),
                due: at.now,
                lane: slot.lane.clone(),
                place: slot.place,
            };
            self.hold(id.0, Some(held));
            let lease = self.lease;
            Receipt { id, lease }
        });
        self.append(slot);
        Ok(Published::Stored { id, position, held })
    }

    fn waiting(&self, draft: &Draft) -> u64 {
        let row = self.lanes.get(&draft.lane);
        row.map_or(0, |row| row.waiting)
    }

    /// Whether nothing waits in the lane: whatever is there is held.
    fn is_free(&mut self, lane: &Lane, at: At) -> Result<bool, Fault> {
        let waiting = self.loaded.get(lane).map_or(0, |loaded| loaded.waiting);
        if waiting > self.holds.len() as u64 {
            return Ok(false);
        }
        match self.head(lane)? {
            None => return Ok(true),
            Some(head) if !self.is_held(head.id, at) => return Ok(false),
            Some(_) => {}
        }
        let mut after = None;
        while let Some(segment) = self.next_segment(lane, after) {
            let ids = self.window(lane, segment.first)?;
            if ids.iter().any(|id| !self.is_held(*id, at)) {
                return Ok(false);
            }
            after = Some(segment.first);
        }
        Ok(true)
    }

    /// Returns how a message of the same id stands.
    fn known(&mut self, draft: &Draft, at: At) -> Result<Option<Known>, Fault> {
        let print = self.print(&draft.dedupe);
        let Some(loaded) = self.loaded.get(&draft.lane) else {
            return Ok(None);
        };
        let ids: Vec<_> = loaded.dedupes.candidates(print).collect();
        for id in ids {
            let Some(slot) = self.read_slot(id)? else {
                // It was there when the lane was read.
                self.unload(&draft.lane);
                self.load_whole(&draft.lane)?;
                return Err(damaged(format!("message {id} of lane `{}`", draft.lane)).into());
            };
            if slot.dedupe == draft.dedupe {
                return self.standing(&slot, draft, at).map(Some);
            }
        }
        Ok(None)
    }

    fn standing(&mut self, slot: &Slot, draft: &Draft, at: At) -> Result<Known, Fault> {
        if slot.digest != draft.digest {
            return Err(JournalError::Conflict.into());
        }
        let id = MessageId(slot.id);
        Ok(match slot.dead {
            Some(_) => Known::Dead(id),
            None => Known::Waiting {
                id,
                position: self.position(slot)?,
                held: self.is_held(slot.id, at),
            },
        })
    }
}
