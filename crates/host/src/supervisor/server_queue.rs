//! Fair queue for calls to a server: limits calls in flight, shared fairly by principals.

use std::sync::{Arc, Mutex};

use bowline_core::call::{Principal, Role};
use bowline_core::error::CallError;
use bowline_core::fair_queue::{FairQueue, QueueLimits};
use bowline_core::shares::OwnerReserve;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::SupervisorShared;
use crate::spec::ServerSpec;

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

impl super::Supervisor {
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
