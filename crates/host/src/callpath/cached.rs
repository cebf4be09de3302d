//! Answers that stay good for a while, because their server says so: looked for before a call
//! goes to its server, and kept when it comes back.

mod flight;
mod result;
mod stale;
mod wanted;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::cache::{self, Cache, CacheLimits, CacheView, FlightId, Lead};
use bowline_core::call::{Call, CallDeadline, Reply, Route};
use bowline_core::error::CallError;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use memchr::memmem::Finder;
use tokio::sync::watch;

use self::flight::{Keeping, Phase};
use self::wanted::Wanted;
use crate::ports::Clock;
use crate::supervisor::Supervisor;

pub(crate) use self::flight::Flight;

/// The answers that are kept.
pub struct Answers {
    kept: Mutex<Kept>,
    clock: Arc<dyn Clock>,
    /// A copy of the cache's own, read at the start of every call.
    era: AtomicU64,
    /// Likewise, how many things are known whose answers can be kept: while there is none, a
    /// call pays nothing more.
    known: AtomicUsize,
    /// Finds the hint in a result.
    hints: Finder<'static>,
}

#[derive(Debug)]
struct Kept {
    cache: Cache,
    /// Those who wait for a flight, where anybody does.
    waiting: HashMap<FlightId, watch::Sender<Phase>>,
}

/// When a call began: by the clock, and among the purges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) at: Now,
    pub(crate) era: u64,
}

/// One call that may have an answer already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) call: &'a Call,
    pub(crate) route: &'a Route,
    pub(crate) server: &'a Supervisor,
    pub(crate) begun: Begun,
}

/// What came of looking for an answer.
#[derive(Debug)]
pub(crate) enum Entered<'a> {
    /// There is one.
    Hit(Reply),
    /// The server must be asked.
    Live(Flight<'a>),
}

/// The same, before anybody waited.
enum Look {
    Hit(Reply),
    /// The server must be asked; others may wait for the answer of one who leads.
    Ask(Option<Lead>),
    Follow(watch::Receiver<Phase>),
}

impl Answers {
    pub(crate) fn new(limits: CacheLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            kept: Mutex::new(Kept {
                cache: Cache::new(limits),
                waiting: HashMap::new(),
            }),
            clock,
            era: AtomicU64::new(0),
            known: AtomicUsize::new(0),
            hints: Finder::new(result::TTL),
        }
    }

    /// Notes when a call begins.
    pub(crate) fn begin(&self, at: Now) -> Begun {
        Begun {
            at,
            era: self.era.load(Ordering::Acquire),
        }
    }

    /// Looks for an answer, and waits until `deadline` where the same call is under way already.
    ///
    /// Nothing is hashed for a thing that never said that its answers can be kept.
    pub(crate) async fn enter<'a>(
        &'a self,
        ask: Ask<'a>,
        deadline: CallDeadline,
    ) -> Result<Entered<'a>, CallError> {
        let live = |keeping| Ok(Entered::Live(Flight::new(self, ask, keeping)));
        if !ask.may_be_kept() {
            return live(Keeping::Never);
        }
        if self.known.load(Ordering::Relaxed) == 0 {
            return live(Keeping::Perhaps);
        }
        let known = lock(&self.kept).cache.knows(ask.about());
        let Some(known) = known else {
            return live(Keeping::Perhaps);
        };
        let Some(wanted) = Wanted::read(ask, known) else {
            return live(Keeping::Never);
        };
        match self.look(ask, &wanted, ask.begun.at) {
            Look::Hit(reply) => Ok(Entered::Hit(reply)),
            Look::Ask(lead) => live(wanted.looked_for(lead)),
            // What is rare is boxed, so that a call carries no room for it.
            Look::Follow(phase) => Box::pin(self.follow(ask, wanted, phase, deadline)).await,
        }
    }

    /// Looks once.
    fn look(&self, ask: Ask<'_>, wanted: &Wanted, now: Now) -> Look {
        let mut kept = lock(&self.kept);
        let about = ask.about();
        match kept.cache.enter(about, wanted.keys, ask.begun.era, now) {
            cache::Entered::Hit(hit) => {
                drop(kept);
                Look::Hit(result::reply(&hit, &ask.call.id))
            }
            cache::Entered::Lead(lead) => Look::Ask(Some(lead)),
            cache::Entered::Alone => Look::Ask(None),
            cache::Entered::Follow(id) => {
                let flying = || watch::Sender::new(Phase::Flying);
                let sender = kept.waiting.entry(id).or_insert_with(flying);
                Look::Follow(sender.subscribe())
            }
        }
    }

    /// Waits for the call that asks already. Where that is dropped, whoever looks first asks in
    /// its place; where it came to nothing that can be kept, all go themselves.
    async fn follow<'a>(
        &'a self,
        ask: Ask<'a>,
        mut wanted: Wanted,
        mut phase: watch::Receiver<Phase>,
        deadline: CallDeadline,
    ) -> Result<Entered<'a>, CallError> {
        let live = |keeping| Ok(Entered::Live(Flight::new(self, ask, keeping)));
        let until = self.clock.instant(deadline.at);
        loop {
            let over = phase.wait_for(|phase| *phase != Phase::Flying);
            let over = match tokio::time::timeout_at(until, over).await {
                Ok(Ok(over)) => *over,
                // Whoever held it told nobody how it ended.
                Ok(Err(_)) => Phase::Again,
                Err(_) => return Err(ask.too_late(deadline)),
            };
            if over == Phase::Alone {
                lock(&self.kept).cache.count_miss(&ask.route.server);
                return live(wanted.looked_for(None));
            }
            // It may have turned out whose answers of this thing are.
            let known = lock(&self.kept).cache.knows(ask.about());
            wanted.refresh(ask, known);
            match self.look(ask, &wanted, self.clock.now()) {
                Look::Hit(reply) => return Ok(Entered::Hit(reply)),
                Look::Ask(lead) => return live(wanted.looked_for(lead)),
                Look::Follow(next) => phase = next,
            }
        }
    }

    /// Tells those who wait for a flight that it is over.
    fn over(&self, lead: Lead, phase: Phase) {
        let waiting = self.change(|kept| {
            kept.cache.end(lead);
            kept.waiting.remove(&lead.id)
        });
        if let Some(waiting) = waiting {
            waiting.send_replace(phase);
        }
    }

    /// Returns what people can see of all servers together.
    pub(crate) fn view(&self) -> CacheView {
        lock(&self.kept).cache.view(self.clock.now())
    }

    /// Returns what people can see of one server.
    pub(crate) fn view_of(&self, server: &str) -> CacheView {
        lock(&self.kept).cache.view_of(server, self.clock.now())
    }

    /// Puts other limits into force.
    pub(crate) fn relimit(&self, limits: CacheLimits) {
        self.change(|kept| kept.cache.relimit(limits, self.clock.now()));
    }

    /// Changes what is kept, and what is known of it without a lock.
    fn change<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        let mut kept = lock(&self.kept);
        let changed = change(&mut kept);
        self.era.store(kept.cache.era(), Ordering::Release);
        self.known.store(kept.cache.known(), Ordering::Relaxed);
        changed
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers")
            .field("era", &self.era)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}
