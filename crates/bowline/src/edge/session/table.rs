//! Who is here: sessions are sealed into their ids, and memory is only a cache of them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::call::{Contexts, Principal, Scope};
use bowline_core::caller::SessionKey;
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_host::ports::{Audience, Clock};
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::narrow::{Narrowed, Narrowings};
use super::{Beginning, Session, Shared, Terms};
use crate::edge::modern::listen::Listeners;
use crate::edge::seal::{Seal, Sealed};
use crate::edge::stream::{Guard, Kept};

/// Sessions held in memory; one more pushes out the one that was quiet longest.
pub const SESSIONS_MAX: usize = 65_536;

/// A session that was quiet this long leaves memory. Its id still works.
pub const IDLE: Duration = Duration::from_secs(3_600);

/// An id older than this no longer works.
pub const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Streams open at once. Fewer than connections, so that listeners leave room for calls.
pub const STREAMS_MAX: usize = 8_192;

/// Sessions that had to go and wait to be told to the host; the host is told at every opening.
const GONE_MAX: usize = 4_096;

/// Ended sessions remembered, so that their ids stay dead.
const ENDED_MAX: usize = 65_536;

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    seal: Seal,
    next_key: AtomicU64,
    shared: Arc<Shared>,
    table: Mutex<Table>,
    /// Where what narrows sessions is kept.
    pub(super) narrowings: Narrowings,
    /// One for each stream that may be open.
    seats: Arc<Semaphore>,
    /// Who listens without a session.
    pub(in crate::edge) listeners: Listeners,
}

/// One of the streams that may be open; free again when dropped.
#[derive(Debug)]
pub struct Seat(#[expect(dead_code, reason = "its drop is what counts")] OwnedSemaphorePermit);

impl Guard for Seat {}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) live: HashMap<Arc<str>, Arc<Session>, RandomState>,
    /// The ids of the same sessions.
    ids: HashMap<SessionKey, Arc<str>, RandomState>,
    ended: HashSet<Arc<str>>,
    /// The same ids, oldest first.
    ended_order: VecDeque<Arc<str>>,
    /// Sessions that had to go and that the host was not told of yet.
    gone: Vec<SessionKey>,
    /// What sessions are narrowed by, in memory or not.
    pub(super) narrowed: Narrowed,
    /// What all sessions are narrowed by, those to come included.
    pub(super) for_all: Contexts,
}

impl Table {
    fn remove(&mut self, id: &str) -> Option<(Arc<str>, Arc<Session>)> {
        let (id, session) = self.live.remove_entry(id)?;
        self.ids.remove(&session.key);
        Some((id, session))
    }

    /// Returns what the session of this id is narrowed by, with all others and by itself.
    pub(super) fn contexts_of(&self, id: &str) -> Contexts {
        match self.narrowed.of(id) {
            Some(own) => self.for_all.and(own),
            None => self.for_all.clone(),
        }
    }

    fn by_key(&self, key: SessionKey) -> Option<Arc<Session>> {
        self.live.get(self.ids.get(&key)?).cloned()
    }
}

impl Sessions {
    /// Returns no sessions; ids are sealed with `key`.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        let mut start = [0; 4];
        // Without randomness ids of events could repeat after a restart; nothing else could.
        let _ = getrandom::fill(&mut start);
        let first = (u64::from(u32::from_ne_bytes(start)) << 16) + 1;
        Self {
            seal: Seal::new(key),
            next_key: AtomicU64::new(1),
            shared: Arc::new(Shared {
                next_serial: AtomicU64::new(first),
                kept: Kept::default(),
            }),
            table: Mutex::default(),
            narrowings: Narrowings::default(),
            seats: Arc::new(Semaphore::new(STREAMS_MAX)),
            listeners: Listeners::default(),
        }
    }

    /// Returns a seat for one more stream, unless all are taken.
    #[must_use]
    pub fn seat(&self) -> Option<Seat> {
        Arc::clone(&self.seats).try_acquire_owned().ok().map(Seat)
    }

    /// Returns a key that tells one more caller from every other of this process.
    pub(in crate::edge) fn new_key(&self) -> SessionKey {
        SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns what seals ids, for whatever else callers keep for this gateway.
    #[must_use]
    pub const fn sealing(&self) -> &Seal {
        &self.seal
    }

    /// Returns a principal as it may ask without a session: narrowed by what was set for all.
    #[must_use]
    pub fn narrowed(&self, principal: &Arc<Principal>) -> Arc<Principal> {
        let table = self.table();
        if table.for_all.is_empty() {
            return Arc::clone(principal);
        }
        Arc::new(principal.narrowed(&table.for_all))
    }

    /// Opens a session and returns it with its id.
    pub fn open(&self, terms: Terms, clock: &dyn Clock) -> Option<(Arc<str>, Arc<Session>)> {
        let issued_s = clock.unix_ms() / 1_000;
        let id: Arc<str> = self
            .seal
            .seal(&Sealed {
                principal: terms.principal.name.as_ref().to_owned(),
                credential: terms.principal.credential.as_ref().to_owned(),
                scope: terms.scope.clone(),
                revision: terms.revision,
                issued_s,
                abilities: terms.abilities,
            })?
            .into();
        let session = self.begin(&id, terms, issued_s, clock);
        Some((id, session))
    }

    /// Returns the session of `id`, if it belongs to this credential and endpoint; a session this
    /// process has not seen yet comes to life from its id.
    #[must_use]
    pub fn find(
        &self,
        id: &str,
        principal: &Arc<Principal>,
        scope: &Scope,
        clock: &dyn Clock,
    ) -> Option<Arc<Session>> {
        let held = self.table().live.get(id).cloned();
        let session = match held {
            Some(session) => session,
            None => self.revive(id, principal, clock)?,
        };
        if !session.is_of(principal) || session.scope != *scope {
            return None;
        }
        session.used_ms.store(clock.now().0, Ordering::Relaxed);
        Some(session)
    }

    /// Ends a session for good, and returns it.
    pub fn end(&self, id: &str) -> Option<Arc<Session>> {
        let session = {
            let mut table = self.table();
            let (id, session) = table.remove(id)?;
            if table.ended.insert(Arc::clone(&id)) {
                table.ended_order.push_back(id);
            }
            if table.ended_order.len() > ENDED_MAX
                && let Some(oldest) = table.ended_order.pop_front()
            {
                table.ended.remove(&oldest);
            }
            session
        };
        session.close();
        Some(session)
    }

    /// Returns the sessions that had to go since the last time, for whoever else knows them.
    #[must_use]
    pub fn gone(&self) -> Vec<SessionKey> {
        std::mem::take(&mut self.table().gone)
    }

    /// Lets sessions go that were quiet for long; [`gone`](Self::gone) names them.
    pub fn sweep(&self, now: Now) {
        for session in self.all() {
            session.sweep(now);
        }
        let quiet: Vec<_> = {
            let mut table = self.table();
            let quiet = table.live.iter().filter(|(_, session)| {
                let used = Now(session.used_ms.load(Ordering::Relaxed));
                now.millis_since(used) >= millis(IDLE) && !session.is_busy()
            });
            let quiet: Vec<_> = quiet.map(|(id, _)| Arc::clone(id)).collect();
            let quiet: Vec<_> = quiet.iter().filter_map(|id| table.remove(id)).collect();
            table
                .gone
                .extend(quiet.iter().map(|(_, session)| session.key));
            quiet
        };
        for (_, session) in quiet {
            session.close();
        }
    }

    /// Returns the ids of the sessions that were opened with this credential.
    #[must_use]
    pub fn of(&self, credential: &str) -> Vec<Arc<str>> {
        let table = self.table();
        let own = table
            .live
            .iter()
            .filter(|(_, session)| *session.principal.credential == *credential);
        own.map(|(id, _)| Arc::clone(id)).collect()
    }

    /// Returns every session in memory, with its id.
    #[must_use]
    pub fn named(&self) -> Vec<(Arc<str>, Arc<Session>)> {
        let table = self.table();
        let all = table.live.iter();
        all.map(|(id, session)| (Arc::clone(id), Arc::clone(session)))
            .collect()
    }

    /// Returns every session in memory.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.table().live.values().cloned().collect()
    }

    /// Returns how many sessions are in memory, and how many callers listen with one or without.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let table = self.table();
        let listening = table
            .live
            .values()
            .filter(|session| session.is_listening())
            .count();
        (table.live.len(), listening + self.listeners.count())
    }

    /// Ends every stream on which anybody listens, because the gateway goes down. The streams
    /// of calls end with their answers.
    pub fn close_streams(&self) {
        for session in self.all() {
            session.home.interrupt();
        }
        self.listeners.close();
    }

    fn revive(
        &self,
        id: &str,
        principal: &Arc<Principal>,
        clock: &dyn Clock,
    ) -> Option<Arc<Session>> {
        let sealed = self.unseal(id, clock)?;
        if *sealed.principal != *principal.name || *sealed.credential != *principal.credential {
            return None;
        }
        // What it knew of the lists is not known any more: the next change is news to it.
        let terms = Terms {
            principal: Arc::clone(principal),
            scope: sealed.scope,
            revision: sealed.revision,
            abilities: sealed.abilities,
        };
        Some(self.begin(&id.into(), terms, sealed.issued_s, clock))
    }

    /// Returns what an id says, if its session may still be used.
    pub(super) fn unseal(&self, id: &str, clock: &dyn Clock) -> Option<Sealed> {
        let sealed = self.seal.open(id)?;
        let age_s = (clock.unix_ms() / 1_000).saturating_sub(sealed.issued_s);
        let ended = self.table().ended.contains(id);
        (!ended && age_s <= AGE_MAX.as_secs()).then_some(sealed)
    }

    fn begin(&self, id: &Arc<str>, terms: Terms, issued_s: u64, clock: &dyn Clock) -> Arc<Session> {
        let key = self.new_key();
        let at = Beginning {
            now: clock.now(),
            unix_ms: clock.unix_ms(),
            issued_s,
        };
        let session = Arc::new(Session::new(id, key, terms, &self.shared, at));
        let (session, pushed_out) = self.table().insert(Arc::clone(id), session);
        if let Some(pushed_out) = pushed_out {
            pushed_out.close();
        }
        session
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    /// Inserts a session, unless another request has just done so; returns the one that counts,
    /// and the one that had to go.
    fn insert(
        &mut self,
        id: Arc<str>,
        session: Arc<Session>,
    ) -> (Arc<Session>, Option<Arc<Session>>) {
        if let Some(first) = self.live.get(&id) {
            return (Arc::clone(first), None);
        }
        let mut pushed_out = None;
        if self.live.len() >= SESSIONS_MAX {
            let quietest = self
                .live
                .iter()
                .min_by_key(|(_, session)| session.used_ms.load(Ordering::Relaxed))
                .map(|(id, _)| Arc::clone(id));
            pushed_out = quietest.and_then(|id| self.remove(&id));
        }
        if let Some((_, session)) = &pushed_out
            && self.gone.len() < GONE_MAX
        {
            self.gone.push(session.key);
        }
        // Under the same lock as what is set: a session that comes back is never wider.
        let contexts = self.contexts_of(&id);
        if !contexts.is_empty() {
            session.narrow(&contexts);
        }
        self.ids.insert(session.key, Arc::clone(&id));
        self.live.insert(id, Arc::clone(&session));
        (session, pushed_out.map(|(_, session)| session))
    }
}

/// What a server says outside calls goes to the stream its session listens on, or to the one that
/// has no other session.
impl Audience for Sessions {
    fn tell(&self, session: SessionKey, notification: Bytes) -> bool {
        let found = self.table().by_key(session);
        match found {
            Some(session) => session.tell(notification),
            None => self.listeners.tell(session, &notification),
        }
    }
}
