//! Callers parked until the turn of their stored writes, while earlier writes are delivered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::{JournalError, LaneName, LeaseReceipt, MessageId};
use bowline_runtime::Work;
use tokio::sync::oneshot;

use super::OutboxShared;
use super::key_lock::{KeyGuard, WriteName};
use super::queued_reply::QueueReason;

/// The parked callers, by lane and write name; at most as many as calls in flight.
#[derive(Debug, Default)]
pub(super) struct ParkedCalls(Mutex<HashMap<LaneName, HashMap<Arc<str>, ParkedSlot>>>);

#[derive(Debug)]
enum ParkedSlot {
    /// The caller waits.
    Waiting(ParkedWaiter),
    /// The caller left while the worker held the message: the worker withdraws it. Until then the
    /// key stays locked.
    Abandoned(#[expect(dead_code, reason = "held until it is dropped")] KeyGuard),
}

#[derive(Debug)]
struct ParkedWaiter {
    decision: oneshot::Sender<TurnDecision>,
    /// Lease duration if the caller sends the write.
    lease: Duration,
}

/// Decision for a parked caller.
#[derive(Debug)]
pub(super) enum TurnDecision {
    /// All earlier writes are delivered: the caller sends its write now.
    Granted(SendGrant),
    /// The write is not sent now and keeps its position.
    Queued(QueueReason),
}

/// The right to send a stored write; dropped unused, the write is withdrawn.
#[derive(Debug)]
pub(super) struct SendGrant {
    shared: Arc<OutboxShared>,
    receipt: LeaseReceipt,
    turn_guard: Option<TurnGuard>,
}

/// A write in flight by a caller of a lane; dropping it wakes the worker.
#[derive(Debug)]
pub(super) struct TurnGuard(Arc<LaneSignal>);

/// Wakes the worker of a lane: the number of callers' writes finished since its last check.
pub(super) type LaneSignal = Work<usize>;

impl Drop for TurnGuard {
    fn drop(&mut self) {
        *lock(&self.0) += 1;
        self.0.wake();
    }
}

impl SendGrant {
    pub(super) fn new(
        shared: Arc<OutboxShared>,
        receipt: LeaseReceipt,
        signal: &Arc<LaneSignal>,
    ) -> Self {
        Self {
            shared,
            receipt,
            turn_guard: Some(TurnGuard(Arc::clone(signal))),
        }
    }

    /// Uses the grant: from here on the caller owns the write.
    fn accept(mut self) -> (LeaseReceipt, Option<TurnGuard>) {
        (self.receipt, self.turn_guard.take())
    }

    /// Gives the turn back: the write stays queued in `lane`.
    async fn release(self, lane: &LaneName) {
        let shared = Arc::clone(&self.shared);
        let (receipt, _turn) = self.accept();
        if let Err(error) = shared.requeue_message(lane, receipt).await {
            tracing::warn!(id = receipt.id.0, %error, "write could not be released");
        }
    }
}

impl Drop for SendGrant {
    fn drop(&mut self) {
        let Some(turn) = self.turn_guard.take() else {
            return;
        };
        if self.shared.is_closing() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (shared, receipt) = (Arc::clone(&self.shared), self.receipt);
        self.shared.tasks.spawn("outbox.withdraw", async move {
            let _turn = turn;
            let withdrawn = shared
                .journal
                .discard_leased(receipt, shared.timestamps())
                .await;
            if let Err(error) = withdrawn {
                tracing::warn!(id = receipt.id.0, %error, "write could not be withdrawn");
            }
        });
    }
}

impl ParkedCalls {
    /// Parks a caller. Must happen before the write is stored, so that the worker always sees the
    /// waiting caller.
    pub(super) fn park_caller(
        &self,
        name: &WriteName,
        hold: Duration,
    ) -> oneshot::Receiver<TurnDecision> {
        let (sender, receiver) = oneshot::channel();
        let mut lanes = lock(&self.0);
        let lane = lanes.entry(name.lane.clone()).or_default();
        lane.insert(
            Arc::clone(&name.dedupe),
            ParkedSlot::Waiting(ParkedWaiter {
                decision: sender,
                lease: hold,
            }),
        );
        receiver
    }

    /// Unparks a caller and leaves its write queued; `false` if a decision was already sent.
    fn unpark_caller(&self, name: &WriteName) -> bool {
        let mut lanes = lock(&self.0);
        take_waiter(&mut lanes, &name.lane, &name.dedupe).is_some()
    }

    /// Unparks a caller that has no write in the queue. The worker may have granted the caller the
    /// turn of an earlier write with the same key: that write was promised to be delivered, so it
    /// stays queued.
    pub(super) async fn leave_turn(
        &self,
        name: &WriteName,
        mut decision: oneshot::Receiver<TurnDecision>,
    ) {
        if !self.unpark_caller(name)
            && let Ok(TurnDecision::Granted(grant)) = decision.try_recv()
        {
            grant.release(&name.lane).await;
        }
    }

    /// Abandons a write: its holder withdraws it. Returns the key guard if a decision was already
    /// sent.
    fn abandon(&self, name: &WriteName, flight: KeyGuard) -> Result<(), KeyGuard> {
        let mut lanes = lock(&self.0);
        let slot = lanes
            .get_mut(&name.lane)
            .and_then(|lane| lane.get_mut(&name.dedupe));
        match slot {
            Some(slot @ ParkedSlot::Waiting(_)) => {
                *slot = ParkedSlot::Abandoned(flight);
                Ok(())
            }
            Some(ParkedSlot::Abandoned(_)) | None => Err(flight),
        }
    }

    /// True if the caller of a write waits.
    pub(super) fn is_parked(&self, lane: &LaneName, dedupe: &str) -> bool {
        let lanes = lock(&self.0);
        let slot = lanes.get(lane).and_then(|lane| lane.get(dedupe));
        matches!(slot, Some(ParkedSlot::Waiting(_)))
    }

    /// Returns the longest lease duration wanted in the lane.
    pub(super) fn longest_lease(&self, lane: &LaneName) -> Duration {
        let lanes = lock(&self.0);
        let slots = lanes.get(lane).into_iter().flat_map(HashMap::values);
        let holds = slots.filter_map(|slot| match slot {
            ParkedSlot::Waiting(waiter) => Some(waiter.lease),
            ParkedSlot::Abandoned(_) => None,
        });
        holds.max().unwrap_or_default()
    }

    /// Grants the turn to the caller of a write; `false` if no caller waits.
    pub(super) fn grant_turn(
        &self,
        lane: &LaneName,
        dedupe: &str,
        grant: impl FnOnce() -> SendGrant,
    ) -> bool {
        // Under the lock: a caller without a slot must find the decision.
        let mut lanes = lock(&self.0);
        let Some(sender) = take_waiter(&mut lanes, lane, dedupe) else {
            return false;
        };
        let unsent = sender.send(TurnDecision::Granted(grant()));
        drop(lanes);
        // If the caller left meanwhile, the write is withdrawn.
        drop(unsent);
        true
    }

    /// Tells the caller of a write that it stays queued.
    pub(super) fn release_caller(&self, lane: &LaneName, dedupe: &str, reason: QueueReason) {
        let mut lanes = lock(&self.0);
        if let Some(sender) = take_waiter(&mut lanes, lane, dedupe) {
            drop(sender.send(TurnDecision::Queued(reason)));
        }
    }

    /// Tells all callers of a lane that their writes stay queued.
    pub(super) fn release_lane(&self, lane: &LaneName, reason: QueueReason) {
        let waiting: Vec<Arc<str>> = {
            let lanes = lock(&self.0);
            let slots = lanes.get(lane).into_iter().flatten();
            let waiting = slots.filter(|(_, slot)| matches!(slot, ParkedSlot::Waiting(_)));
            waiting.map(|(dedupe, _)| Arc::clone(dedupe)).collect()
        };
        for dedupe in waiting {
            self.release_caller(lane, &dedupe, reason);
        }
    }

    /// True if the caller left and the write must be withdrawn.
    pub(super) fn is_abandoned(&self, lane: &LaneName, dedupe: &str) -> bool {
        let lanes = lock(&self.0);
        let slot = lanes.get(lane).and_then(|lane| lane.get(dedupe));
        matches!(slot, Some(ParkedSlot::Abandoned(_)))
    }

    /// Removes an abandoned write after its withdrawal; unlocks its key.
    pub(super) fn remove_abandoned(&self, lane: &LaneName, dedupe: &str) {
        let slot = {
            let mut lanes = lock(&self.0);
            let Some(slots) = lanes.get_mut(lane) else {
                return;
            };
            let slot = match slots.get(dedupe) {
                Some(ParkedSlot::Abandoned(_)) => slots.remove(dedupe),
                Some(ParkedSlot::Waiting(_)) | None => None,
            };
            if slots.is_empty() {
                lanes.remove(lane);
            }
            slot
        };
        // Dropping a key guard takes further locks: not under this lock.
        drop(slot);
    }
}

fn take_waiter(
    lanes: &mut HashMap<LaneName, HashMap<Arc<str>, ParkedSlot>>,
    lane: &LaneName,
    dedupe: &str,
) -> Option<oneshot::Sender<TurnDecision>> {
    let slots = lanes.get_mut(lane)?;
    if !matches!(slots.get(dedupe), Some(ParkedSlot::Waiting(_))) {
        return None;
    }
    let slot = slots.remove(dedupe);
    if slots.is_empty() {
        lanes.remove(lane);
    }
    match slot {
        Some(ParkedSlot::Waiting(waiter)) => Some(waiter.decision),
        Some(ParkedSlot::Abandoned(_)) | None => None,
    }
}

/// A caller parked until the turn of its stored write. Dropping it withdraws the write, which was
/// never sent.
#[derive(Debug)]
pub(super) struct ParkedCall {
    pub(super) shared: Arc<OutboxShared>,
    pub(super) name: WriteName,
    pub(super) id: MessageId,
    pub(super) decision: oneshot::Receiver<TurnDecision>,
    /// `None` once decided.
    pub(super) key_guard: Option<KeyGuard>,
}

/// Result of parking.
#[derive(Debug)]
pub(super) enum ParkOutcome {
    /// The caller sends its write.
    Send {
        receipt: LeaseReceipt,
        turn: Option<TurnGuard>,
        flight: KeyGuard,
    },
    /// The write stays queued.
    Queued(QueueReason),
}

impl ParkedCall {
    /// Waits for the turn until `until`; returns itself on timeout.
    pub(super) async fn wait_turn(mut self, until: MonotonicTime) -> Result<ParkOutcome, Self> {
        let until = self.shared.clock.instant(until);
        match tokio::time::timeout_at(until, &mut self.decision).await {
            Ok(decision) => Ok(self.into_outcome(decision.ok())),
            Err(_) => Err(self),
        }
    }

    fn into_outcome(mut self, decision: Option<TurnDecision>) -> ParkOutcome {
        match (decision, self.key_guard.take()) {
            (Some(TurnDecision::Granted(grant)), Some(flight)) => {
                let (receipt, turn) = grant.accept();
                ParkOutcome::Send {
                    receipt,
                    turn,
                    flight,
                }
            }
            (Some(TurnDecision::Queued(reason)), _) => ParkOutcome::Queued(reason),
            // Shutdown: the next gateway delivers the stored write.
            (Some(TurnDecision::Granted(_)) | None, _) => {
                ParkOutcome::Queued(QueueReason::Unreachable)
            }
        }
    }

    /// Stops waiting and leaves the write queued, unless already decided.
    pub(super) fn stay_queued(mut self, reason: QueueReason) -> ParkOutcome {
        match self.shared.parked.unpark_caller(&self.name) {
            true => {
                self.key_guard = None;
                ParkOutcome::Queued(reason)
            }
            false => {
                let decision = self.decision.try_recv().ok();
                self.into_outcome(decision)
            }
        }
    }

    /// Withdraws the write, unless already decided.
    pub(super) async fn withdraw_write(mut self) -> Option<ParkOutcome> {
        let flight = self.key_guard.take()?;
        match self.shared.parked.abandon(&self.name, flight) {
            Ok(()) => {
                remove_abandoned_write(&self.shared, &self.name, self.id).await;
                None
            }
            Err(flight) => {
                self.key_guard = Some(flight);
                let decision = self.decision.try_recv().ok();
                Some(self.into_outcome(decision))
            }
        }
    }
}

impl Drop for ParkedCall {
    fn drop(&mut self) {
        let Some(flight) = self.key_guard.take() else {
            return;
        };
        // At shutdown stored writes stay.
        if self.shared.is_closing() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let (name, id) = (self.name.clone(), self.id);
        match self.shared.parked.abandon(&self.name, flight) {
            Ok(()) => self.shared.tasks.spawn("outbox.withdraw", async move {
                remove_abandoned_write(&shared, &name, id).await;
            }),
            // Decided but not received: the grant withdraws the write, or the write is removed,
            // since no caller knows it is queued. The key is unlocked afterwards.
            Err(flight) => {
                let decision = self.decision.try_recv().ok();
                self.shared.tasks.spawn("outbox.withdraw", async move {
                    let _flight = flight;
                    let at = shared.timestamps();
                    let _gone = match decision {
                        Some(TurnDecision::Granted(grant)) => {
                            let (receipt, _turn) = grant.accept();
                            shared.journal.discard_leased(receipt, at).await
                        }
                        Some(TurnDecision::Queued(_)) | None => {
                            shared.journal.remove_message(id, at).await
                        }
                    };
                });
            }
        }
    }
}

/// Removes an abandoned write. If the worker holds the message, the worker withdraws it.
async fn remove_abandoned_write(shared: &Arc<OutboxShared>, name: &WriteName, id: MessageId) {
    match shared.journal.remove_message(id, shared.timestamps()).await {
        Ok(()) | Err(JournalError::NotFound) => {
            shared.parked.remove_abandoned(&name.lane, &name.dedupe)
        }
        Err(JournalError::LeaseLost) => {}
        Err(error) => {
            tracing::warn!(id = id.0, %error, "abandoned write could not be removed");
            shared.parked.remove_abandoned(&name.lane, &name.dedupe);
        }
    }
    shared.wake_lane(name.lane.as_str());
}
