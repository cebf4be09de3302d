//! Stores a call before sending: it is sent at once, parked, or queued.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, CallSubject, Route};
use bowline_core::error::CallError;
use bowline_core::lane::{LaneAdmission, QueuePolicy, TURN_WAIT_MAX};
use bowline_core::sync::lock;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_journal::{
    Duplicate, JournalError, LaneName, LeaseReceipt, MessageDraft, PublishOutcome,
};
use bowline_link::CLIENT_WAIT_MAX;
use tokio::sync::oneshot;

use super::idempotency_key::KeyedWrite;
use super::key_lock::{KeyGuard, WriteName};
use super::parked_calls::{ParkOutcome, ParkedCall};
use super::queued_reply::{QueueReason, QueuedWrite, queued_reply};
use super::stored_call::StoredWrite;
use super::write_record::{WriteHead, WriteRecord};
use super::{
    LANE_PREFIX, Outbox, OutboxAdmission, OutboxShared, StoredCall, to_call_error,
    to_not_stored_error,
};

/// Extra lease time of a write held by its caller, on top of the call timeout and the time for
/// elicitation, so that no worker sends it meanwhile. A lease whose end could not be recorded
/// expires then.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

/// Result of storing a write.
#[derive(Debug)]
enum StoreOutcome {
    /// The caller holds the lease.
    Leased {
        receipt: LeaseReceipt,
        position: u64,
        flight: KeyGuard,
    },
    /// Parked behind earlier writes.
    Parked { call: ParkedCall, position: u64 },
    /// Stored before.
    Known(Duplicate),
}

impl Outbox {
    /// Stores a call of a queued tool; requests besides tool calls pass.
    pub(crate) async fn admit_call(
        &self,
        call: &CallRequest,
        route: &Arc<Route>,
        queue: &QueuePolicy,
        deadline: MonotonicTime,
    ) -> Result<OutboxAdmission, CallError> {
        // A call that creates a task is answered by the task.
        if call.wants_task || !matches!(call.subject, CallSubject::Tool(_)) {
            return Ok(OutboxAdmission::Send(None));
        }
        let shared = &self.shared;
        let keyed = KeyedWrite::new(call, route, &queue.key_channel)
            .map_err(|error| to_not_stored_error(route, error.to_string()))?;
        let name = format!("{LANE_PREFIX}{}/{}", call.principal.name, route.server);
        let lane = LaneName::new(&name).map_err(|error| to_call_error(route, error))?;
        let keep_ms = to_millis(queue.max_age);
        let record = WriteRecord {
            head: WriteHead::new(call, &route.server, &route.name, &keyed.key, keep_ms),
            params: keyed.params.clone(),
        };
        // Of two callers with the same key, the second gets the outcome of the first.
        let flight = shared
            .lock_key(&lane, &keyed.dedupe, route, deadline)
            .await?;
        let draft = MessageDraft {
            lane: lane.clone(),
            dedupe: Arc::clone(&keyed.dedupe),
            digest: keyed.digest,
            body: record.to_bytes(),
            ttl: Some(queue.max_age),
            lease: Some(
                shared.clock.now().duration_until(deadline) + CLIENT_WAIT_MAX + LEASE_MARGIN,
            ),
        };
        let stored = publish_draft(shared, draft, Arc::clone(&route.server), flight).await;
        match stored.map_err(|error| to_call_error(route, error))? {
            StoreOutcome::Leased {
                receipt,
                position,
                flight,
            } => {
                let write = StoredWrite {
                    id: receipt.id,
                    position,
                    lane,
                    record,
                };
                let shared = Arc::clone(shared);
                let stored = StoredCall::new(shared, receipt, write, call, flight, None);
                Ok(OutboxAdmission::Send(Some(Box::new(stored))))
            }
            StoreOutcome::Parked {
                call: parked,
                position,
            } => {
                let write = StoredWrite {
                    id: parked.id,
                    position,
                    lane,
                    record,
                };
                let until = deadline.min(shared.clock.now().plus(queue.max_age / 2));
                let waited = shared
                    .wait_parked(parked, position, queue.max_age, until)
                    .await;
                let waited = waited.ok_or_else(|| CallError::OutboxFull {
                    server: Arc::clone(&route.server),
                    limit: position.saturating_sub(1),
                })?;
                Ok(shared.to_admission(waited, write, call))
            }
            StoreOutcome::Known(known) => shared.to_known_reply(known, &record.head, call),
        }
    }
}

impl OutboxShared {
    /// Parks a caller until `until` at most; `None` if its write was withdrawn because earlier
    /// writes would take too long.
    async fn wait_parked(
        self: &Arc<Self>,
        parked: ParkedCall,
        position: u64,
        keep: Duration,
        until: MonotonicTime,
    ) -> Option<ParkOutcome> {
        let lane = parked.name.lane.clone();
        let (admission, time) = {
            let board = lock(&self.scheduler);
            let time = board.delivery_time(lane.as_str(), position);
            (board.lane_admission(lane.as_str()), time)
        };
        if time.is_some_and(|time| time > keep) {
            return parked.withdraw_write().await;
        }
        if admission == LaneAdmission::Queue {
            return Some(parked.stay_queued(QueueReason::Unreachable));
        }
        let until = until.min(self.clock.now().plus(TURN_WAIT_MAX));
        match parked.wait_turn(until).await {
            Ok(waited) => Some(waited),
            Err(parked) => {
                let stays =
                    lock(&self.scheduler).try_append(lane.as_str(), position, TURN_WAIT_MAX);
                match stays {
                    true => Some(parked.stay_queued(QueueReason::Behind)),
                    false => parked.withdraw_write().await,
                }
            }
        }
    }

    /// Turns the result of parking into an admission.
    fn to_admission(
        self: &Arc<Self>,
        waited: ParkOutcome,
        write: StoredWrite,
        call: &CallRequest,
    ) -> OutboxAdmission {
        let reason = match waited {
            ParkOutcome::Send {
                receipt,
                turn,
                flight,
            } => {
                let shared = Arc::clone(self);
                let stored = StoredCall::new(shared, receipt, write, call, flight, turn);
                return OutboxAdmission::Send(Some(Box::new(stored)));
            }
            ParkOutcome::Queued(reason) => reason,
        };
        let session = call.message.client.as_ref().map(|caller| caller.session());
        let head = &write.record.head;
        self.on_queued(write.id, session, head);
        let queued_write = QueuedWrite {
            id: write.id,
            position: write.position,
            head,
        };
        OutboxAdmission::Replied {
            reply: queued_reply(&queued_write, reason, &call.message.id),
            key: Arc::clone(&head.key),
        }
    }
}

/// Stores a draft to completion: if the caller leaves meanwhile, the write is withdrawn before its
/// key is unlocked.
async fn publish_draft(
    shared: &Arc<OutboxShared>,
    draft: MessageDraft,
    server: Arc<str>,
    flight: KeyGuard,
) -> Result<StoreOutcome, JournalError> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(shared);
    shared.tasks.spawn("outbox.store", async move {
        let stored = park_and_publish(&task, draft, &server, flight).await;
        // A parked caller withdraws its write on drop.
        if let Err(Ok(StoreOutcome::Leased {
            receipt, flight, ..
        })) = sender.send(stored)
        {
            let discarded = task
                .journal
                .discard_leased(receipt, task.timestamps())
                .await;
            if let Err(error) = discarded {
                tracing::warn!(id = receipt.id.0, %error, "write could not be withdrawn");
            }
            drop(flight);
        }
        task.scheduler.wake();
    });
    // The task always responds, unless aborted with the program.
    receiver.await.unwrap_or(Err(JournalError::Closed))
}

async fn park_and_publish(
    shared: &Arc<OutboxShared>,
    mut draft: MessageDraft,
    server: &Arc<str>,
    flight: KeyGuard,
) -> Result<StoreOutcome, JournalError> {
    let name = WriteName {
        lane: draft.lane.clone(),
        dedupe: Arc::clone(&draft.dedupe),
    };
    let lane: Arc<str> = name.lane.as_str().into();
    let receiver = shared
        .parked
        .park_caller(&name, draft.lease.unwrap_or_default());
    // Queue behind pending or just delivered writes.
    if has_pending_writes(shared, &name.lane).await {
        draft.lease = None;
    }
    let published = match shared.journal.publish(draft, shared.timestamps()).await {
        Ok(PublishOutcome::Stored {
            id,
            position,
            receipt: None,
        }) => {
            let now = shared.clock.now();
            lock(&shared.scheduler).mark_pending(&lane, server, now);
            shared.wake_lane(&lane);
            shared.scheduler.wake();
            let call = ParkedCall {
                shared: Arc::clone(shared),
                name,
                id,
                decision: receiver,
                key_guard: Some(flight),
            };
            return Ok(StoreOutcome::Parked { call, position });
        }
        Ok(PublishOutcome::Stored {
            receipt: Some(receipt),
            position,
            ..
        }) => Ok(StoreOutcome::Leased {
            receipt,
            position,
            flight,
        }),
        Ok(PublishOutcome::Duplicate(duplicate)) => Ok(StoreOutcome::Known(duplicate)),
        Err(error) => Err(error),
    };
    shared.parked.leave_turn(&name, receiver).await;
    published
}

/// True if a lane has writes pending or in delivery. The scheduler keeps a lane until found empty;
/// the journal knows at once, so that a caller after the last delivery is served live.
async fn has_pending_writes(shared: &OutboxShared, lane: &LaneName) -> bool {
    if !lock(&shared.scheduler).has_pending(lane.as_str()) {
        return false;
    }
    match shared
        .journal
        .lane_stats(lane.as_str(), shared.timestamps())
        .await
    {
        Ok(lanes) => lanes.iter().any(|one| one.lane == *lane && one.queued > 0),
        // Unknown whether earlier writes exist.
        Err(_) => true,
    }
}
