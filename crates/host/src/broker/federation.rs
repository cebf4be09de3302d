//! Adopts the servers of a peer into a host, and removes the servers after a long absence.

mod accept_offers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_runtime::timer::sleep_until_due;
use bowline_runtime::{ActivityGuard, Lifecycle, Shutdown};
use tokio::sync::{broadcast, watch};

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
    lifecycle: Lifecycle,
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
        self.lifecycle.is_idle()
    }
}

impl Federation {
    /// Follows a peer's offers until the returned value is dropped. The current offer is adopted
    /// before this function returns.
    #[must_use]
    pub fn follow_peer(self, remote: Arc<dyn RemotePeer>) -> FederatedPeer {
        let lifecycle = Lifecycle::default();
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
        let shutdown = lifecycle.shutdown().clone();
        let following = FollowedPeer {
            activity: shutdown.start_activity(),
            state: Arc::clone(&state),
            changes,
            events,
        };
        tasks.spawn("federation", following.run(shutdown));
        FederatedPeer { state, lifecycle }
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

/// The task of one followed peer.
struct FollowedPeer {
    state: Arc<FederationState>,
    changes: watch::Receiver<u64>,
    events: broadcast::Receiver<HostEvent>,
    /// The task may end before the peer is dropped.
    activity: ActivityGuard,
}

impl FollowedPeer {
    async fn run(mut self, shutdown: Shutdown) {
        let state = Arc::clone(&self.state);
        let host = &state.federation.host;
        loop {
            let lost = *lock(&state.lost_since);
            let until = lost.zip(state.federation.retention);
            let expired = until.map(|(lost, keep)| lost.plus(keep));
            tokio::select! {
                biased;
                () = host.events().shutdown().wait_closing() => return,
                // A dropped `FederatedPeer` stops the task.
                () = shutdown.wait_closing() => break,
                changed = self.changes.changed() => if changed.is_err() { break },
                () = sleep_until_due(&**host.clock(), expired) => {
                    tracing::info!(
                        peer = %state.remote.name(),
                        "peer absent too long; servers removed"
                    );
                    break;
                }
                () = wait_config_change(&mut self.events) => {}
            }
            if state.sync_servers() {
                host.retry_peer_servers(&state.remote).await;
            }
        }
        // Ended before removing the servers: `is_finished` must not lag behind.
        drop(self.activity);
        state.adopt_servers(&[]);
    }
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
