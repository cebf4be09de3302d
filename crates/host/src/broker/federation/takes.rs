//! Takes what workers offer into the host of a hub.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;

use super::{Federation, Following};
use crate::broker::{Admitted, Manifest, Offers, Remote};
use crate::host::{AdoptError, Host};
use crate::spec::Side;

/// How long the servers of a worker that is gone are shown as last known before they go as well.
pub const WORKER_KEEP: Duration = Duration::from_secs(60);

/// Takes the servers that workers offer into a host, and lets them go with their workers.
#[derive(Debug)]
pub struct Takes {
    host: Host,
    keep: Duration,
    /// Whose servers are here. Bounded by the hub, which has so many peers and no more: whoever is
    /// gone for long is dropped when the next one offers something.
    peers: Mutex<HashMap<Mailbox, Following>>,
}

impl Takes {
    /// Takes them into `host`, and keeps those of a worker that is away for so long.
    #[must_use]
    pub fn new(host: &Host, keep: Duration) -> Self {
        Self {
            host: host.clone(),
            keep,
            peers: Mutex::default(),
        }
    }
}

impl Offers for Takes {
    fn offered(
        &self,
        peer: &Admitted,
        remote: Arc<dyn Remote>,
        manifest: Arc<Manifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let mut peers = lock(&self.peers);
        peers.retain(|_, following| !following.is_over());
        let known = peers.get(&peer.mailbox);
        let refused = match known.filter(|following| following.is_of(&remote)) {
            Some(following) => following.look(),
            None if manifest.items.is_empty() && manifest.servers.is_empty() => Vec::new(),
            None => {
                let federation = Federation {
                    host: self.host.clone(),
                    side: Side::Worker,
                    keep: Some(self.keep),
                    own: None,
                };
                let following = federation.follow(remote);
                let refused = following.refused().borrow().clone();
                peers.insert(peer.mailbox.clone(), following);
                refused
            }
        };
        let refused = refused.into_iter();
        refused
            .map(|error| (server_of(&error), error.to_string().into()))
            .collect()
    }

    fn keep(&self) -> Option<Duration> {
        Some(self.keep)
    }

    /// Nothing to do: what is followed is told that it is gone, and for how long.
    fn gone(&self, _peer: &Admitted, _remote: Arc<dyn Remote>) {}
}

/// Returns the server that is not taken in.
fn server_of(error: &AdoptError) -> Arc<str> {
    match error {
        AdoptError::BadName(server)
        | AdoptError::Own(server)
        | AdoptError::TooMany(server)
        | AdoptError::Brought { server, .. }
        | AdoptError::Denied { server, .. } => Arc::clone(server),
        AdoptError::ShuttingDown => Arc::default(),
    }
}
