//! Adopts the servers offered by workers into the hub's host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_broker::mailbox::MailboxName;
use bowline_core::sync::lock;

use super::{FederatedPeer, Federation};
use crate::broker::{AdmittedPeer, OfferHandler, PeerManifest, RemotePeer};
use crate::host::{AdoptError, Host};
use crate::spec::PeerRole;

/// How long the servers of an absent worker stay listed.
pub const WORKER_RETENTION: Duration = Duration::from_secs(60);

/// Adopts servers offered by workers, and removes the servers together with the worker.
#[derive(Debug)]
pub struct AcceptOffers {
    host: Host,
    retention: Duration,
    /// Followed workers. The hub's peer limit bounds the map; finished entries are dropped on the
    /// next offer.
    peers: Mutex<HashMap<MailboxName, FederatedPeer>>,
}

impl AcceptOffers {
    /// Adopts into `host`, and keeps the servers of an absent worker for `retention`.
    #[must_use]
    pub fn new(host: &Host, retention: Duration) -> Self {
        Self {
            host: host.clone(),
            retention,
            peers: Mutex::default(),
        }
    }
}

impl OfferHandler for AcceptOffers {
    fn accept_offer(
        &self,
        peer: &AdmittedPeer,
        remote: Arc<dyn RemotePeer>,
        manifest: Arc<PeerManifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let mut peers = lock(&self.peers);
        peers.retain(|_, federated_peer| !federated_peer.is_finished());
        let existing = peers.get(&peer.mailbox);
        let refused = match existing.filter(|federated_peer| federated_peer.is_for(&remote)) {
            Some(federated_peer) => federated_peer.sync_now(),
            None if manifest.items.is_empty() && manifest.servers.is_empty() => Vec::new(),
            None => {
                let federation = Federation {
                    host: self.host.clone(),
                    side: PeerRole::Worker,
                    retention: Some(self.retention),
                    own_offer: None,
                };
                let federated_peer = federation.follow_peer(remote);
                let refused = federated_peer.watch_refusals().borrow().clone();
                peers.insert(peer.mailbox.clone(), federated_peer);
                refused
            }
        };
        let refused = refused.into_iter();
        refused
            .map(|error| (refused_server(&error), error.to_string().into()))
            .collect()
    }

    fn retention(&self) -> Option<Duration> {
        Some(self.retention)
    }

    /// Nothing to do: the followed peer tracks connection and retention.
    fn on_peer_gone(&self, _peer: &AdmittedPeer, _remote: Arc<dyn RemotePeer>) {}
}

/// Returns the refused server.
fn refused_server(error: &AdoptError) -> Arc<str> {
    match error {
        AdoptError::BadName(server)
        | AdoptError::Own(server)
        | AdoptError::TooMany(server)
        | AdoptError::Brought { server, .. }
        | AdoptError::Denied { server, .. } => Arc::clone(server),
        AdoptError::ShuttingDown => Arc::default(),
    }
}
