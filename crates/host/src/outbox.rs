//! Writes that outlive an outage: stored before they are sent, delivered in order, never lost.
//!
//! A call of a tool without `queue` passes at the price of one look at its route, and may overtake
//! writes that wait: only what is queued is kept in order.

mod answer;
mod drain;
mod flights;
mod handle;
mod index;
mod intent;
mod key;
mod letter;
mod record;
mod tell;

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::call::{Call, Reply, Route, Subject};
use bowline_core::error::CallError;
use bowline_core::lane::{Board, Queueing};
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_journal::{
    At, Draft, Journal, JournalError, Known, Lane, MessageId, Published, Receipt,
};
use bowline_link::ASKED_MAX;
use tokio::sync::{Notify, oneshot, watch};

use self::answer::{Queued, queued, recorded, unrecorded};
use self::flights::{Flight, Flights};
use self::index::Index;
use self::key::Keyed;
use self::record::{Head, Record};
use self::tell::Notes;
use crate::audience::Hall;
use crate::audit::Audit;
use crate::callpath::CallPath;
use crate::events::Events;
use crate::memory::Memory;
use crate::ports::Clock;
use crate::supervisor::Surroundings;
use crate::tasks::Tasks;

pub use self::answer::URI;
pub use self::handle::{LETTERS_MAX, OutboxError, OutboxHandle};
pub(crate) use self::intent::Intent;
pub(crate) use self::key::{argument_at, given_key};
pub use self::letter::{LaneLetters, Letter, LetterState, ServerLetters};

/// How the names of our lanes begin.
pub(crate) const LANES: &str = "outbox/";

/// A write that its caller waits for is held for so much longer than it may take, with the time
/// in which a person is asked, so that nobody else sends it in the meantime. A hold that nobody
/// ended, because that could not be written down, ends by itself then.
const HOLD_MARGIN: Duration = Duration::from_secs(60);

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
            board: Mutex::default(),
            poke: Notify::new(),
            flights: Flights::default(),
            notes: Mutex::default(),
            index: Index::default(),
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

    async fn store(
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
        let session = call.caller.as_ref().map(|caller| caller.session());
        let published = publish(shared, draft, Arc::clone(&route.server)).await;
        let told = |id, position| Queued {
            id,
            position,
            head: &record.head,
        };
        match published.map_err(|error| journal_error(route, error))? {
            Published::Stored {
                id,
                held: Some(receipt),
                position,
            } => Ok(Entered::Live(Some(Box::new(Intent::new(
                Arc::clone(shared),
                (receipt, id, position),
                (lane, record),
                call,
                flight,
            ))))),
            Published::Stored { id, position, .. } => {
                shared.is_queued(id, session, &record.head);
                Ok(Entered::Answered {
                    reply: queued(&told(id, position), &call.id),
                    key: keyed.key,
                })
            }
            Published::Known(known) => shared.known(known, &record.head, call),
        }
        .inspect(|_| shared.poke.notify_one())
    }
}

impl Shared {
    fn at(&self) -> At {
        At {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
        }
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
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
                queued(&told, &call.id)
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

/// Stores a draft, all the way: where its caller leaves in the meantime, it is taken back.
async fn publish(
    shared: &Arc<Shared>,
    mut draft: Draft,
    server: Arc<str>,
) -> Result<Published, JournalError> {
    let (told, heard) = oneshot::channel();
    let task = Arc::clone(shared);
    shared.tasks.spawn("outbox.store", async move {
        let lane = draft.lane.clone();
        // Where others wait, or are just being delivered, it waits behind them.
        if is_taken(&task, &lane).await {
            draft.hold = None;
        }
        let published = task.journal.publish(draft, task.at()).await;
        let stored = match &published {
            Ok(Published::Stored { id, held, .. }) => Some((*id, *held)),
            Ok(Published::Known(_)) | Err(_) => None,
        };
        if let Some((_, None)) = stored {
            let now = task.clock.now();
            lock(&task.board).note(&lane.as_str().into(), &server, now);
        }
        let unheard = told.send(published).is_err();
        if let Some((id, held)) = stored.filter(|_| unheard) {
            take_back(&task, id, held).await;
        }
        task.poke.notify_one();
    });
    // The task tells whatever happens, unless it was ended with the program.
    heard.await.unwrap_or(Err(JournalError::Closed))
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

/// Forgets a write whose caller left before it was told that it is stored.
async fn take_back(shared: &Shared, id: MessageId, held: Option<Receipt>) {
    let at = shared.at();
    let gone = match held {
        Some(receipt) => shared.journal.withdraw(receipt, at).await,
        None => shared.journal.remove(id, at).await,
    };
    if let Err(error) = gone {
        tracing::warn!(id = id.0, %error, "a write was not taken back");
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
