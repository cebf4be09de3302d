//! The owner of one server's link: starts it once for all callers, notices its end, starts it
//! again, and knows when to stop trying.

mod actor;
mod cause;
mod freshness;
pub(crate) mod list;
mod own;
mod refresh;
mod relist;
mod said;
mod starts;
mod state;
mod status;
mod surroundings;
mod tally;
mod ticket;
mod turn;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bowline_core::breaker::Breaker;
use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_core::error::{CallError, Class};
use bowline_core::load::{Load, Totals};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::stderr::StderrLog;
use bowline_link::stdio::ConnectError;
use bowline_link::{BoxFuture, Link, LinkEvent};
use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::beacon;
use crate::catalog::PerList;
use crate::events::Events;
use crate::manifest;
use crate::pins::Pins;
use crate::ports::Clock;
use crate::spec::{Reach, ServerSpec};

use self::cause::Cause;
use self::freshness::Freshness;
use self::list::LeftOut;
use self::own::OwnLinks;
use self::turn::Turns;

pub use cause::Blame;
pub use list::ListError;
pub use own::Passage;
pub use state::{Order, State};
pub use status::{CacheStatus, LastError, LeftOutStatus, Limits, ServerStatus};
pub use surroundings::Surroundings;
pub(crate) use tally::Tally;
pub use ticket::Ticket;

/// A caller waits for a restart that is due sooner than this, and is told of one that is not.
const BACKOFF_WAIT_MAX: Duration = Duration::from_secs(1);

/// Commands that may wait for one supervisor.
const COMMANDS_MAX: usize = 16;

/// A connection just made, and what the server says outside calls.
pub type Dialled = (Arc<dyn Link>, mpsc::Receiver<LinkEvent>);

/// Connects to a server. Dropping the future leaves nothing behind.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Starts the server of `spec` and shakes hands with it. A link with an owner belongs to that
    /// session alone.
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn CallerEnd>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>>;

    /// Hears which era the server of `spec` spoke in a former life of this program.
    fn recall_era(&self, spec: &ServerSpec, era: Era) {
        let _unused = (spec, era);
    }

    /// Waits until the way to a server is there again that was away; for ever where nothing tells.
    fn back<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        let _untold = spec;
        Box::pin(std::future::pending())
    }

    /// Whether the way to a server is known to be away, so that no call reaches it now.
    fn is_away(&self, spec: &ServerSpec) -> bool {
        let _untold = spec;
        false
    }
}

/// A link that serves, and which one of the server's links it is.
#[derive(Debug)]
pub struct Ready {
    /// Counts the starts of this server.
    pub generation: u64,
    /// The link itself.
    pub link: Arc<dyn Link>,
    /// When it became ready.
    pub since: Now,
}

impl Ready {
    /// Says which link ended, where it did: over some, a request can be lost while the link
    /// stands.
    pub(crate) fn ended(&self) -> Option<u64> {
        (!self.link.is_open()).then_some(self.generation)
    }
}

/// What the actor is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Order(Order),
    /// Other credentials count from now on: ask for the lists again, or try again.
    Relist,
    /// Let calls in flight end, and go for good.
    Retire,
}

#[derive(Debug)]
struct Command {
    wish: Wish,
    done: oneshot::Sender<()>,
}

/// What the supervisor, its actor and its tickets share.
#[derive(Debug)]
struct Shared {
    spec: Arc<ServerSpec>,
    clock: Arc<dyn Clock>,
    /// The link that serves, read on every call.
    ready: ArcSwapOption<Ready>,
    state: beacon::Sender<State>,
    breaker: Mutex<Breaker>,
    /// Rung when the breaker opens.
    opened: Notify,
    /// The places of calls.
    turns: Turns,
    /// How calls ended.
    load: Mutex<Load>,
    events: Events,
    pins: Arc<Pins>,
    /// How often the server forgot us while a link was up, in all its lives.
    renewals: watch::Sender<u64>,
    /// Rung by a caller who needs a lazy server.
    demand: Notify,
    /// What is left out of the lists.
    left_out: Mutex<PerList<LeftOut>>,
    /// How old the lists are, and which are to be asked for again.
    freshness: Freshness,
    log: Arc<StderrLog>,
    /// Links beside the shared one.
    own: Arc<OwnLinks>,
    /// Set once, when the server asked a client for something and nobody could say which.
    interactive: AtomicBool,
    /// Set once, when another takes its place or the server is gone from the configuration.
    retired: AtomicBool,
    /// Set with it where whatever has its name next is another server, and not its successor.
    forsaken: AtomicBool,
    counts: Counts,
    last_error: Mutex<Option<(Class, Arc<str>, Now)>>,
}

/// What is counted per server.
#[derive(Debug, Default)]
struct Counts {
    generation: AtomicU64,
    restarts: AtomicU64,
}

/// A cheap handle on one server.
#[derive(Clone, Debug)]
pub struct Supervisor {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

impl Supervisor {
    /// Takes a server into care; unless it is lazy, it is started in the background at once. What
    /// it offered when it was last seen is offered before it is up.
    #[must_use]
    pub fn start(spec: ServerSpec, log: Arc<StderrLog>, around: &Surroundings) -> Self {
        let first = if spec.lazy {
            State::Idle
        } else {
            State::Starting
        };
        let digest = manifest::digest(&spec.reach);
        let kept = match spec.reach.is_remembered() {
            true => around.manifests.load(&spec.name, &digest),
            false => None,
        };
        let shared = Arc::new(Shared {
            breaker: Mutex::new(actor::reachability::breaker(&spec)),
            opened: Notify::new(),
            turns: Turns::new(&spec),
            load: Mutex::new(Load::new(around.clock.now())),
            events: around.events.clone(),
            pins: Arc::clone(&around.pins),
            own: Arc::new(OwnLinks::new(around, &spec)),
            spec: Arc::new(spec),
            clock: Arc::clone(&around.clock),
            ready: ArcSwapOption::empty(),
            state: beacon::Sender::new(first),
            renewals: watch::Sender::new(0),
            demand: Notify::new(),
            left_out: Mutex::default(),
            freshness: Freshness::default(),
            log,
            interactive: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            forsaken: AtomicBool::new(false),
            counts: Counts::default(),
            last_error: Mutex::default(),
        });
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let actor = actor::Actor::new(Arc::clone(&shared), around, receiver, (digest, kept));
        actor.begin();
        around.tasks.spawn("supervisor", actor.run());
        Self { shared, commands }
    }

    /// Returns the spec it was started with.
    #[must_use]
    pub fn spec(&self) -> &ServerSpec {
        &self.shared.spec
    }

    /// Returns what the server's stderr said.
    #[must_use]
    pub fn log(&self) -> &Arc<StderrLog> {
        &self.shared.log
    }

    /// Returns a receiver that sees every change of state.
    #[must_use]
    pub fn state(&self) -> beacon::Receiver<State> {
        self.shared.state.subscribe()
    }

    /// Asks the breaker to let one call through.
    pub fn admit(&self) -> Result<Ticket, CallError> {
        Ticket::take(&self.shared)
    }

    /// Returns the link that serves, waiting for a start that is under way.
    ///
    /// Refuses at once where waiting would not help: stopped, ejected, or not to be tried again
    /// for a while.
    pub async fn link(&self, deadline: Now) -> Result<Arc<Ready>, CallError> {
        if let Some(ready) = self.open_link() {
            return Ok(ready);
        }
        let mut state = self.shared.state.subscribe();
        let until = self.shared.clock.instant(deadline);
        loop {
            let seen = state.borrow_and_update().clone();
            self.refusal(&seen).map_or(Ok(()), Err)?;
            match seen {
                State::Ready => {
                    if let Some(ready) = self.open_link() {
                        return Ok(ready);
                    }
                }
                State::Idle => self.shared.demand.notify_one(),
                State::Starting
                | State::Backoff { .. }
                | State::Stopped
                | State::Ejected { .. }
                | State::Draining => {}
            }
            match timeout_at(until, state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(CallError::ShuttingDown),
                Err(_) => {
                    return Err(CallError::StartTimeout {
                        server: Arc::clone(&self.shared.spec.name),
                    });
                }
            }
        }
    }

    /// Waits until the server has told its tools, or refuses as [`link`](Self::link) does.
    pub async fn listed(&self, deadline: Now) -> Result<(), CallError> {
        self.link(deadline).await.map(drop)
    }

    /// Returns what the server said of itself when it was started, while it serves.
    #[must_use]
    pub fn introduction(&self) -> Option<Bytes> {
        let ready = self.open_link()?;
        Some(ready.link.server().initialize.clone())
    }

    /// Whether it waits to be needed.
    pub(crate) fn is_idle(&self) -> bool {
        *self.shared.state.borrow() == State::Idle
    }

    /// Has a server that waits to be needed start.
    pub(crate) fn rouse(&self) {
        if self.is_idle() {
            self.shared.demand.notify_one();
        }
    }

    /// Gives an order and waits until it is taken; whatever it starts goes on by itself.
    pub async fn order(&self, order: Order) -> Result<(), CallError> {
        self.wish(Wish::Order(order)).await
    }

    /// Says that the server knows us by other credentials from now on: what it offers is asked for
    /// again, and where it failed it is tried again at once.
    pub(crate) async fn credentials_changed(&self) {
        let (done, _taken) = oneshot::channel();
        let wish = Wish::Relist;
        // An actor that is gone has nothing to do.
        let _gone = self.commands.send(Command { wish, done }).await;
    }

    /// Lets the server go for good, and waits until it is gone: calls in flight end, though not
    /// later than they may, and whoever waits for a link or comes later is refused as stopped.
    ///
    /// What it offers stays in the catalog: it may be its successor's by now.
    pub async fn retire(&self) {
        self.shared.retired.store(true, Ordering::Relaxed);
        // An actor that is gone already has nothing left to do.
        let _gone = self.wish(Wish::Retire).await;
    }

    /// Whether it was retired: who holds it should look for its successor.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.shared.is_retired()
    }

    /// Takes its name away: it offers nothing from here on, and none of its calls goes over to
    /// whatever has the name next. What is left of it goes with [`retire`](Self::retire).
    pub(crate) fn forsake(&self) {
        self.shared.forsaken.store(true, Ordering::Relaxed);
        self.shared.retired.store(true, Ordering::Relaxed);
    }

    /// Whether what it did not take is for the one that has its name now.
    pub(crate) fn has_successor(&self) -> bool {
        self.is_retired() && !self.shared.forsaken.load(Ordering::Relaxed)
    }

    /// Whether it serves, or is on its way to or from that.
    pub(crate) fn runs(&self) -> bool {
        let state = self.shared.state.borrow();
        matches!(*state, State::Ready | State::Starting | State::Draining)
    }

    /// Whether a peer brought it, and takes it away again.
    pub(crate) fn is_peers(&self) -> bool {
        matches!(self.shared.spec.reach, Reach::Peer(_))
    }

    /// Refuses a call that was meant for another server of this name.
    pub(crate) fn must_be(&self, only: Option<&Self>) -> Result<(), CallError> {
        match only {
            Some(only) if !only.is(self) => Err(CallError::Stopped {
                server: Arc::clone(&self.shared.spec.name),
            }),
            _ => Ok(()),
        }
    }

    /// Whether both are handles on the same server in care.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    async fn wish(&self, wish: Wish) -> Result<(), CallError> {
        let (done, taken) = oneshot::channel();
        self.commands
            .send(Command { wish, done })
            .await
            .map_err(|_| CallError::ShuttingDown)?;
        taken.await.map_err(|_| CallError::ShuttingDown)
    }

    /// Remembers what a call failed with, for status.
    fn failed(&self, error: &CallError) {
        match error.class() {
            // A refusal. The failure behind it, if any, is remembered by the actor.
            Class::Unavailable | Class::ConnectFailed => {}
            class => self.shared.remember(class, &error.to_string().into()),
        }
    }

    /// Returns how often the server forgot what it was told, while its link stood.
    pub(crate) fn renewals(&self) -> watch::Receiver<u64> {
        self.shared.renewals.subscribe()
    }

    /// Returns the link that serves, if one does.
    pub(crate) fn open_link(&self) -> Option<Arc<Ready>> {
        let ready = self.shared.ready.load_full()?;
        ready.link.is_open().then_some(ready)
    }

    /// Says why waiting would not help, if it would not.
    fn refusal(&self, state: &State) -> Option<CallError> {
        let server = || Arc::clone(&self.shared.spec.name);
        match state {
            State::Stopped => Some(CallError::Stopped { server: server() }),
            State::Ejected { reason } => Some(CallError::Ejected {
                server: server(),
                reason: Arc::clone(reason),
            }),
            State::Backoff {
                until,
                reason,
                class,
                challenge,
                blame,
            } => {
                let next = self.shared.clock.now().until(*until);
                let mut cause = Cause::new(*class, Arc::clone(reason));
                cause.challenge.clone_from(challenge);
                cause.blame = *blame;
                let hopeless = next > BACKOFF_WAIT_MAX || cause.is_of_credentials();
                hopeless.then(|| cause.refusal(&server(), next))
            }
            State::Draining if self.is_retired() => Some(CallError::Stopped { server: server() }),
            // What is being stopped may be on its way to a fresh start.
            State::Idle | State::Starting | State::Ready | State::Draining => None,
        }
    }
}

impl Shared {
    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    fn is_interactive(&self) -> bool {
        self.interactive.load(Ordering::Relaxed)
    }

    fn remember(&self, class: Class, message: &Arc<str>) {
        let message = self.spec.secrets.clean_shared(message);
        *lock(&self.last_error) = Some((class, message, self.clock.now()));
    }

    /// Returns how many calls ended with an answer.
    fn answered(&self) -> u64 {
        self.counted(|totals| totals.awaited() - totals.errors())
    }

    /// Reads what was counted of calls since the beginning.
    fn counted<T>(&self, read: impl FnOnce(&Totals) -> T) -> T {
        read(lock(&self.load).totals())
    }
}
