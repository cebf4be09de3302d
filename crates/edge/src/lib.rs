//! The fronts of a gateway. HTTP: one listener for MCP and the API, with one authenticator in front
//! of both. Stdio: a shim from a pipe to that listener.

mod announcer;
mod api;
mod audit;
mod auth;
mod auth_failures;
mod broker_endpoint;
mod call;
mod call_errors;
mod client_session;
mod client_stream;
mod connection;
mod connection_registry;
mod event_stream;
mod executor_endpoint;
mod export_counts;
mod gateway_client;
mod http_listener;
mod linger;
mod mcp;
mod metrics;
mod modern_mcp;
mod readiness;
mod response_body;
mod seal;
mod stdio;
mod tokens;
mod upgrade;
mod upgraded_connection;
mod watcher_body;

use std::sync::{Arc, Mutex};

use bowline_core::call::Principal;
use bowline_core::client_handle::SessionKey;
use bowline_core::run::{AgentRun, RunRegistry};
use bowline_core::sync::lock;
use bowline_host::Host;
use bowline_host::broker::Hub;
use bowline_host::executor::ExecutorRegistry;
use tokio::sync::Semaphore;

use crate::client_session::{ClientSession, OpenSessionError, SessionTerms};
use crate::connection_registry::{ConnectionKey, ConnectionRegistry, UnauthenticatedPool};
use crate::tokens::IssuedToken;
use bowline_config::ConnectionLimits;
use bowline_config::reload::Reloader;

pub use crate::announcer::{Announcer, announce_to_all};
pub use crate::audit::{AuditOpenError, GatewayAudit, to_verify_response, trail_directory};
pub use crate::auth::{AuthMode, Authenticator};
pub use crate::call::call_params::CallTracer;
pub use crate::client_session::{ClientSessions, NarrowError};
pub use crate::export_counts::ExportCounts;
pub use crate::gateway_client::{
    GatewayAccess, GatewayHttp, GatewayRequest, RESPONSE_BYTES_MAX, is_unreached,
};
pub use crate::http_listener::HttpListener;
pub use crate::stdio::{GatewayLocator, StdioShim, forward_lines};
pub use crate::tokens::{TokenCreateError, TokenKind, TokenRequest, TokenStore};

/// Facts about this gateway for status output.
#[derive(Clone, Debug)]
pub struct GatewayInfo {
    /// Base URL of the listener.
    pub url: String,
    /// Path of the configuration file given at startup.
    pub config: Option<String>,
    /// Name of the journal engine.
    pub journal: &'static str,
    /// Landlock ABI version used for sandboxes; 0 without Landlock.
    pub landlock_abi: u32,
    /// The audit trail.
    pub audit: GatewayAudit,
}

/// Tracing of calls.
#[derive(Clone, Debug)]
pub struct CallTracing {
    /// Decides per call whether to trace.
    pub tracer: CallTracer,
    /// Span export counters; absent without an exporter.
    pub counts: Option<Arc<ExportCounts>>,
}

/// State shared by all connections; every request passes through the edge before the host.
#[derive(Debug)]
pub struct Edge {
    /// Authenticates requests.
    pub authenticator: Authenticator,
    /// Sessions of legacy clients.
    pub sessions: Arc<ClientSessions>,
    /// Calls of clients without a session.
    modern_calls: modern_mcp::ModernCalls,
    /// Connections by authentication token.
    pub connections: ConnectionRegistry,
    /// Authentication failure counters.
    auth_failures: auth_failures::AuthFailureCounts,
    /// Agent runs declared by callers.
    runs: Mutex<RunRegistry>,
    /// Executes calls.
    pub host: Host,
    /// Broker hub for peers.
    pub hub: Hub,
    /// Registry of remote executors.
    pub executors: ExecutorRegistry,
    /// Pool slots of upgraded connections before authentication.
    upgrade_pool: Arc<UnauthenticatedPool>,
    /// Pool slots of unauthenticated HTTP connections.
    connection_pool: Arc<UnauthenticatedPool>,
    /// Permits for large request heads of unauthenticated connections.
    large_heads: Arc<Semaphore>,
    /// Facts for status output.
    pub info: GatewayInfo,
    /// Permits for clients of the event stream.
    watcher_permits: Arc<Semaphore>,
    /// Loads and reloads the server configuration.
    pub reloader: Arc<Reloader>,
    /// Tracing of calls.
    pub call_tracing: CallTracing,
    /// API routes, built once.
    api: axum::Router,
}

/// Components that exist before the edge and that the edge depends on.
#[derive(Debug)]
pub struct EdgeDeps {
    /// Authenticates requests.
    pub authenticator: Authenticator,
    /// Sessions of legacy clients.
    pub sessions: Arc<ClientSessions>,
    /// Executes calls.
    pub host: Host,
    /// Broker hub for peers.
    pub hub: Hub,
    /// Registry of remote executors.
    pub executors: ExecutorRegistry,
    /// Facts for status output.
    pub info: GatewayInfo,
    /// Loads and reloads the server configuration.
    pub reloader: Arc<Reloader>,
    /// Tracing of calls.
    pub call_tracing: CallTracing,
    /// Limits of unauthenticated connections.
    pub connections: ConnectionLimits,
}

impl Edge {
    /// Assembles the edge from its dependencies.
    #[must_use]
    pub fn new(deps: EdgeDeps) -> Arc<Self> {
        Arc::new_cyclic(|edge| Self {
            api: api::build_router(edge.clone()),
            watcher_permits: Arc::new(Semaphore::new(api::event_routes::WATCHERS_MAX)),
            authenticator: deps.authenticator,
            sessions: deps.sessions,
            modern_calls: modern_mcp::ModernCalls::default(),
            connections: ConnectionRegistry::default(),
            auth_failures: auth_failures::AuthFailureCounts::default(),
            runs: Mutex::default(),
            host: deps.host,
            hub: deps.hub,
            executors: deps.executors,
            upgrade_pool: UnauthenticatedPool::new(
                upgrade::UPGRADE_POOL_MAX,
                upgrade::UPGRADE_POOL_ADDRESS_MAX,
            ),
            connection_pool: UnauthenticatedPool::new(
                deps.connections.unauthenticated_max,
                deps.connections.address_max,
            ),
            large_heads: Arc::new(Semaphore::new(client_stream::LARGE_HEADS_MAX)),
            info: deps.info,
            reloader: deps.reloader,
            call_tracing: deps.call_tracing,
        })
    }

    /// Returns the run of a call by this principal.
    fn enter_run(
        &self,
        principal: &Principal,
        run: &call::call_params::RunClaim<'_>,
    ) -> Arc<AgentRun> {
        let now = self.host.clock().now();
        lock(&self.runs).enter_run(&principal.name, &run.id, run.calls, now)
    }

    /// Opens a session and records the current lists as known to the client.
    fn open_session(
        &self,
        terms: SessionTerms,
    ) -> Result<(Arc<str>, Arc<ClientSession>), OpenSessionError> {
        let opened = self
            .sessions
            .open_session(terms, self.host.clock().as_ref());
        if let Ok((_, session)) = &opened {
            announcer::note_current_lists(self, session);
        }
        self.forget_evicted_sessions();
        opened
    }

    /// Ends a session permanently and cancels its pending calls.
    fn end_session(&self, id: &str) -> bool {
        let ended = self.sessions.end_session(id);
        if let Some(session) = &ended {
            self.forget_session(session.key);
        }
        ended.is_some()
    }

    /// Ends everything opened with revoked or expired tokens: sessions with their calls and
    /// streams, and connections.
    pub fn revoke_access(&self, tokens: &[Arc<IssuedToken>]) {
        for token in tokens {
            for id in self.sessions.ids_by_credential(token.id()) {
                self.end_session(&id);
            }
            self.sessions.listeners.finish_by_credential(token.id());
            self.modern_calls.cancel_by_credential(self, token.id());
            self.connections.close_by_token(token);
        }
    }

    /// Ends everything opened with the previous owner token, except the connection `requester`,
    /// since the rotation response goes out on `requester`.
    pub(crate) fn revoke_owner_access(&self, token: &IssuedToken, requester: ConnectionKey) {
        for id in self.sessions.ids_by_credential(token.id()) {
            self.end_session(&id);
        }
        self.sessions.listeners.finish_by_credential(token.id());
        self.modern_calls.cancel_by_credential(self, token.id());
        self.connections.close_others(token, requester);
    }

    /// Evicts idle sessions.
    fn sweep_sessions(&self) {
        self.sessions.sweep(self.host.clock().now());
        self.modern_calls.sweep(self);
        self.forget_evicted_sessions();
    }

    fn forget_evicted_sessions(&self) {
        for session in self.sessions.take_evicted() {
            self.forget_session(session);
        }
    }

    /// Releases resources that servers hold for an ended session.
    fn forget_session(&self, session: SessionKey) {
        self.host.end_session(session);
    }
}
