//! Reconciles each server with the subscriptions and log level wanted by sessions. The wanted state
//! is compared with the state applied on the link, so that a restarted server gets it again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::EndpointScope;
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::log_level::LogLevel;
use bowline_core::retry::{JitterSource, Retry};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_wire::mcp::method;
use bytes::Bytes;
use tokio::sync::{Notify, watch};

mod sync_request;

use bowline_runtime::timer::sleep_until_due;
use bowline_runtime::{Clock, Lifecycle, TaskTracker};

use crate::callpath::{ResponseWait, to_call_error};
use crate::catalog::initialize_info::declares_capability;
use crate::session_state::SessionState;
use crate::supervisor::{ReadyLink, Supervisor};

pub(crate) use sync_request::SyncRequest;

/// Timeout of a request.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Delays before retrying a subscription with an unclear result.
const RETRY_BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(5),
    cap: Duration::from_secs(5 * 60),
};

/// Error for a resource not accepted by a modern server.
const NOT_ACCEPTED: &[u8] =
    br#"{"code":-32602,"message":"the server does not tell of this resource"}"#;

/// The syncs of all servers with a wanted state.
#[derive(Debug)]
pub(crate) struct SubscriptionSync {
    sessions: Arc<SessionState>,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    syncs: Mutex<HashMap<Arc<str>, Arc<ServerSync>>>,
    lifecycle: Lifecycle,
}

/// Sync task of a server; lives while any state is wanted.
#[derive(Debug)]
struct ServerSync {
    /// The target. A server with a changed configuration entry is a different target.
    server: Supervisor,
    applied: watch::Sender<AppliedState>,
    wake: Notify,
}

impl ServerSync {
    /// Resets the applied state for a new link, or after a session reset.
    fn reset_unless_current(&self, generation: u64, renewals: u64) {
        self.applied.send_if_modified(|applied| {
            let anew = (applied.generation, applied.session_resets) != (generation, renewals);
            if anew {
                *applied = AppliedState {
                    generation,
                    session_resets: renewals,
                    ..AppliedState::new(&self.server.spec().name)
                };
            }
            anew
        });
    }
}

/// State applied on the link of a generation.
#[derive(Debug)]
struct AppliedState {
    generation: u64,
    /// Session resets counted when applied.
    session_resets: u64,
    resources: HashMap<Arc<str>, Result<(), CallError>>,
    level: Option<LogLevel>,
    /// Consecutive unclear results.
    retry: Retry,
    /// Time of the next retry.
    retry_at: Option<MonotonicTime>,
}

impl AppliedState {
    fn new(server: &str) -> Self {
        Self {
            generation: 0,
            session_resets: 0,
            resources: HashMap::new(),
            level: None,
            retry: Retry::new(RETRY_BACKOFF, JitterSource::from_owner(server)),
            retry_at: None,
        }
    }

    /// Schedules a retry of resources neither accepted nor refused.
    fn schedule_retry(&mut self, now: MonotonicTime) {
        match self.resources.values().any(is_undecided) {
            true if self.retry_at.is_some() => {}
            true => self.retry_at = Some(now.plus(self.retry.next_wait(now))),
            false => {
                self.retry.reset();
                self.retry_at = None;
            }
        }
    }
}

/// True if a server neither accepted nor refused a resource.
const fn is_undecided(outcome: &Result<(), CallError>) -> bool {
    !matches!(outcome, Ok(()) | Err(CallError::Refused { .. }))
}

/// The next reconciliation step.
#[derive(Debug)]
enum SyncStep {
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
    /// Replaces the subscriptions of a modern server.
    Listen(Vec<Arc<str>>),
    Level(LogLevel),
}

impl SubscriptionSync {
    pub(crate) fn new(
        memory: Arc<SessionState>,
        clock: Arc<dyn Clock>,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            sessions: memory,
            clock,
            tasks,
            syncs: Mutex::default(),
            lifecycle: Lifecycle::default(),
        })
    }

    /// Ends every sync at shutdown.
    pub(crate) fn close(&self) {
        self.lifecycle.close();
    }

    /// Has the sync of `server` compare wanted and applied state.
    pub(crate) fn wake(self: &Arc<Self>, server: &Supervisor) {
        self.ensure_sync(server).wake.notify_one();
    }

    /// Waits until the server has accepted or refused a recorded subscription.
    pub(crate) async fn wait_subscribed(
        self: &Arc<Self>,
        server: &Supervisor,
        uri: &Arc<str>,
        deadline: MonotonicTime,
    ) -> Result<(), CallError> {
        let sync = self.ensure_sync(server);
        // An earlier refusal may be outdated.
        sync.applied.send_if_modified(|applied| {
            let refused = applied.resources.get(uri).is_some_and(Result::is_err);
            refused.then(|| applied.resources.remove(uri)).is_some()
        });
        sync.wake.notify_one();
        let outcome = self.wait_applied(&sync, deadline, |applied| {
            applied.resources.get(uri).cloned()
        });
        outcome.await.unwrap_or_else(|| {
            Err(CallError::Timeout {
                server: Arc::clone(&server.spec().name),
                after_ms: bowline_core::time::to_millis(server.spec().call_timeout),
                execution: bowline_core::error::ExecutionStatus::Unknown,
                limit: bowline_core::time::TimeLimit::Server,
            })
        })
    }

    /// Waits, bounded by `deadline`, until a ready server has ended a subscription.
    pub(crate) async fn wait_unsubscribed(
        self: &Arc<Self>,
        server: &Supervisor,
        uri: &Arc<str>,
        deadline: MonotonicTime,
    ) {
        let sync = self.ensure_sync(server);
        sync.wake.notify_one();
        let name = &server.spec().name;
        let applied = self.wait_applied(&sync, deadline, |applied| {
            let is_wanted = lock(&self.sessions.subscriptions).has_subscriber(name, uri);
            (is_wanted || !applied.resources.contains_key(uri)).then_some(())
        });
        if server.open_link().is_some() {
            applied.await;
        }
    }

    /// Waits, bounded by `deadline`, until a ready server has the wanted log level.
    pub(crate) async fn wait_level(self: &Arc<Self>, server: &Supervisor, deadline: MonotonicTime) {
        let sync = self.ensure_sync(server);
        sync.wake.notify_one();
        let scope = EndpointScope::Server(Arc::clone(&server.spec().name));
        let applied = self.wait_applied(&sync, deadline, |applied| {
            let wanted_level = lock(&self.sessions.log_levels).server_level(&scope);
            (wanted_level.is_none() || applied.level == wanted_level).then_some(())
        });
        if server
            .open_link()
            .is_some_and(|ready| accepts_level(&ready))
        {
            applied.await;
        }
    }

    async fn wait_applied<T>(
        &self,
        sync: &ServerSync,
        deadline: MonotonicTime,
        read: impl Fn(&AppliedState) -> Option<T>,
    ) -> Option<T> {
        let mut applied = sync.applied.subscribe();
        let until = self.clock.instant(deadline);
        loop {
            let found = read(&applied.borrow_and_update());
            if found.is_some() {
                return found;
            }
            match tokio::time::timeout_at(until, applied.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }

    /// Returns the sync of a server, starting it if missing.
    ///
    /// The wanted state must be recorded before: a sync ends only if, under the same lock, nothing
    /// is wanted.
    fn ensure_sync(self: &Arc<Self>, server: &Supervisor) -> Arc<ServerSync> {
        let mut syncs = lock(&self.syncs);
        let name = &server.spec().name;
        if let Some(sync) = syncs.get(name)
            && sync.server.is_same(server)
        {
            return Arc::clone(sync);
        }
        let sync = Arc::new(ServerSync {
            server: server.clone(),
            applied: watch::Sender::new(AppliedState::new(name)),
            wake: Notify::new(),
        });
        syncs.insert(Arc::clone(name), Arc::clone(&sync));
        let task = Arc::clone(self).run_sync(Arc::clone(&sync));
        self.tasks.spawn("subscription sync", task);
        sync
    }

    async fn run_sync(self: Arc<Self>, sync: Arc<ServerSync>) {
        let server = sync.server.clone();
        let mut states = server.subscribe_state();
        let mut renewals = server.session_resets();
        loop {
            drop(states.borrow_and_update());
            let renewed = *renewals.borrow_and_update();
            let step = server.open_link().and_then(|ready| {
                sync.reset_unless_current(ready.generation, renewed);
                Some((self.next_step(&server, &sync, &ready)?, ready))
            });
            let (clock, retry_at) = (&*self.clock, sync.applied.borrow().retry_at);
            let done = async {
                if let Some((step, ready)) = &step {
                    self.apply_step(&server, &sync, step, ready).await;
                    let now = clock.now();
                    sync.applied
                        .send_modify(|applied| applied.schedule_retry(now));
                    return;
                }
                tokio::select! {
                    biased;
                    () = sleep_until_due(clock, retry_at) => sync.applied.send_modify(|told| {
                        told.retry_at = None;
                        told.resources.retain(|_, outcome| !is_undecided(outcome));
                    }),
                    () = sync.wake.notified() => {}
                    _ = states.changed() => {}
                    _ = renewals.changed() => {}
                }
            };
            if step.is_none() && self.remove_if_unneeded(&sync) {
                return;
            }
            tokio::select! {
                biased;
                () = self.lifecycle.shutdown().wait_closing() => return,
                () = done => {}
            }
        }
    }

    /// Ends a sync that is no longer needed.
    fn remove_if_unneeded(&self, sync: &Arc<ServerSync>) -> bool {
        let mut syncs = lock(&self.syncs);
        let name = &sync.server.spec().name;
        let in_place = syncs.get(name).is_some_and(|now| Arc::ptr_eq(now, sync));
        if !in_place {
            return true;
        }
        let level =
            lock(&self.sessions.log_levels).server_level(&EndpointScope::Server(Arc::clone(name)));
        let is_wanted = level.is_some()
            || lock(&self.sessions.subscriptions)
                .subscribed_uris(name)
                .next()
                .is_some();
        let needed = is_wanted && !sync.server.is_retired();
        if !needed {
            syncs.remove(name);
        }
        !needed
    }

    /// Compares the wanted state with the applied state.
    fn next_step(
        &self,
        server: &Supervisor,
        sync: &ServerSync,
        ready: &ReadyLink,
    ) -> Option<SyncStep> {
        let name = &server.spec().name;
        let level =
            lock(&self.sessions.log_levels).server_level(&EndpointScope::Server(Arc::clone(name)));
        let applied = sync.applied.borrow();
        if let Some(level) = level
            && applied.level != Some(level)
            && accepts_level(ready)
        {
            return Some(SyncStep::Level(level));
        }
        let subscriptions = lock(&self.sessions.subscriptions);
        if ready.link.era() == Era::Modern {
            let same = subscriptions.subscribed_uris(name).count() == applied.resources.len()
                && subscriptions
                    .subscribed_uris(name)
                    .all(|uri| applied.resources.contains_key(uri));
            return (!same)
                .then(|| SyncStep::Listen(subscriptions.subscribed_uris(name).cloned().collect()));
        }
        let mut applied_uris = applied.resources.keys();
        if let Some(uri) = applied_uris.find(|uri| !subscriptions.has_subscriber(name, uri)) {
            return Some(SyncStep::Unsubscribe(Arc::clone(uri)));
        }
        let mut subscriptions = subscriptions.subscribed_uris(name);
        let missing = subscriptions.find(|uri| !applied.resources.contains_key(*uri));
        missing.map(|uri| SyncStep::Subscribe(Arc::clone(uri)))
    }

    async fn apply_step(
        &self,
        server: &Supervisor,
        sync: &ServerSync,
        step: &SyncStep,
        ready: &ReadyLink,
    ) {
        if let SyncStep::Listen(uris) = step {
            return self.apply_listen(server, sync, uris, ready).await;
        }
        // A refused subscription needs no unsubscribe.
        let refused = match step {
            SyncStep::Unsubscribe(uri) => {
                let applied = sync.applied.borrow();
                applied.resources.get(uri).is_some_and(Result::is_err)
            }
            SyncStep::Subscribe(_) | SyncStep::Level(_) | SyncStep::Listen(_) => false,
        };
        let outcome = match refused {
            true => Ok(()),
            false => {
                let (clock, name) = (self.clock.as_ref(), &server.spec().name);
                step.request().send(clock, name, ready).await
            }
        };
        if let Err(error) = &outcome {
            tracing::warn!(server = %server.spec().name, ?step, %error, "sync step failed");
        }
        sync.applied.send_modify(|applied| match step {
            SyncStep::Subscribe(uri) => {
                applied.resources.insert(Arc::clone(uri), outcome);
            }
            SyncStep::Unsubscribe(uri) => {
                applied.resources.remove(uri);
            }
            SyncStep::Level(level) => applied.level = Some(*level),
            SyncStep::Listen(_) => {}
        });
    }

    /// Sends the wanted resources to a modern server.
    async fn apply_listen(
        &self,
        server: &Supervisor,
        sync: &ServerSync,
        uris: &[Arc<str>],
        ready: &ReadyLink,
    ) {
        let name = &server.spec().name;
        let end = self.clock.now().plus(STEP_TIMEOUT);
        let listened = ready
            .link
            .subscribe_resources(uris.to_vec(), self.clock.instant(end));
        let agreed = listened.await.map_err(|error| {
            tracing::warn!(server = %name, %error, "listen request failed");
            let timeout = ResponseWait::for_server(bowline_core::time::to_millis(STEP_TIMEOUT));
            to_call_error(&error, name, ready.ended_generation(), timeout)
        });
        let outcome = |uri: &Arc<str>| match &agreed {
            Ok(agreed) if agreed.contains(uri) => Ok(()),
            Ok(_) => Err(CallError::Refused {
                server: Arc::clone(name),
                error: Bytes::from_static(NOT_ACCEPTED),
            }),
            Err(error) => Err(error.clone()),
        };
        let resources = uris.iter().map(|uri| (Arc::clone(uri), outcome(uri)));
        let resources = resources.collect();
        sync.applied
            .send_modify(|applied| applied.resources = resources);
    }
}

impl SyncStep {
    /// Returns the request of the step.
    fn request(&self) -> SyncRequest<'_> {
        match self {
            Self::Listen(_) => SyncRequest::for_uri(method::SUBSCRIPTIONS_LISTEN, ""),
            Self::Subscribe(uri) => SyncRequest::for_uri(method::RESOURCES_SUBSCRIBE, uri),
            Self::Unsubscribe(uri) => SyncRequest::for_uri(method::RESOURCES_UNSUBSCRIBE, uri),
            Self::Level(level) => SyncRequest::for_level(*level),
        }
    }
}

/// True if a server accepts a log level between calls; a modern server gets it with each call.
pub(crate) fn accepts_level(ready: &ReadyLink) -> bool {
    let link = &ready.link;
    link.era() == Era::Legacy && declares_capability(&link.server_info().initialize, "logging")
}
