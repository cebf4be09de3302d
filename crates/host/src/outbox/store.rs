//! Writes a call down before it is sent: it is sent at once, waits for its turn, or is queued.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Route};
use bowline_core::error::CallError;
use bowline_core::lane::{Admission, Queueing, TURN_WAIT_MAX};
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_journal::{Draft, JournalError, Known, Lane, MessageId, Published, Receipt};
use bowline_link::ASKED_MAX;
use tokio::sync::oneshot;

use super::answer::{Queued, Reason, queued};
use super::flights::Flight;
use super::key::Keyed;
use super::parked::{ParkedCall, Waited};
use super::record::{Head, Record};
use super::{Entered, Intent, LANES, Outbox, Shared, journal_error, not_stored};

/// A write that its caller waits for is held for so much longer than it may take, with the time
/// in which a person is asked, so that nobody else sends it in the meantime. A hold that nobody
/// ended, because that could not be written down, ends by itself then.
const HOLD_MARGIN: Duration = Duration::from_secs(60);

/// What came of storing a write.
#[derive(Debug)]
enum Stored {
    /// Its caller holds it.
    Held {
        receipt: Receipt,
        position: u64,
        flight: Flight,
    },
    /// Others are before it.
    Parked { call: ParkedCall, position: u64 },
    /// It was stored before.
    Known(Known),
}

impl Outbox {
    pub(super) async fn store(
        &self,
        call: &Call,
        (route, queue): (&Arc<Route>, &Queueing),
        deadline: Now,
    ) -> Result<Entered, CallError> {
        let shared = &self.shared;
        let keyed = Keyed::new(call, route, &queue.channel)
            .map_err(|error| not_stored(route, error.to_string()))?;
        let name = format!("{LANES}{}/{}", call.principal.name, route.server);
        let lane = Lane::new(&name).map_err(|error| journal_error(route, error))?;
        let (tool, keep_ms) = ((&route.server, &route.name), millis(queue.keep));
        let record = Record {
            head: Head::new(call, tool, &keyed.key, keep_ms),
            params: keyed.params.clone(),
        };
        // Of two callers with one key, the second learns what became of the first.
        let flight = shared.flight(&lane, &keyed.dedupe, route, deadline).await?;
        let draft = Draft {
            lane: lane.clone(),
            dedupe: Arc::clone(&keyed.dedupe),
            digest: keyed.digest,
            body: record.write(),
            ttl: Some(queue.keep),
            hold: Some(shared.clock.now().until(deadline) + ASKED_MAX + HOLD_MARGIN),
        };
        let stored = publish(shared, draft, Arc::clone(&route.server), flight).await;
        match stored.map_err(|error| journal_error(route, error))? {
            Stored::Held {
                receipt,
                position,
                flight,
            } => Ok(Entered::Live(Some(Box::new(Intent::new(
                Arc::clone(shared),
                (receipt, receipt.id, position),
                (lane, record),
                call,
                (flight, None),
            ))))),
            Stored::Parked {
                call: parked,
                position,
            } => {
                let id = parked.id;
                let until = deadline.min(shared.clock.now().plus(queue.keep / 2));
                let waited = shared.wait(parked, position, (queue.keep, until)).await;
                let waited = waited.ok_or_else(|| CallError::OutboxFull {
                    server: Arc::clone(&route.server),
                    limit: position.saturating_sub(1),
                })?;
                Ok(shared.waited(waited, (id, position), (lane, record), call))
            }
            Stored::Known(known) => shared.known(known, &record.head, call),
        }
    }
}

impl Shared {
    /// Has a caller wait for its turn, until `until` at most; nothing where its write was taken
    /// back, since those before it would take too long.
    async fn wait(
        self: &Arc<Self>,
        parked: ParkedCall,
        position: u64,
        (keep, until): (Duration, Now),
    ) -> Option<Waited> {
        let lane = parked.name.0.clone();
        let (admission, time) = {
            let board = lock(&self.board);
            let time = board.delivery_time(lane.as_str(), position);
            (board.admission(lane.as_str()), time)
        };
        if time.is_some_and(|time| time > keep) {
            return parked.withdraw().await;
        }
        if admission == Admission::Queue {
            return Some(parked.stay(Reason::Away));
        }
        let until = until.min(self.clock.now().plus(TURN_WAIT_MAX));
        match parked.turn(until).await {
            Ok(waited) => Some(waited),
            Err(parked) => {
                let stays = lock(&self.board).may_add(lane.as_str(), position, TURN_WAIT_MAX);
                match stays {
                    true => Some(parked.stay(Reason::Behind)),
                    false => parked.withdraw().await,
                }
            }
        }
    }

    /// Says what becomes of a write whose caller waited for its turn.
    fn waited(
        self: &Arc<Self>,
        waited: Waited,
        (id, position): (MessageId, u64),
        (lane, record): (Lane, Record),
        call: &Call,
    ) -> Entered {
        let reason = match waited {
            Waited::Sends {
                receipt,
                turn,
                flight,
            } => {
                return Entered::Live(Some(Box::new(Intent::new(
                    Arc::clone(self),
                    (receipt, id, position),
                    (lane, record),
                    call,
                    (flight, turn),
                ))));
            }
            Waited::Queued(reason) => reason,
        };
        let session = call.caller.as_ref().map(|caller| caller.session());
        self.is_queued(id, session, &record.head);
        let told = Queued {
            id,
            position,
            head: &record.head,
        };
        Entered::Answered {
            reply: queued(&told, reason, &call.id),
            key: Arc::clone(&record.head.key),
        }
    }
}

/// Stores a draft, all the way: where its caller leaves in the meantime, it is taken back, and its
/// key is free only then.
async fn publish(
    shared: &Arc<Shared>,
    draft: Draft,
    server: Arc<str>,
    flight: Flight,
) -> Result<Stored, JournalError> {
    let (told, heard) = oneshot::channel();
    let task = Arc::clone(shared);
    shared.tasks.spawn("outbox.store", async move {
        let stored = publish_whole(&task, draft, &server, flight).await;
        // A caller that waits for its turn takes its write back when it is dropped.
        if let Err(Ok(Stored::Held {
            receipt, flight, ..
        })) = told.send(stored)
        {
            let gone = task.journal.withdraw(receipt, task.at()).await;
            if let Err(error) = gone {
                tracing::warn!(id = receipt.id.0, %error, "a write was not taken back");
            }
            drop(flight);
        }
        task.poke.notify_one();
    });
    // The task tells whatever happens, unless it was ended with the program.
    heard.await.unwrap_or(Err(JournalError::Closed))
}

async fn publish_whole(
    shared: &Arc<Shared>,
    mut draft: Draft,
    server: &Arc<str>,
    flight: Flight,
) -> Result<Stored, JournalError> {
    let name = (draft.lane.clone(), Arc::clone(&draft.dedupe));
    let lane: Arc<str> = name.0.as_str().into();
    let news = shared.parked.park(&name, draft.hold.unwrap_or_default());
    // Where others wait, or are just being delivered, it waits behind them.
    if is_taken(shared, &name.0).await {
        draft.hold = None;
    }
    let published = shared.journal.publish(draft, shared.at()).await;
    let parked = |id| ParkedCall {
        shared: Arc::clone(shared),
        name: name.clone(),
        id,
        news,
        flight: None,
    };
    match published {
        Ok(Published::Stored {
            held: Some(receipt),
            position,
            ..
        }) => {
            drop(parked(receipt.id).stay(Reason::Behind));
            Ok(Stored::Held {
                receipt,
                position,
                flight,
            })
        }
        Ok(Published::Stored { id, position, .. }) => {
            let now = shared.clock.now();
            lock(&shared.board).note(&lane, server, now);
            shared.wake_lane(&lane);
            shared.poke.notify_one();
            let mut call = parked(id);
            call.flight = Some(flight);
            Ok(Stored::Parked { call, position })
        }
        Ok(Published::Known(known)) => {
            drop(parked(MessageId(0)).stay(Reason::Behind));
            Ok(Stored::Known(known))
        }
        Err(error) => {
            drop(parked(MessageId(0)).stay(Reason::Behind));
            Err(error)
        }
    }
}

/// Whether anything waits in a lane or is just being delivered. The board has a lane until it was
/// found empty; the journal knows at once, so that whoever saw the last one delivered is served
/// live.
async fn is_taken(shared: &Shared, lane: &Lane) -> bool {
    if !lock(&shared.board).is_busy(lane.as_str()) {
        return false;
    }
    match shared.journal.lanes(lane.as_str(), shared.at()).await {
        Ok(lanes) => lanes.iter().any(|one| one.lane == *lane && one.waiting > 0),
        // Nobody knows what is before it.
        Err(_) => true,
    }
}
