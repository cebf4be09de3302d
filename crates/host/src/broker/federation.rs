//! Adopts the servers of a peer into a host, and removes the servers after a long absence.

mod accept_offers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep_until;

use super::{RemotePeer, ServerOffer};
use crate::events::{EventKind, HostEvent};
use crate::host::{AdoptError, Host};
use crate::spec::PeerRole;

pub use accept_offers::{AcceptOffers, WORKER_RETENTION};

/// How a host adopts the servers of one peer.
#[derive(Clone, Debug)]
pub struct Federation {
    /// The adopting host.
    pub host: Host,
    /// The role of the peer.
    pub side: PeerRole,
    /// How long adopted servers of an absent peer stay listed; forever if absent.
    pub retention: Option<Duration>,
    /// The offer to the same peer: own servers echoed back are not adopted.
    pub own_offer: Option<ServerOffer>,
}

/// A peer with adopted servers; dropping this value removes the servers.
#[derive(Debug)]
pub struct FederatedPeer {
    state: Arc<FederationState>,
    stop: watch::Sender<bool>,
}

impl FederatedPeer {
    /// Whether this value follows exactly this peer.
    #[must_use]
    pub fn is_for(&self, remote: &Arc<dyn RemotePeer>) -> bool {
        Arc::ptr_eq(&self.state.remote, remote)
    }

    /// Adopts the current offer and returns the refused servers.
    pub fn sync_now(&self) -> Vec<AdoptError> {
        self.state.sync_servers();
        self.state.refusals.borrow().clone()
    }

    /// Watches the refused servers, each with the reason.
    #[must_use]
    pub fn watch_refusals(&self) -> watch::Receiver<Vec<AdoptError>> {
        self.state.refusals.subscribe()
    }

    /// Removes the peer's servers at once, without waiting for the retention time.
    pub fn remove_now(self) {
        self.state.adopt_servers(&[]);
    }

    /// Whether the peer was absent for so long that the servers were removed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.stop.receiver_count() == 0
    }
}

impl Federation {
    /// Follows a peer's offers until the returned value is dropped. The current offer is adopted
    /// before this function returns.
    #[must_use]
    pub fn follow_peer(self, remote: Arc<dyn RemotePeer>) -> FederatedPeer {
        let (stop, stopped) = watch::channel(false);
        let (changes, events) = (remote.subscribe_changes(), self.host.events().subscribe());
        let tasks = self.host.tasks().clone();
        let state = Arc::new(FederationState {
            federation: self,
            remote,
            refusals: watch::Sender::default(),
            lost_since: Mutex::default(),
            has_adopted: AtomicBool::new(false),
        });
        state.sync_servers();
        tasks.spawn(
            "federation",
            run_federation(Arc::clone(&state), stopped, changes, events),
        );
        FederatedPeer { state, stop }
    }
}

/// State of one followed peer.
#[derive(Debug)]
struct FederationState {
    federation: Federation,
    remote: Arc<dyn RemotePeer>,
    refusals: watch::Sender<Vec<AdoptError>>,
    /// Start of the peer's absence.
    lost_since: Mutex<Option<MonotonicTime>>,
    /// Whether servers of the peer were adopted before.
    has_adopted: AtomicBool,
}

async fn run_federation(
    state: Arc<FederationState>,
    mut stopped: watch::Receiver<bool>,
    mut changes: watch::Receiver<u64>,
    mut events: broadcast::Receiver<HostEvent>,
) {
    let host = &state.federation.host;
    let mut closing = host.events().subscribe_end();
    loop {
        let lost = *lock(&state.lost_since);
        let until = lost.zip(state.federation.retention);
        let until = until.map(|(lost, keep)| host.clock().instant(lost.plus(keep)));
        let expired = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            // A dropped `FederatedPeer` stops the task.
            _ = stopped.wait_for(|stopped| *stopped) => break,
            changed = changes.changed() => if changed.is_err() { break },
            () = expired => {
                tracing::info!(
                    peer = %state.remote.name(),
                    "peer absent too long; servers removed"
                );
                break;
            }
            () = wait_config_change(&mut events) => {}
        }
        if state.sync_servers() {
            host.retry_peer_servers(&state.remote).await;
        }
    }
    // Drop the receiver before removing the servers: `is_finished` must not lag behind.
    drop(stopped);
    state.adopt_servers(&[]);
}

impl FederationState {
    /// Adopts the offer of a connected peer; returns `true` after a reconnect. For a peer that is
    /// not connected yet, adopts the offer remembered from before a restart of the host.
    fn sync_servers(&self) -> bool {
        let mut lost = lock(&self.lost_since);
        let is_connected = self.remote.is_connected();
        if !is_connected {
            let now = self.federation.host.clock().now();
            lost.get_or_insert(now);
        }
        if !is_connected && self.has_adopted.load(Ordering::Relaxed) {
            return false;
        }
        let manifest = self.remote.manifest();
        let own = |server: &&str| {
            let own = self.federation.own_offer.as_ref();
            own.is_some_and(|own| own.has_server(server))
        };
        let servers = manifest
            .server_names()
            .into_iter()
            .filter(|server| !own(server));
        let servers: Vec<Arc<str>> = servers.map(Arc::from).collect();
        if !servers.is_empty() {
            self.has_adopted.store(true, Ordering::Relaxed);
        }
        self.adopt_servers(&servers);
        is_connected && lost.take().is_some()
    }

    fn adopt_servers(&self, servers: &[Arc<str>]) {
        let Federation { host, side, .. } = &self.federation;
        if host.is_closing() {
            return;
        }
        let adopted = host.adopt_servers(&self.remote, *side, servers);
        let peer = self.remote.name();
        if !adopted.added.is_empty() || !adopted.removed.is_empty() {
            let (added, removed) = (adopted.added.len(), adopted.removed.len());
            tracing::info!(%peer, added, removed, "servers of a peer changed");
        }
        self.refusals.send_if_modified(|published| {
            let is_news = *published != adopted.refused;
            for refusal in adopted
                .refused
                .iter()
                .filter(|one| !published.contains(one))
            {
                let refusal = refusal as &dyn std::error::Error;
                tracing::warn!(%peer, error = refusal, "server of a peer not adopted");
            }
            if is_news {
                published.clone_from(&adopted.refused);
            }
            is_news
        });
    }
}

/// Waits for a configuration change: a server name may have become free.
async fn wait_config_change(events: &mut broadcast::Receiver<HostEvent>) {
    loop {
        match events.recv().await {
            Ok(event) if matches!(event.kind, EventKind::Config { .. }) => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
