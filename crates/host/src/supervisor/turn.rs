//! The places of calls at one server, and the queue of those who wait for one.

use std::sync::{Arc, Mutex};

use bowline_core::call::{Principal, Role};
use bowline_core::error::CallError;
use bowline_core::fair_queue::{FairQueue, QueueLimits};
use bowline_core::shares::Reserve;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::Shared;
use crate::spec::ServerSpec;

/// What a call in the queue is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// It has a place.
    Place,
    /// Its place in the queue went to a principal that had less in it.
    Displaced,
}

/// The places of one server, shared fairly by the principals that call it.
#[derive(Debug)]
pub(super) struct Turns {
    calls_max: usize,
    queue: Mutex<FairQueue<oneshot::Sender<Told>>>,
}

/// One call's place at its server; dropped, it goes to whose turn it is.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    principal: Arc<str>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.turns.queue);
        if let Some(next) = queue.release(&self.principal) {
            // Under the lock: a call that waits no longer finds its word there, or is in the
            // queue still. One that is being dropped gives the place on.
            let _ = next.send(Told::Place);
        }
    }
}

impl Turns {
    pub(super) fn new(spec: &ServerSpec) -> Self {
        let limits = QueueLimits {
            places: spec.calls_max,
            queue: spec.queue_max,
        };
        Self {
            calls_max: spec.calls_max,
            queue: Mutex::new(FairQueue::new(limits)),
        }
    }

    pub(super) fn taken(&self) -> usize {
        lock(&self.queue).running()
    }

    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).waiting()
    }

    /// Puts a call into the queue, if there is room.
    fn wait(&self, principal: &Principal) -> Option<Waiting<'_>> {
        let (told, word) = oneshot::channel();
        let queued = lock(&self.queue)
            .wait(&principal.name, reserve(principal), told)
            .ok()?;
        if let Some(displaced) = queued.displaced {
            // One that is gone needs no word.
            let _ = displaced.send(Told::Displaced);
        }
        Some(Waiting {
            turns: self,
            principal: Arc::clone(&principal.name),
            ticket: queued.ticket,
            word: Some(word),
        })
    }
}

/// One call in the queue; dropped, it leaves the queue, or gives on the place that it got.
struct Waiting<'a> {
    turns: &'a Turns,
    principal: Arc<str>,
    ticket: u64,
    /// Absent once it was heard.
    word: Option<oneshot::Receiver<Told>>,
}

impl<'a> Waiting<'a> {
    /// Waits for a place; nothing where the call was displaced.
    async fn place(mut self) -> Option<Turn<'a>> {
        let told = match self.word.as_mut() {
            Some(word) => word.await,
            None => return None,
        };
        self.word = None;
        matches!(told, Ok(Told::Place)).then(|| self.turn())
    }

    fn turn(&self) -> Turn<'a> {
        Turn {
            turns: self.turns,
            principal: Arc::clone(&self.principal),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(mut word) = self.word.take() else {
            return;
        };
        if lock(&self.turns.queue).leave(&self.principal, self.ticket) {
            return;
        }
        if word.try_recv() == Ok(Told::Place) {
            drop(self.turn());
        }
    }
}

/// The owner may take the last places.
const fn reserve(principal: &Principal) -> Reserve {
    match principal.role {
        Role::Owner => Reserve::Open,
        Role::OwnersAgent | Role::AnonymousLocal | Role::Named(_) | Role::None => Reserve::Closed,
    }
}

impl super::Supervisor {
    /// Takes a place that is free for this principal. No call of its own is overtaken.
    pub(crate) fn free_turn(&self, principal: &Principal) -> Option<Turn<'_>> {
        let turns = &self.shared.turns;
        let taken = lock(&turns.queue).take(&principal.name, reserve(principal));
        taken.then(|| Turn {
            turns,
            principal: Arc::clone(&principal.name),
        })
    }

    /// Takes a place, or waits in line for one until `deadline`; a line that is full of calls of
    /// this principal, or of as many principals as there is room for, refuses at once.
    ///
    /// A call whose time ends in line says nothing of the server's health: those that hold the
    /// places will tell.
    pub(crate) async fn turn(
        &self,
        principal: &Principal,
        deadline: Now,
    ) -> Result<Turn<'_>, CallError> {
        if let Some(turn) = self.free_turn(principal) {
            return Ok(turn);
        }
        let Shared {
            spec, clock, turns, ..
        } = self.shared.as_ref();
        let (server, limit) = (Arc::clone(&spec.name), turns.calls_max);
        let Some(waiting) = turns.wait(principal) else {
            return Err(CallError::ServerBusy { server, limit });
        };
        let since = clock.now();
        match timeout_at(clock.instant(deadline), waiting.place()).await {
            Ok(Some(turn)) => Ok(turn),
            Ok(None) => Err(CallError::ServerBusy { server, limit }),
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
