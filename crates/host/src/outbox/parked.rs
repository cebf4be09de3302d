//! Callers that wait for the turn of their stored writes, while those before them are delivered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{JournalError, Lane, MessageId, Receipt};
use tokio::sync::{Notify, oneshot};

use super::Shared;
use super::answer::Reason;
use super::flights::{Flight, Name};

/// The callers that wait, by lane and name of the write there; as many as calls are in flight.
#[derive(Debug, Default)]
pub(super) struct ParkedCalls(Mutex<HashMap<Lane, HashMap<Arc<str>, Slot>>>);

#[derive(Debug)]
enum Slot {
    /// Its caller waits.
    Waiting(Waiter),
    /// Its caller left while the drain had the message: the drain withdraws it. Until then nobody
    /// else may use the key.
    Left(#[expect(dead_code, reason = "held until it is dropped")] Flight),
}

#[derive(Debug)]
struct Waiter {
    news: oneshot::Sender<TurnNews>,
    /// How long the message is to be leased, should its caller send it.
    hold: Duration,
}

/// What a caller that waits is told.
#[derive(Debug)]
pub(super) enum TurnNews {
    /// All before it are delivered: it sends its write now.
    Granted(Grant),
    /// It is not sent now, and stays in its place.
    Queued(Reason),
}

/// The right to send a stored write; dropped unused, the write is withdrawn.
#[derive(Debug)]
pub(super) struct Grant {
    shared: Arc<Shared>,
    receipt: Receipt,
    turn: Option<TurnGuard>,
}

/// One of the writes that callers of a lane have in flight; dropped, the drain goes on.
#[derive(Debug)]
pub(super) struct TurnGuard(Arc<LaneSignal>);

/// Wakes the drain of one lane.
#[derive(Debug, Default)]
pub(super) struct LaneSignal {
    pub(super) changed: Notify,
    /// Writes of callers that ended since the drain looked.
    returned: AtomicUsize,
}

impl LaneSignal {
    pub(super) fn take_returned(&self) -> usize {
        self.returned.swap(0, Ordering::Relaxed)
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.0.returned.fetch_add(1, Ordering::Relaxed);
        self.0.changed.notify_one();
    }
}

impl Grant {
    pub(super) fn new(shared: Arc<Shared>, receipt: Receipt, signal: &Arc<LaneSignal>) -> Self {
        Self {
            shared,
            receipt,
            turn: Some(TurnGuard(Arc::clone(signal))),
        }
    }

    /// Uses it: from here on the write is its caller's.
    fn accept(mut self) -> (Receipt, Option<TurnGuard>) {
        (self.receipt, self.turn.take())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        if self.shared.is_closing() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (shared, receipt) = (Arc::clone(&self.shared), self.receipt);
        self.shared.tasks.spawn("outbox.withdraw", async move {
            let _turn = turn;
            let withdrawn = shared.journal.withdraw(receipt, shared.at()).await;
            if let Err(error) = withdrawn {
                tracing::warn!(id = receipt.id.0, %error, "a write was not withdrawn");
            }
        });
    }
}

impl ParkedCalls {
    /// Lets a caller wait for its turn. It does so before its write is stored, so that the drain
    /// never takes the write for one that nobody waits for.
    pub(super) fn park(&self, name: &Name, hold: Duration) -> oneshot::Receiver<TurnNews> {
        let (news, heard) = oneshot::channel();
        let mut lanes = lock(&self.0);
        let lane = lanes.entry(name.0.clone()).or_default();
        lane.insert(Arc::clone(&name.1), Slot::Waiting(Waiter { news, hold }));
        heard
    }

    /// Lets a caller wait no more, and leaves its write queued; `false` where it was told something
    /// already.
    fn unpark(&self, name: &Name) -> bool {
        let mut lanes = lock(&self.0);
        take(&mut lanes, &name.0, &name.1).is_some()
    }

    /// Lets a caller wait no more, and has its write withdrawn by whoever has it. Gives the flight
    /// back where the caller was told something already.
    fn leave(&self, name: &Name, flight: Flight) -> Result<(), Flight> {
        let mut lanes = lock(&self.0);
        let slot = lanes
            .get_mut(&name.0)
            .and_then(|lane| lane.get_mut(&name.1));
        match slot {
            Some(slot @ Slot::Waiting(_)) => {
                *slot = Slot::Left(flight);
                Ok(())
            }
            Some(Slot::Left(_)) | None => Err(flight),
        }
    }

    /// Whether the caller of a write waits.
    pub(super) fn is_parked(&self, lane: &Lane, dedupe: &str) -> bool {
        let lanes = lock(&self.0);
        let slot = lanes.get(lane).and_then(|lane| lane.get(dedupe));
        matches!(slot, Some(Slot::Waiting(_)))
    }

    /// Returns how long the longest of its writes is to be leased.
    pub(super) fn hold(&self, lane: &Lane) -> Duration {
        let lanes = lock(&self.0);
        let slots = lanes.get(lane).into_iter().flat_map(HashMap::values);
        let holds = slots.filter_map(|slot| match slot {
            Slot::Waiting(waiter) => Some(waiter.hold),
            Slot::Left(_) => None,
        });
        holds.max().unwrap_or_default()
    }

    /// Tells the caller of a write that its turn has come; `false` where it waits no more.
    pub(super) fn grant(&self, lane: &Lane, dedupe: &str, grant: impl FnOnce() -> Grant) -> bool {
        // Under the lock, so that whoever finds no slot finds the news.
        let mut lanes = lock(&self.0);
        let Some(news) = take(&mut lanes, lane, dedupe) else {
            return false;
        };
        let unheard = news.send(TurnNews::Granted(grant()));
        drop(lanes);
        // A caller that left meanwhile has its write withdrawn.
        drop(unheard);
        true
    }

    /// Tells the caller of a write that it stays queued.
    pub(super) fn release_one(&self, lane: &Lane, dedupe: &str, reason: Reason) {
        let mut lanes = lock(&self.0);
        if let Some(news) = take(&mut lanes, lane, dedupe) {
            drop(news.send(TurnNews::Queued(reason)));
        }
    }

    /// Tells all callers of a lane that their writes stay queued.
    pub(super) fn release(&self, lane: &Lane, reason: Reason) {
        let waiting: Vec<Arc<str>> = {
            let lanes = lock(&self.0);
            let slots = lanes.get(lane).into_iter().flatten();
            let waiting = slots.filter(|(_, slot)| matches!(slot, Slot::Waiting(_)));
            waiting.map(|(dedupe, _)| Arc::clone(dedupe)).collect()
        };
        for dedupe in waiting {
            self.release_one(lane, &dedupe, reason);
        }
    }

    /// Whether the caller of a write left, so that the write is to be withdrawn.
    pub(super) fn is_left(&self, lane: &Lane, dedupe: &str) -> bool {
        let lanes = lock(&self.0);
        let slot = lanes.get(lane).and_then(|lane| lane.get(dedupe));
        matches!(slot, Some(Slot::Left(_)))
    }

    /// Forgets a write whose caller left: it is withdrawn, and its key is free.
    pub(super) fn forget_left(&self, lane: &Lane, dedupe: &str) {
        let slot = {
            let mut lanes = lock(&self.0);
            let Some(slots) = lanes.get_mut(lane) else {
                return;
            };
            let slot = match slots.get(dedupe) {
                Some(Slot::Left(_)) => slots.remove(dedupe),
                Some(Slot::Waiting(_)) | None => None,
            };
            if slots.is_empty() {
                lanes.remove(lane);
            }
            slot
        };
        // A flight that ends looks at other callers: not under the lock.
        drop(slot);
    }
}

fn take(
    lanes: &mut HashMap<Lane, HashMap<Arc<str>, Slot>>,
    lane: &Lane,
    dedupe: &str,
) -> Option<oneshot::Sender<TurnNews>> {
    let slots = lanes.get_mut(lane)?;
    if !matches!(slots.get(dedupe), Some(Slot::Waiting(_))) {
        return None;
    }
    let slot = slots.remove(dedupe);
    if slots.is_empty() {
        lanes.remove(lane);
    }
    match slot {
        Some(Slot::Waiting(waiter)) => Some(waiter.news),
        Some(Slot::Left(_)) | None => None,
    }
}

/// A caller that waits for the turn of its stored write. Dropped, the write is withdrawn: it was
/// never sent.
#[derive(Debug)]
pub(super) struct ParkedCall {
    pub(super) shared: Arc<Shared>,
    pub(super) name: Name,
    pub(super) id: MessageId,
    pub(super) news: oneshot::Receiver<TurnNews>,
    /// Absent once it is over.
    pub(super) flight: Option<Flight>,
}

/// How the wait of a caller ended.
#[derive(Debug)]
pub(super) enum Waited {
    /// It sends its write.
    Sends {
        receipt: Receipt,
        turn: Option<TurnGuard>,
        flight: Flight,
    },
    /// Its write stays queued.
    Queued(Reason),
}

impl ParkedCall {
    /// Waits for its turn until `until`; gives itself back where that was too short.
    pub(super) async fn turn(mut self, until: Now) -> Result<Waited, Self> {
        let until = self.shared.clock.instant(until);
        match tokio::time::timeout_at(until, &mut self.news).await {
            Ok(news) => Ok(self.told(news.ok())),
            Err(_) => Err(self),
        }
    }

    fn told(mut self, news: Option<TurnNews>) -> Waited {
        match (news, self.flight.take()) {
            (Some(TurnNews::Granted(grant)), Some(flight)) => {
                let (receipt, turn) = grant.accept();
                Waited::Sends {
                    receipt,
                    turn,
                    flight,
                }
            }
            (Some(TurnNews::Queued(reason)), _) => Waited::Queued(reason),
            // The gateway goes down: the next one delivers what is stored.
            (Some(TurnNews::Granted(_)) | None, _) => Waited::Queued(Reason::Away),
        }
    }

    /// Waits no more, and leaves its write queued, unless it was told something already.
    pub(super) fn stay(mut self, reason: Reason) -> Waited {
        match self.shared.parked.unpark(&self.name) {
            true => {
                self.flight = None;
                Waited::Queued(reason)
            }
            false => {
                let news = self.news.try_recv().ok();
                self.told(news)
            }
        }
    }

    /// Takes its write back, unless it was told something already.
    pub(super) async fn withdraw(mut self) -> Option<Waited> {
        let flight = self.flight.take()?;
        match self.shared.parked.leave(&self.name, flight) {
            Ok(()) => {
                remove_left(&self.shared, &self.name, self.id).await;
                None
            }
            Err(flight) => {
                self.flight = Some(flight);
                let news = self.news.try_recv().ok();
                Some(self.told(news))
            }
        }
    }
}

impl Drop for ParkedCall {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else {
            return;
        };
        // What is stored stays when the gateway goes down.
        if self.shared.is_closing() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let (name, id) = (self.name.clone(), self.id);
        match self.shared.parked.leave(&self.name, flight) {
            Ok(()) => self.shared.tasks.spawn("outbox.withdraw", async move {
                remove_left(&shared, &name, id).await;
            }),
            // It was told and did not hear: its grant withdraws the write, or nobody knows that it
            // is queued. Its key is free after that.
            Err(flight) => {
                let news = self.news.try_recv().ok();
                self.shared.tasks.spawn("outbox.withdraw", async move {
                    let _flight = flight;
                    let at = shared.at();
                    let _gone = match news {
                        Some(TurnNews::Granted(grant)) => {
                            let (receipt, _turn) = grant.accept();
                            shared.journal.withdraw(receipt, at).await
                        }
                        Some(TurnNews::Queued(_)) | None => shared.journal.remove(id, at).await,
                    };
                });
            }
        }
    }
}

/// Removes a write whose caller left. Where the drain has the message, the drain withdraws it.
async fn remove_left(shared: &Arc<Shared>, name: &Name, id: MessageId) {
    match shared.journal.remove(id, shared.at()).await {
        Ok(()) | Err(JournalError::Unknown) => shared.parked.forget_left(&name.0, &name.1),
        Err(JournalError::Lapsed) => {}
        Err(error) => {
            tracing::warn!(id = id.0, %error, "a write was not taken back");
            shared.parked.forget_left(&name.0, &name.1);
        }
    }
    shared.wake_lane(name.0.as_str());
}
