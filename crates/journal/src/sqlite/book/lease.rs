//! Hands out messages.

use std::time::Duration;

use bowline_core::time::Now;

use super::{Book, Hold};
use crate::engine::{At, Delivery, JournalError, Lane, MessageId, Order, Receipt};
use crate::limits::span;
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::Slot;

impl Book {
    pub(in crate::sqlite) fn lease(
        &mut self,
        lane: &Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Result<Vec<Delivery>, Fault> {
        let at = self.moment(at);
        self.load_whole(lane)?;
        match order {
            Order::Strict if max > 0 => self.lease_first(lane, hold, at),
            Order::Strict => Ok(Vec::new()),
            Order::Any => self.lease_any(lane, max, hold, at),
        }
    }

    /// Hands out the first message of a lane. Nobody overtakes one that cannot be read.
    fn lease_first(&mut self, lane: &Lane, hold: Duration, at: At) -> Result<Vec<Delivery>, Fault> {
        let Some(head) = self.head(lane)? else {
            return Ok(Vec::new());
        };
        let given = match self.read_slot(head.id)? {
            Some(slot) if self.is_due(&slot, at) => self.give(&slot, hold, at),
            Some(_) => return Ok(Vec::new()),
            None => Err(damaged(format!("message {} of lane `{lane}`", head.id)).into()),
        };
        let unreadable = match &given {
            Err(Fault::Refused(_)) => Some(head.id),
            Ok(_) | Err(Fault::Disk(_)) => None,
        };
        if let Some(loaded) = self.loaded.get_mut(lane) {
            loaded.unreadable = unreadable;
        }
        if unreadable.is_some() {
            self.suspects.insert(lane.clone());
        }
        given.map(|delivery| vec![delivery])
    }

    /// Hands out messages of a lane, the oldest first; nobody waits for one that cannot be read.
    fn lease_any(
        &mut self,
        lane: &Lane,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Result<Vec<Delivery>, Fault> {
        let mut given = Vec::new();
        let mut damage = None;
        let mut after = None;
        while given.len() < max
            && let Some(segment) = self.next_segment(lane, after)
        {
            after = Some(segment.first);
            if segment.quiet_until > at.now {
                continue;
            }
            let mut quiet_until = Now(u64::MAX);
            for id in self.window(lane, segment.first)? {
                let Some(slot) = self.windows.slot(id).cloned() else {
                    continue;
                };
                if given.len() >= max || !self.is_due(&slot, at) {
                    quiet_until = quiet_until.min(self.due(&slot, at));
                    continue;
                }
                match self.give(&slot, hold, at) {
                    Ok(delivery) => given.push(delivery),
                    Err(Fault::Refused(error)) => damage = Some(error),
                    Err(error) => return Err(error),
                }
                quiet_until = quiet_until.min(self.due(&slot, at));
            }
            let loaded = self.loaded.get_mut(lane);
            if let Some(segment) = loaded.and_then(|one| one.segment_mut(segment.first)) {
                segment.quiet_until = quiet_until;
            }
        }
        match damage {
            Some(error) if given.is_empty() => Err(error.into()),
            _ => Ok(given),
        }
    }

    /// Returns before when a message is not handed out; never where it is past its time.
    fn due(&self, slot: &Slot, at: At) -> Now {
        if slot.is_past(at) {
            return Now(u64::MAX);
        }
        let hold = self.holds.get(&slot.id);
        let due = hold.map_or(Now(0), |hold| hold.due);
        let until = hold
            .and_then(|hold| hold.lease)
            .map_or(Now(0), |lease| lease.1);
        due.max(until)
    }

    fn is_due(&self, slot: &Slot, at: At) -> bool {
        !slot.is_past(at) && self.due(slot, at) <= at.now
    }

    fn give(&mut self, slot: &Slot, hold: Duration, at: At) -> Result<Delivery, Fault> {
        let (id, body) = (slot.id, self.body(slot)?);
        let given = self.given.entry(id).or_default();
        *given = given.saturating_add(1);
        self.lease += 1;
        let lease = self.lease;
        let until = at.now.plus(hold);
        let due = self.holds.get(&id).map_or(at.now, |hold| hold.due);
        let taken = Hold {
            lease: Some((lease, until)),
            due,
            lane: slot.lane.clone(),
            place: slot.place,
        };
        self.hold(id, Some(taken));
        Ok(Delivery {
            receipt: Receipt {
                id: MessageId(id),
                lease,
            },
            dedupe: slot.dedupe.clone(),
            body,
            attempts: self.attempts(slot),
            stored_unix_ms: slot.stored_unix_ms,
            expires_unix_ms: slot.expires_unix_ms,
            age: span(slot.stored_unix_ms, at.unix_ms),
            left: slot.expires_unix_ms.map(|end| span(at.unix_ms, end)),
        })
    }

    /// Sees that a message is held under this receipt. A lease that ran out counts until somebody
    /// else was given the message.
    pub(super) fn held(&self, receipt: Receipt) -> Result<u64, JournalError> {
        let hold = self.holds.get(&receipt.id.0).and_then(|hold| hold.lease);
        match hold {
            Some((lease, _)) if lease == receipt.lease => Ok(receipt.id.0),
            _ => Err(JournalError::Lapsed),
        }
    }
}
