//! Permits of one server and the queue for permits, shared fairly by principals.
//!
//! Three rules keep a principal from starving the rest. A principal never holds all permits. A
//! freed permit rotates over the queued principals, with preference for principals below their
//! share. A full queue admits a principal with few queued calls by displacing the newest call of
//! the principal with the most.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::shares::OwnerReserve;

/// A principal leaves at least 1/8 of the permits free.
const PRINCIPAL_HEADROOM_DIVISOR: usize = 8;

/// Principals except the owner leave 1/16 of the permits free.
const OWNER_RESERVE_DIVISOR: usize = 16;

/// Permits and queue length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Calls in flight.
    pub running_max: usize,
    /// Queued calls.
    pub waiting_max: usize,
}

impl QueueLimits {
    /// Returns the limits of calls in flight: per principal and in total.
    const fn running_limits(self, reserve: OwnerReserve) -> (usize, usize) {
        let Self {
            running_max: slots, ..
        } = self;
        match reserve {
            OwnerReserve::Open => (slots, slots),
            OwnerReserve::Closed => (
                slots.saturating_sub(slots / PRINCIPAL_HEADROOM_DIVISOR),
                slots.saturating_sub(slots / OWNER_RESERVE_DIVISOR),
            ),
        }
    }
}

/// State of one principal at the server.
#[derive(Debug)]
struct PrincipalQueue<W> {
    reserve: OwnerReserve,
    running_count: usize,
    /// Queued calls, oldest first.
    queued_calls: VecDeque<(u64, W)>,
}

/// Result of enqueueing a call.
#[derive(Debug)]
pub struct QueueAdmission<W> {
    /// Ticket for [`FairQueue::cancel_queued`].
    pub ticket: u64,
    /// The call displaced from the queue.
    pub displaced: Option<W>,
}

/// Permits and queue. `W` wakes a queued call.
#[derive(Debug)]
pub struct FairQueue<W> {
    limits: QueueLimits,
    running_count: usize,
    waiting_count: usize,
    next_ticket: u64,
    /// Idle principals have no entry.
    principals: HashMap<Arc<str>, PrincipalQueue<W>, RandomState>,
    /// Principals with queued calls, in rotation order.
    rotation: VecDeque<Arc<str>>,
}

// Invariant: no queued principal could take a permit.
impl<W> FairQueue<W> {
    /// Returns a queue with all permits free.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            running_count: 0,
            waiting_count: 0,
            next_ticket: 0,
            principals: HashMap::default(),
            rotation: VecDeque::new(),
        }
    }

    /// Returns the limits.
    #[must_use]
    pub const fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Returns the number of calls with a permit.
    #[must_use]
    pub const fn running_count(&self) -> usize {
        self.running_count
    }

    /// Returns the number of queued calls.
    #[must_use]
    pub const fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    /// Takes a free permit. A principal does not overtake its own queued calls.
    pub fn try_acquire(&mut self, principal: &Arc<str>, reserve: OwnerReserve) -> bool {
        let (own_max, all_max) = self.limits.running_limits(reserve);
        if self.running_count >= all_max {
            return false;
        }
        match self.principals.get_mut(principal) {
            Some(queue) if queue.running_count < own_max && queue.queued_calls.is_empty() => {
                queue.running_count += 1;
            }
            Some(_) => return false,
            None => {
                let queue = PrincipalQueue {
                    reserve,
                    running_count: 1,
                    queued_calls: VecDeque::new(),
                };
                self.principals.insert(Arc::clone(principal), queue);
            }
        }
        self.running_count += 1;
        true
    }

    /// Enqueues a call after [`try_acquire`](Self::try_acquire) failed.
    ///
    /// # Errors
    /// The queue is full and no principal has more queued calls; returns the waiter.
    pub fn enqueue(
        &mut self,
        principal: &Arc<str>,
        reserve: OwnerReserve,
        waiter: W,
    ) -> Result<QueueAdmission<W>, W> {
        let displaced = if self.waiting_count < self.limits.waiting_max {
            None
        } else {
            match self.displace_newest(principal, reserve) {
                Some(displaced) => Some(displaced),
                None => return Err(waiter),
            }
        };
        let ticket = self.next_ticket;
        self.next_ticket = self.next_ticket.wrapping_add(1);
        let queue = self.principals.entry(Arc::clone(principal));
        let queue = queue.or_insert_with(|| PrincipalQueue {
            reserve,
            running_count: 0,
            queued_calls: VecDeque::new(),
        });
        if queue.queued_calls.is_empty() {
            self.rotation.push_back(Arc::clone(principal));
        }
        queue.queued_calls.push_back((ticket, waiter));
        self.waiting_count += 1;
        Ok(QueueAdmission { ticket, displaced })
    }

    /// Removes the newest call of the principal with the most queued calls, if more than
    /// `principal` would have after enqueueing. The owner displaces any principal.
    fn displace_newest(&mut self, principal: &Arc<str>, reserve: OwnerReserve) -> Option<W> {
        let waiting = |name: &Arc<str>| {
            let queue = self.principals.get(name);
            queue.map_or(0, |queue| queue.queued_calls.len())
        };
        let others = self.rotation.iter().filter(|name| *name != principal);
        let most = Arc::clone(others.max_by_key(|name| waiting(name))?);
        let enough = match reserve {
            OwnerReserve::Open => 1,
            OwnerReserve::Closed => waiting(principal) + 2,
        };
        if waiting(&most) < enough {
            return None;
        }
        let (_, displaced) = self.principals.get_mut(&most)?.queued_calls.pop_back()?;
        self.waiting_count -= 1;
        self.forget_if_idle(&most);
        Some(displaced)
    }

    /// Removes a call from the queue; returns `false` if no longer queued.
    pub fn cancel_queued(&mut self, principal: &Arc<str>, ticket: u64) -> bool {
        let Some(queue) = self.principals.get_mut(principal) else {
            return false;
        };
        let Some(at) = queue
            .queued_calls
            .iter()
            .position(|(one, _)| *one == ticket)
        else {
            return false;
        };
        queue.queued_calls.remove(at);
        self.waiting_count -= 1;
        self.forget_if_idle(principal);
        true
    }

    /// Releases a permit and returns the next call to run.
    pub fn release_permit(&mut self, principal: &Arc<str>) -> Option<W> {
        let Some(queue) = self.principals.get_mut(principal) else {
            debug_assert!(false, "a place is given back that nobody had");
            return None;
        };
        debug_assert!(
            queue.running_count > 0,
            "a place is given back that nobody had"
        );
        queue.running_count = queue.running_count.saturating_sub(1);
        self.running_count = self.running_count.saturating_sub(1);
        let is_idle = queue.running_count == 0 && queue.queued_calls.is_empty();
        if is_idle {
            self.principals.remove(principal);
        }
        if self.rotation.is_empty() {
            return None;
        }
        self.grant_next()
    }

    /// Grants a free permit in rotation order: the first eligible principal below its share, else
    /// the first eligible principal.
    fn grant_next(&mut self) -> Option<W> {
        let part = self
            .limits
            .running_max
            .div_ceil(self.principals.len().max(1));
        let mut chosen = None;
        for (at, name) in self.rotation.iter().enumerate() {
            let Some(queue) = self.principals.get(name) else {
                continue;
            };
            let (own_max, all_max) = self.limits.running_limits(queue.reserve);
            if self.running_count >= all_max || queue.running_count >= own_max {
                continue;
            }
            if queue.running_count < part {
                chosen = Some(at);
                break;
            }
            chosen = chosen.or(Some(at));
        }
        let name = self.rotation.remove(chosen?)?;
        let queue = self.principals.get_mut(&name)?;
        let (_, waiter) = queue.queued_calls.pop_front()?;
        queue.running_count += 1;
        self.running_count += 1;
        self.waiting_count -= 1;
        if !queue.queued_calls.is_empty() {
            self.rotation.push_back(name);
        }
        Some(waiter)
    }

    /// Drops the entries of a principal without queued calls.
    fn forget_if_idle(&mut self, principal: &Arc<str>) {
        let Some(queue) = self.principals.get(principal) else {
            return;
        };
        if !queue.queued_calls.is_empty() {
            return;
        }
        if queue.running_count == 0 {
            self.principals.remove(principal);
        }
        self.rotation.retain(|name| name != principal);
    }
}

#[cfg(test)]
mod tests;
