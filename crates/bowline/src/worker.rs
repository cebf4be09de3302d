//! A worker: a gateway of its own that joined a hub. The hub's tools are served here as if they
//! were local, and servers of this gateway can be offered there. It dials out only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::policy::Pattern;
use bowline_host::broker::{
    Attending, Client, ClientOptions, ConnectError, Credential, Federation, Following, HostBackend,
    Ledger, ServeLimits, Served, Serving, Visitors, Wares,
};
use bowline_host::spec::Side;
use bytes::Bytes;
use tokio::sync::watch;

use crate::assemble::Gateway;
use crate::state;

/// What the hub's requests are remembered by that were begun here.
const LANE: &str = "worker";

/// How long requests of the hub that run may take to end when the worker stops.
const END_WAIT: Duration = Duration::from_secs(2);

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Where the hub is.
    pub hub: String,
    /// The file with the token that the hub gave out; read for every connection.
    pub token_file: PathBuf,
    /// Which of its own servers it offers to the hub.
    pub offers: Vec<Pattern>,
}

/// A gateway that joined a hub.
#[derive(Debug)]
pub struct Worker {
    gateway: Gateway,
    client: Client,
    /// The hub's servers, as long as this is here.
    following: Following,
    serving: Arc<Serving>,
    /// Set once, when it stops.
    stop: watch::Sender<bool>,
}

impl Worker {
    /// Joins a hub; the connection is made in the background, and made anew when it is lost.
    ///
    /// # Errors
    /// The address cannot be one; the gateway is stopped then.
    pub async fn join(gateway: Gateway, joining: &Joining) -> Result<Self, ConnectError> {
        let host = gateway.host().clone();
        let wares = Wares::new(&host, joining.offers.clone());
        let started = start(&gateway, &wares, joining);
        let (serving, client) = match started {
            Ok(started) => started,
            Err(error) => {
                gateway.stop().await;
                return Err(error);
            }
        };
        let federation = Federation {
            host: host.clone(),
            side: Side::Hub,
            // Tools that are away are still tools: agents are told when they are back.
            keep: None,
            own: Some(wares.clone()),
        };
        let following = federation.follow(Arc::new(client.clone()));
        let (stop, stopped) = watch::channel(false);
        let offering = offer(wares, client.clone(), stopped);
        host.tasks().spawn("offers", offering);
        Ok(Self {
            gateway,
            client,
            following,
            serving,
            stop,
        })
    }

    /// Returns the gateway.
    #[must_use]
    pub const fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Returns the connection to the hub.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for the first connection, and until the hub's servers stand here; not for ever.
    ///
    /// # Errors
    /// There is no connection yet, or there will be none.
    pub async fn ready(&self, wait: Duration) -> Result<(), ConnectError> {
        let host = self.gateway.host();
        self.client.ready(host.clock().now().plus(wait)).await?;
        // What the hub has is taken in by a task of its own, perhaps a moment later.
        self.following.look();
        host.turned().await;
        Ok(())
    }

    /// Leaves the hub in order, and stops the gateway.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.serving.close(END_WAIT).await;
        self.following.end();
        self.client.close();
        self.gateway.stop().await;
    }
}

/// Starts what answers the hub, and the connection over which it is asked.
fn start(
    gateway: &Gateway,
    wares: &Wares,
    joining: &Joining,
) -> Result<(Arc<Serving>, Client), ConnectError> {
    let host = gateway.host();
    let (clock, tasks) = (host.clock(), host.tasks());
    let visitors = Visitors::of(host);
    let backend = HostBackend::with_guests(host.clone(), Arc::new(wares.clone()));
    let tracer = Arc::new(gateway.tracer());
    let backend = backend.for_visitors(&visitors).traced(tracer);
    let ledger = Ledger::new(Arc::clone(gateway.journal()), LANE);
    // A name of ours fits.
    let ledger = ledger.map_err(|_unlikely| ConnectError::Closed)?;
    let serving = Serving::new(
        Arc::new(backend),
        ledger,
        ServeLimits::default(),
        Arc::clone(clock),
    );
    let serving = Arc::new(serving);
    let attending = Attending::new(Arc::clone(&serving), Arc::clone(clock), tasks.clone());
    let attending = attending.for_visitors(&visitors);
    let served: Option<Arc<dyn Served>> = Some(Arc::new(attending));
    let options = ClientOptions {
        clock: Arc::clone(clock),
        tasks: tasks.clone(),
        ..ClientOptions::default()
    };
    let credential = reading(&joining.token_file);
    let client = Client::start(&joining.hub, credential, options, served)?;
    Ok((serving, client))
}

/// Returns a credential that is read for every connection, so that it can be changed in place.
fn reading(file: &Path) -> Credential {
    let file = file.to_owned();
    Credential::reading(move || {
        let token = state::read_token(&file).map_err(std::io::Error::other)?;
        Ok(token.expose().to_owned())
    })
}

/// Tells the hub what we have, and again whenever that changes. Nothing is told as well: another
/// start of this worker may have offered something.
async fn offer(wares: Wares, client: Client, mut stopped: watch::Receiver<bool>) {
    let host = wares.host().clone();
    let mut versions = host.catalog_changes();
    host.settled().await;
    let mut told = Bytes::new();
    loop {
        versions.borrow_and_update();
        let servers = wares.servers();
        if servers != told {
            client.offer(servers.clone());
            told = servers;
        }
        tokio::select! {
            changed = versions.changed() => if changed.is_err() { return },
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
        // Several servers that change at once are told of once.
        host.turned().await;
    }
}
