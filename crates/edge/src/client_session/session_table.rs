//! Session table: sessions are sealed into their ids, and memory is only a cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::call::{ContextSet, EndpointScope, Principal};
use bowline_core::client_handle::SessionKey;
use bowline_core::lru::{LruArena, LruQueue, LruSlot};
use bowline_core::shares::{ShareError, SharedResource};
use bowline_core::sync::lock;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_host::accounts::{PrincipalAccounts, ResourceShare};
use bowline_host::ports::NotificationSink;
use bowline_runtime::Clock;
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::ended_sessions::{EndedSessionLog, EndedSessions};
use super::session_narrowing::{NarrowedSessions, NarrowingStore};
use super::{ClientSession, SessionShared, SessionStart, SessionTerms};
use crate::event_stream::{ReplayBudget, StreamGuard};
use crate::modern_mcp::subscriptions_listen::ModernListeners;
use crate::seal::{Seal, SessionClaims};

/// Maximum number of sessions inspected to find an idle session to evict.
const EVICTION_LOOKS_MAX: usize = 64;

/// Idle time before a session leaves memory. Its id stays valid.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(3_600);

/// Maximum age of a session id.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Evicted sessions not yet reported to the host; reported at every session opening.
const EVICTED_MAX: usize = 4_096;

/// All sessions.
#[derive(Debug)]
pub struct ClientSessions {
    next_key: AtomicU64,
    shared: Arc<SessionShared>,
    table: Mutex<SessionTable>,
    /// File of session narrowings.
    pub(super) narrowing_store: NarrowingStore,
    /// File of ended sessions.
    pub(super) ended_log: EndedSessionLog,
    /// Resource accounts per principal.
    accounts: PrincipalAccounts,
    /// Listen streams of clients without a session.
    pub(crate) listeners: ModernListeners,
}

/// Permit for an open stream; released on drop.
#[derive(Debug)]
pub struct StreamPermit(#[expect(dead_code, reason = "its drop is what counts")] ResourceShare);

impl StreamGuard for StreamPermit {}

#[derive(Debug, Default)]
pub(super) struct SessionTable {
    pub(super) live: HashMap<Arc<str>, Arc<ClientSession>, RandomState>,
    /// Ids of the same sessions, and their slots in the principal's queue.
    ids: HashMap<SessionKey, (Arc<str>, LruSlot), RandomState>,
    /// Sessions per principal, least recently used first.
    by_principal: HashMap<Arc<str>, LruQueue, RandomState>,
    shares: LruArena<SessionShare>,
    /// Ended sessions, so that their ids stay invalid.
    pub(super) ended: EndedSessions,
    /// Evicted sessions not yet reported to the host.
    evicted: Vec<SessionKey>,
    /// Contexts of single sessions, in memory or not.
    pub(super) narrowed: NarrowedSessions,
    /// Contexts of all sessions, including future sessions.
    pub(super) global_contexts: ContextSet,
}

/// A session's share of the principal's limit.
#[derive(Debug)]
struct SessionShare {
    id: Arc<str>,
    share: ResourceShare,
}

/// Reason for not opening a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenSessionError {
    /// No id could be sealed.
    Seal,
    /// The session limit is reached and no idle session can be evicted.
    Share(ShareError),
}

impl SessionTable {
    fn remove(&mut self, id: &str) -> Option<(Arc<str>, Arc<ClientSession>)> {
        self.remove_with_share(id)
            .map(|(id, session, _)| (id, session))
    }

    fn remove_with_share(
        &mut self,
        id: &str,
    ) -> Option<(Arc<str>, Arc<ClientSession>, Option<ResourceShare>)> {
        let (id, session) = self.live.remove_entry(id)?;
        let name = &session.principal.name;
        let slot = self.ids.remove(&session.key).map(|(_, slot)| slot);
        let queue = self.by_principal.get_mut(name);
        let removed = slot.zip(queue).and_then(|(slot, queue)| {
            let removed = self.shares.remove(queue, slot);
            (removed, queue.is_empty()).into()
        });
        let (removed, is_last) = removed.unwrap_or_default();
        if is_last {
            self.by_principal.remove(name);
        }
        Some((id, session, removed.map(|removed| removed.share)))
    }

    /// Marks a session as used.
    fn touch(&mut self, session: &ClientSession) {
        let queue = self.by_principal.get_mut(&session.principal.name);
        if let (Some((_, slot)), Some(queue)) = (self.ids.get(&session.key), queue) {
            self.shares.touch(queue, *slot);
        }
    }

    /// Evicts the least recently used idle session of a principal.
    fn evict_idle(
        &mut self,
        principal: &str,
    ) -> Option<(Arc<ClientSession>, Option<ResourceShare>)> {
        let queue = self.by_principal.get_mut(principal)?;
        let mut idle = None;
        for _ in 0..queue.len().min(EVICTION_LOOKS_MAX) {
            let slot = queue.oldest()?;
            let id = &self.shares.get(slot)?.id;
            if !self.live.get(id).is_some_and(|one| one.is_busy()) {
                idle = Some(Arc::clone(id));
                break;
            }
            self.shares.touch(queue, slot);
        }
        let (_, session, share) = self.remove_with_share(&idle?)?;
        if self.evicted.len() < EVICTED_MAX {
            self.evicted.push(session.key);
        }
        Some((session, share))
    }

    /// Returns the contexts of a session: of all sessions plus its own.
    pub(super) fn contexts_for(&self, id: &str) -> ContextSet {
        match self.narrowed.contexts_for(id) {
            Some(own) => self.global_contexts.union(own),
            None => self.global_contexts.clone(),
        }
    }

    fn find_by_key(&self, key: SessionKey) -> Option<Arc<ClientSession>> {
        let (id, _) = self.ids.get(&key)?;
        self.live.get(id).cloned()
    }
}

impl ClientSessions {
    /// Creates an empty table; ids are sealed with `key`.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        let mut start = [0; 4];
        // Without randomness only event ids could repeat after a restart.
        let _ = getrandom::fill(&mut start);
        let first = (u64::from(u32::from_ne_bytes(start)) << 16) + 1;
        Self {
            next_key: AtomicU64::new(1),
            shared: Arc::new(SessionShared {
                seal: Seal::new(key),
                next_serial: AtomicU64::new(first),
                replay_budget: ReplayBudget::default(),
            }),
            table: Mutex::default(),
            narrowing_store: NarrowingStore::default(),
            ended_log: EndedSessionLog::default(),
            accounts: PrincipalAccounts::default(),
            listeners: ModernListeners::default(),
        }
    }

    /// Charges these resource accounts.
    #[must_use]
    pub fn with_accounts(self, accounts: PrincipalAccounts) -> Self {
        Self { accounts, ..self }
    }

    /// Acquires a stream permit for this principal.
    ///
    /// # Errors
    /// The stream limit of the principal, or of all principals, is reached.
    pub fn acquire_stream(&self, principal: &Principal) -> Result<StreamPermit, ShareError> {
        let share = self
            .accounts
            .take_share(principal, SharedResource::Streams, 1)?;
        Ok(StreamPermit(share))
    }

    /// Returns a new session key, unique within this process.
    pub(crate) fn new_key(&self) -> SessionKey {
        SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the seal of session ids, also used for other values kept by clients.
    #[must_use]
    pub fn seal(&self) -> &Seal {
        &self.shared.seal
    }

    /// Returns the principal narrowed by the contexts of all sessions, for clients without a
    /// session.
    #[must_use]
    pub fn narrow_principal(&self, principal: &Arc<Principal>) -> Arc<Principal> {
        let table = self.lock_table();
        if table.global_contexts.is_empty() {
            return Arc::clone(principal);
        }
        Arc::new(principal.with_contexts(&table.global_contexts))
    }

    /// Opens a session and returns its id and the session.
    ///
    /// # Errors
    /// The principal's limit is reached and the inspected sessions are busy.
    pub fn open_session(
        &self,
        terms: SessionTerms,
        clock: &dyn Clock,
    ) -> Result<(Arc<str>, Arc<ClientSession>), OpenSessionError> {
        let issued_s = clock.unix_ms() / 1_000;
        let id: Arc<str> = self
            .seal()
            .seal_session(&SessionClaims {
                principal: terms.principal.name.as_ref().to_owned(),
                credential: terms.principal.credential.as_ref().to_owned(),
                scope: terms.scope.clone(),
                revision: terms.revision,
                issued_s,
                capabilities: terms.capabilities,
            })
            .ok_or(OpenSessionError::Seal)?
            .into();
        let session = self.start_session(&id, terms, issued_s, clock);
        Ok((id, session.map_err(OpenSessionError::Share)?))
    }

    /// Returns the session of `id`, if credential and endpoint match; an unknown session is
    /// restored from its id.
    #[must_use]
    pub fn find_session(
        &self,
        id: &str,
        principal: &Arc<Principal>,
        scope: &EndpointScope,
        clock: &dyn Clock,
    ) -> Option<Arc<ClientSession>> {
        let live_session = {
            let mut table = self.lock_table();
            let live_session = table.live.get(id).cloned();
            if let Some(session) = live_session
                .as_ref()
                .filter(|one| one.is_opened_by(principal))
            {
                table.touch(session);
            }
            live_session
        };
        let session = match live_session {
            Some(session) => session,
            None => self.restore_session(id, principal, clock)?,
        };
        if !session.is_opened_by(principal) || session.scope != *scope {
            return None;
        }
        session.used_ms.store(clock.now().0, Ordering::Relaxed);
        Some(session)
    }

    /// Ends a session permanently and returns the session.
    pub fn end_session(&self, id: &str) -> Option<Arc<ClientSession>> {
        let session = {
            let mut table = self.lock_table();
            let (id, session) = table.remove(id)?;
            let record = table.ended.insert_id(&id, session.issued_s);
            drop(table);
            // Outside the lock, because the disk may be slow.
            self.ended_log
                .append(&record, || self.lock_table().ended.encode_records());
            session
        };
        session.close();
        Some(session)
    }

    /// Takes the sessions evicted since the last call, to notify other components.
    #[must_use]
    pub fn take_evicted(&self) -> Vec<SessionKey> {
        std::mem::take(&mut self.lock_table().evicted)
    }

    /// Evicts idle sessions; [`take_evicted`](Self::take_evicted) returns them.
    pub fn sweep(&self, now: MonotonicTime) {
        for session in self.snapshot() {
            session.sweep(now);
        }
        let quiet: Vec<_> = {
            let mut table = self.lock_table();
            let quiet = table.live.iter().filter(|(_, session)| {
                let used = MonotonicTime(session.used_ms.load(Ordering::Relaxed));
                now.millis_since(used) >= to_millis(IDLE_MAX) && !session.is_busy()
            });
            let quiet: Vec<_> = quiet.map(|(id, _)| Arc::clone(id)).collect();
            let quiet: Vec<_> = quiet.iter().filter_map(|id| table.remove(id)).collect();
            table
                .evicted
                .extend(quiet.iter().map(|(_, session)| session.key));
            quiet
        };
        for (_, session) in quiet {
            session.close();
        }
    }

    /// Returns the ids of sessions opened with this credential.
    #[must_use]
    pub fn ids_by_credential(&self, credential: &str) -> Vec<Arc<str>> {
        let table = self.lock_table();
        let own = table
            .live
            .iter()
            .filter(|(_, session)| *session.principal.credential == *credential);
        own.map(|(id, _)| Arc::clone(id)).collect()
    }

    /// Returns every session in memory with its id.
    #[must_use]
    pub fn list_with_ids(&self) -> Vec<(Arc<str>, Arc<ClientSession>)> {
        let table = self.lock_table();
        let all = table.live.iter();
        all.map(|(id, session)| (Arc::clone(id), Arc::clone(session)))
            .collect()
    }

    /// Returns every session in memory.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Arc<ClientSession>> {
        self.lock_table().live.values().cloned().collect()
    }

    /// Returns the number of sessions in memory, and of listen streams with or without a session.
    #[must_use]
    pub fn count_streams(&self) -> (usize, usize) {
        let table = self.lock_table();
        let listening = table
            .live
            .values()
            .filter(|session| session.is_listening())
            .count();
        (table.live.len(), listening + self.listeners.count())
    }

    /// Ends every listen stream on shutdown. Streams of calls end with their responses.
    pub fn close_streams(&self) {
        for session in self.snapshot() {
            session.listen_buffer.detach_reader();
        }
        self.listeners.close();
    }

    fn restore_session(
        &self,
        id: &str,
        principal: &Arc<Principal>,
        clock: &dyn Clock,
    ) -> Option<Arc<ClientSession>> {
        let sealed = self.open_id(id, clock)?;
        if *sealed.principal != *principal.name || *sealed.credential != *principal.credential {
            return None;
        }
        // The known lists are lost, so the next change is announced.
        let terms = SessionTerms {
            principal: Arc::clone(principal),
            scope: sealed.scope,
            revision: sealed.revision,
            capabilities: sealed.capabilities,
        };
        self.start_session(&id.into(), terms, sealed.issued_s, clock)
            .ok()
    }

    /// Opens a session id, if the session is still valid.
    pub(super) fn open_id(&self, id: &str, clock: &dyn Clock) -> Option<SessionClaims> {
        let sealed = self.seal().open_session(id)?;
        let age_s = (clock.unix_ms() / 1_000).saturating_sub(sealed.issued_s);
        let is_ended = self.lock_table().ended.contains(id);
        (!is_ended && age_s <= AGE_MAX.as_secs()).then_some(sealed)
    }

    fn start_session(
        &self,
        id: &Arc<str>,
        terms: SessionTerms,
        issued_s: u64,
        clock: &dyn Clock,
    ) -> Result<Arc<ClientSession>, ShareError> {
        let key = self.new_key();
        let at = SessionStart {
            now: clock.now(),
            unix_ms: clock.unix_ms(),
            issued_s,
        };
        let session = Arc::new(ClientSession::new(id, key, terms, &self.shared, at));
        let inserted = self
            .lock_table()
            .insert(Arc::clone(id), session, &self.accounts);
        let (session, evicted) = inserted?;
        if let Some(evicted) = evicted {
            evicted.close();
        }
        Ok(session)
    }

    pub(super) fn lock_table(&self) -> MutexGuard<'_, SessionTable> {
        lock(&self.table)
    }
}

impl SessionTable {
    /// Inserts a session, unless a concurrent request already did; returns the valid session and
    /// the evicted session. Only an idle session of the same principal is evicted.
    fn insert(
        &mut self,
        id: Arc<str>,
        session: Arc<ClientSession>,
        accounts: &PrincipalAccounts,
    ) -> Result<(Arc<ClientSession>, Option<Arc<ClientSession>>), ShareError> {
        if let Some(first) = self.live.get(&id) {
            return Ok((Arc::clone(first), None));
        }
        let principal = &session.principal;
        let mut evicted = None;
        let mut freed_share = None;
        if !accounts.has_room(principal, SharedResource::Sessions, 1)
            && let Some((evicted_session, share)) = self.evict_idle(&principal.name)
        {
            (evicted, freed_share) = (Some(evicted_session), share);
        }
        let share = match freed_share {
            Some(share) => share,
            None => accounts.take_share(principal, SharedResource::Sessions, 1)?,
        };
        // Under the same lock as narrowing, so that a restored session is never wider.
        let contexts = self.contexts_for(&id);
        if !contexts.is_empty() {
            session.apply_contexts(&contexts);
        }
        let session_share = SessionShare {
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
        let slot = self.shares.push(queue, session_share);
        self.ids.insert(session.key, (Arc::clone(&id), slot));
        self.live.insert(id, Arc::clone(&session));
        Ok((session, evicted))
    }
}

/// Delivers server notifications outside calls to the session's listen stream, or to the listen
/// stream of a client without a session.
impl NotificationSink for ClientSessions {
    fn deliver(&self, session: SessionKey, notification: Bytes) -> bool {
        let found = self.lock_table().find_by_key(session);
        match found {
            Some(session) => session.notify(notification),
            None => self.listeners.notify_listener(session, &notification),
        }
    }
}
