//! Writes that outlive an outage: stored before they are sent, delivered in order, never lost.
//!
//! A call of a tool without `queue` passes at the price of one look at its route, and may overtake
//! writes that wait: only what is queued is kept in order.

mod answer;
mod deliver;
mod drain;
mod flights;
mod handle;
mod index;
mod intent;
mod key;
mod letter;
mod parked;
mod record;
mod store;
mod tell;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::call::{Call, Reply, Route, Subject};
use bowline_core::error::CallError;
use bowline_core::lane::{Board, DRAINS_MAX};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{At, Journal, JournalError, Known, Lane, Receipt};
use tokio::sync::{Notify, Semaphore, watch};

use self::answer::{Queued, Reason, queued, recorded, unrecorded};
use self::flights::{Flight, Flights};
use self::index::Index;
use self::parked::{LaneSignal, ParkedCalls};
use self::record::Head;
use self::tell::Notes;
use crate::audience::Hall;
use crate::audit::Audit;
use crate::callpath::CallPath;
use crate::events::Events;
use crate::memory::Memory;
use crate::ports::Clock;
use crate::spec::ServerSpec;
use crate::supervisor::{Dial, Surroundings};
use crate::tasks::Tasks;

pub use self::answer::URI;
pub use self::handle::{LETTERS_MAX, OutboxError, OutboxHandle};
pub(crate) use self::intent::Intent;
pub(crate) use self::key::{argument_at, given_key};
pub use self::letter::{LaneLetters, Letter, LetterState, ServerLetters};

/// How the names of our lanes begin.
pub(crate) const LANES: &str = "outbox/";

/// Permits of those who depend on the order of lanes: one for each lane that drains.
const ORDER_PERMITS: usize = DRAINS_MAX;

/// How long the end of the drain is waited for.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// The lanes of this gateway.
#[derive(Debug)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    /// Set once, when the host goes down; dropped with the host.
    closing: watch::Sender<bool>,
    /// Whether the drain has ended.
    ended: watch::Receiver<bool>,
    end: Mutex<Option<watch::Sender<bool>>>,
}

/// What calls, the drain and those who look share.
#[derive(Debug)]
pub(crate) struct Shared {
    journal: Arc<dyn Journal>,
    audit: Arc<dyn Audit>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    events: Events,
    hall: Arc<Hall>,
    memory: Arc<Memory>,
    dial: Arc<dyn Dial>,
    /// The lanes in which something waits.
    board: Mutex<Board>,
    /// Wakes the drain.
    poke: Notify,
    /// Writes that callers wait for, by their keys.
    flights: Flights,
    /// What is known of queued writes while this process lives.
    notes: Mutex<Notes>,
    /// Where delivered ones are to be found.
    index: Index,
    /// Callers that wait for the turn of their writes.
    parked: ParkedCalls,
    /// Wakes the drains of lanes.
    signals: Mutex<HashMap<Arc<str>, Arc<LaneSignal>>>,
    /// One permit for each drain that leases the next messages of a lane in order; picking messages
    /// out of the middle takes all.
    order: Semaphore,
    closing: watch::Receiver<bool>,
}

/// What came of writing a call down.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is sent now; what becomes of it is to be told to the intent, where there is one.
    Live(Option<Box<Intent>>),
    /// It waits behind others, or is known already.
    Answered {
        /// What its caller is told.
        reply: Reply,
        /// Its idempotency key.
        key: Arc<str>,
    },
}

impl Outbox {
    pub(crate) fn new(
        journal: Arc<dyn Journal>,
        audit: &Arc<dyn Audit>,
        around: &Surroundings,
        hall: &Arc<Hall>,
    ) -> Self {
        let (closing, seen) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let shared = Shared {
            journal,
            audit: Arc::clone(audit),
            clock: Arc::clone(&around.clock),
            tasks: around.tasks.clone(),
            events: around.events.clone(),
            hall: Arc::clone(hall),
            memory: Arc::clone(&around.memory),
            dial: Arc::clone(&around.dial),
            board: Mutex::default(),
            poke: Notify::new(),
            flights: Flights::default(),
            notes: Mutex::default(),
            index: Index::default(),
            parked: ParkedCalls::default(),
            signals: Mutex::default(),
            order: Semaphore::new(ORDER_PERMITS),
            closing: seen,
        };
        Self {
            shared: Arc::new(shared),
            closing,
            ended,
            end: Mutex::new(Some(end)),
        }
    }

    /// Starts to deliver what waits, over `path`.
    pub(crate) fn start(&self, path: Weak<CallPath>) {
        let Some(end) = lock(&self.end).take() else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let watch = shared.events.watch();
        let drain = drain::run(Arc::clone(&shared), path, watch, end);
        shared.tasks.spawn("outbox", drain);
    }

    /// Delivers nothing more and waits, but not long, for what is under way. Whatever was not
    /// delivered stays queued.
    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        let mut ended = self.ended.clone();
        let ended = ended.wait_for(|ended| *ended);
        if tokio::time::timeout(CLOSE_WAIT, ended).await.is_err() {
            tracing::warn!("the drain of queued writes did not end in time");
        }
    }

    /// Says why a stored write cannot be sent now, where that is known beforehand.
    pub(crate) fn check_reachable(
        &self,
        route: &Route,
        spec: &ServerSpec,
    ) -> Result<(), CallError> {
        self.check_way(spec)?;
        match route.is_unlisted() {
            true => Err(unreachable(spec, "it has not listed its tools yet")),
            false => Ok(()),
        }
    }

    /// Says that the way to a server is away, where that is known.
    pub(crate) fn check_way(&self, spec: &ServerSpec) -> Result<(), CallError> {
        match self.shared.dial.is_away(spec) {
            true => Err(unreachable(spec, "its executor is not connected")),
            false => Ok(()),
        }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Writes a call down that must not be lost; all others pass at no cost.
    pub(crate) async fn enter(
        &self,
        call: &Call,
        route: &Arc<Route>,
        deadline: Now,
    ) -> Result<Entered, CallError> {
        match &route.queue {
            None => Ok(Entered::Live(None)),
            // The answer to who asks for a task is the task.
            Some(_) if call.makes_task || !matches!(call.subject, Subject::Tool(_)) => {
                Ok(Entered::Live(None))
            }
            // What is rare is boxed, so that a call carries no room for it.
            Some(queue) => Box::pin(self.store(call, (route, queue), deadline)).await,
        }
    }
}

impl Shared {
    fn at(&self) -> At {
        At {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
        }
    }

    /// Gives a message back; it keeps its place, and is due at once.
    async fn give_back(&self, receipt: Receipt) -> Result<(), JournalError> {
        self.journal.nak(receipt, Duration::ZERO, self.at()).await
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    fn open_lane(&self, lane: &Arc<str>) -> Arc<LaneSignal> {
        let signal = Arc::new(LaneSignal::default());
        lock(&self.signals).insert(Arc::clone(lane), Arc::clone(&signal));
        signal
    }

    fn close_lane(&self, lane: &str) {
        lock(&self.signals).remove(lane);
    }

    /// Has the drain of a lane look again, where there is one.
    fn wake_lane(&self, lane: &str) {
        let signal = lock(&self.signals).get(lane).cloned();
        if let Some(signal) = signal {
            signal.changed.notify_one();
        }
    }

    /// Waits for whoever carries a write of the same key.
    async fn flight(
        self: &Arc<Self>,
        lane: &Lane,
        dedupe: &Arc<str>,
        route: &Route,
        deadline: Now,
    ) -> Result<Flight, CallError> {
        let name = (lane.clone(), Arc::clone(dedupe));
        let until = self.clock.instant(deadline);
        let taken = tokio::time::timeout_at(until, Flights::take(self, name)).await;
        taken.map_err(|_| CallError::ServerBusy {
            server: Arc::clone(&route.server),
            limit: 1,
        })
    }

    /// Says how a write stands that was stored before.
    fn known(&self, known: Known, head: &Head, call: &Call) -> Result<Entered, CallError> {
        let reply = match known {
            Known::Waiting { id, position, .. } => {
                let told = Queued { id, position, head };
                let reason = match lock(&self.board).is_up(&head.server) {
                    true => Reason::Behind,
                    false => Reason::Away,
                };
                queued(&told, reason, &call.id)
            }
            Known::Done(done) => match &done.result {
                Some(result) => recorded(result, &call.id),
                None => unrecorded(done.id, head, &call.id),
            },
            Known::Dead(id) => {
                return Err(CallError::NotStored {
                    server: Arc::clone(&head.server),
                    tool: Arc::clone(&head.tool),
                    reason: answer::dead_reason(id).into(),
                });
            }
        };
        let key = Arc::clone(&head.key);
        Ok(Entered::Answered { reply, key })
    }
}

fn unreachable(spec: &ServerSpec, reason: &str) -> CallError {
    CallError::SendFailed {
        server: Arc::clone(&spec.name),
        reason: reason.into(),
    }
}

fn not_stored(route: &Route, reason: String) -> CallError {
    CallError::NotStored {
        server: Arc::clone(&route.server),
        tool: Arc::clone(&route.name),
        reason: reason.into(),
    }
}

fn journal_error(route: &Route, error: JournalError) -> CallError {
    match error {
        JournalError::Conflict => CallError::KeyConflict {
            server: Arc::clone(&route.server),
            tool: Arc::clone(&route.name),
        },
        JournalError::LaneFull { limit } => CallError::OutboxFull {
            server: Arc::clone(&route.server),
            limit,
        },
        error => not_stored(route, error.to_string()),
    }
}
