//! The broker: authenticates peers, keeps mailboxes, and routes messages between peers.
//!
//! A mailbox is a lane of the journal, `mbx/NAME`. Messages to the hub itself wait in one lane per
//! sender, `mbx/hub/NAME`, so that no sender can fill or block the hub's mailbox for others.

mod hub_counts;
mod hub_gateway;
mod hub_inbox;
mod hub_views;
mod inbox_scheduler;
mod live_requests;
mod message_address;
mod message_store;
mod offer_store;
mod peer_handshake;
mod peer_offers;
mod peer_registry;
mod pump;
mod quota;
mod read_loop;
mod remote_peer;
mod rights;
mod stored_message;
mod sweep;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::budget::{CallAllowance, RateRule, SpendingAccounts};
use bowline_core::byte_rate::{ByteRate, ByteRateLimiter};
use bowline_core::call::Principal;
use bowline_core::policy::FeaturePattern;
use bowline_core::time::MonotonicTime;
use bowline_journal::{Journal, JournalError, Timestamps};
use bowline_link::websocket::WebSocketConnection;
use bowline_runtime::{Clock, Lifecycle, Shutdown, TaskTracker, Work};
use tokio::sync::{Notify, OnceCell, Semaphore};
use tokio::time::timeout;

use self::hub_counts::HubCounters;
use self::hub_inbox::HubInbox;
use self::inbox_scheduler::InboxScheduler;
use self::offer_store::{OfferStore, OfferWriter};
use self::peer_registry::{ConnectedPeer, PeerRegistry};
use self::quota::StoredBytes;
use self::remote_peer::ReplyWaiters;
use self::sweep::{ChangeAnnouncer, HubSweep};
use crate::frames::{BrokerHello, BrokerRefusal};
use crate::mailbox::MailboxName;
use crate::{RemotePeer, ServeEngine};

pub use hub_counts::HubCounts;
pub use hub_gateway::HubGateway;
pub use hub_views::{DeadLetterError, DeadLetterView, MailboxView, PeerView};
pub use message_address::HubAliases;
pub use peer_offers::{OfferHandler, RejectOffers};

/// Connections in the handshake at once.
const HANDSHAKES_MAX: usize = 256;

/// How long running requests may take to finish on shutdown.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(2);

/// Limits of a hub.
#[derive(Clone, Copy, Debug)]
pub struct HubLimits {
    /// Connected peers.
    pub peers_max: usize,
    /// Messages a principal may deliver per second; excess is delayed.
    pub deliver_per_second: u32,
    /// Burst of `deliver_per_second`.
    pub deliver_burst: u32,
    /// Bytes stored per second on behalf of a principal, replies to the principal included; excess
    /// is delayed.
    pub deliver_bytes_per_second: u64,
    /// Burst of `deliver_bytes_per_second`.
    pub deliver_burst_bytes: u64,
    /// Mailboxes of one principal.
    pub mailboxes_max: usize,
    /// Live requests of one peer in flight.
    pub requests_max: usize,
    /// Unacknowledged messages pushed to one subscriber.
    pub unacked_max: usize,
    /// Deliveries of a message before it becomes a dead letter.
    pub deliveries_max: u32,
    /// TTL of a message without an explicit TTL.
    pub ttl: Duration,
    /// Timeout for the `hello` frame.
    pub hello_timeout: Duration,
    /// Heartbeat interval announced to peers.
    pub heartbeat: Duration,
    /// Interval of the expiry sweep.
    pub sweep_interval: Duration,
    /// Time to acknowledge a pushed message before redelivery.
    pub ack_wait: Duration,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            peers_max: 4_096,
            deliver_per_second: 500,
            deliver_burst: 1_000,
            deliver_bytes_per_second: 8 * 1024 * 1024,
            deliver_burst_bytes: 32 * 1024 * 1024,
            mailboxes_max: 16,
            requests_max: 256,
            unacked_max: 256,
            deliveries_max: 20,
            ttl: Duration::from_secs(24 * 60 * 60),
            hello_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            sweep_interval: Duration::from_secs(5),
            ack_wait: Duration::from_secs(10 * 60),
        }
    }
}

/// Options of a hub.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Limits.
    pub limits: HubLimits,
    /// Handles offers of peers.
    pub offer_handler: Arc<dyn OfferHandler>,
    /// Names of the hub's own mailbox beside `hub`. No peer may have such a name.
    pub aliases: HubAliases,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            limits: HubLimits::default(),
            offer_handler: Arc::new(RejectOffers),
            aliases: HubAliases::default(),
        }
    }
}

/// An authenticated peer.
#[derive(Clone, Debug)]
pub struct AdmittedPeer {
    /// The local principal.
    pub principal: Arc<Principal>,
    /// The peer's mailbox.
    pub mailbox: MailboxName,
    /// Role stamped on every message of the peer.
    pub role: Option<Arc<str>>,
    /// Rights beyond using tools.
    pub rights: PeerRights,
}

/// Rights of a peer. The default grants only access to the hub.
#[derive(Clone, Debug, Default)]
pub struct PeerRights {
    /// Principals whose mailboxes the peer may see and send to, beside the hub's: names, or `*` for
    /// any.
    pub to: Vec<Arc<str>>,
    /// Message kinds allowed in `to`; `mcp_request` and `mcp_reply` if empty.
    pub kinds: Vec<Arc<str>>,
    /// Servers that the peer may offer to the hub's catalog, as name patterns.
    pub offers: Vec<FeaturePattern>,
}

/// Authenticates peers; implemented by the edge.
pub trait PeerAuthenticator: fmt::Debug + Send + Sync {
    /// Admits a peer. The future resolves with the reason when the credential ends.
    ///
    /// # Errors
    /// The peer is not admitted.
    fn authenticate(
        &self,
        hello: &BrokerHello,
    ) -> Result<(AdmittedPeer, BoxFuture<'static, BrokerRefusal>), BrokerRefusal>;

    /// Whether the authenticator already limits unauthenticated connections.
    fn has_handshake_limit(&self) -> bool {
        false
    }

    /// Called for every refused frame and every refused peer.
    fn on_refused(&self, peer: Option<&AdmittedPeer>, refusal: &BrokerRefusal) {
        let _ = (peer, refusal);
    }
}

/// The broker. Cheap to clone; stops with [`close`](Self::close) or with the last clone.
#[derive(Clone, Debug)]
pub struct Hub {
    shared: Arc<HubShared>,
    /// Its activities are the services, the connected peers, the returns of their messages, and the
    /// requests in flight.
    lifecycle: Arc<Lifecycle>,
}

/// State shared by connections, pumps and sweeps.
#[derive(Debug)]
struct HubShared {
    gateway: Arc<dyn HubGateway>,
    journal: Arc<dyn Journal>,
    limits: HubLimits,
    engine: Arc<ServeEngine>,
    offer_handler: Arc<dyn OfferHandler>,
    /// Offers remembered across restarts of the hub.
    offer_store: OfferStore,
    /// Other names of the hub's own mailbox.
    aliases: HubAliases,
    /// Connected peers and mailbox subscribers.
    peers: Mutex<PeerRegistry>,
    /// Message rate of each principal.
    delivery_rates: Mutex<SpendingAccounts>,
    /// Message rate limit.
    delivery_allowance: CallAllowance,
    /// Byte rate of each principal.
    byte_rates: Mutex<ByteRateLimiter>,
    /// Journal bytes of each principal.
    stored_bytes: Mutex<StoredBytes>,
    /// Signalled when a delivery permit is released.
    room_freed: Notify,
    /// Messages of the hub's own mailbox in flight.
    inbox: Work<InboxScheduler>,
    /// Waiters for replies to the hub's stored calls.
    reply_waiters: Mutex<ReplyWaiters>,
    /// Identity of the store; read from the journal once.
    identity: OnceCell<Arc<str>>,
    /// Permits for unauthenticated connections.
    handshakes: Semaphore,
    /// Numbers connections and forwarded requests.
    next_number: AtomicU64,
    counters: HubCounters,
    shutdown: Shutdown,
}

impl Hub {
    /// Opens the mailboxes of `journal`; `engine` answers requests to the hub. Offers of peers are
    /// refused.
    #[must_use]
    pub fn start<G: HubGateway + Clone + 'static>(
        gateway: &G,
        journal: Arc<dyn Journal>,
        limits: HubLimits,
        engine: Arc<ServeEngine>,
    ) -> Self {
        Self::start_with_offers(gateway, journal, limits, engine, Arc::new(RejectOffers))
    }

    /// Like [`start`](Self::start), with `offer_handler` for the offers of peers.
    #[must_use]
    pub fn start_with_offers<G: HubGateway + Clone + 'static>(
        gateway: &G,
        journal: Arc<dyn Journal>,
        limits: HubLimits,
        engine: Arc<ServeEngine>,
        offer_handler: Arc<dyn OfferHandler>,
    ) -> Self {
        let options = HubOptions {
            limits,
            offer_handler,
            aliases: HubAliases::default(),
        };
        Self::with_options(gateway, journal, engine, options)
    }

    /// Like [`start`](Self::start), with all options.
    #[must_use]
    pub fn with_options<G: HubGateway + Clone + 'static>(
        gateway: &G,
        journal: Arc<dyn Journal>,
        engine: Arc<ServeEngine>,
        options: HubOptions,
    ) -> Self {
        let HubOptions {
            limits,
            offer_handler,
            aliases,
        } = options;
        let lifecycle = Lifecycle::default();
        let shutdown = lifecycle.shutdown();
        let shared = Arc::new(HubShared {
            gateway: Arc::new(gateway.clone()),
            journal,
            limits,
            engine,
            offer_handler,
            offer_store: OfferStore::default(),
            aliases,
            peers: Mutex::default(),
            delivery_rates: Mutex::default(),
            delivery_allowance: delivery_allowance(&limits),
            byte_rates: Mutex::new(ByteRateLimiter::new(byte_rate(&limits))),
            stored_bytes: Mutex::default(),
            room_freed: Notify::new(),
            inbox: Work::default(),
            reply_waiters: Mutex::default(),
            identity: OnceCell::new(),
            handshakes: Semaphore::new(HANDSHAKES_MAX),
            next_number: AtomicU64::new(1),
            counters: HubCounters::default(),
            shutdown: shutdown.clone(),
        });
        let tasks = gateway.tasks();
        tasks.start(HubInbox(Arc::clone(&shared)), shutdown);
        tasks.start(HubSweep(Arc::clone(&shared)), shutdown);
        tasks.start(OfferWriter(Arc::clone(&shared)), shutdown);
        tasks.start(ChangeAnnouncer(Arc::clone(&shared)), shutdown);
        Self {
            shared,
            lifecycle: Arc::new(lifecycle),
        }
    }

    /// Restores the servers of workers connected at the last shutdown: listed as last known until
    /// the worker returns or the retention time ends. `rights` returns the current rights of a
    /// principal, or `None` for a removed peer.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn restore_offers(
        &self,
        rights: impl Fn(&Principal) -> Option<PeerRights> + Send,
    ) -> Result<(), JournalError> {
        offer_store::restore_offers(&self.shared, rights).await
    }

    /// Serves one peer until the connection ends.
    pub async fn serve_peer(
        &self,
        socket: WebSocketConnection,
        authenticator: &dyn PeerAuthenticator,
    ) {
        peer_handshake::serve_peer(&self.shared, socket, authenticator).await;
    }

    /// Returns a peer, connected or not, as a target of calls.
    #[must_use]
    pub fn remote_peer(&self, mailbox: &MailboxName) -> Option<Arc<dyn RemotePeer>> {
        let is_own = mailbox.principal() == crate::mailbox::HUB;
        (!is_own).then(|| remote_peer::get_or_create(&self.shared, mailbox) as Arc<dyn RemotePeer>)
    }

    /// Notifies every peer of the shutdown, returns leased messages, and waits briefly for running
    /// requests.
    pub async fn close(&self) {
        let closed = self.lifecycle.close_and_wait();
        if timeout(SHUTDOWN_WAIT + SHUTDOWN_WAIT, closed)
            .await
            .is_err()
        {
            tracing::warn!("peers or requests did not finish before shutdown");
        }
    }
}

impl HubShared {
    /// Emits an event about a peer.
    fn emit_peer_event(&self, peer: &ConnectedPeer, state: &'static str) {
        self.gateway.on_peer_change(peer.mailbox().as_str(), state);
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.gateway.clock()
    }

    fn tasks(&self) -> &TaskTracker {
        self.gateway.tasks()
    }

    fn now(&self) -> MonotonicTime {
        self.clock().now()
    }

    /// Returns the current time in the journal's form.
    fn timestamps(&self) -> Timestamps {
        Timestamps {
            now: self.now(),
            unix_ms: self.clock().unix_ms(),
        }
    }

    fn take_number(&self) -> u64 {
        self.next_number
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

fn delivery_allowance(limits: &HubLimits) -> CallAllowance {
    CallAllowance {
        budget: None,
        rate: Some(RateRule {
            calls: limits.deliver_per_second,
            per: Duration::from_secs(1),
            burst: limits.deliver_burst,
        }),
    }
}

const fn byte_rate(limits: &HubLimits) -> ByteRate {
    ByteRate {
        bytes_per_second: limits.deliver_bytes_per_second,
        burst_bytes: limits.deliver_burst_bytes,
    }
}
