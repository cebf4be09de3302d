//! Hands out messages.

use std::time::Duration;

use super::{Book, Hold};
use crate::engine::{At, Delivery, JournalError, Lane, MessageId, Order, Receipt};
use crate::sqlite::fault::Fault;

impl Book {
    pub(in crate::sqlite) fn lease(
        &mut self,
        lane: &Lane,
        order: Order,
        max: usize,
        hold: Duration,
        at: At,
    ) -> Result<Vec<Delivery>, Fault> {
        self.load_whole(lane)?;
        let mut given = Vec::new();
        let mut damage = None;
        let mut next = 0;
        while given.len() < max {
            let loaded = self.loaded.get(lane);
            let Some((_, id)) = loaded.and_then(|loaded| loaded.waiting.get(next).copied()) else {
                break;
            };
            next += 1;
            if self.is_due(id, at) {
                match self.give(id, hold, at) {
                    Ok(delivery) => given.extend(delivery),
                    // Nobody overtakes one that cannot be read; in a mailbox nobody waits for it.
                    Err(Fault::Refused(error)) => damage = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if order == Order::Strict {
                break;
            }
        }
        match damage {
            Some(error) if given.is_empty() => Err(error.into()),
            _ => Ok(given),
        }
    }

    fn is_due(&self, id: u64, at: At) -> bool {
        let slot = self.messages.get(&id);
        let hold = self.holds.get(&id);
        let is_due = hold.is_none_or(|hold| hold.due <= at.now);
        is_due && !self.is_held(id, at) && slot.is_some_and(|slot| !slot.is_past(at))
    }

    fn give(&mut self, id: u64, hold: Duration, at: At) -> Result<Option<Delivery>, Fault> {
        let Some(slot) = self.messages.get(&id) else {
            return Ok(None);
        };
        let body = self.body(slot)?;
        let given = self.given.entry(id).or_default();
        *given = given.saturating_add(1);
        self.lease += 1;
        let lease = self.lease;
        let until = at.now.plus(hold);
        let due = self.holds.get(&id).map_or(at.now, |hold| hold.due);
        let taken = Hold {
            lease: Some((lease, until)),
            due,
        };
        self.hold(id, Some(taken));
        Ok(self.messages.get(&id).map(|slot| Delivery {
            receipt: Receipt {
                id: MessageId(id),
                lease,
            },
            dedupe: slot.dedupe.clone(),
            body,
            attempts: self.attempts(slot),
            stored_unix_ms: slot.stored_unix_ms,
            expires_unix_ms: slot.expires_unix_ms,
        }))
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
