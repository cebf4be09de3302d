//! The executors that a gateway knows: those that joined, and those that it dials.

mod dialling;
mod entry;
mod seat;
mod status;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::error::whole;
use bowline_core::flow::FlowLimits;
use bowline_core::hex::hex;
use bowline_core::sync::lock;
use bowline_link::BoxFuture;
use bowline_link::executor::{FENCED, GOING_DOWN, REFUSED, Tunnel, greet};
use bowline_link::http::client::{HttpClient, HttpError};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{Ended, Form, Incoming, Outgoing, SocketLimits};
use bowline_wire::broker::Refusal;
use bowline_wire::executor::{FRAME_BYTES_MAX, Fill, Hello};
use tokio::sync::watch;
use tokio::time::Instant;

use super::placed::Placed;
use crate::credential::Credential;
use crate::events::{Events, What};
use crate::ports::Clock;
use crate::tasks::Tasks;

pub(super) use entry::{Entry, Here};
use seat::Seat;
pub use status::{ExecutorStatus, Protocol, Via};

/// Names that are known at once; of those that are away, the oldest is forgotten.
const NAMES_MAX: usize = 1_024;

/// How a gateway treats its executors.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorsOptions {
    /// What may wait to be read of what comes over one connection.
    pub flow: FlowLimits,
    /// The bounds of connections.
    pub socket: SocketLimits,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long callers wait for an executor whose connection was lost.
    pub recovery: Duration,
    /// How often one that we dial is tried while they wait.
    pub recovery_every: Duration,
    /// How long servers that run over there outlive a lost connection.
    pub keep: Duration,
    /// The wait between attempts to dial.
    pub backoff: Backoff,
    /// A connection that lasted so long was a good one.
    pub steady: Duration,
}

impl Default for ExecutorsOptions {
    fn default() -> Self {
        Self {
            flow: FlowLimits::default(),
            socket: SocketLimits {
                form: Form::Binary,
                message_bytes_max: FRAME_BYTES_MAX,
                ..SocketLimits::default()
            },
            connect_timeout: Duration::from_secs(10),
            recovery: Duration::from_secs(25),
            recovery_every: Duration::from_millis(100),
            keep: Duration::from_secs(30),
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(30),
            },
            steady: Duration::from_secs(10),
        }
    }
}

/// How an executor that listens is reached.
#[derive(Clone, Debug)]
pub struct DialSpec {
    /// Where it listens: `http(s)`, with the path to ask for.
    pub endpoint: Endpoint,
    /// What proves who we are.
    pub credential: Option<Credential>,
    /// What is spoken.
    pub protocol: Protocol,
    /// How we call ourselves to an exec-server.
    pub client_name: Arc<str>,
}

/// How a gateway calls itself to an exec-server.
pub const CLIENT_NAME: &str = "bowline";

/// Knows which executors may come in under which name; the edge.
pub trait Porter: fmt::Debug + Send + Sync {
    /// Lets an executor in under the name that it says, or says why not. The future ends when its
    /// right does, with the reason.
    ///
    /// # Errors
    /// It is not let in.
    fn admit(&self, hello: &Hello) -> Result<BoxFuture<'static, Refusal>, Refusal>;

    /// Is told of whoever was not let in, or was let in and is not any more.
    fn refused(&self, name: &str, refusal: &Refusal) {
        let _ = (name, refusal);
    }
}

/// The executors of a gateway, by name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executors {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    tasks: Tasks,
    clock: Arc<dyn Clock>,
    options: ExecutorsOptions,
    names: Mutex<BTreeMap<Arc<str>, Arc<Entry>>>,
    closing: watch::Sender<bool>,
    /// Is told who comes and goes; there is none before the host is.
    events: OnceLock<Events>,
}

impl Executors {
    /// Returns a registry that knows nobody.
    #[must_use]
    pub fn new(tasks: Tasks, clock: Arc<dyn Clock>, options: ExecutorsOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                tasks,
                clock,
                options,
                names: Mutex::default(),
                closing: watch::Sender::new(false),
                events: OnceLock::new(),
            }),
        }
    }

    /// Tells those who watch a host who comes and goes, from now on.
    pub fn report_to(&self, events: Events) {
        let _second = self.shared.events.set(events);
    }

    /// Returns the bounds that a connection of an executor that joins must be made with.
    #[must_use]
    pub fn socket(&self) -> SocketLimits {
        self.shared.options.socket
    }

    /// Speaks with one that joined, from where it comes, until its connection ends.
    pub async fn attend(&self, io: (Outgoing, Incoming), from: &str, porter: &dyn Porter) {
        let (outgoing, mut incoming) = io;
        let hello = match greet(&mut incoming).await {
            Ok(hello) => hello,
            Err(error) => return error.tell(&outgoing),
        };
        let refuse = |refusal: &Refusal| {
            porter.refused(&hello.name, refusal);
            outgoing.close(REFUSED, &refusal.reason);
        };
        let admitted = porter.admit(&hello);
        let entry = match admitted {
            Err(refusal) => return refuse(&refusal),
            Ok(credential) => self.entry(&hello.name).map(|entry| (entry, credential)),
        };
        let (entry, credential) = match entry {
            Ok((entry, _)) if entry.is_dialled() => {
                return refuse(&refusal("this name belongs to an executor that is dialled"));
            }
            Ok(found) => found,
            Err(reason) => return refuse(&refusal(reason)),
        };
        let io = (outgoing, incoming);
        let seat = Seat::take(&self.shared, &entry, Via::Joined, from);
        let (_, over) = serve(&self.shared, seat, &hello, io, credential).await;
        if let Some(refusal) = over {
            porter.refused(&hello.name, &refusal);
        }
    }

    /// Keeps a connection to an executor that listens; where one of this name is dialled elsewhere,
    /// that ends.
    pub fn dial(&self, name: &str, spec: DialSpec) {
        let Ok(entry) = self.entry(name) else {
            return;
        };
        if let Some(orders) = entry.order(&self.shared, spec) {
            let task = dialling::keep(Arc::clone(&self.shared), entry, orders);
            self.shared.tasks.spawn("executor dial", task);
        }
    }

    /// Ends the connection to an executor that is dialled, and dials it no more.
    pub fn hang_up(&self, name: &str) {
        let entry = lock(&self.shared.names).get(name).cloned();
        if let Some(entry) = entry {
            entry.cancel_order();
        }
    }

    /// Returns the names that are dialled.
    #[must_use]
    pub fn dialled(&self) -> Vec<Arc<str>> {
        let names = lock(&self.shared.names);
        let dialled = names.iter().filter(|(_, entry)| entry.is_dialled());
        dialled.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns what carries the requests for a server through an executor, whether it is connected
    /// now or not.
    #[must_use]
    pub fn client(&self, executor: &str, server: &str, fills: Vec<Fill>) -> Arc<dyn HttpClient> {
        let entry = self.known(executor);
        let clock = Arc::clone(&self.shared.clock);
        Arc::new(Placed::new(entry, clock, server, fills))
    }

    /// Returns the connection with an executor that speaks our protocol; waits for one that was
    /// lost just now.
    ///
    /// # Errors
    /// It is away, or speaks another protocol.
    pub async fn tunnel(
        &self,
        executor: &str,
        until: Option<Instant>,
    ) -> Result<Arc<Tunnel>, HttpError> {
        let entry = self.known(executor);
        let here = entry.connected(&*self.shared.clock, until).await?;
        here.tunnel.ok_or_else(|| {
            let reason = format!("executor `{executor}` runs no servers: it is an exec-server");
            bowline_link::executor::away(&reason)
        })
    }

    /// Waits until an executor connects that is away now, or connects anew.
    pub async fn back(&self, executor: &str) {
        self.known(executor).back().await;
    }

    /// Whether an executor is connected now.
    #[must_use]
    pub fn is_connected(&self, executor: &str) -> bool {
        let entry = lock(&self.shared.names).get(executor).cloned();
        entry.is_some_and(|entry| entry.is_connected())
    }

    /// Returns all that are known, by name.
    #[must_use]
    pub fn list(&self) -> Vec<ExecutorStatus> {
        let entries: Vec<_> = lock(&self.shared.names).values().cloned().collect();
        entries.iter().map(|entry| entry.status()).collect()
    }

    /// Waits until an executor is connected.
    ///
    /// # Errors
    /// It is not, and is not expected to be soon.
    pub async fn ready(&self, executor: &str, until: Instant) -> Result<(), HttpError> {
        let entry = self.known(executor);
        let connected = entry.connected(&*self.shared.clock, Some(until)).await;
        connected.map(drop)
    }

    /// Tells every executor that the gateway goes down.
    pub fn close(&self) {
        self.shared.closing.send_replace(true);
        let entries: Vec<_> = lock(&self.shared.names).values().cloned().collect();
        for entry in entries {
            entry.cancel_order();
            entry.close(GOING_DOWN, "the gateway goes down");
        }
    }

    /// Returns the one of a name; one that nobody knows is away, and is not kept where the name is
    /// none or there are too many.
    pub(super) fn known(&self, name: &str) -> Arc<Entry> {
        self.entry(name)
            .unwrap_or_else(|_| Arc::new(Entry::new(name)))
    }

    fn entry(&self, name: &str) -> Result<Arc<Entry>, &'static str> {
        if !bowline_core::name::is_server(name) {
            return Err("the name of an executor is of lower-case letters, digits and hyphens");
        }
        let mut names = lock(&self.shared.names);
        if let Some(entry) = names.get(name) {
            return Ok(Arc::clone(entry));
        }
        if names.len() >= NAMES_MAX {
            let away = names.iter().filter(|(_, entry)| entry.is_idle());
            let oldest = away.min_by_key(|(_, entry)| entry.lost_at());
            let oldest = oldest.map(|(name, _)| Arc::clone(name));
            let oldest = oldest.ok_or("there are too many executors")?;
            names.remove(&oldest);
        }
        let entry = Arc::new(Entry::new(name));
        names.insert(Arc::clone(entry.name()), Arc::clone(&entry));
        Ok(entry)
    }
}

impl Shared {
    fn tell(&self, name: &Arc<str>, state: &'static str, reason: Option<Arc<str>>) {
        if let Some(events) = self.events.get() {
            events.tell(What::Executor {
                name: Arc::clone(name),
                state,
                reason,
            });
        }
    }

    /// Waits until the gateway goes down.
    async fn closed(&self) {
        // The sender is ours, so the channel cannot close under us.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}

/// Opens the session of an executor that said who it is, and serves until its end.
async fn serve(
    shared: &Shared,
    seat: Seat,
    hello: &Hello,
    io: (Outgoing, Incoming),
    credential: BoxFuture<'static, Refusal>,
) -> (Ended, Option<Refusal>) {
    let outgoing = io.0.clone();
    let Some(attached) = seat.attach(hello) else {
        outgoing.close(FENCED, "another connection has this name now");
        return (Ended::Local, None);
    };
    match Tunnel::open(hello, attached, io, &shared.tasks).await {
        Ok(tunnel) => {
            drop(outgoing);
            let tunnel = Arc::new(tunnel);
            let here = Here {
                carrier: Arc::clone(&tunnel) as _,
                tunnel: Some(tunnel),
            };
            seat.serve(here, credential).await
        }
        Err(error) => {
            error.tell(&outgoing);
            seat.fail(&whole(&error));
            (Ended::Local, None)
        }
    }
}

fn refusal(reason: &str) -> Refusal {
    Refusal {
        reason: reason.into(),
        code: Some("not_allowed".into()),
        id: None,
    }
}

/// Returns a name that nobody else has or guesses.
fn random_name() -> Arc<str> {
    let mut random = [0; 16];
    let drawn = getrandom::fill(&mut random);
    debug_assert!(drawn.is_ok(), "the kernel gives random bytes");
    hex(&random).into()
}
