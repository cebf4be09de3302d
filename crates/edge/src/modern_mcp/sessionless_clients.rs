//! Clients without a session: servers distinguish clients instead of sessions.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal};
use bowline_core::client_handle::{ClientCapabilities, SessionKey};
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_core::time::{MonotonicTime, to_millis};
use foldhash::fast::RandomState;

use crate::client_session::ClientSessions;

/// Maximum number of clients; at the limit the longest idle clients are evicted.
pub(crate) const CLIENTS_MAX: usize = 65_536;

/// Clients evicted at once, so that not every new client scans the table.
const EVICTED_AT_ONCE: usize = CLIENTS_MAX / 16;

/// Idle clients are removed after this time, including resources held by servers.
pub(crate) const CLIENT_IDLE_MAX: Duration = Duration::from_secs(3_600);

/// Attributes that identify a client; none affects permissions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClientIdentity {
    principal: Arc<str>,
    credential: Arc<str>,
    scope: EndpointScope,
    capability_bits: u8,
    /// Hash of `clientInfo`.
    info_hash: u64,
}

/// A client without a session.
#[derive(Debug)]
pub(crate) struct SessionlessClient {
    /// Takes the role of a session key towards servers.
    pub(crate) key: SessionKey,
    credential: Arc<str>,
    used_ms: AtomicU64,
    /// Log levels wanted by requests in flight.
    log_levels: Mutex<LogLevelCounts>,
}

/// Log levels wanted by the requests of a client.
#[derive(Debug, Default)]
struct LogLevelCounts {
    /// Number of requests in flight per level.
    counts: [u32; LogLevel::ALL.len()],
    /// Level last sent to servers.
    sent: Option<LogLevel>,
}

/// Keeps a request's log level in effect until dropped.
#[derive(Debug)]
pub(crate) struct LogLevelGuard {
    client: Arc<SessionlessClient>,
    level: LogLevel,
}

impl SessionlessClient {
    /// Returns whether the client used this credential.
    pub(crate) fn has_credential(&self, credential: &str) -> bool {
        *self.credential == *credential
    }

    /// Adds the log level of a request while the guard is held, and returns the level to send to
    /// servers if changed: the most verbose level of all requests in flight, since each request
    /// filters for itself.
    pub(crate) fn request_level(
        self: &Arc<Self>,
        level: LogLevel,
    ) -> (LogLevelGuard, Option<LogLevel>) {
        let guard = LogLevelGuard {
            client: Arc::clone(self),
            level,
        };
        let mut volume = lock(&self.log_levels);
        volume.update_count(level, |count| count.saturating_add(1));
        let mut levels = LogLevel::ALL.into_iter().zip(volume.counts);
        let most = levels.find(|(_, count)| *count > 0).map(|(level, _)| level);
        let is_news = volume.sent != most;
        volume.sent = most;
        (guard, most.filter(|_| is_news))
    }
}

impl LogLevelCounts {
    fn update_count(&mut self, level: LogLevel, change: impl Fn(u32) -> u32) {
        if let Some(count) = self.counts.get_mut(level as usize) {
            *count = change(*count);
        }
    }
}

/// Servers are not told: notifications below the remaining levels are filtered here.
impl Drop for LogLevelGuard {
    fn drop(&mut self) {
        lock(&self.client.log_levels).update_count(self.level, |count| count.saturating_sub(1));
    }
}

/// What a client declares about itself in every request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientDeclaration<'a> {
    pub(crate) capabilities: ClientCapabilities,
    /// Text of `clientInfo`; empty without one.
    pub(crate) info: &'a [u8],
}

/// Recently active clients.
#[derive(Debug, Default)]
pub(crate) struct SessionlessClients {
    table: Mutex<ClientTable>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct ClientTable {
    live: HashMap<ClientIdentity, Arc<SessionlessClient>, RandomState>,
}

impl SessionlessClients {
    /// Returns the client with these attributes: credential, endpoint, capabilities and client
    /// info. The client stays busy while the returned handle is held. Also returns the evicted
    /// clients.
    pub(crate) fn enter_client(
        &self,
        sessions: &ClientSessions,
        principal: &Principal,
        scope: &EndpointScope,
        declaration: ClientDeclaration<'_>,
        now: MonotonicTime,
    ) -> (Arc<SessionlessClient>, Vec<SessionKey>) {
        let name = ClientIdentity {
            principal: Arc::clone(&principal.name),
            credential: Arc::clone(&principal.credential),
            scope: scope.clone(),
            capability_bits: declaration.capabilities.bits(),
            info_hash: self.hasher.hash_one(declaration.info),
        };
        let mut table = self.lock_table();
        if let Some(client) = table.live.get(&name) {
            client.used_ms.store(now.0, Ordering::Relaxed);
            return (Arc::clone(client), Vec::new());
        }
        let evicted = match table.live.len() >= CLIENTS_MAX {
            true => table.evict_idle(),
            false => Vec::new(),
        };
        let client = Arc::new(SessionlessClient {
            key: sessions.new_key(),
            credential: Arc::clone(&principal.credential),
            used_ms: AtomicU64::new(now.0),
            log_levels: Mutex::default(),
        });
        table.live.insert(name, Arc::clone(&client));
        (client, evicted)
    }

    /// Removes idle clients and returns their keys.
    pub(crate) fn sweep(&self, now: MonotonicTime) -> Vec<SessionKey> {
        self.lock_table().remove_where(|client| {
            let used = MonotonicTime(client.used_ms.load(Ordering::Relaxed));
            now.millis_since(used) >= to_millis(CLIENT_IDLE_MAX) && !is_busy(client)
        })
    }

    /// Removes the clients of a credential and returns their keys.
    pub(crate) fn remove_by_credential(&self, credential: &str) -> Vec<SessionKey> {
        self.lock_table()
            .remove_where(|client| client.has_credential(credential))
    }

    fn lock_table(&self) -> MutexGuard<'_, ClientTable> {
        lock(&self.table)
    }
}

impl ClientTable {
    fn remove_where(&mut self, which: impl Fn(&Arc<SessionlessClient>) -> bool) -> Vec<SessionKey> {
        let removed = self.live.extract_if(|_, client| which(client));
        removed.map(|(_, client)| client.key).collect()
    }

    /// Evicts the longest idle clients.
    fn evict_idle(&mut self) -> Vec<SessionKey> {
        let used = |client: &Arc<SessionlessClient>| client.used_ms.load(Ordering::Relaxed);
        let idle = self.live.values().filter(|client| !is_busy(client));
        let mut times: Vec<u64> = idle.map(used).collect();
        if times.is_empty() {
            return Vec::new();
        }
        let nth = EVICTED_AT_ONCE.min(times.len() - 1);
        let (_, last, _) = times.select_nth_unstable(nth);
        let last = *last;
        let left = Cell::new(EVICTED_AT_ONCE);
        self.remove_where(|client| {
            let is_evicted = left.get() > 0 && !is_busy(client) && used(client) <= last;
            left.set(left.get() - usize::from(is_evicted));
            is_evicted
        })
    }
}

/// Returns whether a call of the client is in flight.
fn is_busy(client: &Arc<SessionlessClient>) -> bool {
    Arc::strong_count(client) > 1
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bowline_core::client_handle::ClientCapability;

    use super::*;

    fn test_principal(name: &str, credential: &str) -> Principal {
        Principal {
            credential: credential.into(),
            ..Principal::new(name, Role::Owner)
        }
    }

    #[test]
    fn most_verbose_requested_level_is_sent() {
        let (clients, sessions) = (SessionlessClients::default(), ClientSessions::new(&[1; 32]));
        let ann = test_principal("ann", "t");
        let (client, _) = clients.enter_client(
            &sessions,
            &ann,
            &EndpointScope::All,
            ClientDeclaration::default(),
            MonotonicTime(0),
        );
        let (debug, told) = client.request_level(LogLevel::Debug);
        assert_eq!(told, Some(LogLevel::Debug));
        let (error, told) = client.request_level(LogLevel::Error);
        assert_eq!(told, None, "the first one still wants to hear all");
        let (again, told) = client.request_level(LogLevel::Debug);
        assert_eq!(told, None);
        drop(debug);
        assert_eq!(client.request_level(LogLevel::Error).1, None);
        drop((error, again));
        assert_eq!(
            client.request_level(LogLevel::Error).1,
            Some(LogLevel::Error)
        );
    }

    #[test]
    fn client_identity_covers_every_attribute() {
        let (clients, sessions) = (SessionlessClients::default(), ClientSessions::new(&[1; 32]));
        let ann = test_principal("ann", "t");
        let none = ClientCapabilities::default();
        let enter = |who: &Principal, scope: &EndpointScope, capabilities, info: &str| {
            let info = info.as_bytes();
            let what = ClientDeclaration { capabilities, info };
            clients
                .enter_client(&sessions, who, scope, what, MonotonicTime(0))
                .0
                .key
        };
        let all = EndpointScope::All;
        let key = enter(&ann, &all, none, "i");
        assert_eq!(enter(&ann, &all, none, "i"), key);
        let asked = none.with_capability(ClientCapability::Roots);
        let others = [
            enter(&test_principal("bob", "t"), &all, none, "i"),
            enter(&test_principal("ann", "u"), &all, none, "i"),
            enter(&ann, &EndpointScope::Server("s".into()), none, "i"),
            enter(&ann, &all, asked, "i"),
            enter(&ann, &all, none, "j"),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, key, "{at}");
            assert!(!others[..at].contains(other), "{at}");
        }
        assert_eq!(clients.remove_by_credential("u").len(), 1);
        assert_eq!(enter(&ann, &all, none, "i"), key, "another credential's");
    }

    #[test]
    fn idle_client_is_swept_unless_busy() {
        let (clients, sessions) = (SessionlessClients::default(), ClientSessions::new(&[1; 32]));
        let ann = test_principal("ann", "");
        let enter = |info: &'static str| {
            let what = ClientDeclaration {
                info: info.as_bytes(),
                ..ClientDeclaration::default()
            };
            clients
                .enter_client(&sessions, &ann, &EndpointScope::All, what, MonotonicTime(0))
                .0
        };
        let busy = enter("busy");
        let quiet = enter("quiet").key;
        let late = MonotonicTime(0).plus(CLIENT_IDLE_MAX);
        assert!(clients.sweep(MonotonicTime(late.0 - 1)).is_empty());
        assert_eq!(clients.sweep(late), [quiet]);
        assert_ne!(enter("quiet").key, quiet);
        let key = busy.key;
        assert_eq!(enter("busy").key, key);
        drop(busy);
        assert_eq!(clients.sweep(late).len(), 2);
    }

    #[test]
    fn full_table_evicts_idle_keeps_busy() {
        let (clients, sessions) = (SessionlessClients::default(), ClientSessions::new(&[1; 32]));
        let ann = test_principal("ann", "");
        let enter = |nth: usize| {
            let info = nth.to_string();
            let what = ClientDeclaration {
                info: info.as_bytes(),
                ..ClientDeclaration::default()
            };
            let now = MonotonicTime(nth as u64);
            clients.enter_client(&sessions, &ann, &EndpointScope::All, what, now)
        };
        let (busy, _) = enter(0);
        let quiet = enter(1).0.key;
        for nth in 2..CLIENTS_MAX {
            assert!(enter(nth).1.is_empty());
        }
        let (_, gone) = enter(CLIENTS_MAX);
        assert_eq!(gone.len(), EVICTED_AT_ONCE);
        assert!(gone.contains(&quiet) && !gone.contains(&busy.key));
        let (_, gone) = enter(CLIENTS_MAX + 1);
        assert!(gone.is_empty(), "there is room for a while");
    }
}
