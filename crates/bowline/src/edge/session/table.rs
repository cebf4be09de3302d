//! Who is here: sessions are sealed into their ids, and memory is only a cache of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::call::{Contexts, Principal, Scope};
use bowline_core::caller::SessionKey;
use bowline_core::lru::{Arena, Queue, Slot};
use bowline_core::shares::{Resource, ShareError};
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_host::accounts::{PrincipalAccounts, Share};
use bowline_host::ports::{Audience, Clock};
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::ended::{Ended, EndedLog};
use super::narrow::{Narrowed, Narrowings};
use super::{Beginning, Session, Shared, Terms};
use crate::edge::modern::listen::Listeners;
use crate::edge::seal::{Seal, Sealed};
use crate::edge::stream::{Guard, Kept};

/// Sessions of a principal that are looked at for one that is idle, when one has to go.
const EVICTION_LOOKS_MAX: usize = 64;

/// A session that was quiet this long leaves memory. Its id still works.
pub const IDLE: Duration = Duration::from_secs(3_600);

/// An id older than this no longer works.
pub const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Sessions that had to go and wait to be told to the host; the host is told at every opening.
const GONE_MAX: usize = 4_096;

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    next_key: AtomicU64,
    shared: Arc<Shared>,
    table: Mutex<Table>,
    /// Where what narrows sessions is kept.
    pub(super) narrowings: Narrowings,
    /// Where ended sessions are kept.
    pub(super) ended_log: EndedLog,
    /// What each principal holds.
    accounts: PrincipalAccounts,
    /// Who listens without a session.
    pub(in crate::edge) listeners: Listeners,
}

/// One of the streams that may be open; free again when dropped.
#[derive(Debug)]
pub struct Seat(#[expect(dead_code, reason = "its drop is what counts")] Share);

impl Guard for Seat {}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) live: HashMap<Arc<str>, Arc<Session>, RandomState>,
    /// The ids of the same sessions, and where they stand among those of their principal.
    ids: HashMap<SessionKey, (Arc<str>, Slot), RandomState>,
    /// The sessions of each principal, the one that was used longest ago first.
    by_principal: HashMap<Arc<str>, Queue, RandomState>,
    held: Arena<Held>,
    /// Sessions that were ended, so that their ids stay dead.
    pub(super) ended: Ended,
    /// Sessions that had to go and that the host was not told of yet.
    gone: Vec<SessionKey>,
    /// What sessions are narrowed by, in memory or not.
    pub(super) narrowed: Narrowed,
    /// What all sessions are narrowed by, those to come included.
    pub(super) for_all: Contexts,
}

/// A session as a part of its principal's share.
#[derive(Debug)]
struct Held {
    id: Arc<str>,
    share: Share,
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// No id could be made.
    Seal,
    /// There is no room for one more, and none that is idle could go for it.
    Share(ShareError),
}

impl Table {
    fn remove(&mut self, id: &str) -> Option<(Arc<str>, Arc<Session>)> {
        self.take_out(id).map(|(id, session, _)| (id, session))
    }

    fn take_out(&mut self, id: &str) -> Option<(Arc<str>, Arc<Session>, Option<Share>)> {
        let (id, session) = self.live.remove_entry(id)?;
        let name = &session.principal.name;
        let slot = self.ids.remove(&session.key).map(|(_, slot)| slot);
        let queue = self.by_principal.get_mut(name);
        let held = slot.zip(queue).and_then(|(slot, queue)| {
            let held = self.held.remove(queue, slot);
            (held, queue.is_empty()).into()
        });
        let (held, is_last) = held.unwrap_or_default();
        if is_last {
            self.by_principal.remove(name);
        }
        Some((id, session, held.map(|held| held.share)))
    }

    /// Notes that a session is used.
    fn touch(&mut self, session: &Session) {
        let queue = self.by_principal.get_mut(&session.principal.name);
        if let (Some((_, slot)), Some(queue)) = (self.ids.get(&session.key), queue) {
            self.held.touch(queue, *slot);
        }
    }

    /// Takes out the session of a principal that was used longest ago and is idle.
    fn evict(&mut self, principal: &str) -> Option<(Arc<Session>, Option<Share>)> {
        let queue = self.by_principal.get_mut(principal)?;
        let mut idle = None;
        for _ in 0..queue.len().min(EVICTION_LOOKS_MAX) {
            let slot = queue.first()?;
            let id = &self.held.get(slot)?.id;
            if !self.live.get(id).is_some_and(|one| one.is_busy()) {
                idle = Some(Arc::clone(id));
                break;
            }
            self.held.touch(queue, slot);
        }
        let (_, session, share) = self.take_out(&idle?)?;
        if self.gone.len() < GONE_MAX {
            self.gone.push(session.key);
        }
        Some((session, share))
    }

    /// Returns what the session of this id is narrowed by, with all others and by itself.
    pub(super) fn contexts_of(&self, id: &str) -> Contexts {
        match self.narrowed.of(id) {
            Some(own) => self.for_all.and(own),
            None => self.for_all.clone(),
        }
    }

    fn by_key(&self, key: SessionKey) -> Option<Arc<Session>> {
        let (id, _) = self.ids.get(&key)?;
        self.live.get(id).cloned()
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
            next_key: AtomicU64::new(1),
            shared: Arc::new(Shared {
                seal: Seal::new(key),
                next_serial: AtomicU64::new(first),
                kept: Kept::default(),
            }),
            table: Mutex::default(),
            narrowings: Narrowings::default(),
            ended_log: EndedLog::default(),
            accounts: PrincipalAccounts::default(),
            listeners: Listeners::default(),
        }
    }

    /// Counts what principals hold in these accounts.
    #[must_use]
    pub fn with_accounts(self, accounts: PrincipalAccounts) -> Self {
        Self { accounts, ..self }
    }

    /// Returns a seat for one more stream of this principal.
    ///
    /// # Errors
    /// The principal has as many as it may, or all there are are taken.
    pub fn seat(&self, principal: &Principal) -> Result<Seat, ShareError> {
        let share = self.accounts.take(principal, Resource::Streams, 1)?;
        Ok(Seat(share))
    }

    /// Returns a key that tells one more caller from every other of this process.
    pub(in crate::edge) fn new_key(&self) -> SessionKey {
        SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns what seals ids, for whatever else callers keep for this gateway.
    #[must_use]
    pub fn sealing(&self) -> &Seal {
        &self.shared.seal
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
    ///
    /// # Errors
    /// The principal has as many as it may, and those that were looked at are busy.
    pub fn open(
        &self,
        terms: Terms,
        clock: &dyn Clock,
    ) -> Result<(Arc<str>, Arc<Session>), OpenError> {
        let issued_s = clock.unix_ms() / 1_000;
        let id: Arc<str> = self
            .sealing()
            .seal(&Sealed {
                principal: terms.principal.name.as_ref().to_owned(),
                credential: terms.principal.credential.as_ref().to_owned(),
                scope: terms.scope.clone(),
                revision: terms.revision,
                issued_s,
                abilities: terms.abilities,
            })
            .ok_or(OpenError::Seal)?
            .into();
        let session = self.begin(&id, terms, issued_s, clock);
        Ok((id, session.map_err(OpenError::Share)?))
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
        let held = {
            let mut table = self.table();
            let held = table.live.get(id).cloned();
            if let Some(session) = held.as_ref().filter(|one| one.is_of(principal)) {
                table.touch(session);
            }
            held
        };
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
            let record = table.ended.add(&id, session.issued_s);
            drop(table);
            // Outside the lock: a disk may be slow.
            self.ended_log
                .append(&record, || self.table().ended.written());
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
        self.begin(&id.into(), terms, sealed.issued_s, clock).ok()
    }

    /// Returns what an id says, if its session may still be used.
    pub(super) fn unseal(&self, id: &str, clock: &dyn Clock) -> Option<Sealed> {
        let sealed = self.sealing().open(id)?;
        let age_s = (clock.unix_ms() / 1_000).saturating_sub(sealed.issued_s);
        let ended = self.table().ended.has(id);
        (!ended && age_s <= AGE_MAX.as_secs()).then_some(sealed)
    }

    fn begin(
        &self,
        id: &Arc<str>,
        terms: Terms,
        issued_s: u64,
        clock: &dyn Clock,
    ) -> Result<Arc<Session>, ShareError> {
        let key = self.new_key();
        let at = Beginning {
            now: clock.now(),
            unix_ms: clock.unix_ms(),
            issued_s,
        };
        let session = Arc::new(Session::new(id, key, terms, &self.shared, at));
        let inserted = self.table().insert(Arc::clone(id), session, &self.accounts);
        let (session, evicted) = inserted?;
        if let Some(evicted) = evicted {
            evicted.close();
        }
        Ok(session)
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    /// Inserts a session, unless another request has just done so; returns the one that counts,
    /// and the one that had to go. Only an idle session of the same principal ever has to.
    fn insert(
        &mut self,
        id: Arc<str>,
        session: Arc<Session>,
        accounts: &PrincipalAccounts,
    ) -> Result<(Arc<Session>, Option<Arc<Session>>), ShareError> {
        if let Some(first) = self.live.get(&id) {
            return Ok((Arc::clone(first), None));
        }
        let principal = &session.principal;
        let mut evicted = None;
        let mut given = None;
        if !accounts.has_room(principal, Resource::Sessions, 1)
            && let Some((gone, share)) = self.evict(&principal.name)
        {
            (evicted, given) = (Some(gone), share);
        }
        let share = match given {
            Some(share) => share,
            None => accounts.take(principal, Resource::Sessions, 1)?,
        };
        // Under the same lock as what is set: a session that comes back is never wider.
        let contexts = self.contexts_of(&id);
        if !contexts.is_empty() {
            session.narrow(&contexts);
        }
        let held = Held {
            id: Arc::clone(&id),
            share,
        };
        let queue = match self.by_principal.get_mut(&principal.name) {
            Some(queue) => queue,
            None => {
                let name = Arc::clone(&principal.name);
                self.by_principal.entry(name).or_default()
            }
        };
        let slot = self.held.push(queue, held);
        self.ids.insert(session.key, (Arc::clone(&id), slot));
        self.live.insert(id, Arc::clone(&session));
        Ok((session, evicted))
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
