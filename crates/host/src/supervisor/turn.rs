//! The places of calls at one server, and the queue of those who wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_core::error::CallError;
use bowline_core::time::Now;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

use super::Shared;
use crate::spec::ServerSpec;

/// The places of one server. First come, first served.
#[derive(Debug)]
pub(super) struct Turns {
    places: Semaphore,
    calls_max: usize,
    queue_max: usize,
    /// How many wait; at most `queue_max`.
    waiting: AtomicUsize,
}

/// One call's place at its server; dropped, it goes to who waits longest.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    _place: SemaphorePermit<'a>,
}

impl Turns {
    pub(super) fn new(spec: &ServerSpec) -> Self {
        let calls_max = spec.calls_max.min(Semaphore::MAX_PERMITS);
        Self {
            places: Semaphore::new(calls_max),
            calls_max,
            queue_max: spec.queue_max,
            waiting: AtomicUsize::new(0),
        }
    }

    pub(super) fn taken(&self) -> usize {
        self.calls_max
            .saturating_sub(self.places.available_permits())
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// One who waits; counted until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(waiting: &'a AtomicUsize, queue_max: usize) -> Option<Self> {
        let one_more = |count: usize| (count < queue_max).then_some(count + 1);
        waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()
            .map(|_| Self(waiting))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl super::Supervisor {
    /// Takes a place that is free. Nobody is overtaken: while somebody waits, none is.
    pub(crate) fn free_turn(&self) -> Option<Turn<'_>> {
        let place = self.shared.turns.places.try_acquire().ok()?;
        Some(Turn { _place: place })
    }

    /// Takes a place, or waits in line for one until `deadline`; a full line refuses at once.
    ///
    /// A call whose time ends in line says nothing of the server's health: those that hold the
    /// places will tell.
    pub(crate) async fn turn(&self, deadline: Now) -> Result<Turn<'_>, CallError> {
        if let Some(turn) = self.free_turn() {
            return Ok(turn);
        }
        let Shared {
            spec, clock, turns, ..
        } = self.shared.as_ref();
        let (server, limit) = (Arc::clone(&spec.name), turns.calls_max);
        let Some(_waiting) = Waiting::among(&turns.waiting, turns.queue_max) else {
            return Err(CallError::ServerBusy { server, limit });
        };
        let since = clock.now();
        match timeout_at(clock.instant(deadline), turns.places.acquire()).await {
            Ok(Ok(place)) => Ok(Turn { _place: place }),
            // The places are never closed.
            Ok(Err(_)) => Err(CallError::ShuttingDown),
            Err(_) => Err(CallError::QueuedTooLong {
                server,
                limit,
                waited_ms: clock.now().millis_since(since),
            }),
        }
    }

    /// Returns how many calls have a place, be it while the server starts.
    #[must_use]
    pub fn turns_taken(&self) -> usize {
        self.shared.turns.taken()
    }

    /// Returns how many calls wait for a place.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.turns.waiting()
    }
}
