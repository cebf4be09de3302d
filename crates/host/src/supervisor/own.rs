//! Links that belong to one session or one principal, beside the one that all share.

mod restarts;
mod which;

use std::collections::HashMap;
use std::future::pending;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::Scope;
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::error::CallError;
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_core::tasks::LinkKey;
use bowline_core::time::{Now, millis};
use bowline_link::{LinkEvent, Processes};
use foldhash::fast::RandomState;
use tokio::sync::{Notify, OnceCell, mpsc, watch};
use tokio::time::timeout_at;

use self::restarts::OwnRestarts;
use super::cause::Cause;
use super::starts::paced;
use super::{Ready, Shared, Surroundings};
use crate::spec::ServerSpec;
use crate::standing;

/// Links of their own that one server has at most; one more takes the place of one that is idle.
pub(super) const OWN_LINKS_MAX: usize = 32;

/// A link of its own that no call used for this long is closed, unless tasks live there.
const IDLE_MAX: Duration = Duration::from_secs(15 * 60);

/// After a failure to connect, the next try waits this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A fresh link waits this long for its server to take a log level.
const LEVEL_WAIT: Duration = Duration::from_secs(5);

/// Own links are numbered from here on, so that no number is also one of the shared links.
const GENERATION_BASE: u64 = 1 << 32;

/// Whose a link is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Principal(Arc<str>),
    Session(SessionKey),
    /// One of the links of a client without a session, by its number. Each carries one call at a
    /// time, so that a question on it is of that call.
    OneCall(SessionKey, usize),
}

impl Key {
    /// Returns the session or client that it belongs to alone.
    const fn session(&self) -> Option<SessionKey> {
        match self {
            Self::Session(session) | Self::OneCall(session, _) => Some(*session),
            Self::Principal(_) => None,
        }
    }
}

/// The links of one server that are not shared by all.
#[derive(Debug)]
pub(super) struct OwnLinks {
    around: Surroundings,
    slots: Mutex<HashMap<Key, Arc<Slot>, RandomState>>,
    made: AtomicU64,
    /// Why, and when, the last try to connect failed.
    failed: Mutex<Option<(Now, Cause)>>,
    /// How often processes were started in place of lost ones; absent where the server is none.
    restarts: Option<OwnRestarts>,
}

/// The place of one link: connected once for all who wait for it.
#[derive(Debug, Default)]
struct Slot {
    link: OnceCell<Arc<Ready>>,
    /// Whether a call has it to itself.
    taken: AtomicBool,
    used_ms: AtomicU64,
    /// The log level that the server was told.
    level: watch::Sender<Option<Level>>,
    /// Rung when another level may be wanted.
    poke: Notify,
}

impl Slot {
    /// Whether its link carries nothing now.
    fn is_idle(&self) -> bool {
        self.link.get().is_some() && self.is_free()
    }

    /// Whether a call may have it to itself, connected or not.
    fn is_free(&self) -> bool {
        let idle = |ready: &Arc<Ready>| ready.link.in_flight() == 0;
        !self.taken.load(Ordering::Acquire) && self.link.get().is_none_or(idle)
    }

    fn is_open(&self) -> bool {
        self.link.get().is_none_or(|ready| ready.link.is_open())
    }
}

/// The passage of a call: the link that carries it, and its place there where no other call may
/// have it meanwhile.
#[derive(Debug)]
pub struct Passage {
    ready: Arc<Ready>,
    _place: Option<Place>,
}

impl From<Arc<Ready>> for Passage {
    fn from(ready: Arc<Ready>) -> Self {
        Self {
            ready,
            _place: None,
        }
    }
}

impl Deref for Passage {
    type Target = Ready;

    fn deref(&self) -> &Ready {
        &self.ready
    }
}

/// A slot that one call has to itself, until this is dropped.
#[derive(Debug)]
struct Place(Arc<Slot>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Ready {
    /// Says which of its server's links it is, for what outlives a call.
    pub(crate) fn key(&self) -> LinkKey {
        match self.generation {
            GENERATION_BASE.. => LinkKey(self.generation),
            _ => LinkKey::SHARED,
        }
    }
}

impl OwnLinks {
    pub(super) fn new(around: &Surroundings, spec: &ServerSpec) -> Self {
        let is_process = spec.reach.is_process();
        Self {
            restarts: is_process.then(|| OwnRestarts::new(spec.restart)),
            around: around.clone(),
            slots: Mutex::default(),
            made: AtomicU64::new(GENERATION_BASE),
            failed: Mutex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.slots).len()
    }

    /// Has every link look at what level is wanted now.
    fn poke(&self) {
        for slot in lock(&self.slots).values() {
            slot.poke.notify_one();
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        let slots = lock(&self.slots);
        let links = slots.values().filter_map(|slot| slot.link.get());
        links.map(|ready| ready.link.in_flight()).sum()
    }

    /// Returns the processes behind each link.
    pub(super) fn processes(&self) -> Vec<Processes> {
        let slots = lock(&self.slots);
        let links = slots.values().filter_map(|slot| slot.link.get());
        links.filter_map(|ready| ready.link.processes()).collect()
    }

    /// Closes the links of a session that is over.
    pub(super) fn forget(self: &Arc<Self>, session: SessionKey) {
        let own = |key: &Key, _: &mut Arc<Slot>| key.session() == Some(session);
        let slots: Vec<_> = lock(&self.slots).extract_if(own).collect();
        for (_, slot) in slots {
            self.close_later(slot);
        }
    }

    /// Closes every link, without waiting.
    pub(super) fn clear(&self) {
        let slots: Vec<_> = lock(&self.slots).drain().collect();
        for (_, slot) in slots {
            self.close_later(slot);
        }
    }

    /// Closes every link and waits for their end.
    pub(super) async fn close_all(&self) {
        let slots: Vec<_> = lock(&self.slots).drain().map(|(_, slot)| slot).collect();
        let links: Vec<_> = slots.iter().filter_map(|slot| slot.link.get()).collect();
        // All are told before the first is waited for.
        let ends: Vec<_> = links.iter().map(|ready| ready.link.close()).collect();
        for end in ends {
            end.await;
        }
    }

    /// Returns the link of `call`'s own session or principal, connecting it if need be.
    async fn link(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        key: Key,
        caller: &Arc<dyn CallerEnd>,
        deadline: Now,
    ) -> Result<Passage, CallError> {
        let (key, slot) = self.slot(shared, key)?;
        let place = matches!(key, Key::OneCall(..)).then(|| Place(Arc::clone(&slot)));
        let connect = self.connect(shared, &key, &slot, caller, deadline);
        let ready = slot.link.get_or_try_init(|| connect).await.cloned();
        let now = shared.clock.now();
        slot.used_ms.store(now.0, Ordering::Relaxed);
        match ready {
            Ok(ready) => Ok(Passage {
                ready,
                _place: place,
            }),
            Err(cause) => {
                let refusal = cause.refusal(&shared.spec.name, RETRY_AFTER);
                *lock(&self.failed) = Some((now, cause));
                self.note_lost(shared);
                self.remove(&key, &slot);
                Err(refusal)
            }
        }
    }

    /// Returns the slot for a key; a link in it that ended is left behind. Where it is for one
    /// call, it is taken from now on.
    fn slot(self: &Arc<Self>, shared: &Shared, key: Key) -> Result<(Key, Arc<Slot>), CallError> {
        let mut slots = lock(&self.slots);
        let key = match key {
            Key::OneCall(session, _) => free(&slots, session),
            key @ (Key::Principal(_) | Key::Session(_)) => key,
        };
        let is_for_one = matches!(key, Key::OneCall(..));
        if let Some(slot) = slots.get(&key).filter(|slot| slot.is_open()) {
            slot.taken.store(is_for_one, Ordering::Release);
            return Ok((key, Arc::clone(slot)));
        }
        if slots.remove(&key).is_some() {
            self.note_lost(shared);
        }
        self.refuse_haste(shared)?;
        if slots.len() >= OWN_LINKS_MAX {
            let idle = slots.iter().filter(|(_, slot)| slot.is_idle());
            let quietest = idle
                .min_by_key(|(_, slot)| slot.used_ms.load(Ordering::Relaxed))
                .map(|(key, _)| key.clone());
            let freed = quietest.and_then(|key| slots.remove(&key));
            match freed {
                Some(slot) => self.close_later(slot),
                None => {
                    return Err(CallError::ServerBusy {
                        server: Arc::clone(&shared.spec.name),
                        limit: OWN_LINKS_MAX,
                    });
                }
            }
        }
        self.spend_restart(shared)?;
        let slot = Arc::new(Slot::default());
        slot.taken.store(is_for_one, Ordering::Release);
        slots.insert(key.clone(), Arc::clone(&slot));
        Ok((key, slot))
    }

    /// A server that cannot be connected is not tried again by every call.
    fn refuse_haste(&self, shared: &Shared) -> Result<(), CallError> {
        let failed = lock(&self.failed).clone();
        let Some((at, cause)) = failed else {
            return Ok(());
        };
        let next = shared.clock.now().until(at.plus(RETRY_AFTER));
        if next.is_zero() {
            *lock(&self.failed) = None;
            return Ok(());
        }
        Err(cause.refusal(&shared.spec.name, next))
    }

    async fn connect(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        key: &Key,
        slot: &Arc<Slot>,
        caller: &Arc<dyn CallerEnd>,
        deadline: Now,
    ) -> Result<Arc<Ready>, Cause> {
        let now = shared.clock.now();
        let until = now.plus(shared.spec.start_timeout).min(deadline);
        // Several sessions share the link of a principal, so it is nobody's own outside calls.
        let owner = key.session().map(|_| caller.home());
        let end = shared.clock.instant(until);
        let dial = &self.around.dial;
        let dialled = paced(&self.around.starts, || {
            dial.dial(&shared.spec, &shared.log, owner, end)
        });
        let (link, events) = dialled
            .await
            .map_err(|error| Cause::from(&error).cleaned(&shared.spec.secrets))?;
        let ready = Arc::new(Ready {
            generation: self.made.fetch_add(1, Ordering::Relaxed),
            link: Arc::clone(&link),
            since: shared.clock.now(),
        });
        slot.used_ms.store(now.0, Ordering::Relaxed);
        let keeping = Self::keep(
            Arc::clone(self),
            Arc::clone(shared),
            key.clone(),
            Arc::clone(slot),
            (Arc::clone(&ready), events),
        );
        self.around.tasks.spawn("own link", keeping);
        let until = until.min(ready.since.plus(LEVEL_WAIT));
        self.levelled(shared, key, slot, &ready, until).await;
        Ok(ready)
    }

    /// Waits until the server was told the level that is wanted on this link; not long.
    async fn levelled(&self, shared: &Shared, key: &Key, slot: &Slot, ready: &Ready, until: Now) {
        if !standing::takes_level(ready) {
            return;
        }
        slot.poke.notify_one();
        let mut told = slot.level.subscribe();
        let told = told.wait_for(|told| {
            let wanted = self.level(shared, key);
            wanted.is_none() || *told == wanted
        });
        let _late = timeout_at(shared.clock.instant(until), told).await;
    }

    /// Returns the level that is wanted on the link of `key`. Who shares the link of a principal
    /// hears what is meant for it by its own level.
    fn level(&self, shared: &Shared, key: &Key) -> Option<Level> {
        let levels = lock(&self.around.memory.levels);
        let server = Scope::Server(Arc::clone(&shared.spec.name));
        match key.session() {
            Some(session) => levels.of_session(session, &server),
            None => levels.of(&server),
        }
    }

    /// Tells the server whenever another level is wanted; never ends. Subscriptions are not made
    /// again here: they stay on the link that all share, where they are counted by URI.
    async fn keep_level(&self, shared: &Shared, key: &Key, slot: &Slot, ready: &Ready) {
        if !standing::takes_level(ready) {
            return pending().await;
        }
        let server = &shared.spec.name;
        loop {
            let wanted = self.level(shared, key);
            let Some(level) = wanted.filter(|_| *slot.level.borrow() != wanted) else {
                slot.poke.notified().await;
                continue;
            };
            let words = standing::level_words(level);
            let outcome = standing::tell(shared.clock.as_ref(), server, ready, words).await;
            if let Err(error) = outcome {
                tracing::warn!(%server, %error, "the log level was not taken");
            }
            slot.level.send_replace(wanted);
        }
    }

    /// Listens to a link until it ends or was idle for long.
    async fn keep(
        self: Arc<Self>,
        shared: Arc<Shared>,
        key: Key,
        slot: Arc<Slot>,
        (ready, mut events): (Arc<Ready>, mpsc::Receiver<LinkEvent>),
    ) {
        let link = &ready.link;
        let mut levels = std::pin::pin!(self.keep_level(&shared, &key, &slot, &ready));
        loop {
            tokio::select! {
                biased;
                _ = link.closed() => break,
                () = &mut levels => {}
                event = events.recv() => match event.inspect(|event| {
                    self.around.answers.heard(&shared.spec.name, event);
                }) {
                    // The lists are those of the shared link.
                    Some(LinkEvent::ToolsChanged
                        | LinkEvent::PromptsChanged
                        | LinkEvent::ResourcesChanged
                        | LinkEvent::Ambiguous) => {}
                    Some(event) => self.around.heard(&shared, ready.key(), event),
                    None => {
                        link.closed().await;
                        break;
                    }
                },
                () = tokio::time::sleep(IDLE_MAX) => {
                    let (now, used) = (shared.clock.now(), slot.used_ms.load(Ordering::Relaxed));
                    let idle = now.0.saturating_sub(used) >= millis(IDLE_MAX);
                    // A task may be at work with no request in flight; it would go with the link.
                    let tasks = lock(&self.around.memory.tasks);
                    let works = tasks.any_at(&shared.spec.name, ready.key(), now);
                    if idle && slot.is_idle() && !works {
                        break;
                    }
                }
            }
        }
        // One that we closed has left its slot before.
        let was_lost = !link.is_open();
        if self.remove(&key, &slot) && was_lost {
            self.note_lost(&shared);
        }
        link.close().await;
    }

    fn by_key(&self, link: LinkKey) -> Option<Arc<Ready>> {
        let slots = lock(&self.slots);
        let mut links = slots.values().filter_map(|slot| slot.link.get());
        let found = links.find(|ready| ready.key() == link)?;
        found.link.is_open().then(|| Arc::clone(found))
    }

    /// Returns the links that a session or client has to itself.
    fn of_session(&self, session: SessionKey) -> Vec<(Key, Arc<Slot>, Arc<Ready>)> {
        let slots = lock(&self.slots);
        let own = slots
            .iter()
            .filter(|(key, _)| key.session() == Some(session));
        let ready = own.filter_map(|(key, slot)| {
            let ready = slot.link.get()?;
            Some((key.clone(), Arc::clone(slot), Arc::clone(ready)))
        });
        ready.collect()
    }

    /// Takes a slot out; `false` where it is out already.
    fn remove(&self, key: &Key, slot: &Arc<Slot>) -> bool {
        let mut slots = lock(&self.slots);
        let is_there = slots.get(key).is_some_and(|now| Arc::ptr_eq(now, slot));
        if is_there {
            slots.remove(key);
        }
        is_there
    }

    fn close_later(&self, slot: Arc<Slot>) {
        let closing = async move {
            if let Some(ready) = slot.link.get() {
                ready.link.close().await;
            }
        };
        self.around.tasks.spawn("own link's end", closing);
    }
}

/// Returns the first link of a client that carries no call, or the next that it may have.
fn free(slots: &HashMap<Key, Arc<Slot>, RandomState>, client: SessionKey) -> Key {
    let mut nth = 0;
    loop {
        let key = Key::OneCall(client, nth);
        match slots.get(&key) {
            Some(slot) if slot.is_open() && !slot.is_free() => nth += 1,
            Some(_) | None => return key,
        }
    }
}
