//! Supervises a server: starts it once for all callers, detects its end, restarts it with backoff,
//! and ejects it after too many failures.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bowline_core::BoxFuture;
use bowline_core::breaker::Breaker;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_core::error::{CallError, FailureClass};
use bowline_core::load::{LoadTotals, ServerLoad};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::Link;
use bowline_link::stderr::StderrLog;
use bowline_link::stdio::LinkConnectError;
use bowline_runtime::{Clock, Work, fifo_watch};
use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use self::call_guards::ServerQueue;
use self::dedicated_links::DedicatedLinks;
use self::failure_cause::FailureCause;
use self::freshness::ListFreshness;
use self::list_fetch::OmittedEntries;
use crate::catalog::PerList;
use crate::dial::MissingFeature;
use crate::events::EventBus;
use crate::manifest;
use crate::pins::PinRegistry;
use crate::spec::{ServerSpec, ServerTransport};

mod actor;
mod call_guards;
mod dedicated_links;
mod deps;
mod failure_cause;
mod freshness;
pub(crate) mod list_fetch;
mod list_refresh;
mod log_line;
mod relist;
mod server_state;
mod server_status;
mod start_pacing;

pub use crate::spec::DialedLink;
pub use bowline_api::servers::{
    CacheStatus, OmittedStatus, PinSummary, SandboxStatus, ServerLastError, ServerLimits,
    ServerStatus,
};
pub use call_guards::BreakerPermit;
pub(crate) use call_guards::CallStatsGuard;
pub use dedicated_links::LinkLease;
pub(crate) use deps::SupervisorDeps;
pub use failure_cause::FailureSource;
pub use list_fetch::ListError;
pub use server_state::{ServerAction, ServerState};

/// Callers wait for a restart due within this time; otherwise the call fails.
const BACKOFF_WAIT_MAX: Duration = Duration::from_secs(1);

/// Capacity of the command channel.
const COMMANDS_MAX: usize = 16;

/// Connects to a server. Dropping the future releases everything.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Starts the server of `spec` and performs the handshake. A link with an owner belongs to that
    /// session alone.
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn ClientHandle>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>>;

    /// Checks that this program can connect to the kind of server that `spec` describes.
    ///
    /// # Errors
    /// The program was built without the feature for the transport.
    fn check_transport(&self, spec: &ServerSpec) -> Result<(), MissingFeature> {
        let _any = spec;
        Ok(())
    }

    /// Passes on the era spoken by the server of `spec` in an earlier run of this program.
    fn restore_era(&self, spec: &ServerSpec, era: Era) {
        let _unused = (spec, era);
    }

    /// Waits until a lost connection path to a server is back; forever without such a signal.
    fn wait_reachable<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        let _untold = spec;
        Box::pin(std::future::pending())
    }

    /// True if the connection path to a server is known to be down, so that no call can reach it.
    fn is_unreachable(&self, spec: &ServerSpec) -> bool {
        let _untold = spec;
        false
    }
}

/// An open link with its generation.
#[derive(Debug)]
pub struct ReadyLink {
    /// Counts the starts of this server.
    pub generation: u64,
    /// The link.
    pub link: Arc<dyn Link>,
    /// When the link became ready.
    pub since: MonotonicTime,
}

impl ReadyLink {
    /// Returns the generation of an ended link; `None` while the link is open, since some
    /// transports lose requests on an open link.
    pub(crate) fn ended_generation(&self) -> Option<u64> {
        (!self.link.is_open()).then_some(self.generation)
    }
}

/// A command for the actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupervisorCommand {
    Action(ServerAction),
    /// Credentials changed: refresh the lists, or retry the start.
    Relist,
    /// Drain calls in flight, then end for good.
    Retire,
}

#[derive(Debug)]
struct PendingCommand {
    command: SupervisorCommand,
    done: oneshot::Sender<()>,
}

/// State shared by the supervisor, its actor and its breaker permits.
#[derive(Debug)]
struct SupervisorShared {
    spec: Arc<ServerSpec>,
    clock: Arc<dyn Clock>,
    /// The serving link, read on every call.
    shared_link: ArcSwapOption<ReadyLink>,
    state: fifo_watch::FifoSender<ServerState>,
    /// Wakes the reachability checks when it opens.
    breaker: Work<Breaker>,
    /// Limits calls in flight.
    queue: ServerQueue,
    /// Call statistics.
    load: Mutex<ServerLoad>,
    events: EventBus,
    pins: Arc<PinRegistry>,
    /// Counts session resets by the server while a link was up, over all generations.
    session_resets: watch::Sender<u64>,
    /// Signalled by a caller in need of a lazy server.
    start_requested: Notify,
    /// Entries omitted from the lists.
    omitted: Mutex<PerList<OmittedEntries>>,
    /// Ages of the lists, and requested refreshes.
    freshness: ListFreshness,
    log: Arc<StderrLog>,
    /// Links dedicated to a session or principal.
    dedicated: Arc<DedicatedLinks>,
    /// Set once, by a server request that could not be attributed to a client.
    interactive: AtomicBool,
    /// Set once, when a successor takes over or the server leaves the configuration.
    retired: AtomicBool,
    /// Set along with `retired` if the next server of this name is unrelated, not a successor.
    detached: AtomicBool,
    counts: StartCounts,
    last_error: Mutex<Option<(FailureClass, Arc<str>, MonotonicTime)>>,
}

/// Counters of starts.
#[derive(Debug, Default)]
struct StartCounts {
    generation: AtomicU64,
    restarts: AtomicU64,
}

/// Handle to a supervised server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Supervisor {
    shared: Arc<SupervisorShared>,
    commands: mpsc::Sender<PendingCommand>,
}

impl Supervisor {
    /// Supervises a server and, unless lazy, starts it in the background. Until it is ready, the
    /// catalog shows the lists from its last run.
    #[must_use]
    pub(crate) fn start(spec: ServerSpec, log: Arc<StderrLog>, deps: &SupervisorDeps) -> Self {
        let first = if spec.lazy {
            ServerState::Idle
        } else {
            ServerState::Starting
        };
        let digest = manifest::transport_digest(&spec.transport);
        let stored_manifest = match spec.transport.keeps_manifest() {
            true => deps.manifests.load(&spec.name, &digest),
            false => None,
        };
        let shared = Arc::new(SupervisorShared {
            breaker: Work::new(actor::reachability::new_breaker(&spec)),
            queue: ServerQueue::new(&spec),
            load: Mutex::new(ServerLoad::new(deps.clock.now())),
            events: deps.events.clone(),
            pins: Arc::clone(&deps.pins),
            dedicated: Arc::new(DedicatedLinks::new(deps, &spec)),
            spec: Arc::new(spec),
            clock: Arc::clone(&deps.clock),
            shared_link: ArcSwapOption::empty(),
            state: fifo_watch::FifoSender::new(first),
            session_resets: watch::Sender::new(0),
            start_requested: Notify::new(),
            omitted: Mutex::default(),
            freshness: ListFreshness::default(),
            log,
            interactive: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            counts: StartCounts::default(),
            last_error: Mutex::default(),
        });
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let actor = actor::SupervisorActor::new(
            Arc::clone(&shared),
            deps,
            receiver,
            digest,
            stored_manifest,
        );
        actor.publish_known();
        deps.tasks.spawn("supervisor", actor.run());
        Self { shared, commands }
    }

    /// Returns the spec.
    #[must_use]
    pub fn spec(&self) -> &ServerSpec {
        &self.shared.spec
    }

    /// Returns the server's stderr log.
    #[must_use]
    pub fn log(&self) -> &Arc<StderrLog> {
        &self.shared.log
    }

    /// Returns a receiver of state changes.
    #[must_use]
    pub fn subscribe_state(&self) -> fifo_watch::FifoReceiver<ServerState> {
        self.shared.state.subscribe()
    }

    /// Asks the breaker to admit a call.
    pub fn admit_call(&self) -> Result<BreakerPermit, CallError> {
        BreakerPermit::acquire(&self.shared)
    }

    /// Returns the shared link, waiting for a start in progress.
    ///
    /// Fails at once if waiting cannot help: stopped, ejected, or in a long backoff.
    pub async fn shared_link(&self, deadline: MonotonicTime) -> Result<Arc<ReadyLink>, CallError> {
        if let Some(ready) = self.open_link() {
            return Ok(ready);
        }
        let mut state = self.shared.state.subscribe();
        let until = self.shared.clock.instant(deadline);
        loop {
            let current = state.borrow_and_update().clone();
            self.unavailable_error(&current).map_or(Ok(()), Err)?;
            match current {
                ServerState::Ready => {
                    if let Some(ready) = self.open_link() {
                        return Ok(ready);
                    }
                }
                ServerState::Idle => self.shared.start_requested.notify_one(),
                ServerState::Starting
                | ServerState::Backoff { .. }
                | ServerState::Stopped
                | ServerState::Ejected { .. }
                | ServerState::Draining => {}
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

    /// Waits until the server has listed its tools, or fails like
    /// [`shared_link`](Self::shared_link).
    pub async fn wait_listed(&self, deadline: MonotonicTime) -> Result<(), CallError> {
        self.shared_link(deadline).await.map(drop)
    }

    /// Returns the result of `initialize` while the server is ready.
    #[must_use]
    pub fn initialize_result(&self) -> Option<Bytes> {
        let ready = self.open_link()?;
        Some(ready.link.server_info().initialize.clone())
    }

    /// True for a lazy server without a link.
    pub(crate) fn is_idle(&self) -> bool {
        *self.shared.state.borrow() == ServerState::Idle
    }

    /// Starts an idle lazy server.
    pub(crate) fn wake(&self) {
        if self.is_idle() {
            self.shared.start_requested.notify_one();
        }
    }

    /// Sends an action to the actor and waits for its acceptance; the effect continues in the
    /// background.
    pub async fn apply_action(&self, action: ServerAction) -> Result<(), CallError> {
        self.send_command(SupervisorCommand::Action(action)).await
    }

    /// Reports changed credentials: the lists are refreshed, and a failed start is retried at once.
    pub(crate) async fn on_credentials_changed(&self) {
        let (done, _receiver) = oneshot::channel();
        let relist = SupervisorCommand::Relist;
        // A finished actor has nothing to do.
        let _result = self
            .commands
            .send(PendingCommand {
                command: relist,
                done,
            })
            .await;
    }

    /// Retires the server and waits for its end: calls in flight finish within the drain timeout;
    /// waiting and later callers get "stopped".
    ///
    /// Its catalog entries stay: they may belong to the successor by now.
    pub async fn retire(&self) {
        self.shared.retired.store(true, Ordering::Relaxed);
        // A finished actor has nothing left to do.
        let _gone = self.send_command(SupervisorCommand::Retire).await;
    }

    /// True once retired: holders of this handle should look up the successor.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.shared.is_retired()
    }

    /// Takes the name away: the server offers nothing from here on, and none of its calls moves to
    /// the next server of this name. [`retire`](Self::retire) ends the rest.
    pub(crate) fn detach(&self) {
        self.shared.detached.store(true, Ordering::Relaxed);
        self.shared.retired.store(true, Ordering::Relaxed);
    }

    /// True if calls not taken by this server belong to the current server of the same name.
    pub(crate) fn has_successor(&self) -> bool {
        self.is_retired() && !self.shared.detached.load(Ordering::Relaxed)
    }

    /// True while ready, starting or draining.
    pub(crate) fn is_running(&self) -> bool {
        let state = self.shared.state.borrow();
        matches!(
            *state,
            ServerState::Ready | ServerState::Starting | ServerState::Draining
        )
    }

    /// True if a peer offered this server; it leaves with the peer.
    pub(crate) fn is_peer_server(&self) -> bool {
        matches!(self.shared.spec.transport, ServerTransport::Peer(_))
    }

    /// Refuses a call meant for a different server of the same name.
    pub(crate) fn ensure_same(&self, expected: Option<&Self>) -> Result<(), CallError> {
        match expected {
            Some(expected) if !expected.is_same(self) => Err(CallError::Stopped {
                server: Arc::clone(&self.shared.spec.name),
            }),
            _ => Ok(()),
        }
    }

    /// True if both handles refer to the same supervised server.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    async fn send_command(&self, command: SupervisorCommand) -> Result<(), CallError> {
        let (done, receiver) = oneshot::channel();
        self.commands
            .send(PendingCommand { command, done })
            .await
            .map_err(|_| CallError::ShuttingDown)?;
        receiver.await.map_err(|_| CallError::ShuttingDown)
    }

    /// Records the error of a call for status.
    fn record_error(&self, error: &CallError) {
        match error.failure_class() {
            // A refusal. The actor records the failure behind it, if any.
            FailureClass::Unavailable | FailureClass::ConnectFailed => {}
            class => self.shared.set_last_error(class, &error.to_string().into()),
        }
    }

    /// Returns a receiver counting session resets on an open link.
    pub(crate) fn session_resets(&self) -> watch::Receiver<u64> {
        self.shared.session_resets.subscribe()
    }

    /// Returns the shared link if open.
    pub(crate) fn open_link(&self) -> Option<Arc<ReadyLink>> {
        let ready = self.shared.shared_link.load_full()?;
        ready.link.is_open().then_some(ready)
    }

    /// Returns an error if waiting for a link cannot help.
    fn unavailable_error(&self, state: &ServerState) -> Option<CallError> {
        let server = || Arc::clone(&self.shared.spec.name);
        match state {
            ServerState::Stopped => Some(CallError::Stopped { server: server() }),
            ServerState::Ejected { reason } => Some(CallError::Ejected {
                server: server(),
                reason: Arc::clone(reason),
            }),
            ServerState::Backoff {
                until,
                reason,
                class,
                challenge,
                blame,
            } => {
                let next = self.shared.clock.now().duration_until(*until);
                let mut cause = FailureCause::new(*class, Arc::clone(reason));
                cause.challenge.clone_from(challenge);
                cause.source = *blame;
                let hopeless = next > BACKOFF_WAIT_MAX || cause.needs_credentials();
                hopeless.then(|| cause.to_call_error(&server(), next))
            }
            ServerState::Draining if self.is_retired() => {
                Some(CallError::Stopped { server: server() })
            }
            // A draining server may be about to restart.
            ServerState::Idle
            | ServerState::Starting
            | ServerState::Ready
            | ServerState::Draining => None,
        }
    }
}

impl SupervisorShared {
    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    fn is_interactive(&self) -> bool {
        self.interactive.load(Ordering::Relaxed)
    }

    fn set_last_error(&self, class: FailureClass, message: &Arc<str>) {
        let message = self.spec.secrets.redact_shared(message);
        *lock(&self.last_error) = Some((class, message, self.clock.now()));
    }

    /// Counts calls with a response.
    fn count_answered(&self) -> u64 {
        self.read_totals(|totals| totals.awaited_count() - totals.error_count())
    }

    /// Reads the call totals.
    fn read_totals<T>(&self, read: impl FnOnce(&LoadTotals) -> T) -> T {
        read(lock(&self.load).totals())
    }
}
