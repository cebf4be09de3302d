//! A connection to a hub that is made anew when it is lost.

mod connection;
mod errand;
mod keeper;
mod open;
mod served;
mod stored;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::backoff::Backoff;
use bowline_core::hex::hex;
use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::BoxFuture;
use bowline_link::http::endpoint::{Endpoint, EndpointError};
use bowline_link::websocket::{DialError, Ended, SocketLimits};
use bowline_wire::broker::{Answer, Frame, Item, Refusal};
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;

use super::{Errand, ErrandError, Manifest, Remote};
use crate::address;
use crate::credential::Credential;
use crate::ports::{Clock, SystemClock};
use crate::tasks::Tasks;

use self::connection::Connection;
use self::stored::Stored;

pub use self::connection::DeliverError;
pub use self::served::{Line, Served};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Which of the mailboxes of its principal it uses: `#PART`, or the whole `PRINCIPAL#PART`; the
    /// principal's own where absent. Two clients of one mailbox fence each other.
    pub part: Option<Arc<str>>,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How it comes back.
    pub reconnect: Reconnect,
    /// Whether it wants to know what the hub offers; who only serves need not.
    pub wants_manifest: bool,
    /// The bounds of its connection.
    pub socket: SocketLimits,
    /// Tells the time by which deadlines of errands go.
    pub clock: Arc<dyn Clock>,
    /// Where its tasks are counted.
    pub tasks: Tasks,
}

/// How a client comes back.
#[derive(Clone, Copy, Debug)]
pub struct Reconnect {
    /// Attempts before those who wait are told that there is no connection.
    pub attempts_max: u32,
    /// The wait between two of them.
    pub backoff: Backoff,
    /// The wait after the last of them, if nobody asks before.
    pub rest: Backoff,
    /// A connection that lasted so long was a good one: the next attempt is made at once.
    pub steady: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            attempts_max: 5,
            backoff: Backoff {
                base: Duration::from_millis(200),
                cap: Duration::from_secs(2),
            },
            rest: Backoff {
                base: Duration::from_secs(2),
                cap: Duration::from_secs(30),
            },
            steady: Duration::from_secs(10),
        }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            part: None,
            connect_timeout: Duration::from_secs(10),
            reconnect: Reconnect::default(),
            wants_manifest: true,
            socket: SocketLimits::default(),
            clock: Arc::new(SystemClock::start()),
            tasks: Tasks::default(),
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The address cannot be used.
    #[error("the address of the hub cannot be used")]
    Endpoint(#[from] EndpointError),
    /// The credential cannot be read.
    #[error("the credential cannot be read: {0}")]
    Credential(Arc<str>),
    /// Nobody could be reached.
    #[error("the hub cannot be dialled")]
    Dial(#[from] DialError),
    /// The hub does not let us in.
    #[error("the hub refuses us: {}", .0.reason)]
    Refused(Refusal),
    /// The connection ended before it was of use.
    #[error("the connection ended at once")]
    Ended(#[from] Ended),
    /// The hub did not say what it offers.
    #[error("the hub does not say what it offers: {0}")]
    Manifest(Arc<str>),
    /// It took too long.
    #[error("no connection in time")]
    Timeout,
    /// Another peer took our place, and we do not come back by ourselves.
    #[error("another peer took our place: {0}")]
    Fenced(Arc<str>),
    /// The client was closed here.
    #[error("the client is closed")]
    Closed,
}

impl ConnectError {
    /// Whether the next attempt would end the same way, as far as can be seen.
    const fn is_definite(&self) -> bool {
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

    /// Returns it and what is behind it, as one clause.
    fn whole(&self) -> Arc<str> {
        bowline_core::error::whole(self).into()
    }
}

/// A connection to a hub. Cheap to clone; gone with its last clone.
///
/// ```
/// use std::time::Duration;
///
/// use bowline_host::broker::{Client, ClientOptions, Credential, Errand, Remote as _};
/// use bowline_wire::broker::{Answer, Arguments, Ask};
/// # use bowline_host::tools::Toolbox;
/// # use bowline_host::ToolOutput;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let any = serde_json::json!({"type": "object"});
/// # let count = Toolbox::default().with(("count", "Counts."), &any, |_, _| async {
/// #     Ok(ToolOutput::of_text("1"))
/// # });
/// # let hub = bowline_sim::OpenHub::with(count).await?;
/// # let (url, token) = (hub.url(), "ann");
/// let options = ClientOptions {
///     part: Some("#counting".into()),
///     ..ClientOptions::default()
/// };
/// let until = options.clock.now().plus(Duration::from_secs(30));
/// let client = Client::start(url, Credential::fixed(token), options, None)?;
/// client.ready(until).await?;
///
/// let errand = Errand {
///     ask: Ask::Call {
///         tool: client.manifest().items[0].name.clone(),
///         server: None,
///         arguments: Arguments::None,
///     },
///     // The hub stores it before it runs, so it runs once, whatever becomes of the connection.
///     stored: true,
///     deadline: until,
///     caller: None,
///     sink: None,
/// };
/// let answer = client.ask(errand).await;
/// assert!(matches!(answer, Ok(Answer::Output { .. })), "{answer:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    /// Ends the client when the last clone goes.
    _life: Arc<Life>,
}

/// What all clones and the tasks of a client share.
#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    credential: Credential,
    options: ClientOptions,
    served: Option<Arc<dyn Served>>,
    /// Tells this client apart from others, of this process and of earlier ones.
    instance: Arc<str>,
    /// Where it stands. Written by the keeper alone, whole.
    snapshot: ArcSwap<Snapshot>,
    /// Counts the snapshots.
    ticks: watch::Sender<u64>,
    /// Somebody wants a connection now.
    need: Notify,
    /// Who waits for the answers of stored errands, over all connections.
    stored: Mutex<HashMap<Arc<str>, Stored>>,
    /// Peers that were asked for something.
    asked_peers: Mutex<BTreeSet<Arc<str>>>,
    /// What we offer, with its revision.
    offer: Mutex<(u64, Option<Bytes>)>,
    stop: watch::Sender<bool>,
}

/// Where a client stands: connection and manifest belong together.
#[derive(Debug)]
struct Snapshot {
    state: State,
    /// How often all attempts in a row had failed.
    rounds: u64,
    manifest: Arc<Manifest>,
    /// Where in the manifest a tool is.
    index: Arc<HashMap<Arc<str>, usize>>,
}

#[derive(Clone, Debug)]
enum State {
    /// Connected, as far as is known.
    Up(Arc<Connection>),
    /// On the way, for the first time or again.
    Trying,
    /// All attempts failed; the next come after a rest, or when somebody asks.
    Resting(ConnectError),
    /// It does not come back.
    Over(ConnectError),
}

/// Ends a client when it is dropped.
#[derive(Debug)]
struct Life(Arc<Shared>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.stop.send_replace(true);
    }
}

impl Client {
    /// Starts a client of the hub at `endpoint` (`http(s)` or `ws(s)`); it connects in the
    /// background. `served` takes what the hub asks of us.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn start(
        endpoint: &str,
        credential: Credential,
        options: ClientOptions,
        served: Option<Arc<dyn Served>>,
    ) -> Result<Self, ConnectError> {
        let mut random = [0; 8];
        // Without entropy the address of a local tells clients apart well enough to go on.
        let drawn = getrandom::fill(&mut random);
        debug_assert!(drawn.is_ok(), "the kernel gives random bytes");
        let snapshot = Snapshot {
            state: State::Trying,
            rounds: 0,
            manifest: Arc::default(),
            index: Arc::default(),
        };
        let shared = Arc::new(Shared {
            endpoint: address::parse(endpoint, address::BROKER)?,
            credential,
            served,
            instance: hex(&random).into(),
            snapshot: ArcSwap::from_pointee(snapshot),
            ticks: watch::Sender::new(0),
            need: Notify::new(),
            stored: Mutex::default(),
            asked_peers: Mutex::default(),
            offer: Mutex::default(),
            stop: watch::Sender::new(false),
            options,
        });
        let keeper = keeper::keep(Arc::clone(&shared));
        shared.options.tasks.spawn("broker client", keeper);
        Ok(Self {
            _life: Arc::new(Life(Arc::clone(&shared))),
            shared,
        })
    }

    /// Returns once it is connected and knows what the hub offers.
    ///
    /// # Errors
    /// All attempts of a round failed, or `deadline` came first.
    pub async fn ready(&self, deadline: Now) -> Result<(), ConnectError> {
        let mut ticks = self.shared.ticks.subscribe();
        let floor = self.shared.snapshot.load().rounds;
        let at = self.shared.options.clock.instant(deadline);
        loop {
            {
                let snapshot = self.shared.snapshot.load();
                match &snapshot.state {
                    State::Up(_) => return Ok(()),
                    State::Over(error) => return Err(error.clone()),
                    State::Resting(error) if snapshot.rounds > floor => return Err(error.clone()),
                    State::Resting(_) => self.shared.need.notify_one(),
                    State::Trying => {}
                }
            }
            match timeout_at(at, ticks.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(ConnectError::Closed),
                Err(_) => return Err(ConnectError::Timeout),
            }
        }
    }

    /// Offers servers to the hub, now and after each reconnect: the array of an `offer` frame.
    pub fn offer(&self, servers: Bytes) {
        let frame = {
            let mut offer = lock(&self.shared.offer);
            offer.0 += 1;
            offer.1 = Some(servers.clone());
            Frame::Offer {
                revision: offer.0,
                servers,
            }
        };
        let snapshot = self.shared.snapshot.load_full();
        if let State::Up(connection) = &snapshot.state {
            self.shared.say(connection, &frame);
        }
    }

    /// Returns why it does not come back, once that is so.
    #[must_use]
    pub fn ended(&self) -> Option<ConnectError> {
        match &self.shared.snapshot.load().state {
            State::Over(error) => Some(error.clone()),
            State::Up(_) | State::Trying | State::Resting(_) => None,
        }
    }

    /// Returns the mailbox that the hub gave us, while we are connected.
    #[must_use]
    pub fn mailbox(&self) -> Option<Arc<str>> {
        match &self.shared.snapshot.load().state {
            State::Up(connection) => Some(Arc::clone(&connection.mailbox)),
            State::Trying | State::Resting(_) | State::Over(_) => None,
        }
    }

    /// Returns which connection it is, counted from one; none while there is none.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        match &self.shared.snapshot.load().state {
            State::Up(connection) => Some(connection.generation),
            State::Trying | State::Resting(_) | State::Over(_) => None,
        }
    }

    /// Returns one tool of the manifest.
    #[must_use]
    pub fn item(&self, name: &str) -> Option<Item> {
        let snapshot = self.shared.snapshot.load();
        let nth = snapshot.index.get(name)?;
        snapshot.manifest.items.get(*nth).cloned()
    }

    /// Returns how many errands wait, live and stored.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let live = match &self.shared.snapshot.load().state {
            State::Up(connection) => connection.waiting(),
            State::Trying | State::Resting(_) | State::Over(_) => 0,
        };
        live + lock(&self.shared.stored).len()
    }

    /// Carries an errand out at another peer of the hub, whose mailbox this is. Dropping the
    /// future takes it back. The hub must let this peer send there, and that one reply.
    ///
    /// # Errors
    /// As for [`ask`](Remote::ask).
    pub async fn ask_peer(&self, peer: &Mailbox, errand: Errand) -> Result<Answer, ErrandError> {
        self.shared.ask(Some(peer.as_str()), errand).await
    }

    /// Tells the time by which deadlines go.
    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.options.clock
    }

    /// Closes the connection in order and ends. What waits fails.
    pub fn close(&self) {
        self.shared.stop.send_replace(true);
    }
}

impl Remote for Client {
    fn ask(&self, errand: Errand) -> BoxFuture<'_, Result<Answer, ErrandError>> {
        Box::pin(self.shared.ask(None, errand))
    }

    fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.shared.snapshot.load().manifest)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.shared.ticks.subscribe()
    }

    fn is_connected(&self) -> bool {
        match &self.shared.snapshot.load().state {
            State::Up(connection) => connection.over().is_none(),
            State::Trying | State::Resting(_) | State::Over(_) => false,
        }
    }

    fn name(&self) -> Arc<str> {
        self.shared.endpoint.to_string().into()
    }
}
