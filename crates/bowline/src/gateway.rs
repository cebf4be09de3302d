//! Serves an embedded host over HTTP, without files and without a command line.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::call::ContextSet;
use bowline_core::hex::to_hex;
use bowline_host::Host;
use bowline_host::executor::{ExecutorRegistry, ExecutorRegistryOptions};
use bowline_host::notification_fanout::{AttachedSink, SinkOccupied};
use bowline_journal::JournalError;
use bowline_runtime::Lifecycle;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::assemble::{Gateway, start_broker};
use crate::telemetry::Telemetry;
use bowline_config::is_principal_name;
use bowline_config::reload::Reloader;
use bowline_config::state;
use bowline_config::{BrokerConfig, Config, ConnectionLimits, EnvVars};
use bowline_edge::{
    Announcer, AuthMode, Authenticator, CallTracer, ClientSessions, Edge, EdgeDeps, GatewayAudit,
    GatewayInfo, HttpListener, NarrowError, TokenCreateError, TokenRequest, TokenStore,
    announce_to_all,
};

/// Length of the owner token in bytes.
const TOKEN_BYTES: usize = 32;

/// Reason why a host cannot be served.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The system provides no randomness for a token.
    #[error(transparent)]
    Random(state::StateError),
    /// The broker cannot be started.
    #[error("cannot start the broker")]
    Broker(#[source] JournalError),
    /// Another gateway already serves the host.
    #[error(transparent)]
    Occupied(#[from] SinkOccupied),
}

/// Reason why no token was created.
#[derive(Debug, Error)]
pub enum TokenIssueError {
    /// The name is no valid principal name.
    #[error("`{0}` cannot name a principal")]
    BadName(Arc<str>),
    /// The maximum number of tokens exists.
    #[error(transparent)]
    Create(#[from] TokenCreateError),
}

/// Selects sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionSelector<'a> {
    /// All sessions, including future ones.
    All,
    /// The session with this id.
    Session(&'a str),
}

/// A served host. Dropping the value or calling [`stop`](Self::stop) ends the service; `stop`
/// also waits for the end.
pub struct BoundGateway {
    /// Base URL, `http://ADDRESS`; agents connect to `/mcp` below the base.
    pub url: String,
    /// The bound port, for callers that bind port 0.
    pub port: u16,
    /// The owner token, valid for every operation and stored nowhere else.
    pub token: String,
    edge: Arc<Edge>,
    tokens: Arc<TokenStore>,
    runtime: Handle,
    /// Its activities are the listener and the announcer.
    lifecycle: Lifecycle,
    /// Held as long as sessions receive notifications of servers.
    _attached: AttachedSink,
}

impl Gateway {
    /// Serves `host` on one address: MCP, the API and metrics, protected by a generated token.
    /// Nothing is written to disk. The caller keeps ownership of the host: the gateway does not
    /// shut the host down, and sessions see changes of the host at once.
    ///
    /// ```
    /// use bowline::Gateway;
    /// use bowline_host::Host;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let host = Host::builder().build()?;
    /// let bound = Gateway::bind(host.clone(), "127.0.0.1:0".parse()?).await?;
    /// assert_eq!(bound.url, format!("http://127.0.0.1:{}", bound.port));
    /// bound.stop().await;
    /// host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The address is taken, the system gives no randomness, or the host is served already.
    pub async fn bind(host: Host, address: SocketAddr) -> Result<BoundGateway, BindError> {
        let (tasks, clock) = (host.tasks().clone(), Arc::clone(host.clock()));
        let executors = ExecutorRegistry::new(tasks, clock, ExecutorRegistryOptions::default());
        Self::bind_with(host, address, executors).await
    }

    /// Like [`bind`](Self::bind), with the host's executors, which may join at `/executor`.
    ///
    /// # Errors
    /// Same as [`bind`](Self::bind).
    pub async fn bind_with(
        host: Host,
        address: SocketAddr,
        executors: ExecutorRegistry,
    ) -> Result<BoundGateway, BindError> {
        executors.report_to(Arc::new(host.events().clone()));
        let key = state::random_bytes::<32>().map_err(BindError::Random)?;
        let token = state::random_bytes::<TOKEN_BYTES>().map_err(BindError::Random)?;
        let token = to_hex(&token);
        let sessions = ClientSessions::new(&key).with_accounts(host.accounts().clone());
        let sessions = Arc::new(sessions);
        let attached = host.attach_sink(Arc::clone(&sessions) as _)?;
        let refused = |source| BindError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let local = listener.local_addr().map_err(refused)?;
        let url = format!("http://{local}");
        let tokens = Arc::new(TokenStore::in_memory(Arc::clone(host.clock())));
        let auth = Authenticator::new(AuthMode::Required, &token).with_tokens(Arc::clone(&tokens));
        let about = GatewayInfo {
            journal: "host",
            landlock_abi: 0,
            url: url.clone(),
            config: None,
            audit: GatewayAudit::default(),
        };
        let reloader = Reloader::new(
            &Config::default(),
            &EnvVars::default(),
            Box::new(|_| Vec::new()),
        );
        let hub =
            start_broker::start_hub(&host, &BrokerConfig::default(), &tokens, CallTracer::noop())
                .map_err(BindError::Broker)?;
        let edge = Edge::new(EdgeDeps {
            authenticator: auth,
            sessions,
            host,
            hub,
            executors,
            info: about,
            reloader: Arc::new(reloader),
            call_tracing: Telemetry::noop().edge_tracing(),
            connections: ConnectionLimits::default(),
        });
        let lifecycle = Lifecycle::default();
        let (tasks, shutdown) = (edge.host.tasks(), lifecycle.shutdown());
        let http_listener = HttpListener {
            edge: Arc::clone(&edge),
            listener,
        };
        tasks.start(http_listener, shutdown);
        tasks.start(Announcer(Arc::clone(&edge)), shutdown);
        Ok(BoundGateway {
            url,
            port: local.port(),
            token,
            edge,
            tokens,
            runtime: Handle::current(),
            lifecycle,
            _attached: attached,
        })
    }
}

impl BoundGateway {
    /// Returns the served host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.edge.host
    }

    /// Creates a token for a principal, valid for the lifetime of the gateway or shorter.
    ///
    /// # Errors
    /// The name is invalid, or too many tokens exist.
    pub fn issue_token(&self, request: &TokenRequest) -> Result<String, TokenIssueError> {
        if !is_principal_name(&request.principal) {
            return Err(TokenIssueError::BadName(Arc::clone(&request.principal)));
        }
        let (text, _) = self.tokens.create_token(request)?;
        Ok(text)
    }

    /// Revokes every token of a principal, ends their sessions and returns the number of tokens.
    pub fn revoke_tokens(&self, principal: &str) -> usize {
        let revoked = self.tokens.revoke_tokens(principal);
        self.edge.revoke_access(&revoked);
        let outbox = self.edge.host.outbox();
        let tokens: Vec<_> = revoked.iter().map(|token| token.id().to_owned()).collect();
        // The caller may be outside the runtime of the gateway.
        let _inside = self.runtime.enter();
        self.edge.host.tasks().spawn("withdrawal", async move {
            for token in tokens {
                if let Err(error) = outbox.revoke_credential(&token).await {
                    tracing::warn!(%token, %error, "queued calls of a revoked token not withdrawn");
                }
            }
        });
        revoked.len()
    }

    /// Returns the ids of open sessions with the names of their principals.
    #[must_use]
    pub fn sessions(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let named = self.edge.sessions.list_with_ids().into_iter();
        let owners = named.map(|(id, session)| (id, Arc::clone(&session.principal.name)));
        owners.collect()
    }

    /// Narrows sessions to these contexts of the policy, replacing contexts set here before;
    /// contexts of tokens stay in force. Sessions with changed lists are notified. An undefined
    /// context hides everything.
    ///
    /// # Errors
    /// No session has the id, or too many sessions are narrowed.
    pub fn set_context(
        &self,
        selector: SessionSelector<'_>,
        contexts: &ContextSet,
    ) -> Result<(), NarrowError> {
        match selector {
            SessionSelector::All => self.edge.sessions.narrow_all_sessions(contexts),
            SessionSelector::Session(id) => {
                let clock = self.edge.host.clock().as_ref();
                self.edge.sessions.narrow_session(id, contexts, clock)?;
            }
        }
        self.refresh_tools();
        Ok(())
    }

    /// Recomputes the lists of each session and notifies sessions with changed lists. Changes of
    /// servers, policy and contexts need no call; a custom guard that changes its decisions does.
    pub fn refresh_tools(&self) {
        announce_to_all(&self.edge);
    }

    /// Stops accepting requests and closes the streams of sessions. The host keeps running.
    pub async fn stop(self) {
        self.lifecycle.close();
        self.edge.sessions.close_streams();
        self.edge.hub.close().await;
        // Completes when the address is free again, or when the runtime is gone.
        self.lifecycle.close_and_wait().await;
    }
}

// Hides the token.
impl fmt::Debug for BoundGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundGateway")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
