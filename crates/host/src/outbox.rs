//! The outbox: writes are stored before sending, delivered in order, and survive an outage.
//!
//! A call of a tool without `queue` only costs a check of its route, and may overtake queued
//! writes: only queued tools keep their order.

mod deliver;
mod delivered_index;
mod drain;
mod enqueue;
mod idempotency_key;
mod key_lock;
mod lane_worker;
mod notify;
mod outbox_handle;
mod parked_calls;
mod queue_view;
mod queued_reply;
mod stored_call;
mod write_record;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::call::{CallReply, CallRequest, Route};
use bowline_core::error::CallError;
use bowline_core::lane::{DRAINS_MAX, LaneScheduler};
use bowline_core::retry::JitterSource;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::{Duplicate, Journal, JournalError, LaneName, LeaseReceipt, Timestamps};
use bowline_runtime::{Clock, Lifecycle, Shutdown, TaskTracker, Work};
use tokio::sync::Semaphore;

use self::delivered_index::DeliveredIndex;
use self::drain::OutboxDrain;
use self::key_lock::{KeyGuard, KeyLocks, WriteName};
use self::notify::WriteNotes;
use self::parked_calls::{LaneSignal, ParkedCalls};
use self::queue_view::lane_parties;
use self::queued_reply::{
    QueueReason, QueuedWrite, queued_reply, recorded_reply, unrecorded_reply,
};
use self::write_record::WriteHead;
use crate::audit::AuditSink;
use crate::callpath::CallPath;
use crate::events::EventBus;
use crate::notification_fanout::NotificationFanout;
use crate::session_state::SessionState;
use crate::spec::ServerSpec;
use crate::supervisor::{Dial, SupervisorDeps};

pub(crate) use self::idempotency_key::{argument_at, given_key};
pub use self::outbox_handle::{OutboxError, OutboxHandle, QUEUED_CALLS_MAX};
pub use self::queue_view::OutboxLaneView;
pub use self::queued_reply::OUTBOX_URI_PREFIX;
pub(crate) use self::stored_call::StoredCall;
pub use bowline_api::outbox::{QueuedCallState, QueuedCallView, ServerQueueView};

/// Prefix of lane names.
pub(crate) const LANE_PREFIX: &str = "outbox/";

/// Permits for ordered leases: one for each draining lane.
const ORDER_PERMITS: usize = DRAINS_MAX;

/// Maximum wait for the end of the drain.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// The lanes of this gateway.
#[derive(Debug)]
pub(crate) struct Outbox {
    shared: Arc<OutboxShared>,
    /// Dropped with the host; its activity is the drain.
    lifecycle: Lifecycle,
}

/// State shared by calls, the drain and operators.
#[derive(Debug)]
pub(crate) struct OutboxShared {
    journal: Arc<dyn Journal>,
    audit: Arc<dyn AuditSink>,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    events: EventBus,
    fanout: Arc<NotificationFanout>,
    sessions: Arc<SessionState>,
    dial: Arc<dyn Dial>,
    /// Schedules the lanes with pending writes.
    scheduler: Work<LaneScheduler>,
    /// Locks the idempotency keys of writes in progress.
    key_locks: KeyLocks,
    /// In-memory notes about queued writes.
    notes: Mutex<WriteNotes>,
    /// Index of delivered writes.
    delivered: DeliveredIndex,
    /// Callers parked until the turn of their writes.
    parked: ParkedCalls,
    /// Wakes the lane workers.
    signals: Mutex<HashMap<Arc<str>, Arc<LaneSignal>>>,
    /// A permit for each worker leasing the next messages in order; picking messages from the
    /// middle takes all permits.
    order_permits: Semaphore,
    shutdown: Shutdown,
}

/// Result of admitting a call.
#[derive(Debug)]
pub(crate) enum OutboxAdmission {
    /// Send now; a stored call must be settled with the outcome.
    Send(Option<Box<StoredCall>>),
    /// Queued behind other writes, or already known.
    Replied {
        /// The response for the caller.
        reply: CallReply,
        /// The idempotency key.
        key: Arc<str>,
    },
}

impl Outbox {
    pub(crate) fn new(
        journal: Arc<dyn Journal>,
        audit: &Arc<dyn AuditSink>,
        deps: &SupervisorDeps,
        fanout: &Arc<NotificationFanout>,
    ) -> Self {
        let lifecycle = Lifecycle::default();
        let shared = OutboxShared {
            journal,
            audit: Arc::clone(audit),
            clock: Arc::clone(&deps.clock),
            tasks: deps.tasks.clone(),
            events: deps.events.clone(),
            fanout: Arc::clone(fanout),
            sessions: Arc::clone(&deps.sessions),
            dial: Arc::clone(&deps.dial),
            scheduler: Work::new(LaneScheduler::new(JitterSource::from_owner(LANE_PREFIX))),
            key_locks: KeyLocks::default(),
            notes: Mutex::default(),
            delivered: DeliveredIndex::default(),
            parked: ParkedCalls::default(),
            signals: Mutex::default(),
            order_permits: Semaphore::new(ORDER_PERMITS),
            shutdown: lifecycle.shutdown().clone(),
        };
        Self {
            shared: Arc::new(shared),
            lifecycle,
        }
    }

    /// Starts delivering pending writes through `path`.
    pub(crate) fn start(&self, path: Weak<CallPath>) {
        let drain = OutboxDrain {
            shared: Arc::clone(&self.shared),
            path,
            events: self.shared.events.subscribe(),
        };
        self.shared.tasks.start(drain, self.lifecycle.shutdown());
    }

    /// Stops delivering and waits, at most [`CLOSE_WAIT`], for deliveries in flight. Undelivered
    /// writes stay queued.
    pub(crate) async fn close(&self) {
        let closed = self.lifecycle.close_and_wait();
        if tokio::time::timeout(CLOSE_WAIT, closed).await.is_err() {
            tracing::warn!("outbox drain did not end in time");
        }
    }

    /// Fails if a stored write is known to be undeliverable now.
    pub(crate) fn check_reachable(
        &self,
        route: &Route,
        spec: &ServerSpec,
    ) -> Result<(), CallError> {
        self.check_connection_path(spec)?;
        match route.is_unlisted() {
            true => Err(to_unreachable_error(
                spec,
                "it has not listed its tools yet",
            )),
            false => Ok(()),
        }
    }

    /// Fails if the connection path to a server is known to be down.
    pub(crate) fn check_connection_path(&self, spec: &ServerSpec) -> Result<(), CallError> {
        match self.shared.dial.is_unreachable(spec) {
            true => Err(to_unreachable_error(spec, "its executor is not connected")),
            false => Ok(()),
        }
    }

    pub(crate) const fn shared(&self) -> &Arc<OutboxShared> {
        &self.shared
    }
}

impl OutboxShared {
    fn timestamps(&self) -> Timestamps {
        Timestamps {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
        }
    }

    /// Releases a message; it keeps its position and is due at once.
    async fn release_message(&self, receipt: LeaseReceipt) -> Result<(), JournalError> {
        self.journal
            .nak(receipt, Duration::ZERO, self.timestamps())
            .await
    }

    /// Releases a message of a lane that may have no worker, and has the lane drained. The lane is
    /// marked after the release: a worker that still finds the message leased forgets the lane.
    async fn requeue_message(
        &self,
        lane: &LaneName,
        receipt: LeaseReceipt,
    ) -> Result<(), JournalError> {
        let released = self.release_message(receipt).await;
        let (lane, now) = (Arc::from(lane.as_str()), self.clock.now());
        let server = lane_parties(&lane).1.into();
        lock(&self.scheduler).mark_pending(&lane, &server, now);
        self.wake_lane(&lane);
        self.scheduler.wake();
        released
    }

    fn is_closing(&self) -> bool {
        self.shutdown.is_closing()
    }

    fn open_lane(&self, lane: &Arc<str>) -> Arc<LaneSignal> {
        let signal = Arc::new(LaneSignal::default());
        lock(&self.signals).insert(Arc::clone(lane), Arc::clone(&signal));
        signal
    }

    fn close_lane(&self, lane: &str) {
        lock(&self.signals).remove(lane);
    }

    /// Wakes the worker of a lane, if any.
    fn wake_lane(&self, lane: &str) {
        let signal = lock(&self.signals).get(lane).cloned();
        if let Some(signal) = signal {
            signal.wake();
        }
    }

    /// Waits for the lock of an idempotency key.
    async fn lock_key(
        self: &Arc<Self>,
        lane: &LaneName,
        dedupe: &Arc<str>,
        route: &Route,
        deadline: MonotonicTime,
    ) -> Result<KeyGuard, CallError> {
        let name = WriteName {
            lane: lane.clone(),
            dedupe: Arc::clone(dedupe),
        };
        let until = self.clock.instant(deadline);
        let acquired = tokio::time::timeout_at(until, KeyLocks::acquire(self, name)).await;
        acquired.map_err(|_| CallError::ServerBusy {
            server: Arc::clone(&route.server),
            limit: 1,
        })
    }

    /// Returns the response for an already known write.
    fn to_known_reply(
        &self,
        duplicate: Duplicate,
        head: &WriteHead,
        call: &CallRequest,
    ) -> Result<OutboxAdmission, CallError> {
        let reply = match duplicate {
            Duplicate::Queued { id, position, .. } => {
                let queued_write = QueuedWrite { id, position, head };
                let reason = match lock(&self.scheduler).is_server_up(&head.server) {
                    true => QueueReason::Behind,
                    false => QueueReason::Unreachable,
                };
                queued_reply(&queued_write, reason, &call.message.id)
            }
            Duplicate::Completed(done) => match &done.result {
                Some(result) => recorded_reply(result, &call.message.id),
                None => unrecorded_reply(done.id, head, &call.message.id),
            },
            Duplicate::DeadLetter(id) => {
                return Err(CallError::NotStored {
                    server: Arc::clone(&head.server),
                    tool: Arc::clone(&head.tool),
                    reason: queued_reply::dead_reason(id).into(),
                });
            }
        };
        let key = Arc::clone(&head.key);
        Ok(OutboxAdmission::Replied { reply, key })
    }
}

fn to_unreachable_error(spec: &ServerSpec, reason: &str) -> CallError {
    CallError::SendFailed {
        server: Arc::clone(&spec.name),
        reason: reason.into(),
    }
}

fn to_not_stored_error(route: &Route, reason: String) -> CallError {
    CallError::NotStored {
        server: Arc::clone(&route.server),
        tool: Arc::clone(&route.name),
        reason: reason.into(),
    }
}

fn to_call_error(route: &Route, error: JournalError) -> CallError {
    match error {
        JournalError::Conflict => CallError::KeyConflict {
            server: Arc::clone(&route.server),
            tool: Arc::clone(&route.name),
        },
        JournalError::LaneFull { limit } => CallError::OutboxFull {
            server: Arc::clone(&route.server),
            limit,
        },
        error => to_not_stored_error(route, error.to_string()),
    }
}
