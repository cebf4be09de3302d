//! Serves a host of one's own over HTTP, without files and without a command line.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_core::call::Contexts;
use bowline_host::Host;
use bowline_host::audience::{Attached, Occupied};
use bowline_host::executor::{Executors, ExecutorsOptions};
use bowline_journal::JournalError;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::assemble::{Gateway, broker};
use crate::audit::Auditing;
use crate::config::{BrokerConfig, Config, ConnectionLimits, Env};
use crate::edge::door::{Auth, Door};
use crate::edge::session::{NarrowError, Sessions};
use crate::edge::{About, Edge, announce, listen};
use crate::reload::Reloader;
use crate::state;
use crate::telemetry::{Telemetry, Tracer};
use crate::tokens::{CreateError, Tokens, Wanted, is_principal};

/// Bytes of the owner's token.
const TOKEN_BYTES: usize = 32;

/// Why a host is not served.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address cannot be served on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// There is no randomness to make a token of.
    #[error(transparent)]
    Random(state::Error),
    /// The broker cannot be started.
    #[error("cannot start the broker")]
    Broker(#[source] JournalError),
    /// Another gateway serves it.
    #[error(transparent)]
    Occupied(#[from] Occupied),
}

/// Why no token was made.
#[derive(Debug, Error)]
pub enum IssueError {
    /// The principal cannot be called so.
    #[error("`{0}` cannot name a principal")]
    BadName(Arc<str>),
    /// There are as many as there may be.
    #[error(transparent)]
    Create(#[from] CreateError),
}

/// Which sessions are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom<'a> {
    /// All of them, those to come included.
    All,
    /// The one with this id.
    Session(&'a str),
}

/// A host that is served. Dropped, it is served no more; so it is after [`stop`](Self::stop),
/// which waits.
pub struct Bound {
    /// Where it is reached, `http://ADDRESS`; agents connect to `/mcp` below it.
    pub url: String,
    /// The port, for those who asked for any.
    pub port: u16,
    /// Proves the owner, who may do everything; it is kept nowhere else.
    pub token: String,
    edge: Arc<Edge>,
    tokens: Arc<Tokens>,
    runtime: Handle,
    stop: watch::Sender<bool>,
    closed: oneshot::Receiver<()>,
    /// Held as long as sessions hear what servers say.
    _attached: Attached,
}

impl Gateway {
    /// Serves `host` on one address: MCP, the API and metrics, behind a token that is made for
    /// it. Nothing is written to disk. The host stays its builder's: it is not shut down with the
    /// gateway, and what changes in it is seen by the sessions at once.
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
    pub async fn bind(host: Host, address: SocketAddr) -> Result<Bound, BindError> {
        let (tasks, clock) = (host.tasks().clone(), Arc::clone(host.clock()));
        let executors = Executors::new(tasks, clock, ExecutorsOptions::default());
        Self::bind_with(host, address, executors).await
    }

    /// The same, with the executors that the host was built with: they may join at `/executor`.
    ///
    /// # Errors
    /// As above.
    pub async fn bind_with(
        host: Host,
        address: SocketAddr,
        executors: Executors,
    ) -> Result<Bound, BindError> {
        executors.report_to(host.events().clone());
        let key = state::random::<32>().map_err(BindError::Random)?;
        let token = state::random::<TOKEN_BYTES>().map_err(BindError::Random)?;
        let token = state::hex(&token);
        let sessions = Sessions::new(&key).with_accounts(host.accounts().clone());
        let sessions = Arc::new(sessions);
        let attached = host.attach(Arc::clone(&sessions) as _)?;
        let refused = |source| BindError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let local = listener.local_addr().map_err(refused)?;
        let url = format!("http://{local}");
        let tokens = Arc::new(Tokens::unkept(Arc::clone(host.clock())));
        let door = Door::new(Auth::Required, &token).with_tokens(Arc::clone(&tokens));
        let about = About {
            journal: "host",
            landlock_abi: 0,
            url: url.clone(),
            config: None,
            audit: Auditing::default(),
        };
        let no_file = Reloader::new(
            &Config::default(),
            &Env::default(),
            Box::new(|_| Vec::new()),
        );
        let hub = broker::start(&host, &BrokerConfig::default(), &tokens, Tracer::off())
            .map_err(BindError::Broker)?;
        let edge = Edge::new(
            door,
            sessions,
            (host, hub, executors),
            about,
            no_file,
            Telemetry::off().traced(),
            ConnectionLimits::default(),
        );
        let (stop, stopped) = watch::channel(false);
        let (done, closed) = oneshot::channel();
        let serving = listen::serve(Arc::clone(&edge), listener, stopped.clone());
        let tasks = edge.host.tasks();
        tasks.spawn("listener", async move {
            serving.await;
            let _ = done.send(());
        });
        tasks.spawn("announcer", announce::run(Arc::clone(&edge), stopped));
        Ok(Bound {
            url,
            port: local.port(),
            token,
            edge,
            tokens,
            runtime: Handle::current(),
            stop,
            closed,
            _attached: attached,
        })
    }
}

impl Bound {
    /// Returns the host that is served.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.edge.host
    }

    /// Makes a token for a principal, which lives as long as this gateway does, or less.
    ///
    /// # Errors
    /// The name cannot be one, or there are too many tokens.
    pub fn issue(&self, wanted: &Wanted) -> Result<String, IssueError> {
        if !is_principal(&wanted.principal) {
            return Err(IssueError::BadName(Arc::clone(&wanted.principal)));
        }
        let (text, _) = self.tokens.create(wanted)?;
        Ok(text)
    }

    /// Ends every token of a principal, with all that was opened by them, and returns how many.
    pub fn revoke(&self, principal: &str) -> usize {
        let ended = self.tokens.revoke(principal);
        self.edge.dismiss(&ended);
        let outbox = self.edge.host.outbox();
        let tokens: Vec<_> = ended.iter().map(|token| token.id().to_owned()).collect();
        // Whoever holds this need not be on the runtime that serves it.
        let _inside = self.runtime.enter();
        self.edge.host.tasks().spawn("withdrawal", async move {
            for token in tokens {
                if let Err(error) = outbox.withdraw_of_credential(&token).await {
                    tracing::warn!(%token, %error, "queued calls of a token are not withdrawn");
                }
            }
        });
        ended.len()
    }

    /// Returns the ids of the sessions that are open, and whose they are.
    #[must_use]
    pub fn sessions(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let named = self.edge.sessions.named().into_iter();
        let whose = named.map(|(id, session)| (id, Arc::clone(&session.principal.name)));
        whose.collect()
    }

    /// Narrows what sessions see and may use by these rules of the policy, in place of those that
    /// were set here before; those of their tokens hold as well. Sessions whose lists change by
    /// it are told. A rule that the policy does not define hides everything.
    ///
    /// # Errors
    /// There is no session of that id, or too many are narrowed.
    pub fn set_context(&self, whom: Whom<'_>, contexts: &Contexts) -> Result<(), NarrowError> {
        match whom {
            Whom::All => self.edge.sessions.narrow_all(contexts),
            Whom::Session(id) => {
                let clock = self.edge.host.clock().as_ref();
                self.edge.sessions.narrow(id, contexts, clock)?;
            }
        }
        self.refresh_tools();
        Ok(())
    }

    /// Looks again at what each session sees and tells those whose lists are others now. What
    /// servers, policy and contexts change is told without it; it is for a guard that changed its
    /// mind.
    pub fn refresh_tools(&self) {
        announce::tell(&self.edge);
    }

    /// Takes no more requests, and ends what sessions listen on. The host goes on.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.edge.sessions.close_streams();
        self.edge.hub.close().await;
        // Told when the address is free again; never, where the runtime is gone.
        let _ = self.closed.await;
    }
}

// It holds a token.
impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
