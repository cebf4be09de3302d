//! Serves tools over a hub until shutdown, with reconnects.

mod serve_session;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::policy::RoleAllowlist;
use bowline_core::retry::{JitterSource, Retry};

use super::broker_client::ReconnectPolicy;
use super::{
    BrokerClient, BrokerClientOptions, BrokerConnectError, CredentialSource, ExecutorBackend,
    HubRequestHandler, RemotePeer as _, RequestLedger, ServeEngine, ServeLimits,
};
use bowline_tools::ToolExecutor;

pub use serve_session::ServeSession;

/// Reconnect wait of the inner client: only the supervisor reconnects.
const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Options for serving tools.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The served mailbox and the connection limits. The supervisor replaces the reconnect policy.
    pub client: BrokerClientOptions,
    /// Concurrency limits.
    pub limits: ServeLimits,
    /// Records started requests; in memory if absent, so lost on a restart. With
    /// [`RequestLedger::open`], a request that is not repeatable does not run again even after a
    /// kill of the program: the caller gets an unknown outcome.
    pub ledger: Option<RequestLedger>,
    /// Offers the tools to the hub's catalog under this server name, as of each connect. The hub's
    /// config must allow the offer: `[principals.NAME] offers`.
    pub offer_as: Option<Arc<str>>,
    /// Wait before the next connection.
    pub backoff: Backoff,
    /// A connection of at least this length resets the backoff.
    pub steady: Duration,
    /// How long running requests may take on shutdown.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            client: BrokerClientOptions::default(),
            limits: ServeLimits::default(),
            ledger: None,
            offer_as: None,
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(30),
            },
            steady: Duration::from_secs(10),
            drain: Duration::from_secs(1),
        }
    }
}

/// Serves the tools of `executor` in the mailbox of `credential` until `shutdown` resolves.
///
/// After any disconnect the supervisor reconnects, with a backoff that doubles from 500 ms to 30 s
/// and resets after 10 s of service. A request runs once during the life of the program: a
/// redelivered request gets the recorded response. A request running during a kill is redelivered
/// to the next process and runs again there, unless [`serve_with`] gets a ledger on disk.
///
/// # Errors
/// The endpoint is invalid, or another peer took over the mailbox. A fenced supervisor stops: two
/// that keep fencing each other would serve no request.
pub async fn serve_supervised(
    endpoint: &str,
    credential: CredentialSource,
    executor: Arc<dyn ToolExecutor>,
    allowlist: RoleAllowlist,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), BrokerConnectError> {
    let options = ServeOptions::default();
    serve_with(endpoint, credential, executor, allowlist, options, shutdown).await
}

/// Like [`serve_supervised`], with options.
///
/// # Errors
/// As for [`serve_supervised`].
pub async fn serve_with(
    endpoint: &str,
    credential: CredentialSource,
    executor: Arc<dyn ToolExecutor>,
    allowlist: RoleAllowlist,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), BrokerConnectError> {
    let clock = Arc::clone(&options.client.clock);
    for warning in allowlist.warnings() {
        tracing::warn!(warning, "role allowlist warning");
    }
    let ledger = match options.ledger {
        Some(ledger) => ledger,
        // The fixed name fits into a lane name.
        None => RequestLedger::in_memory("served").map_err(|_| BrokerConnectError::Closed)?,
    };
    let backend = ExecutorBackend::new(executor, &allowlist, Arc::clone(&clock));
    let backend = Arc::new(backend);
    let offer_backend = Arc::clone(&backend);
    let engine = ServeEngine::new(backend, ledger, options.limits, Arc::clone(&clock));
    let engine = AbandonGuard(Arc::new(engine));
    let retry = Retry::new(options.backoff, JitterSource::random());
    let mut retry = retry.with_steady_run(options.steady);
    let mut shutdown = pin!(shutdown);
    loop {
        let began = clock.now();
        let client = start_client(endpoint, &credential, &options.client, &engine.0)?;
        if let Some(server) = &options.offer_as {
            client.offer_servers(offer_backend.write_offer(server));
        }
        let result = tokio::select! {
            biased;
            () = &mut shutdown => {
                engine.0.close(options.drain).await;
                client.close();
                return Ok(());
            }
            ended = wait_disconnected(&client, options.client.connect_timeout) => ended,
        };
        match result {
            Err(fenced @ BrokerConnectError::Fenced(_)) => return Err(fenced),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "serving ended");
            }
            Ok(()) => {}
        }
        drop(client);
        let now = clock.now();
        let wait = retry.next_wait_after_run(began.duration_until(now), now);
        tokio::select! {
            biased;
            () = &mut shutdown => {
                engine.0.close(options.drain).await;
                return Ok(());
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Starts a client that makes a single connection.
fn start_client(
    endpoint: &str,
    credential: &CredentialSource,
    options: &BrokerClientOptions,
    engine: &Arc<ServeEngine>,
) -> Result<BrokerClient, BrokerConnectError> {
    let never = Backoff {
        base: NEVER,
        cap: NEVER,
    };
    let options = BrokerClientOptions {
        reconnect: ReconnectPolicy {
            attempts_max: 1,
            backoff: never,
            round_backoff: never,
            steady: NEVER,
        },
        wants_manifest: false,
        ..options.clone()
    };
    let (clock, tasks) = (Arc::clone(&options.clock), options.tasks.clone());
    let session = ServeSession::new(Arc::clone(engine), clock, tasks);
    let session = Some(Arc::new(session) as Arc<dyn HubRequestHandler>);
    BrokerClient::start(endpoint, credential.clone(), options, session)
}

/// Waits until a client is disconnected, or cannot connect.
async fn wait_disconnected(
    client: &BrokerClient,
    connect_timeout: Duration,
) -> Result<(), BrokerConnectError> {
    // The client's own timeout fires first; this deadline is a backstop.
    let deadline = client.clock().now().plus(connect_timeout * 2);
    client.wait_ready(deadline).await?;
    let mut changes = client.subscribe_changes();
    loop {
        changes.mark_unchanged();
        if let Some(error) = client.closed_reason() {
            return Err(error);
        }
        if client.generation().is_none() {
            return Ok(());
        }
        if changes.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Cancels running requests when the supervisor ends for any reason.
#[derive(Debug)]
struct AbandonGuard(Arc<ServeEngine>);

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
