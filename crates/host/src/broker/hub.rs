//! The broker: lets peers in, keeps their mailboxes, and carries messages between them.
//!
//! A mailbox is a lane of the journal, `mbx/NAME`. What goes to the hub itself waits in one lane
//! for each sender, `mbx/hub/NAME`, so that nobody can fill it or keep it busy for others.

mod address;
mod counts;
mod desk;
mod greet;
mod intake;
mod live;
mod mailbox;
mod offer;
mod offer_store;
mod own;
mod peers;
mod pump;
mod quota;
mod remote;
mod rights;
mod store;
mod sweep;
mod views;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::budget::{Accounts, Allowance, RateRule};
use bowline_core::byte_rate::{ByteRate, ByteRates};
use bowline_core::call::Principal;
use bowline_core::mailbox::Mailbox;
use bowline_core::policy::Pattern;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::{At, Journal, JournalError};
use bowline_link::BoxFuture;
use bowline_link::websocket::{Incoming, Outgoing};
use bowline_wire::broker::{Hello, Refusal};
use tokio::sync::{Notify, OnceCell, Semaphore, watch};

use self::counts::Counts;
use self::desk::Desk;
use self::offer_store::OfferStore;
use self::peers::{Peer, Peers};
use self::quota::Stored;
use self::remote::Waiting;
use crate::broker::{Remote, Serving};
use crate::events::What;
use crate::host::Host;
use crate::ports::Clock;
use crate::tasks::Tasks;

pub use address::HubAliases;
pub use counts::HubCounts;
pub use offer::{Offers, Untaken};
pub use views::{HubError, LetterView, MailboxView, PeerView};

/// Connections that have not said yet who they are.
const GREETINGS_MAX: usize = 256;

/// How long requests that run may take to end when the hub goes down.
const END_WAIT: Duration = Duration::from_secs(2);

/// The close code of a peer whose place another took.
pub const FENCED: u16 = 4001;

/// The close code of a peer whose credential is over.
pub const CREDENTIAL_OVER: u16 = 4002;

/// The close code of a peer that was not let in.
pub const NOT_ADMITTED: u16 = 4003;

/// The close code of a peer that broke the protocol.
pub const BROKE_PROTOCOL: u16 = 4004;

/// The close code of a peer that is told that the hub goes down.
pub const GOING_DOWN: u16 = 1001;

/// The bounds of a hub.
#[derive(Clone, Copy, Debug)]
pub struct HubLimits {
    /// Peers at once.
    pub peers_max: usize,
    /// Messages that a principal may deliver in a second; beyond it is slowed down.
    pub deliver_per_second: u32,
    /// Messages it may have saved up.
    pub deliver_burst: u32,
    /// Bytes that are stored for a principal in a second, what is answered to it included; beyond
    /// it is slowed down.
    pub deliver_bytes_per_second: u64,
    /// Bytes it may have saved up.
    pub deliver_burst_bytes: u64,
    /// Mailboxes of one principal.
    pub mailboxes_max: usize,
    /// Live requests of one peer in flight.
    pub requests_max: usize,
    /// Messages pushed to one subscriber that it has not acknowledged.
    pub unacked_max: usize,
    /// How often a message is handed out before it becomes a dead letter.
    pub deliveries_max: u32,
    /// How long a message that says nothing is kept.
    pub ttl: Duration,
    /// How long a peer may take to say who it is.
    pub hello_wait: Duration,
    /// How often each side says that it is there, as peers are told.
    pub heartbeat: Duration,
    /// How often messages are looked for that are past their time.
    pub sweep_every: Duration,
    /// How long a message that was pushed is its subscriber's before it is pushed again.
    pub hold: Duration,
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
            hello_wait: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            sweep_every: Duration::from_secs(5),
            hold: Duration::from_secs(10 * 60),
        }
    }
}

/// How a hub behaves.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Its bounds.
    pub limits: HubLimits,
    /// Takes what peers offer.
    pub offers: Arc<dyn Offers>,
    /// Names under which peers reach its own mailbox, beside `hub`. No peer may have such a name.
    pub aliases: HubAliases,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            limits: HubLimits::default(),
            offers: Arc::new(Untaken),
            aliases: HubAliases::default(),
        }
    }
}

/// A peer that proved who it is.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Who it is, here.
    pub principal: Arc<Principal>,
    /// Its mailbox.
    pub mailbox: Mailbox,
    /// The role that is stamped on what it sends.
    pub role: Option<Arc<str>>,
    /// What it may do beside using tools.
    pub rights: Rights,
}

/// What a peer may do. Nothing is granted by default but to reach the hub.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Mailboxes it may deliver to, send live requests to and see, beside the hub's: names of
    /// principals, `*` for any.
    pub to: Vec<Arc<str>>,
    /// Kinds of messages it may send there; `mcp_request` and `mcp_reply` where empty.
    pub kinds: Vec<Arc<str>>,
    /// Servers it may bring into the hub's catalog, by patterns of their names.
    pub offers: Vec<Pattern>,
}

/// Knows credentials; the edge.
pub trait Porter: fmt::Debug + Send + Sync {
    /// Lets a peer in, or says why not. The future ends when the credential does, with the reason.
    ///
    /// # Errors
    /// It is not let in.
    fn admit(&self, hello: &Hello) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal>;

    /// Whether it bounds by itself how many have not said yet who they are.
    fn bounds_greetings(&self) -> bool {
        false
    }

    /// Is told of every frame that was refused, and of whoever was not let in.
    fn refused(&self, peer: Option<&Admitted>, refusal: &Refusal) {
        let _ = (peer, refusal);
    }
}

/// The broker. Cheap to clone; its work ends with [`close`](Self::close) or with its last clone.
#[derive(Clone, Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    _end: Arc<End>,
}

/// Ends the work of a hub that nobody closed.
#[derive(Debug)]
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.closing.send_replace(true);
    }
}

/// What connections, pumps and sweeps share.
#[derive(Debug)]
struct Shared {
    host: Host,
    journal: Arc<dyn Journal>,
    limits: HubLimits,
    serving: Arc<Serving>,
    offers: Arc<dyn Offers>,
    /// What they were, for the next life of the hub.
    offer_store: OfferStore,
    /// Other names of its own mailbox.
    aliases: HubAliases,
    /// Who is here, and who takes the messages of which mailbox.
    peers: Mutex<Peers>,
    /// How many messages each principal delivers.
    pace: Mutex<Accounts>,
    /// How many it may.
    allowance: Allowance,
    /// How many bytes are stored for each principal.
    bytes_pace: Mutex<ByteRates>,
    /// What each principal has in the journal.
    stored: Mutex<Stored>,
    /// Told when a delivery is in work no more.
    room: Notify,
    /// What of the hub's own mailbox is under way.
    desk: Mutex<Desk>,
    /// Wakes whoever takes from the hub's own mailbox.
    desk_poke: Notify,
    /// Stored errands of the hub whose replies are waited for.
    waiting: Mutex<Waiting>,
    /// Which store this is; read from the journal once.
    identity: OnceCell<Arc<str>>,
    /// Room for those who have not said yet who they are.
    greetings: Semaphore,
    /// Numbers connections, and requests that the hub passes on.
    numbers: AtomicU64,
    counts: Counts,
    /// How many peers have left whose messages are not all given back yet.
    returning: watch::Sender<usize>,
    /// Set once, when the hub goes down.
    closing: watch::Sender<bool>,
}

impl Hub {
    /// Opens the mailboxes of `journal`; requests to the hub are answered by `serving`. What
    /// peers offer is refused.
    #[must_use]
    pub fn start(
        host: &Host,
        journal: Arc<dyn Journal>,
        limits: HubLimits,
        serving: Arc<Serving>,
    ) -> Self {
        Self::taking(host, journal, limits, serving, Arc::new(Untaken))
    }

    /// The same, and what peers offer goes to `offers`.
    #[must_use]
    pub fn taking(
        host: &Host,
        journal: Arc<dyn Journal>,
        limits: HubLimits,
        serving: Arc<Serving>,
        offers: Arc<dyn Offers>,
    ) -> Self {
        let options = HubOptions {
            limits,
            offers,
            aliases: HubAliases::default(),
        };
        Self::with_options(host, journal, serving, options)
    }

    /// The same, with everything said.
    #[must_use]
    pub fn with_options(
        host: &Host,
        journal: Arc<dyn Journal>,
        serving: Arc<Serving>,
        options: HubOptions,
    ) -> Self {
        let HubOptions {
            limits,
            offers,
            aliases,
        } = options;
        let shared = Arc::new(Shared {
            host: host.clone(),
            journal,
            limits,
            serving,
            offers,
            offer_store: OfferStore::default(),
            aliases,
            peers: Mutex::default(),
            pace: Mutex::default(),
            allowance: allowance(&limits),
            bytes_pace: Mutex::new(ByteRates::new(bytes_pace(&limits))),
            stored: Mutex::default(),
            room: Notify::new(),
            desk: Mutex::default(),
            desk_poke: Notify::new(),
            waiting: Mutex::default(),
            identity: OnceCell::new(),
            greetings: Semaphore::new(GREETINGS_MAX),
            numbers: AtomicU64::new(1),
            counts: Counts::default(),
            returning: watch::Sender::new(0),
            closing: watch::Sender::new(false),
        });
        let tasks = host.tasks();
        tasks.spawn("hub mailbox", own::run(Arc::clone(&shared)));
        tasks.spawn("hub sweep", sweep::run(Arc::clone(&shared)));
        tasks.spawn("hub offers", offer_store::run(Arc::clone(&shared)));
        tasks.spawn("hub changes", sweep::tell_changes(Arc::clone(&shared)));
        Self {
            _end: Arc::new(End(Arc::clone(&shared))),
            shared,
        }
    }

    /// Brings back the servers of workers that were there when the hub last went down: they are
    /// listed as last known until the worker is back, or is away for too long. `rights` says what
    /// a principal may do now; nothing where it is no peer any more.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn restore_offers(
        &self,
        rights: impl Fn(&Principal) -> Option<Rights> + Send,
    ) -> Result<(), JournalError> {
        offer_store::restore(&self.shared, rights).await
    }

    /// Speaks with one peer until its connection ends.
    pub async fn attend(&self, io: (Outgoing, Incoming), porter: &dyn Porter) {
        greet::attend(&self.shared, io, porter).await;
    }

    /// Returns a peer as somebody of whom tools can be asked, whether it is here now or not.
    #[must_use]
    pub fn remote(&self, mailbox: &Mailbox) -> Option<Arc<dyn Remote>> {
        let is_own = mailbox.principal() == bowline_core::mailbox::HUB;
        (!is_own).then(|| remote::of(&self.shared, mailbox) as Arc<dyn Remote>)
    }

    /// Tells every peer that the hub goes down, gives back what was handed out, and waits for
    /// requests that run, but not long.
    pub async fn close(&self) {
        self.shared.closing.send_replace(true);
        let idle = async {
            // The sender is ours, so the channel cannot close under us.
            let mut quiet = lock(&self.shared.peers).quiet();
            let _ = quiet.wait_for(|here| *here == 0).await;
            let mut returning = self.shared.returning.subscribe();
            let _ = returning.wait_for(|left| *left == 0).await;
            let mut quiet = lock(&self.shared.desk).quiet();
            let _ = quiet.wait_for(|running| *running == 0).await;
        };
        if tokio::time::timeout(END_WAIT + END_WAIT, idle)
            .await
            .is_err()
        {
            tracing::warn!("some peers or requests did not end in time");
        }
    }
}

impl Shared {
    /// Tells those who watch what a peer does.
    fn tell(&self, peer: &Peer, state: &'static str) {
        self.host.events().tell(What::Peer {
            mailbox: Arc::clone(peer.mailbox().as_str()),
            state,
            reason: None,
        });
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.host.clock()
    }

    fn tasks(&self) -> &Tasks {
        self.host.tasks()
    }

    fn now(&self) -> Now {
        self.clock().now()
    }

    /// Returns the moment as the journal wants it.
    fn at(&self) -> At {
        At {
            now: self.now(),
            unix_ms: self.clock().unix_ms(),
        }
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Returns once the hub goes down.
    async fn closed(&self) {
        let mut closing = self.closing.subscribe();
        // The sender is ours, so the channel cannot close under us.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    fn number(&self) -> u64 {
        self.numbers
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

fn allowance(limits: &HubLimits) -> Allowance {
    Allowance {
        budget: None,
        rate: Some(RateRule {
            calls: limits.deliver_per_second,
            per: Duration::from_secs(1),
            burst: limits.deliver_burst,
        }),
    }
}

const fn bytes_pace(limits: &HubLimits) -> ByteRate {
    ByteRate {
        bytes_per_second: limits.deliver_bytes_per_second,
        burst_bytes: limits.deliver_burst_bytes,
    }
}
