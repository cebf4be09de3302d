//! The places of calls at one server and the queue for them, shared fairly by principals.
//!
//! Three rules keep one principal from locking the others out. It never holds all places, so that
//! slow calls of one leave some for the next. A free place goes round the waiting principals, and
//! first to those that hold less than their part. A full queue makes room for a principal that
//! has little in it, by giving up the newest call of the principal that has the most.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::shares::Reserve;

/// One part in so many of the places is left by one principal, whatever it asks for.
const LEFT_BY_PRINCIPAL: usize = 8;

/// One part in so many of the places is left by all principals but the owner.
const LEFT_FOR_OWNER: usize = 16;

/// How much there is of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Calls in flight.
    pub places: usize,
    /// Calls that wait for a place.
    pub queue: usize,
}

impl QueueLimits {
    /// Returns how many calls in flight one principal, or all together, may have.
    const fn open(self, reserve: Reserve) -> (usize, usize) {
        let Self { places, .. } = self;
        match reserve {
            Reserve::Open => (places, places),
            Reserve::Closed => (
                places.saturating_sub(places / LEFT_BY_PRINCIPAL),
                places.saturating_sub(places / LEFT_FOR_OWNER),
            ),
        }
    }
}

/// What one principal has at the server.
#[derive(Debug)]
struct Party<W> {
    reserve: Reserve,
    running: usize,
    /// The oldest first.
    waiting: VecDeque<(u64, W)>,
}

/// A call that was taken into the queue.
#[derive(Debug)]
pub struct Queued<W> {
    /// By what [`FairQueue::leave`] knows it.
    pub ticket: u64,
    /// The call that gave up its place in the queue for it.
    pub displaced: Option<W>,
}

/// Places and queue. `W` is what wakes a call that waits.
#[derive(Debug)]
pub struct FairQueue<W> {
    limits: QueueLimits,
    running: usize,
    waiting: usize,
    next_ticket: u64,
    /// Principals without a call have no entry.
    parties: HashMap<Arc<str>, Party<W>, RandomState>,
    /// Principals with calls that wait, in the order of their turns.
    turns: VecDeque<Arc<str>>,
}

// Invariant: no principal that waits could take a place.
impl<W> FairQueue<W> {
    /// Returns places that are free.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            running: 0,
            waiting: 0,
            next_ticket: 0,
            parties: HashMap::default(),
            turns: VecDeque::new(),
        }
    }

    /// Returns the limits.
    #[must_use]
    pub const fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Returns how many calls have a place.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// Returns how many calls wait for one.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes a place that is free. A principal does not overtake its own calls that wait.
    pub fn take(&mut self, principal: &Arc<str>, reserve: Reserve) -> bool {
        let (own_max, all_max) = self.limits.open(reserve);
        if self.running >= all_max {
            return false;
        }
        match self.parties.get_mut(principal) {
            Some(party) if party.running < own_max && party.waiting.is_empty() => {
                party.running += 1;
            }
            Some(_) => return false,
            None => {
                let party = Party {
                    reserve,
                    running: 1,
                    waiting: VecDeque::new(),
                };
                self.parties.insert(Arc::clone(principal), party);
            }
        }
        self.running += 1;
        true
    }

    /// Puts a call into the queue for which [`take`](Self::take) found no place.
    ///
    /// # Errors
    /// The queue is full, and nobody has more in it: the call is given back.
    pub fn wait(
        &mut self,
        principal: &Arc<str>,
        reserve: Reserve,
        waiter: W,
    ) -> Result<Queued<W>, W> {
        let displaced = if self.waiting < self.limits.queue {
            None
        } else {
            match self.displace(principal, reserve) {
                Some(displaced) => Some(displaced),
                None => return Err(waiter),
            }
        };
        let ticket = self.next_ticket;
        self.next_ticket = self.next_ticket.wrapping_add(1);
        let party = self.parties.entry(Arc::clone(principal));
        let party = party.or_insert_with(|| Party {
            reserve,
            running: 0,
            waiting: VecDeque::new(),
        });
        if party.waiting.is_empty() {
            self.turns.push_back(Arc::clone(principal));
        }
        party.waiting.push_back((ticket, waiter));
        self.waiting += 1;
        Ok(Queued { ticket, displaced })
    }

    /// Takes the newest call of the principal that has the most in the queue, if that is more
    /// than `principal` would have with one call more. The owner goes before all others.
    fn displace(&mut self, principal: &Arc<str>, reserve: Reserve) -> Option<W> {
        let waiting = |name: &Arc<str>| {
            let party = self.parties.get(name);
            party.map_or(0, |party| party.waiting.len())
        };
        let others = self.turns.iter().filter(|name| *name != principal);
        let most = Arc::clone(others.max_by_key(|name| waiting(name))?);
        let enough = match reserve {
            Reserve::Open => 1,
            Reserve::Closed => waiting(principal) + 2,
        };
        if waiting(&most) < enough {
            return None;
        }
        let (_, displaced) = self.parties.get_mut(&most)?.waiting.pop_back()?;
        self.waiting -= 1;
        self.forget(&most);
        Some(displaced)
    }

    /// Takes a call out of the queue; `false` where it is not in it any more.
    pub fn leave(&mut self, principal: &Arc<str>, ticket: u64) -> bool {
        let Some(party) = self.parties.get_mut(principal) else {
            return false;
        };
        let Some(at) = party.waiting.iter().position(|(one, _)| *one == ticket) else {
            return false;
        };
        party.waiting.remove(at);
        self.waiting -= 1;
        self.forget(principal);
        true
    }

    /// Gives a place back, and returns the call that has it now.
    pub fn release(&mut self, principal: &Arc<str>) -> Option<W> {
        let Some(party) = self.parties.get_mut(principal) else {
            debug_assert!(false, "a place is given back that nobody had");
            return None;
        };
        debug_assert!(party.running > 0, "a place is given back that nobody had");
        party.running = party.running.saturating_sub(1);
        self.running = self.running.saturating_sub(1);
        let is_idle = party.running == 0 && party.waiting.is_empty();
        if is_idle {
            self.parties.remove(principal);
        }
        if self.turns.is_empty() {
            return None;
        }
        self.grant()
    }

    /// Gives a free place to the principal whose turn it is: of those that may take it, the first
    /// that holds less than its part, or else the first.
    fn grant(&mut self) -> Option<W> {
        let part = self.limits.places.div_ceil(self.parties.len().max(1));
        let mut chosen = None;
        for (at, name) in self.turns.iter().enumerate() {
            let Some(party) = self.parties.get(name) else {
                continue;
            };
            let (own_max, all_max) = self.limits.open(party.reserve);
            if self.running >= all_max || party.running >= own_max {
                continue;
            }
            if party.running < part {
                chosen = Some(at);
                break;
            }
            chosen = chosen.or(Some(at));
        }
        let name = self.turns.remove(chosen?)?;
        let party = self.parties.get_mut(&name)?;
        let (_, waiter) = party.waiting.pop_front()?;
        party.running += 1;
        self.running += 1;
        self.waiting -= 1;
        if !party.waiting.is_empty() {
            self.turns.push_back(name);
        }
        Some(waiter)
    }

    /// Forgets what is not needed of a principal one of whose calls left the queue.
    fn forget(&mut self, principal: &Arc<str>) {
        let Some(party) = self.parties.get(principal) else {
            return;
        };
        if !party.waiting.is_empty() {
            return;
        }
        if party.running == 0 {
            self.parties.remove(principal);
        }
        self.turns.retain(|name| name != principal);
    }
}

#[cfg(test)]
mod tests;
