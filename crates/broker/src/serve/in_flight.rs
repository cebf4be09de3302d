//! Stored requests in flight in this process; each request has one owner.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_runtime::Lifecycle;
use tokio::sync::watch;

use crate::frames::BrokerResponse;

/// Key of a request: the sender's mailbox and the request id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestKey {
    pub(super) caller: Arc<str>,
    pub(super) id: Arc<str>,
}

/// The requests in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightRequests(Mutex<InFlightTable>);

#[derive(Debug, Default)]
struct InFlightTable {
    slots: HashMap<RequestKey, Arc<InFlightSlot>>,
    /// Set once: no further requests.
    is_closed: bool,
}

/// One request in flight.
#[derive(Debug)]
struct InFlightSlot {
    /// How the request ended, if ended.
    end: watch::Sender<Option<InFlightEnd>>,
    /// Closed by the cancellation of the request.
    lifecycle: Lifecycle,
}

/// How the owner of a request finished.
#[derive(Clone, Debug)]
pub(super) enum InFlightEnd {
    /// The reply is stored.
    Replied,
    /// The response exists but could not be stored.
    Unreplied(Arc<BrokerResponse>),
}

/// Result of claiming a request.
#[derive(Debug)]
pub(super) enum ClaimOutcome<'a> {
    /// This claim owns the request.
    Claimed(DedupGuard<'a>),
    /// Another claim owns the request.
    Duplicate(DuplicateWaiter),
    /// Too many requests, or closed.
    Full,
}

/// Waits for the owner of the same request.
#[derive(Debug)]
pub(super) struct DuplicateWaiter(watch::Receiver<Option<InFlightEnd>>);

impl DuplicateWaiter {
    /// Waits for the end; `None` if the owner was dropped without an end.
    pub(super) async fn wait_end(mut self) -> Option<InFlightEnd> {
        let end = self.0.wait_for(Option::is_some).await;
        end.ok().and_then(|end| end.clone())
    }
}

/// Ownership of a request until dropped.
#[derive(Debug)]
pub(super) struct DedupGuard<'a> {
    requests: &'a InFlightRequests,
    key: RequestKey,
    slot: Arc<InFlightSlot>,
}

impl InFlightRequests {
    /// Claims a request if fewer than `max` are in flight.
    pub(super) fn claim(&self, key: &RequestKey, max: usize) -> ClaimOutcome<'_> {
        let mut open = lock(&self.0);
        let (count, closed) = (open.slots.len(), open.is_closed);
        match open.slots.entry(key.clone()) {
            Entry::Occupied(other) => {
                ClaimOutcome::Duplicate(DuplicateWaiter(other.get().end.subscribe()))
            }
            Entry::Vacant(_) if closed || count >= max => ClaimOutcome::Full,
            Entry::Vacant(free) => {
                let slot = Arc::new(InFlightSlot {
                    end: watch::Sender::new(None),
                    lifecycle: Lifecycle::default(),
                });
                free.insert(Arc::clone(&slot));
                ClaimOutcome::Claimed(DedupGuard {
                    requests: self,
                    key: key.clone(),
                    slot,
                })
            }
        }
    }

    /// Cancels a request; `false` if not in flight.
    pub(super) fn cancel(&self, key: &RequestKey) -> bool {
        let open = lock(&self.0);
        let slot = open.slots.get(key);
        slot.map(|slot| slot.lifecycle.close()).is_some()
    }

    /// Accepts no more requests, and returns waiters for the requests in flight.
    pub(super) fn close(&self) -> Vec<DuplicateWaiter> {
        let mut open = lock(&self.0);
        open.is_closed = true;
        let slots = open.slots.values();
        slots
            .map(|slot| DuplicateWaiter(slot.end.subscribe()))
            .collect()
    }

    /// Cancels every request.
    pub(super) fn cancel_all(&self) {
        for slot in lock(&self.0).slots.values() {
            slot.lifecycle.close();
        }
    }

    /// Returns the number of requests in flight.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).slots.len()
    }
}

impl DedupGuard<'_> {
    /// Waits for the cancellation of the request.
    pub(super) async fn wait_cancelled(&self) {
        self.slot.lifecycle.shutdown().wait_closing().await;
    }

    /// Reports the end to waiting duplicates.
    pub(super) fn finish(self, end: InFlightEnd) {
        self.slot.end.send_replace(Some(end));
    }
}

impl Drop for DedupGuard<'_> {
    fn drop(&mut self) {
        lock(&self.requests.0).slots.remove(&self.key);
    }
}
