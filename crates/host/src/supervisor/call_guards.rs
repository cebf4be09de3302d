//! What a call holds at its server while in flight: a breaker permit, a permit of the queue, and
//! its place in the statistics. Dropping a guard undoes or records it, even if the caller leaves.

use std::sync::{Arc, Mutex};

use bowline_core::breaker::{Breaker, BreakerAdmission, CircuitState, HealthSignal};
use bowline_core::call::{BodyKind, CallReply, Principal, Role};
use bowline_core::error::CallError;
use bowline_core::fair_queue::{FairQueue, QueueLimits};
use bowline_core::load::{CallCompletion, CallOutcome, LoadTotals, LoadView};
use bowline_core::shares::OwnerReserve;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::ClockReading;
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tracing::Span;

use super::{Supervisor, SupervisorShared};
use crate::callpath::to_health;
use crate::events::EventKind;
use crate::spec::ServerSpec;

/// A call in progress; dropped without an outcome, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct CallStatsGuard<'a> {
    server: &'a Supervisor,
    started: ClockReading,
    /// The breaker permit, once admitted.
    permit: Option<BreakerPermit>,
    /// The tracing span of this call.
    span: Span,
    retried: bool,
    ended: bool,
}

impl CallStatsGuard<'_> {
    /// Holds the breaker permit until the call ends.
    pub(crate) fn set_permit(&mut self, ticket: BreakerPermit) {
        self.permit = Some(ticket);
    }

    /// Records the generation of the link in use.
    pub(crate) fn record_generation(&self, generation: u64) {
        self.span.record("generation", generation);
    }

    /// Records a retry on another link.
    pub(crate) fn record_retry(&mut self, generation: u64) {
        self.retried = true;
        self.record_generation(generation);
    }

    /// Counts the finished call, and reports to the breaker.
    pub(crate) fn finish<T>(
        mut self,
        outcome: &Result<(CallReply, T), CallError>,
        now: ClockReading,
    ) {
        let error = outcome.as_ref().err();
        if let Some(ticket) = self.permit.take() {
            let health = error.map_or(HealthSignal::Healthy, to_health);
            ticket.report_at(health, now.now());
        }
        self.record_outcome(to_outcome(outcome), now);
        if let Some(error) = error {
            self.server.record_error(error);
        }
    }

    fn record_outcome(&mut self, outcome: CallOutcome, now: ClockReading) {
        self.ended = true;
        self.span.record("outcome", outcome.as_str());
        let end = CallCompletion {
            outcome,
            duration_us: now.micros_since(self.started),
            is_retried: self.retried,
        };
        lock(&self.server.shared.load).record_call(end, now.now());
    }
}

impl Drop for CallStatsGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.record_outcome(CallOutcome::Cancelled, self.server.shared.clock.reading());
        }
    }
}

fn to_outcome<T>(outcome: &Result<(CallReply, T), CallError>) -> CallOutcome {
    match outcome {
        Ok((reply, _)) => match reply.response.body {
            BodyKind::Result => CallOutcome::Succeeded,
            BodyKind::Error => CallOutcome::RpcError,
        },
        Err(CallError::ServerBusy { .. } | CallError::QueuedTooLong { .. }) => CallOutcome::Shed,
        Err(CallError::Cancelled { .. } | CallError::SessionEnded { .. }) => CallOutcome::Cancelled,
        Err(error) => CallOutcome::Failed(error.failure_class()),
    }
}

impl Supervisor {
    /// Starts counting a call.
    pub(crate) fn start_stats(&self, started: ClockReading, span: Span) -> CallStatsGuard<'_> {
        CallStatsGuard {
            server: self,
            started,
            permit: None,
            span,
            retried: false,
            ended: false,
        }
    }

    /// Returns the recent load.
    #[must_use]
    pub fn load(&self) -> LoadView {
        let now = self.shared.clock.now();
        lock(&self.shared.load).recent_view(now)
    }

    /// Returns the number of calls answered with a result.
    pub(crate) fn answered_calls(&self) -> u64 {
        self.shared
            .read_totals(|totals| totals.outcome_count(CallOutcome::Succeeded))
    }

    /// Returns the totals since the start of the gateway.
    #[must_use]
    pub fn totals(&self) -> LoadTotals {
        self.shared.read_totals(LoadTotals::clone)
    }
}

/// Proof of admission by the breaker; reports the outcome of the call.
#[derive(Debug)]
pub struct BreakerPermit {
    shared: Arc<SupervisorShared>,
    /// `None` once reported.
    admission: Option<BreakerAdmission>,
}

impl BreakerPermit {
    pub(super) fn acquire(shared: &Arc<SupervisorShared>) -> Result<Self, CallError> {
        let now = shared.clock.now();
        let admitted = shared.with_breaker(now, |breaker| breaker.admit_call(now));
        let pass = admitted.map_err(|cooldown| CallError::CircuitOpen {
            server: Arc::clone(&shared.spec.name),
            cooldown,
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            admission: Some(pass),
        })
    }

    /// Reports the outcome of the call.
    pub fn report(self, health: HealthSignal) {
        let now = self.shared.clock.now();
        self.report_at(health, now);
    }

    /// Reports the outcome at a known time.
    pub(crate) fn report_at(mut self, health: HealthSignal, now: MonotonicTime) {
        self.record(health, now);
    }

    fn record(&mut self, health: HealthSignal, now: MonotonicTime) {
        if let Some(pass) = self.admission.take() {
            self.shared
                .with_breaker(now, |breaker| breaker.record_outcome(pass, health, now));
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.admission.is_some() {
            self.record(HealthSignal::Unknown, self.shared.clock.now());
        }
    }
}

impl SupervisorShared {
    /// Runs `act` on the breaker and emits an event if the circuit changed. Emitted under the lock,
    /// so that events keep their order.
    pub(super) fn with_breaker<T>(
        &self,
        now: MonotonicTime,
        act: impl FnOnce(&mut Breaker) -> T,
    ) -> T {
        let mut breaker = lock(&self.breaker);
        let done = act(&mut breaker);
        if let Some(circuit) = breaker.take_transition(now) {
            if circuit == CircuitState::Open {
                self.breaker.wake();
            }
            let circuit = circuit.as_str();
            tracing::info!(server = %self.spec.name, circuit, "breaker changed state");
            self.events.publish(EventKind::Circuit {
                server: Arc::clone(&self.spec.name),
                circuit: circuit.into(),
            });
        }
        done
    }
}

/// Signal to a queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueSignal {
    /// A permit is granted.
    Granted,
    /// Displaced from the queue by a principal with fewer queued calls.
    Displaced,
}

/// The call permits of a server, shared fairly by its principals.
#[derive(Debug)]
pub(super) struct ServerQueue {
    calls_max: usize,
    queue: Mutex<FairQueue<oneshot::Sender<QueueSignal>>>,
}

/// Permission for a call in flight; released to the next queued call on drop.
#[derive(Debug)]
pub(crate) struct QueuePermit<'a> {
    queue: &'a ServerQueue,
    principal: Arc<str>,
}

impl Drop for QueuePermit<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue.queue);
        if let Some(next) = queue.release_permit(&self.principal) {
            // Under the lock: a waiter that gives up finds either the signal or its queue entry. A
            // waiter being dropped passes the permit on.
            let _ = next.send(QueueSignal::Granted);
        }
    }
}

impl ServerQueue {
    pub(super) fn new(spec: &ServerSpec) -> Self {
        let limits = QueueLimits {
            running_max: spec.calls_max,
            waiting_max: spec.queue_max,
        };
        Self {
            calls_max: spec.calls_max,
            queue: Mutex::new(FairQueue::new(limits)),
        }
    }

    pub(super) fn permits_in_use(&self) -> usize {
        lock(&self.queue).running_count()
    }

    pub(super) fn queued_calls(&self) -> usize {
        lock(&self.queue).waiting_count()
    }

    /// Enqueues a call, if there is room.
    fn enqueue(&self, principal: &Principal) -> Option<QueueWaiter<'_>> {
        let (sender, receiver) = oneshot::channel();
        let queued = lock(&self.queue)
            .enqueue(&principal.name, queue_reserve(principal), sender)
            .ok()?;
        if let Some(displaced) = queued.displaced {
            // A dropped waiter needs no signal.
            let _ = displaced.send(QueueSignal::Displaced);
        }
        Some(QueueWaiter {
            queue: self,
            principal: Arc::clone(&principal.name),
            ticket: queued.ticket,
            signal: Some(receiver),
        })
    }
}

/// A queued call; dropping it leaves the queue, or passes a granted permit on.
struct QueueWaiter<'a> {
    queue: &'a ServerQueue,
    principal: Arc<str>,
    ticket: u64,
    /// `None` once received.
    signal: Option<oneshot::Receiver<QueueSignal>>,
}

impl<'a> QueueWaiter<'a> {
    /// Waits for a permit; `None` if displaced.
    async fn wait_permit(mut self) -> Option<QueuePermit<'a>> {
        let signal = match self.signal.as_mut() {
            Some(receiver) => receiver.await,
            None => return None,
        };
        self.signal = None;
        matches!(signal, Ok(QueueSignal::Granted)).then(|| self.permit())
    }

    fn permit(&self) -> QueuePermit<'a> {
        QueuePermit {
            queue: self.queue,
            principal: Arc::clone(&self.principal),
        }
    }
}

impl Drop for QueueWaiter<'_> {
    fn drop(&mut self) {
        let Some(mut word) = self.signal.take() else {
            return;
        };
        if lock(&self.queue.queue).cancel_queued(&self.principal, self.ticket) {
            return;
        }
        if word.try_recv() == Ok(QueueSignal::Granted) {
            drop(self.permit());
        }
    }
}

/// Returns the reserve of a principal: the owner may take the last permits.
const fn queue_reserve(principal: &Principal) -> OwnerReserve {
    match principal.role {
        Role::Owner => OwnerReserve::Open,
        Role::OwnersAgent | Role::AnonymousLocal | Role::Named(_) | Role::None => {
            OwnerReserve::Closed
        }
    }
}

impl Supervisor {
    /// Acquires a free permit without overtaking queued calls of this principal.
    pub(crate) fn try_acquire(&self, principal: &Principal) -> Option<QueuePermit<'_>> {
        let server_queue = &self.shared.queue;
        let acquired =
            lock(&server_queue.queue).try_acquire(&principal.name, queue_reserve(principal));
        acquired.then(|| QueuePermit {
            queue: server_queue,
            principal: Arc::clone(&principal.name),
        })
    }

    /// Acquires a permit, waiting in the queue until `deadline`. A queue full of this principal's
    /// calls, or of the maximum number of principals, refuses at once.
    ///
    /// A timeout in the queue says nothing about the server's health: the calls in flight will.
    pub(crate) async fn acquire(
        &self,
        principal: &Principal,
        deadline: MonotonicTime,
    ) -> Result<QueuePermit<'_>, CallError> {
        if let Some(permit) = self.try_acquire(principal) {
            return Ok(permit);
        }
        let SupervisorShared {
            spec,
            clock,
            queue: turns,
            ..
        } = self.shared.as_ref();
        let (server, limit) = (Arc::clone(&spec.name), turns.calls_max);
        let Some(waiting) = turns.enqueue(principal) else {
            return Err(CallError::ServerBusy { server, limit });
        };
        let since = clock.now();
        match timeout_at(clock.instant(deadline), waiting.wait_permit()).await {
            Ok(Some(permit)) => Ok(permit),
            Ok(None) => Err(CallError::ServerBusy { server, limit }),
            Err(_) => Err(CallError::QueuedTooLong {
                server,
                limit,
                waited_ms: clock.now().millis_since(since),
            }),
        }
    }

    /// Returns the number of permits in use, also during a start.
    #[must_use]
    pub fn permits_in_use(&self) -> usize {
        self.shared.queue.permits_in_use()
    }

    /// Returns the number of queued calls.
    #[must_use]
    pub fn queued_calls(&self) -> usize {
        self.shared.queue.queued_calls()
    }
}
