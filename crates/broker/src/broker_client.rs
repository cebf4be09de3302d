//! Client of a hub: keeps one connection and reconnects after a loss.

mod broker_calls;
mod connect;
mod hub_connection;
mod reconnect;
mod request_handler;
mod stored_calls;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};
use bowline_link::websocket::{DialError, DisconnectReason, WebSocketLimits};
use bowline_runtime::{Clock, CredentialSource, Lifecycle, SystemClock, TaskTracker};
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;

use super::{BrokerCall, BrokerCallError, PeerManifest, RemotePeer};
use crate::frames::{BrokerFrame, BrokerRefusal, BrokerResponse, ManifestItem};
use crate::mailbox::MailboxName;
use bowline_link::endpoint_address;

use self::hub_connection::HubConnection;
use self::reconnect::HubConnector;
use self::stored_calls::StoredCallWaiter;

pub use self::hub_connection::DeliverError;
pub use self::request_handler::{HubRequestHandler, HubSender};

/// Options of a client.
#[derive(Clone, Debug)]
pub struct BrokerClientOptions {
    /// The mailbox of the principal: `#PART`, or the full `PRINCIPAL#PART`; the principal's own
    /// mailbox if absent. Two clients of one mailbox fence each other.
    pub mailbox_part: Option<Arc<str>>,
    /// Timeout of one connection attempt.
    pub connect_timeout: Duration,
    /// Reconnect policy.
    pub reconnect: ReconnectPolicy,
    /// Whether to fetch the hub's manifest; a client that only serves does not need the manifest.
    pub wants_manifest: bool,
    /// Limits of the WebSocket.
    pub socket: WebSocketLimits,
    /// Clock for call deadlines.
    pub clock: Arc<dyn Clock>,
    /// Tracker for the client's tasks.
    pub tasks: TaskTracker,
}

/// Reconnect policy of a client.
#[derive(Clone, Copy, Debug)]
pub struct ReconnectPolicy {
    /// Attempts per round; after a failed round, waiting callers get an error.
    pub attempts_max: u32,
    /// Wait between two attempts of a round.
    pub backoff: Backoff,
    /// Wait between two rounds; a caller cuts the wait short.
    pub round_backoff: Backoff,
    /// A connection of at least this length resets the backoff: the next attempt is immediate.
    pub steady: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 5,
            backoff: Backoff {
                base: Duration::from_millis(200),
                cap: Duration::from_secs(2),
            },
            round_backoff: Backoff {
                base: Duration::from_secs(2),
                cap: Duration::from_secs(30),
            },
            steady: Duration::from_secs(10),
        }
    }
}

impl Default for BrokerClientOptions {
    fn default() -> Self {
        Self {
            mailbox_part: None,
            connect_timeout: Duration::from_secs(10),
            reconnect: ReconnectPolicy::default(),
            wants_manifest: true,
            socket: WebSocketLimits::default(),
            clock: Arc::new(SystemClock::start()),
            tasks: TaskTracker::default(),
        }
    }
}

/// Why the client is not connected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BrokerConnectError {
    /// The endpoint is invalid.
    #[error("the address of the hub cannot be used")]
    Endpoint(#[from] EndpointError),
    /// The credential cannot be read.
    #[error("the credential cannot be read: {0}")]
    Credential(Arc<str>),
    /// The hub cannot be reached.
    #[error("the hub cannot be dialled")]
    Dial(#[from] DialError),
    /// The hub refused the peer.
    #[error("the hub refuses us: {}", .0.reason)]
    Refused(BrokerRefusal),
    /// The connection closed during the handshake.
    #[error("the connection ended at once")]
    Ended(#[from] DisconnectReason),
    /// The hub did not return a manifest.
    #[error("the hub does not say what it offers: {0}")]
    Manifest(Arc<str>),
    /// The attempt timed out.
    #[error("no connection in time")]
    Timeout,
    /// Another peer took over the mailbox; the client does not reconnect.
    #[error("another peer took our place: {0}")]
    Fenced(Arc<str>),
    /// The client was closed locally.
    #[error("the client is closed")]
    Closed,
}

impl BrokerConnectError {
    /// Whether a retry would most likely fail the same way.
    const fn is_permanent(&self) -> bool {
        match self {
            Self::Endpoint(_) | Self::Credential(_) | Self::Refused(_) => true,
            Self::Dial(DialError::Refused { status }) => matches!(*status, 401 | 403 | 404),
            Self::Dial(_)
            | Self::Ended(_)
            | Self::Manifest(_)
            | Self::Timeout
            | Self::Fenced(_)
            | Self::Closed => false,
        }
    }

    /// Returns the error and all sources, as one clause.
    fn display_chain(&self) -> Arc<str> {
        bowline_core::error::display_chain(self).into()
    }
}

/// A connection to a hub. Cheap to clone; the last clone closes the connection.
///
/// ```
/// use std::time::Duration;
///
/// use bowline_broker::{
///     BrokerCall, BrokerClient, BrokerClientOptions, CredentialSource, RemotePeer as _,
/// };
/// use bowline_broker::frames::{BrokerArguments, BrokerRequest, BrokerResponse};
/// # use bowline_tools::Toolbox;
/// # use bowline_tools::ToolOutput;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let any = serde_json::json!({"type": "object"});
/// # let count = Toolbox::default().with("count", "Counts.", &any, |_, _| async {
/// #     Ok(ToolOutput::from_text("1"))
/// # });
/// # let hub = bowline_testkit::TestHub::start(count).await?;
/// # let (url, token) = (hub.url(), "ann");
/// let options = BrokerClientOptions {
///     mailbox_part: Some("#counting".into()),
///     ..BrokerClientOptions::default()
/// };
/// let until = options.clock.now().plus(Duration::from_secs(30));
/// let client = BrokerClient::start(url, CredentialSource::from_token(token), options, None)?;
/// client.wait_ready(until).await?;
///
/// let call = BrokerCall {
///     request: BrokerRequest::Call {
///         tool: client.manifest().items[0].name.clone(),
///         server: None,
///         arguments: BrokerArguments::None,
///     },
///     // The hub stores the call before running it: it runs once even if the connection drops.
///     stored: true,
///     deadline: until,
///     sender: None,
///     client: None,
/// };
/// let response = client.call(call).await;
/// assert!(matches!(response, Ok(BrokerResponse::Output { .. })), "{response:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BrokerClient {
    shared: Arc<BrokerClientShared>,
    /// Closes when the last clone is dropped.
    lifecycle: Arc<Lifecycle>,
}

/// State shared by all clones and tasks of a client.
#[derive(Debug)]
struct BrokerClientShared {
    endpoint: HttpEndpoint,
    credential: CredentialSource,
    options: BrokerClientOptions,
    handler: Option<Arc<dyn HubRequestHandler>>,
    /// Random id of this client, unique across processes.
    instance: Arc<str>,
    /// Current state. Only the reconnect task writes, and always a whole snapshot.
    snapshot: ArcSwap<BrokerClientSnapshot>,
    /// Counts snapshots.
    changes: watch::Sender<u64>,
    /// Signalled when a caller needs a connection now.
    connect_wanted: Notify,
    /// Waiters for replies to stored calls, across all connections.
    stored_calls: Mutex<HashMap<Arc<str>, StoredCallWaiter>>,
    /// Peers called at least once.
    called_peers: Mutex<BTreeSet<Arc<str>>>,
    /// The offered servers, with the revision of the offer.
    offer: Mutex<(u64, Option<Bytes>)>,
}

/// Snapshot of connection and manifest.
#[derive(Debug)]
struct BrokerClientSnapshot {
    state: BrokerClientState,
    /// Number of failed rounds.
    failed_rounds: u64,
    manifest: Arc<PeerManifest>,
    /// Index of each tool in the manifest.
    tool_index: Arc<HashMap<Arc<str>, usize>>,
}

#[derive(Clone, Debug)]
enum BrokerClientState {
    /// Connected, as far as known.
    Connected(Arc<HubConnection>),
    /// Connecting, for the first time or again.
    Connecting,
    /// A round failed; the next round starts after the backoff or on demand.
    BackingOff(BrokerConnectError),
    /// Closed for good.
    Closed(BrokerConnectError),
}

impl BrokerClient {
    /// Starts a client of the hub at `endpoint` (`http(s)` or `ws(s)`) and connects in the
    /// background. `handler` receives the hub's requests.
    ///
    /// # Errors
    /// The endpoint is invalid.
    pub fn start(
        endpoint: &str,
        credential: CredentialSource,
        options: BrokerClientOptions,
        handler: Option<Arc<dyn HubRequestHandler>>,
    ) -> Result<Self, BrokerConnectError> {
        let mut random = [0; 8];
        // Without entropy the id is zero; debug builds assert.
        let drawn = getrandom::fill(&mut random);
        debug_assert!(drawn.is_ok(), "the kernel gives random bytes");
        let snapshot = BrokerClientSnapshot {
            state: BrokerClientState::Connecting,
            failed_rounds: 0,
            manifest: Arc::default(),
            tool_index: Arc::default(),
        };
        let shared = Arc::new(BrokerClientShared {
            endpoint: endpoint_address::parse_endpoint(endpoint, endpoint_address::BROKER_PATH)?,
            credential,
            handler,
            instance: to_hex(&random).into(),
            snapshot: ArcSwap::from_pointee(snapshot),
            changes: watch::Sender::new(0),
            connect_wanted: Notify::new(),
            stored_calls: Mutex::default(),
            called_peers: Mutex::default(),
            offer: Mutex::default(),
            options,
        });
        let lifecycle = Arc::new(Lifecycle::default());
        let connector = HubConnector(Arc::clone(&shared));
        shared.options.tasks.start(connector, lifecycle.shutdown());
        Ok(Self { shared, lifecycle })
    }

    /// Waits until the client is connected and has the hub's manifest.
    ///
    /// # Errors
    /// All attempts of a round failed, or `deadline` passed.
    pub async fn wait_ready(&self, deadline: MonotonicTime) -> Result<(), BrokerConnectError> {
        let mut changes = self.shared.changes.subscribe();
        let failed_rounds = self.shared.snapshot.load().failed_rounds;
        let at = self.shared.options.clock.instant(deadline);
        loop {
            {
                let snapshot = self.shared.snapshot.load();
                match &snapshot.state {
                    BrokerClientState::Connected(_) => return Ok(()),
                    BrokerClientState::Closed(error) => return Err(error.clone()),
                    BrokerClientState::BackingOff(error)
                        if snapshot.failed_rounds > failed_rounds =>
                    {
                        return Err(error.clone());
                    }
                    BrokerClientState::BackingOff(_) => self.shared.connect_wanted.notify_one(),
                    BrokerClientState::Connecting => {}
                }
            }
            match timeout_at(at, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(BrokerConnectError::Closed),
                Err(_) => return Err(BrokerConnectError::Timeout),
            }
        }
    }

    /// Offers servers to the hub, now and after each reconnect: the array of an `offer` frame.
    pub fn offer_servers(&self, servers: Bytes) {
        let frame = {
            let mut offer = lock(&self.shared.offer);
            offer.0 += 1;
            offer.1 = Some(servers.clone());
            BrokerFrame::Offer {
                revision: offer.0,
                servers,
            }
        };
        let snapshot = self.shared.snapshot.load_full();
        if let BrokerClientState::Connected(connection) = &snapshot.state {
            self.shared.send_best_effort(connection, &frame);
        }
    }

    /// Returns why the client closed for good, if closed.
    #[must_use]
    pub fn closed_reason(&self) -> Option<BrokerConnectError> {
        match &self.shared.snapshot.load().state {
            BrokerClientState::Closed(error) => Some(error.clone()),
            BrokerClientState::Connected(_)
            | BrokerClientState::Connecting
            | BrokerClientState::BackingOff(_) => None,
        }
    }

    /// Returns the mailbox assigned by the hub, while connected.
    #[must_use]
    pub fn mailbox(&self) -> Option<Arc<str>> {
        match &self.shared.snapshot.load().state {
            BrokerClientState::Connected(connection) => Some(Arc::clone(&connection.mailbox)),
            BrokerClientState::Connecting
            | BrokerClientState::BackingOff(_)
            | BrokerClientState::Closed(_) => None,
        }
    }

    /// Returns the number of the connection, counted from one, while connected.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        match &self.shared.snapshot.load().state {
            BrokerClientState::Connected(connection) => Some(connection.generation),
            BrokerClientState::Connecting
            | BrokerClientState::BackingOff(_)
            | BrokerClientState::Closed(_) => None,
        }
    }

    /// Finds a tool in the manifest.
    #[must_use]
    pub fn find_tool(&self, name: &str) -> Option<ManifestItem> {
        let snapshot = self.shared.snapshot.load();
        let nth = snapshot.tool_index.get(name)?;
        snapshot.manifest.items.get(*nth).cloned()
    }

    /// Returns the number of pending calls, live and stored.
    #[must_use]
    pub fn pending_calls(&self) -> usize {
        let live = match &self.shared.snapshot.load().state {
            BrokerClientState::Connected(connection) => connection.pending_count(),
            BrokerClientState::Connecting
            | BrokerClientState::BackingOff(_)
            | BrokerClientState::Closed(_) => 0,
        };
        live + lock(&self.shared.stored_calls).len()
    }

    /// Sends a call to the peer with mailbox `peer`, through the hub. Dropping the future cancels
    /// the call. The hub must allow this client to send and the peer to reply.
    ///
    /// # Errors
    /// As for [`call`](RemotePeer::call).
    pub async fn call_peer(
        &self,
        peer: &MailboxName,
        call: BrokerCall,
    ) -> Result<BrokerResponse, BrokerCallError> {
        self.shared.call(Some(peer.as_str()), call).await
    }

    /// Returns the clock for call deadlines.
    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.options.clock
    }

    /// Closes the connection gracefully and stops the client. Pending calls fail.
    pub fn close(&self) {
        self.lifecycle.close();
    }
}

impl RemotePeer for BrokerClient {
    fn call(&self, call: BrokerCall) -> BoxFuture<'_, Result<BrokerResponse, BrokerCallError>> {
        Box::pin(self.shared.call(None, call))
    }

    fn manifest(&self) -> Arc<PeerManifest> {
        Arc::clone(&self.shared.snapshot.load().manifest)
    }

    fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    fn is_connected(&self) -> bool {
        match &self.shared.snapshot.load().state {
            BrokerClientState::Connected(connection) => connection.connection_end().is_none(),
            BrokerClientState::Connecting
            | BrokerClientState::BackingOff(_)
            | BrokerClientState::Closed(_) => false,
        }
    }

    fn name(&self) -> Arc<str> {
        self.shared.endpoint.to_string().into()
    }
}
