//! Where callers come in: one listener for MCP and API, checked at one door.

pub mod announce;
pub mod api;
mod arrival;
pub mod body;
mod broker;
pub mod connection;
pub mod connection_pool;
pub mod door;
pub mod errors;
mod executor;
pub mod guard;
pub mod hold;
mod key;
pub mod large;
mod linger;
pub mod listen;
pub mod mcp;
pub mod metrics;
mod modern;
pub mod owner;
mod pace;
pub mod ready;
pub mod route;
mod run;
pub mod seal;
pub mod session;
pub mod stream;
mod trace;
mod unproven;
pub mod unread;
mod upgrade;
pub mod watcher;

use std::sync::{Arc, Mutex};

use bowline_core::call::Principal;
use bowline_core::caller::SessionKey;
use bowline_core::run::{Run, Runs};
use bowline_core::sync::lock;
use bowline_host::Host;
use bowline_host::broker::Hub;
use bowline_host::executor::Executors;
use tokio::sync::Semaphore;

use crate::audit::Auditing;
use crate::config::ConnectionLimits;
use crate::edge::connection_pool::UnprovenPool;
use crate::edge::door::Door;
use crate::edge::hold::{HoldKey, Holds};
use crate::edge::session::{OpenError, Session, Sessions, Terms};
use crate::reload::Reloader;
use crate::telemetry::{SpanCounts, Tracer};
use crate::tokens::Issued;

/// What people may want to know about this gateway.
#[derive(Clone, Debug)]
pub struct About {
    /// Where it is reached.
    pub url: String,
    /// The configuration file it was started with.
    pub config: Option<String>,
    /// What remembers queued calls.
    pub journal: &'static str,
    /// The version of Landlock that its sandboxes are made with; 0 where there is none.
    pub landlock_abi: u32,
    /// Its audit trail.
    pub audit: Auditing,
}

/// How calls are traced.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Decides which are.
    pub tracer: Tracer,
    /// What became of their spans; absent where they go nowhere.
    pub counts: Option<Arc<SpanCounts>>,
}

/// Everything a request meets before it reaches the host. Shared by all connections.
#[derive(Debug)]
pub struct Edge {
    /// Who may come in.
    pub door: Door,
    /// Who is here.
    pub sessions: Arc<Sessions>,
    /// Who calls without a session.
    calls: modern::Calls,
    /// Which connections proved themselves with which token.
    pub holds: Holds,
    /// How often callers did not prove who they are.
    unproven: unproven::Counts,
    /// The runs that callers said their calls belong to.
    runs: Mutex<Runs>,
    /// What is done.
    pub host: Host,
    /// The broker, where peers meet.
    pub hub: Hub,
    /// The executors, in other networks.
    pub executors: Executors,
    /// The places of connections that have shaken hands and not yet said who they are.
    lobby: Arc<UnprovenPool>,
    /// The places of connections of HTTP that have not proved who they are.
    connection_pool: Arc<UnprovenPool>,
    /// Room for large heads of those.
    large_heads: Arc<Semaphore>,
    /// What the gateway says of itself.
    pub about: About,
    /// The places of those who watch what happens.
    watchers: Arc<Semaphore>,
    /// Where its servers come from.
    pub reloader: Reloader,
    /// Which calls are traced.
    pub traces: Traced,
    /// The routes of the API, built once.
    api: axum::Router,
}

impl Edge {
    /// Joins the parts of the edge.
    #[must_use]
    pub fn new(
        door: Door,
        sessions: Arc<Sessions>,
        (host, hub, executors): (Host, Hub, Executors),
        about: About,
        reloader: Reloader,
        traces: Traced,
        connections: ConnectionLimits,
    ) -> Arc<Self> {
        Arc::new_cyclic(|edge| Self {
            api: api::router(edge.clone()),
            watchers: Arc::new(Semaphore::new(api::events::WATCHERS_MAX)),
            door,
            sessions,
            calls: modern::Calls::default(),
            holds: Holds::default(),
            unproven: unproven::Counts::default(),
            runs: Mutex::default(),
            host,
            hub,
            executors,
            lobby: UnprovenPool::new(upgrade::LOBBY_MAX, upgrade::LOBBY_ADDRESS_MAX),
            connection_pool: UnprovenPool::new(connections.unproven_max, connections.address_max),
            large_heads: Arc::new(Semaphore::new(guard::LARGE_HEADS_MAX)),
            about,
            reloader,
            traces,
        })
    }

    /// Returns the run that a call of this principal belongs to.
    fn run_of(&self, principal: &Principal, run: &run::Named<'_>) -> Arc<Run> {
        let now = self.host.clock().now();
        lock(&self.runs).enter(&principal.name, &run.id, run.calls, now)
    }

    /// Opens a session that knows the lists as they are.
    fn open_session(&self, terms: Terms) -> Result<(Arc<str>, Arc<Session>), OpenError> {
        let opened = self.sessions.open(terms, self.host.clock().as_ref());
        if let Ok((_, session)) = &opened {
            announce::knows(self, session);
        }
        self.forget_gone();
        opened
    }

    /// Ends a session for good, with all it has under way.
    fn end_session(&self, id: &str) -> bool {
        let ended = self.sessions.end(id);
        if let Some(session) = &ended {
            self.forget(session.key);
        }
        ended.is_some()
    }

    /// Ends everything that was opened with tokens that count no more: their sessions, with the
    /// calls and streams of these, and the connections that they came in by.
    pub(crate) fn dismiss(&self, tokens: &[Arc<Issued>]) {
        for token in tokens {
            for id in self.sessions.of(token.id()) {
                self.end_session(&id);
            }
            self.sessions.listeners.dismiss(token.id());
            self.calls.dismiss(self, token.id());
            self.holds.close(token);
        }
    }

    /// Ends everything that was opened with the owner's token of before, but for the connection
    /// `asker`, which is told that it was replaced.
    pub(crate) fn dismiss_owner(&self, token: &Issued, asker: HoldKey) {
        for id in self.sessions.of(token.id()) {
            self.end_session(&id);
        }
        self.sessions.listeners.dismiss(token.id());
        self.calls.dismiss(self, token.id());
        self.holds.close_others(token, asker);
    }

    /// Lets sessions go that were quiet for long.
    fn sweep_sessions(&self) {
        self.sessions.sweep(self.host.clock().now());
        self.calls.sweep(self);
        self.forget_gone();
    }

    fn forget_gone(&self) {
        for session in self.sessions.gone() {
            self.forget(session);
        }
    }

    /// Frees what servers hold for a session that is no more.
    fn forget(&self, session: SessionKey) {
        self.host.session_ended(session);
    }
}
