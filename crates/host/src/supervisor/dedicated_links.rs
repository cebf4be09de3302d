//! Links dedicated to a session or a principal, besides the shared link of a server.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::EndpointScope;
use bowline_core::client_handle::{ClientHandle, SessionKey};
use bowline_core::error::CallError;
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_core::task_table::LinkKey;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_link::{LinkEvent, ProcessSet};
use foldhash::fast::RandomState;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use self::link_restarts::DedicatedRestarts;
use self::link_slot::{ExclusiveGuard, LinkSlot};
use super::failure_cause::FailureCause;
use super::start_pacing::start_with_permit;
use super::{ReadyLink, SupervisorDeps, SupervisorShared};
use crate::spec::ServerSpec;
use crate::subscription_sync::{self, SyncRequest};

mod link_restarts;
mod link_selection;
mod link_slot;

pub use self::link_selection::LinkLease;

/// Maximum number of dedicated links of a server; an idle link makes room for a new link.
pub(super) const DEDICATED_LINKS_MAX: usize = 32;

/// A dedicated link unused for this long is closed, unless it has tasks.
const IDLE_MAX: Duration = Duration::from_secs(15 * 60);

/// Delay after a failed connection attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Wait of a new link for the server to accept a log level.
const LEVEL_WAIT: Duration = Duration::from_secs(5);

/// First generation of dedicated links, disjoint from those of shared links.
const GENERATION_BASE: u64 = 1 << 32;

/// Owner of a dedicated link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum DedicatedKey {
    Principal(Arc<str>),
    Session(SessionKey),
    /// A numbered link of a sessionless client. Each carries a single call at a time, so that a
    /// server request belongs to this call.
    SingleCall(SessionKey, usize),
}

impl DedicatedKey {
    /// Returns the owning session or client, if exclusive.
    const fn owner_session(&self) -> Option<SessionKey> {
        match self {
            Self::Session(session) | Self::SingleCall(session, _) => Some(*session),
            Self::Principal(_) => None,
        }
    }
}

/// The dedicated links of a server.
#[derive(Debug)]
pub(super) struct DedicatedLinks {
    deps: SupervisorDeps,
    slots: Mutex<HashMap<DedicatedKey, Arc<LinkSlot>, RandomState>>,
    next_generation: AtomicU64,
    /// Time and cause of the last failed connection attempt.
    last_failure: Mutex<Option<(MonotonicTime, FailureCause)>>,
    /// Restart budget for lost processes; `None` for servers without a process.
    restarts: Option<DedicatedRestarts>,
}

impl DedicatedLinks {
    pub(super) fn new(deps: &SupervisorDeps, spec: &ServerSpec) -> Self {
        let is_process = spec.transport.is_process();
        Self {
            restarts: is_process.then(|| DedicatedRestarts::new(spec.restart)),
            deps: deps.clone(),
            slots: Mutex::default(),
            next_generation: AtomicU64::new(GENERATION_BASE),
            last_failure: Mutex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.slots).len()
    }

    /// Has every link check its wanted log level.
    fn recheck_levels(&self) {
        for slot in lock(&self.slots).values() {
            slot.level_changed.notify_one();
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        let slots = lock(&self.slots);
        let links = slots.values().filter_map(|slot| slot.link.get());
        links.map(|ready| ready.link.in_flight()).sum()
    }

    /// Returns the processes behind each link.
    pub(super) fn processes(&self) -> Vec<ProcessSet> {
        let slots = lock(&self.slots);
        let links = slots.values().filter_map(|slot| slot.link.get());
        links.filter_map(|ready| ready.link.processes()).collect()
    }

    /// Closes the links of an ended session.
    pub(super) fn close_session(self: &Arc<Self>, session: SessionKey) {
        let own = |key: &DedicatedKey, _: &mut Arc<LinkSlot>| key.owner_session() == Some(session);
        let slots: Vec<_> = lock(&self.slots).extract_if(own).collect();
        for (_, slot) in slots {
            self.close_later(slot);
        }
    }

    /// Closes every link without waiting.
    pub(super) fn close_in_background(&self) {
        let slots: Vec<_> = lock(&self.slots).drain().collect();
        for (_, slot) in slots {
            self.close_later(slot);
        }
    }

    /// Closes every link and waits for the end.
    pub(super) async fn close_all(&self) {
        let slots: Vec<_> = lock(&self.slots).drain().map(|(_, slot)| slot).collect();
        let links: Vec<_> = slots.iter().filter_map(|slot| slot.link.get()).collect();
        // Start closing all links before waiting for any.
        let ends: Vec<_> = links.iter().map(|ready| ready.link.close()).collect();
        for end in ends {
            end.await;
        }
    }

    /// Returns the link of `key`, connecting if necessary.
    async fn acquire_link(
        self: &Arc<Self>,
        shared: &Arc<SupervisorShared>,
        key: DedicatedKey,
        caller: &Arc<dyn ClientHandle>,
        deadline: MonotonicTime,
    ) -> Result<LinkLease, CallError> {
        let (key, slot) = self.acquire_slot(shared, key)?;
        let guard =
            matches!(key, DedicatedKey::SingleCall(..)).then(|| ExclusiveGuard(Arc::clone(&slot)));
        let connect = self.connect_link(shared, &key, &slot, caller, deadline);
        let ready = slot.link.get_or_try_init(|| connect).await.cloned();
        let now = shared.clock.now();
        slot.used_ms.store(now.0, Ordering::Relaxed);
        match ready {
            Ok(ready) => Ok(LinkLease {
                ready,
                _guard: guard,
            }),
            Err(cause) => {
                let refusal = cause.to_call_error(&shared.spec.name, RETRY_AFTER);
                *lock(&self.last_failure) = Some((now, cause));
                self.record_loss(shared);
                self.remove_slot(&key, &slot);
                Err(refusal)
            }
        }
    }

    /// Returns the slot for a key, replacing an ended link. A single-call slot is marked as taken.
    fn acquire_slot(
        self: &Arc<Self>,
        shared: &SupervisorShared,
        key: DedicatedKey,
    ) -> Result<(DedicatedKey, Arc<LinkSlot>), CallError> {
        let mut slots = lock(&self.slots);
        let key = match key {
            DedicatedKey::SingleCall(session, _) => free_key(&slots, session),
            key @ (DedicatedKey::Principal(_) | DedicatedKey::Session(_)) => key,
        };
        let is_for_one = matches!(key, DedicatedKey::SingleCall(..));
        if let Some(slot) = slots.get(&key).filter(|slot| slot.is_open()) {
            slot.taken.store(is_for_one, Ordering::Release);
            return Ok((key, Arc::clone(slot)));
        }
        if slots.remove(&key).is_some() {
            self.record_loss(shared);
        }
        self.check_retry_delay(shared)?;
        if slots.len() >= DEDICATED_LINKS_MAX {
            let idle = slots.iter().filter(|(_, slot)| slot.is_idle());
            let least_used = idle
                .min_by_key(|(_, slot)| slot.used_ms.load(Ordering::Relaxed))
                .map(|(key, _)| key.clone());
            let freed = least_used.and_then(|key| slots.remove(&key));
            match freed {
                Some(slot) => self.close_later(slot),
                None => {
                    return Err(CallError::ServerBusy {
                        server: Arc::clone(&shared.spec.name),
                        limit: DEDICATED_LINKS_MAX,
                    });
                }
            }
        }
        self.charge_restart(shared)?;
        let slot = Arc::new(LinkSlot::default());
        slot.taken.store(is_for_one, Ordering::Release);
        slots.insert(key.clone(), Arc::clone(&slot));
        Ok((key, slot))
    }

    /// Refuses within [`RETRY_AFTER`] of a failed attempt, so that not every call retries.
    fn check_retry_delay(&self, shared: &SupervisorShared) -> Result<(), CallError> {
        let failed = lock(&self.last_failure).clone();
        let Some((at, cause)) = failed else {
            return Ok(());
        };
        let next = shared.clock.now().duration_until(at.plus(RETRY_AFTER));
        if next.is_zero() {
            *lock(&self.last_failure) = None;
            return Ok(());
        }
        Err(cause.to_call_error(&shared.spec.name, next))
    }

    async fn connect_link(
        self: &Arc<Self>,
        shared: &Arc<SupervisorShared>,
        key: &DedicatedKey,
        slot: &Arc<LinkSlot>,
        caller: &Arc<dyn ClientHandle>,
        deadline: MonotonicTime,
    ) -> Result<Arc<ReadyLink>, FailureCause> {
        let now = shared.clock.now();
        let until = now.plus(shared.spec.start_timeout).min(deadline);
        // Several sessions share a principal's link, so it has no owner outside calls.
        let owner = key.owner_session().map(|_| caller.session_handle());
        let end = shared.clock.instant(until);
        let dial = &self.deps.dial;
        let dialled = start_with_permit(&self.deps.start_permits, || {
            dial.dial(&shared.spec, &shared.log, owner, end)
        });
        let (link, events) = dialled
            .await
            .map_err(|error| FailureCause::from(&error).redact(&shared.spec.secrets))?;
        let ready = Arc::new(ReadyLink {
            generation: self.next_generation.fetch_add(1, Ordering::Relaxed),
            link: Arc::clone(&link),
            since: shared.clock.now(),
        });
        slot.used_ms.store(now.0, Ordering::Relaxed);
        let run = Self::run_link(
            Arc::clone(self),
            Arc::clone(shared),
            key.clone(),
            Arc::clone(slot),
            Arc::clone(&ready),
            events,
        );
        self.deps.tasks.spawn("dedicated link", run);
        let until = until.min(ready.since.plus(LEVEL_WAIT));
        self.wait_level_applied(shared, key, slot, &ready, until)
            .await;
        Ok(ready)
    }

    /// Waits, bounded by `until`, until the server has accepted the wanted level on this link.
    async fn wait_level_applied(
        &self,
        shared: &SupervisorShared,
        key: &DedicatedKey,
        slot: &LinkSlot,
        ready: &ReadyLink,
        until: MonotonicTime,
    ) {
        if !subscription_sync::accepts_level(ready) {
            return;
        }
        slot.level_changed.notify_one();
        let mut level = slot.level.subscribe();
        let level = level.wait_for(|level| {
            let wanted = self.wanted_level(shared, key);
            wanted.is_none() || *level == wanted
        });
        let _late = timeout_at(shared.clock.instant(until), level).await;
    }

    /// Returns the wanted log level of `key`. Sessions that share a principal's link filter
    /// messages by their own level.
    fn wanted_level(&self, shared: &SupervisorShared, key: &DedicatedKey) -> Option<LogLevel> {
        let levels = lock(&self.deps.sessions.log_levels);
        let server = EndpointScope::Server(Arc::clone(&shared.spec.name));
        match key.owner_session() {
            Some(session) => levels.session_level(session, &server),
            None => levels.server_level(&server),
        }
    }

    /// Sends changed log levels to the server; never ends. Subscriptions stay on the shared link,
    /// where they are counted by URI.
    async fn sync_level(
        &self,
        shared: &SupervisorShared,
        key: &DedicatedKey,
        slot: &LinkSlot,
        ready: &ReadyLink,
    ) {
        if !subscription_sync::accepts_level(ready) {
            return pending().await;
        }
        let server = &shared.spec.name;
        loop {
            let wanted = self.wanted_level(shared, key);
            let Some(level) = wanted.filter(|_| *slot.level.borrow() != wanted) else {
                slot.level_changed.notified().await;
                continue;
            };
            let request = SyncRequest::for_level(level);
            let outcome = request.send(shared.clock.as_ref(), server, ready).await;
            if let Err(error) = outcome {
                tracing::warn!(%server, %error, "server did not accept the log level");
            }
            slot.level.send_replace(wanted);
        }
    }

    /// Handles the events of a link until its end or idle timeout.
    async fn run_link(
        self: Arc<Self>,
        shared: Arc<SupervisorShared>,
        key: DedicatedKey,
        slot: Arc<LinkSlot>,
        ready: Arc<ReadyLink>,
        mut events: mpsc::Receiver<LinkEvent>,
    ) {
        let link = &ready.link;
        let mut levels = std::pin::pin!(self.sync_level(&shared, &key, &slot, &ready));
        loop {
            tokio::select! {
                biased;
                _ = link.wait_closed() => break,
                () = &mut levels => {}
                event = events.recv() => match event.inspect(|event| {
                    self.deps.cache.invalidate_on_event(&shared.spec.name, event);
                }) {
                    // Lists are read on the shared link only.
                    Some(LinkEvent::ToolsChanged
                        | LinkEvent::PromptsChanged
                        | LinkEvent::ResourcesChanged
                        | LinkEvent::UnattributedRequest) => {}
                    Some(event) => self.deps.deliver_event(&shared, ready.link_key(), event),
                    None => {
                        link.wait_closed().await;
                        break;
                    }
                },
                () = tokio::time::sleep(IDLE_MAX) => {
                    let (now, used) = (shared.clock.now(), slot.used_ms.load(Ordering::Relaxed));
                    let idle = now.0.saturating_sub(used) >= to_millis(IDLE_MAX);
                    // A task may run without a request in flight; closing the link would end it.
                    let tasks = lock(&self.deps.sessions.tasks);
                    let works = tasks.has_task_at(&shared.spec.name, ready.link_key(), now);
                    if idle && slot.is_idle() && !works {
                        break;
                    }
                }
            }
        }
        // A link closed by the gateway has left its slot before.
        let was_lost = !link.is_open();
        if self.remove_slot(&key, &slot) && was_lost {
            self.record_loss(&shared);
        }
        link.close().await;
    }

    fn find_by_key(&self, link: LinkKey) -> Option<Arc<ReadyLink>> {
        let slots = lock(&self.slots);
        let mut links = slots.values().filter_map(|slot| slot.link.get());
        let found = links.find(|ready| ready.link_key() == link)?;
        found.link.is_open().then(|| Arc::clone(found))
    }

    /// Returns the exclusive links of a session or client.
    fn session_links(
        &self,
        session: SessionKey,
    ) -> Vec<(DedicatedKey, Arc<LinkSlot>, Arc<ReadyLink>)> {
        let slots = lock(&self.slots);
        let own = slots
            .iter()
            .filter(|(key, _)| key.owner_session() == Some(session));
        let ready = own.filter_map(|(key, slot)| {
            let ready = slot.link.get()?;
            Some((key.clone(), Arc::clone(slot), Arc::clone(ready)))
        });
        ready.collect()
    }

    /// Removes a slot; `false` if already removed.
    fn remove_slot(&self, key: &DedicatedKey, slot: &Arc<LinkSlot>) -> bool {
        let mut slots = lock(&self.slots);
        let is_there = slots.get(key).is_some_and(|now| Arc::ptr_eq(now, slot));
        if is_there {
            slots.remove(key);
        }
        is_there
    }

    fn close_later(&self, slot: Arc<LinkSlot>) {
        let closing = async move {
            if let Some(ready) = slot.link.get() {
                ready.link.close().await;
            }
        };
        self.deps.tasks.spawn("dedicated link close", closing);
    }
}

/// Returns the key of the client's first free link, or of a new link.
fn free_key(
    slots: &HashMap<DedicatedKey, Arc<LinkSlot>, RandomState>,
    client: SessionKey,
) -> DedicatedKey {
    let mut nth = 0;
    loop {
        let key = DedicatedKey::SingleCall(client, nth);
        match slots.get(&key) {
            Some(slot) if slot.is_open() && !slot.is_free() => nth += 1,
            Some(_) | None => return key,
        }
    }
}
