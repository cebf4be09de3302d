//! Who is here: sessions are sealed into their ids, and memory is only a cache of them.

mod inflight;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::call::{Principal, Scope};
use bowline_core::caller::SessionKey;
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_host::ports::Clock;
use bowline_wire::mcp::Revision;
use foldhash::fast::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::seal::{Seal, Sealed};
use super::stream::{EventSender, Guard};

pub use inflight::{Cancelled, InFlight};

/// Sessions held in memory; one more pushes out the one that was quiet longest.
pub const SESSIONS_MAX: usize = 65_536;

/// A session that was quiet this long leaves memory. Its id still works.
pub const IDLE: Duration = Duration::from_secs(3_600);

/// An id older than this no longer works.
pub const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Streams open at once. Fewer than connections, so that listeners leave room for calls.
pub const STREAMS_MAX: usize = 8_192;

/// Ended sessions remembered, so that their ids stay dead.
const ENDED_MAX: usize = 65_536;

/// One caller's session.
#[derive(Debug)]
pub struct Session {
    /// Tells it from every other session of this process.
    pub key: SessionKey,
    /// Who opened it.
    pub principal: Arc<Principal>,
    /// The endpoint it belongs to.
    pub scope: Scope,
    /// The revision agreed on.
    pub revision: Revision,
    /// Its calls under way, so that they can be cancelled.
    pub in_flight: InFlight,
    /// The stream it listens on.
    stream: Mutex<Option<EventSender>>,
    /// The list it knows; a different one is news.
    known: Mutex<[u8; 32]>,
    used_ms: AtomicU64,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    seal: Seal,
    next_key: AtomicU64,
    table: Mutex<Table>,
    /// One for each stream that may be open.
    seats: Arc<Semaphore>,
}

/// One of the streams that may be open; free again when dropped.
#[derive(Debug)]
pub struct Seat(#[expect(dead_code, reason = "its drop is what counts")] OwnedSemaphorePermit);

impl Guard for Seat {}

#[derive(Debug, Default)]
struct Table {
    live: HashMap<Arc<str>, Arc<Session>, RandomState>,
    ended: HashSet<Arc<str>>,
    /// The same ids, oldest first.
    ended_order: VecDeque<Arc<str>>,
}

impl Sessions {
    /// Returns no sessions; ids are sealed with `key`.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            seal: Seal::new(key),
            next_key: AtomicU64::new(1),
            table: Mutex::default(),
            seats: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }

    /// Returns a seat for one more stream, unless all are taken.
    #[must_use]
    pub fn seat(&self) -> Option<Seat> {
        Arc::clone(&self.seats).try_acquire_owned().ok().map(Seat)
    }

    /// Opens a session and returns its id.
    pub fn open(
        &self,
        principal: &Arc<Principal>,
        scope: &Scope,
        revision: Revision,
        known: [u8; 32],
        clock: &dyn Clock,
    ) -> Option<Arc<str>> {
        let id: Arc<str> = self
            .seal
            .seal(&Sealed {
                principal: principal.name.as_ref().to_owned(),
                scope: scope.clone(),
                revision,
                issued_s: clock.unix_ms() / 1_000,
            })?
            .into();
        let session = Session {
            key: self.fresh_key(),
            ..Session::new(principal, scope.clone(), revision, known, clock.now())
        };
        self.insert(Arc::clone(&id), Arc::new(session));
        Some(id)
    }

    /// Returns the session of `id`, if it belongs to this principal and endpoint; a session this
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
        if session.principal.name != principal.name || session.scope != *scope {
            return None;
        }
        session.used_ms.store(clock.now().0, Ordering::Relaxed);
        Some(session)
    }

    /// Ends a session for good.
    pub fn end(&self, id: &str) {
        let mut table = self.table();
        if let Some((id, session)) = table.live.remove_entry(id) {
            session.close_stream();
            if table.ended.insert(Arc::clone(&id)) {
                table.ended_order.push_back(id);
            }
            if table.ended_order.len() > ENDED_MAX
                && let Some(oldest) = table.ended_order.pop_front()
            {
                table.ended.remove(&oldest);
            }
        }
    }

    /// Lets sessions go that were quiet for long.
    pub fn sweep(&self, now: Now) {
        self.table().live.retain(|_, session| {
            session.is_busy()
                || now
                    .0
                    .saturating_sub(session.used_ms.load(Ordering::Relaxed))
                    < millis(IDLE)
        });
    }

    /// Returns every session in memory.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.table().live.values().cloned().collect()
    }

    /// Returns how many sessions are in memory, and how many of them listen.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let table = self.table();
        let listening = table
            .live
            .values()
            .filter(|session| session.is_listening())
            .count();
        (table.live.len(), listening)
    }

    /// Ends every stream, because the gateway goes down.
    pub fn close_streams(&self) {
        for session in self.all() {
            session.close_stream();
        }
    }

    fn revive(
        &self,
        id: &str,
        principal: &Arc<Principal>,
        clock: &dyn Clock,
    ) -> Option<Arc<Session>> {
        let sealed = self.seal.open(id)?;
        let age_s = (clock.unix_ms() / 1_000).saturating_sub(sealed.issued_s);
        let ended = self.table().ended.contains(id);
        if ended || age_s > AGE_MAX.as_secs() || *sealed.principal != *principal.name {
            return None;
        }
        // What it knew of the list is not known any more: the next change is news to it.
        let known = [0; 32];
        let session = Arc::new(Session {
            key: self.fresh_key(),
            ..Session::new(principal, sealed.scope, sealed.revision, known, clock.now())
        });
        self.insert(id.into(), Arc::clone(&session));
        Some(session)
    }

    fn fresh_key(&self) -> SessionKey {
        SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    fn insert(&self, id: Arc<str>, session: Arc<Session>) {
        let mut table = self.table();
        if table.live.len() >= SESSIONS_MAX {
            let quietest = table
                .live
                .iter()
                .min_by_key(|(_, session)| session.used_ms.load(Ordering::Relaxed))
                .map(|(id, _)| Arc::clone(id));
            if let Some(quietest) = quietest {
                table.live.remove(&quietest);
            }
        }
        table.live.insert(id, session);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Session {
    fn new(
        principal: &Arc<Principal>,
        scope: Scope,
        revision: Revision,
        known: [u8; 32],
        now: Now,
    ) -> Self {
        Self {
            key: SessionKey(0),
            principal: Arc::clone(principal),
            scope,
            revision,
            in_flight: InFlight::default(),
            stream: Mutex::default(),
            known: Mutex::new(known),
            used_ms: AtomicU64::new(now.0),
        }
    }

    /// Listens on `stream` from now on; an earlier stream ends.
    pub fn listen(&self, stream: EventSender) {
        *lock(&self.stream) = Some(stream);
    }

    /// Notes that the session was shown the list with this fingerprint.
    pub fn knows(&self, fingerprint: [u8; 32]) {
        *lock(&self.known) = fingerprint;
    }

    /// Sends `message` to a listening session for which this fingerprint is news.
    pub fn announce(&self, fingerprint: [u8; 32], message: &[u8]) {
        let mut stream = lock(&self.stream);
        let Some(sender) = stream.as_ref() else {
            return;
        };
        let mut known = lock(&self.known);
        if *known == fingerprint {
            return;
        }
        if sender.send(message) {
            *known = fingerprint;
        } else {
            // Gone, or so far behind that it had better come back and list anew.
            *stream = None;
        }
    }

    fn close_stream(&self) {
        *lock(&self.stream) = None;
    }

    fn is_listening(&self) -> bool {
        let stream = lock(&self.stream);
        stream.as_ref().is_some_and(|stream| !stream.is_closed())
    }

    fn is_busy(&self) -> bool {
        self.is_listening() || !self.in_flight.is_empty()
    }
}
