//! A worker: a gateway connected to a hub. The worker serves the hub's tools as if they were local
//! and may offer its own servers to the hub. A worker only dials out.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::policy::FeaturePattern;
use bowline_host::broker::{
    BrokerClient, BrokerClientOptions, BrokerConnectError, FederatedPeer, Federation, HostBackend,
    HubRequestHandler, RemoteSessions, RequestLedger, ServeEngine, ServeLimits, ServeSession,
    ServerOffer,
};
use bowline_host::spec::PeerRole;
use bowline_runtime::{Lifecycle, Service, Shutdown};
use bytes::Bytes;

use crate::assemble::Gateway;
use bowline_config::state;

/// Ledger lane for requests of the hub that run on this worker.
const WORKER_LANE: &str = "worker";

/// Time for running requests of the hub to complete when the worker stops.
const END_WAIT: Duration = Duration::from_secs(2);

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Address of the hub.
    pub hub: String,
    /// The file with the token issued by the hub; read for every connection.
    pub token_file: PathBuf,
    /// Patterns of the worker's own servers to offer to the hub.
    pub offers: Vec<FeaturePattern>,
}

/// A gateway connected to a hub.
#[derive(Debug)]
pub struct Worker {
    gateway: Gateway,
    client: BrokerClient,
    /// Keeps the hub's servers in the catalog while alive.
    hub_servers: FederatedPeer,
    serve_engine: Arc<ServeEngine>,
    lifecycle: Lifecycle,
}

impl Worker {
    /// Joins a hub; the connection is made, and remade after a loss, in the background.
    ///
    /// # Errors
    /// The address is invalid; the gateway is stopped.
    pub async fn join_hub(
        gateway: Gateway,
        options: &WorkerOptions,
    ) -> Result<Self, BrokerConnectError> {
        let host = gateway.host().clone();
        let offer = ServerOffer::new(&host, options.offers.clone());
        let started = connect_hub(&gateway, &offer, options);
        let (serve_engine, client) = match started {
            Ok(started) => started,
            Err(error) => {
                gateway.stop().await;
                return Err(error);
            }
        };
        let federation = Federation {
            host: host.clone(),
            side: PeerRole::Hub,
            // Unreachable tools stay listed; agents are notified of their return.
            retention: None,
            own_offer: Some(offer.clone()),
        };
        let hub_servers = federation.follow_peer(Arc::new(client.clone()));
        let lifecycle = Lifecycle::default();
        let offer_sync = OfferSync {
            offer,
            client: client.clone(),
        };
        host.tasks().start(offer_sync, lifecycle.shutdown());
        Ok(Self {
            gateway,
            client,
            hub_servers,
            serve_engine,
            lifecycle,
        })
    }

    /// Returns the gateway.
    #[must_use]
    pub const fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Returns the connection to the hub.
    #[must_use]
    pub const fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// Waits, up to `wait`, for the first connection and for the hub's servers.
    ///
    /// # Errors
    /// The connection is not established yet, or never will be.
    pub async fn wait_ready(&self, wait: Duration) -> Result<(), BrokerConnectError> {
        let host = self.gateway.host();
        self.client
            .wait_ready(host.clock().now().plus(wait))
            .await?;
        // A separate task applies the hub's servers, perhaps a moment later.
        self.hub_servers.sync_now();
        host.wait_applied().await;
        Ok(())
    }

    /// Leaves the hub in order and stops the gateway.
    pub async fn stop(self) {
        self.lifecycle.close();
        self.serve_engine.close(END_WAIT).await;
        self.hub_servers.remove_now();
        self.client.close();
        self.gateway.stop().await;
    }
}

/// Starts the engine for requests of the hub, and the connection to the hub.
fn connect_hub(
    gateway: &Gateway,
    offer: &ServerOffer,
    options: &WorkerOptions,
) -> Result<(Arc<ServeEngine>, BrokerClient), BrokerConnectError> {
    let host = gateway.host();
    let (clock, tasks) = (host.clock(), host.tasks());
    let remote_sessions = RemoteSessions::register_with(host);
    let backend = HostBackend::with_caller_mapping(host.clone(), Arc::new(offer.clone()));
    let tracer = Arc::new(gateway.tracer());
    let backend = backend
        .with_remote_sessions(&remote_sessions)
        .with_tracer(tracer);
    let ledger = RequestLedger::new(Arc::clone(gateway.journal()), WORKER_LANE);
    // The constant lane name is valid.
    let ledger = ledger.map_err(|_unlikely| BrokerConnectError::Closed)?;
    let serve_engine = ServeEngine::new(
        Arc::new(backend),
        ledger,
        ServeLimits::default(),
        Arc::clone(clock),
    );
    let serve_engine = Arc::new(serve_engine);
    let serve_session =
        ServeSession::new(Arc::clone(&serve_engine), Arc::clone(clock), tasks.clone());
    let serve_session = serve_session.with_remote_sessions(&remote_sessions);
    let served: Option<Arc<dyn HubRequestHandler>> = Some(Arc::new(serve_session));
    let client_options = BrokerClientOptions {
        clock: Arc::clone(clock),
        tasks: tasks.clone(),
        ..BrokerClientOptions::default()
    };
    let credential = state::token_file_credential(&options.token_file);
    let client = BrokerClient::start(&options.hub, credential, client_options, served)?;
    Ok((serve_engine, client))
}

/// Sends the offered servers to the hub, at the start and after every change. An empty offer is
/// sent too: an earlier run of this worker may have offered servers.
struct OfferSync {
    offer: ServerOffer,
    client: BrokerClient,
}

impl Service for OfferSync {
    const NAME: &'static str = "offers";

    async fn run(self, shutdown: Shutdown) {
        let host = self.offer.host().clone();
        let mut versions = host.catalog_changes();
        host.wait_settled().await;
        let mut last_offer = Bytes::new();
        loop {
            versions.borrow_and_update();
            let servers = self.offer.write_offer();
            if servers != last_offer {
                self.client.offer_servers(servers.clone());
                last_offer = servers;
            }
            tokio::select! {
                changed = versions.changed() => if changed.is_err() { return },
                () = shutdown.wait_closing() => return,
            }
            // Several servers changing at once cause one offer.
            host.wait_applied().await;
        }
    }
}
