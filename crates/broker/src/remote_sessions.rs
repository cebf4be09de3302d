//! Sessions of a hub's clients as sessions of this gateway: isolated, notified and evicted like
//! local client sessions.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, REMOTE_SESSIONS_FROM, ServerRequest,
    ServerRequestId, SessionKey,
};
use bowline_core::era::Era;
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::Clock;
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::HubSender;
use crate::frames::{BrokerFrame, CallerContext, SessionEvent};

/// Remembered sessions; at the limit the longest idle session is evicted.
const REMOTE_SESSIONS_MAX: usize = 4_096;

/// Idle time after which a session is evicted without an end event of the hub.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// A server and a hub session that uses the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RemoteSessionName {
    server: Arc<str>,
    /// `None` for the hub itself.
    session: Option<Arc<str>>,
}

/// The gateway whose servers the sessions of a hub use.
pub trait SessionGateway: fmt::Debug + Send + Sync {
    /// Returns the clock.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// Sends notifications for the sessions of the hub to `sessions`.
    fn register_sessions(&self, sessions: &Arc<RemoteSessions>);

    /// Forgets a session.
    fn end_session(&self, session: SessionKey);

    /// Notifies the servers of a session that the roots of its client changed.
    fn notify_roots_changed(&self, session: SessionKey);
}

/// Hub sessions that use servers of this gateway.
#[derive(Debug)]
pub struct RemoteSessions {
    gateway: Arc<dyn SessionGateway>,
    /// The connection of the hub's latest request.
    hub: ArcSwapOption<HubSender>,
    table: Mutex<RemoteSessionTable>,
}

#[derive(Debug, Default)]
struct RemoteSessionTable {
    created: u64,
    keys: HashMap<RemoteSessionName, SessionKey, RandomState>,
    sessions: HashMap<SessionKey, RemoteSession, RandomState>,
}

#[derive(Debug)]
struct RemoteSession {
    name: RemoteSessionName,
    /// Time of the last request.
    last_used: MonotonicTime,
    /// Requests in flight.
    in_flight: usize,
    /// The log level last set.
    level: Option<LogLevel>,
}

impl RemoteSessions {
    /// Returns an empty set, registered with `gateway` as the notification sink of these sessions.
    #[must_use]
    pub fn register_with<G: SessionGateway + Clone + 'static>(gateway: &G) -> Arc<Self> {
        let sessions = Arc::new(Self {
            gateway: Arc::new(gateway.clone()),
            hub: ArcSwapOption::empty(),
            table: Mutex::default(),
        });
        gateway.register_sessions(&sessions);
        sessions
    }

    /// Records the connection of the hub. After a reconnect the hub repeats every subscription, so
    /// the hub's own sessions end.
    pub(super) fn note_connection(&self, hub: &HubSender) {
        let generation = hub.generation();
        let is_known = |current: &HubSender| current.generation() == generation;
        if self.hub.load().as_deref().is_some_and(is_known) {
            return;
        }
        self.hub.store(Some(Arc::new(hub.clone())));
        let ended_keys: Vec<_> = {
            let mut table = lock(&self.table);
            let own = |name: &RemoteSessionName, _: &mut SessionKey| name.session.is_none();
            let ended_keys: Vec<_> = table.keys.extract_if(own).map(|(_, key)| key).collect();
            for key in &ended_keys {
                table.sessions.remove(key);
            }
            ended_keys
        };
        for key in ended_keys {
            self.gateway.end_session(key);
        }
    }

    /// Enters a hub session until the returned guard is dropped.
    #[must_use]
    pub fn enter_session(
        self: &Arc<Self>,
        server: &Arc<str>,
        session: Option<&Arc<str>>,
    ) -> RemoteSessionGuard {
        let name = RemoteSessionName {
            server: Arc::clone(server),
            session: session.cloned(),
        };
        let now = self.gateway.clock().now();
        let mut table = lock(&self.table);
        let (key, evicted) = match table.keys.get(&name) {
            Some(key) => (*key, Vec::new()),
            None => table.insert_session(name, now),
        };
        if let Some(session_state) = table.sessions.get_mut(&key) {
            session_state.in_flight += 1;
            session_state.last_used = now;
        }
        drop(table);
        for key in evicted {
            self.gateway.end_session(key);
        }
        RemoteSessionGuard {
            sessions: Arc::clone(self),
            key,
        }
    }

    /// Sends a notification to a session of the hub, without waiting; `false` for an unknown
    /// session, or without room.
    #[must_use]
    pub fn deliver(&self, session: SessionKey, notification: Bytes) -> bool {
        let entry = lock(&self.table)
            .sessions
            .get(&session)
            .map(|entry| entry.name.clone());
        let hub = self.hub.load();
        let (Some(name), Some(hub)) = (entry, hub.as_deref()) else {
            return false;
        };
        let frame = BrokerFrame::SessionNotification {
            server: name.server,
            session: name.session,
            notification,
        };
        hub.try_send(&frame).is_ok()
    }

    /// Handles an event of a hub session.
    pub(super) fn on_session_event(
        &self,
        server: &Arc<str>,
        session: &Arc<str>,
        event: SessionEvent,
    ) {
        let name = RemoteSessionName {
            server: Arc::clone(server),
            session: Some(Arc::clone(session)),
        };
        let mut table = lock(&self.table);
        match event {
            SessionEvent::RootsChanged => {
                let key = table.keys.get(&name).copied();
                drop(table);
                if let Some(key) = key {
                    self.gateway.notify_roots_changed(key);
                }
            }
            SessionEvent::Ended => {
                let key = table.keys.remove(&name);
                key.map(|key| table.sessions.remove(&key));
                drop(table);
                if let Some(key) = key {
                    self.gateway.end_session(key);
                }
            }
        }
    }
}

impl RemoteSessionTable {
    /// Inserts a session, and returns the evicted sessions.
    fn insert_session(
        &mut self,
        name: RemoteSessionName,
        now: MonotonicTime,
    ) -> (SessionKey, Vec<SessionKey>) {
        let is_expired = |session: &RemoteSession| session.last_used.plus(IDLE_MAX) <= now;
        let is_idle =
            |session: &RemoteSession| session.in_flight == 0 && session.name.session.is_some();
        let idle = self.sessions.iter().filter(|(_, session)| is_idle(session));
        let mut evicted: Vec<_> = idle
            .clone()
            .filter(|(_, session)| is_expired(session))
            .map(|(key, _)| *key)
            .collect();
        if evicted.is_empty() && self.sessions.len() >= REMOTE_SESSIONS_MAX {
            let least_recent = idle.min_by_key(|(_, session)| session.last_used);
            evicted.extend(least_recent.map(|(key, _)| *key));
        }
        for key in &evicted {
            if let Some(session) = self.sessions.remove(key) {
                self.keys.remove(&session.name);
            }
        }
        self.created += 1;
        let key = SessionKey(REMOTE_SESSIONS_FROM + self.created);
        self.keys.insert(name.clone(), key);
        let session = RemoteSession {
            name,
            last_used: now,
            in_flight: 0,
            level: None,
        };
        self.sessions.insert(key, session);
        (key, evicted)
    }
}

/// A hub session during one request.
#[derive(Debug)]
pub struct RemoteSessionGuard {
    sessions: Arc<RemoteSessions>,
    key: SessionKey,
}

impl RemoteSessionGuard {
    /// Returns the key of the session.
    #[must_use]
    pub const fn key(&self) -> SessionKey {
        self.key
    }

    /// Sets the log level and returns whether it changed.
    #[must_use]
    pub fn replace_level(&self, level: Option<LogLevel>) -> bool {
        let mut table = lock(&self.sessions.table);
        let session = table.sessions.get_mut(&self.key);
        session.is_some_and(|session| std::mem::replace(&mut session.level, level) != level)
    }

    /// Returns the client handle of one request, backed by `client`.
    #[must_use]
    pub fn client_handle(
        &self,
        client: &Arc<dyn ClientHandle>,
        context: &CallerContext,
    ) -> Arc<dyn ClientHandle> {
        Arc::new(RemoteClientHandle {
            client: Some(Arc::clone(client)),
            sessions: Arc::clone(&self.sessions),
            key: self.key,
            abilities: context.capabilities,
            level: context.level,
            answers_by_retry: context.era == Era::Modern,
        })
    }

    /// Returns the client handle of the session outside requests.
    #[must_use]
    pub fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(RemoteClientHandle {
            client: None,
            sessions: Arc::clone(&self.sessions),
            key: self.key,
            abilities: ClientCapabilities::default(),
            level: None,
            answers_by_retry: false,
        })
    }
}

impl Drop for RemoteSessionGuard {
    fn drop(&mut self) {
        let now = self.sessions.gateway.clock().now();
        let mut table = lock(&self.sessions.table);
        if let Some(session) = table.sessions.get_mut(&self.key) {
            session.in_flight = session.in_flight.saturating_sub(1);
            session.last_used = now;
        }
    }
}

/// Client handle of a hub session, during a request or outside requests.
#[derive(Debug)]
struct RemoteClientHandle {
    /// Absent outside requests: notifications go over the hub connection, server requests are
    /// refused.
    client: Option<Arc<dyn ClientHandle>>,
    sessions: Arc<RemoteSessions>,
    key: SessionKey,
    abilities: ClientCapabilities,
    level: Option<LogLevel>,
    /// Whether the client answers server requests by retrying the call.
    answers_by_retry: bool,
}

impl ClientHandle for RemoteClientHandle {
    fn session(&self) -> SessionKey {
        self.key
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.abilities
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.level
    }

    fn notify(&self, notification: Bytes) {
        match &self.client {
            Some(client) => client.notify(notification),
            None => drop(self.sessions.deliver(self.key, notification)),
        }
    }

    fn request(&self, server_request: ServerRequest) -> Option<ServerRequestId> {
        self.client.as_ref()?.request(server_request)
    }

    fn note_missing_capability(&self, capability: ClientCapability) {
        if let Some(client) = &self.client {
            client.note_missing_capability(capability);
        }
    }

    fn answers_by_retry(&self) -> bool {
        self.answers_by_retry
    }

    fn cancel_request(&self, request_id: ServerRequestId) {
        if let Some(client) = &self.client {
            client.cancel_request(request_id);
        }
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(Self {
            client: None,
            sessions: Arc::clone(&self.sessions),
            key: self.key,
            abilities: self.abilities,
            level: self.level,
            answers_by_retry: false,
        })
    }
}
