//! Brings the servers of a peer into a host, and takes them out again when it is gone for long.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::Now;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep_until;

use super::Remote;
use super::link::menu::server_of;
use crate::events::{Event, What};
use crate::host::{AdoptError, Host};
use crate::spec::Side;

/// How the servers of one peer are taken in.
#[derive(Clone, Debug)]
pub struct Federation {
    /// The host that takes them in.
    pub host: Host,
    /// What the peer is to it.
    pub side: Side,
    /// How long servers stay, as last known, when their peer is away; for good where absent.
    pub keep: Option<Duration>,
}

/// A peer whose servers are in a host; they go with this.
#[derive(Debug)]
pub struct Following {
    stop: watch::Sender<bool>,
    refused: watch::Receiver<Vec<AdoptError>>,
}

impl Following {
    /// Sees which servers of the peer are not taken in, and why.
    #[must_use]
    pub fn refused(&self) -> watch::Receiver<Vec<AdoptError>> {
        self.refused.clone()
    }

    /// Takes the servers out, in a moment.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

impl Federation {
    /// Follows what a peer offers, from this moment on and until what is returned is dropped. What
    /// it offers now is taken in when this returns.
    #[must_use]
    pub fn follow(self, remote: Arc<dyn Remote>) -> Following {
        let (stop, stopped) = watch::channel(false);
        let (refusals, refused) = watch::channel(Vec::new());
        let mut follower = Follower {
            changes: remote.changes(),
            events: self.host.events().watch(),
            remote,
            federation: self,
            refusals,
            lost: None,
        };
        follower.look();
        let tasks = follower.federation.host.tasks().clone();
        tasks.spawn("federation", follower.run(stopped));
        Following { stop, refused }
    }
}

/// The task behind it.
struct Follower {
    federation: Federation,
    remote: Arc<dyn Remote>,
    changes: watch::Receiver<u64>,
    events: broadcast::Receiver<Event>,
    refusals: watch::Sender<Vec<AdoptError>>,
    /// Since when the peer is away.
    lost: Option<Now>,
}

impl Follower {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let host = self.federation.host.clone();
        let mut closing = host.events().ended();
        loop {
            let until = self.lost.zip(self.federation.keep);
            let until = until.map(|(lost, keep)| host.clock().instant(lost.plus(keep)));
            let late = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // Dropped is stopped.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                _ = closing.wait_for(|closing| *closing) => return,
                changed = self.changes.changed() => if changed.is_err() { break },
                () = late => {
                    tracing::info!(peer = %self.remote.name(), "gone for long; its servers go");
                    self.adopt(&[]);
                    self.lost = Some(Now(u64::MAX));
                    continue;
                }
                () = reconfigured(&mut self.events) => {}
            }
            if self.look() {
                host.greet(&self.remote).await;
            }
        }
        self.adopt(&[]);
    }

    /// Takes in what the peer offers, where it is there; `true` where it is there again.
    fn look(&mut self) -> bool {
        if !self.remote.is_connected() {
            let now = self.federation.host.clock().now();
            self.lost.get_or_insert(now);
            return false;
        }
        let manifest = self.remote.manifest();
        let servers: BTreeSet<&str> = manifest.items.iter().map(server_of).collect();
        let servers: Vec<Arc<str>> = servers.into_iter().map(Arc::from).collect();
        self.adopt(&servers);
        self.lost.take().is_some()
    }

    fn adopt(&self, servers: &[Arc<str>]) {
        let Federation { host, side, .. } = &self.federation;
        let adopted = host.adopt(&self.remote, *side, servers);
        let peer = self.remote.name();
        if !adopted.added.is_empty() || !adopted.removed.is_empty() {
            let (added, removed) = (adopted.added.len(), adopted.removed.len());
            tracing::info!(%peer, added, removed, "the servers of a peer changed");
        }
        self.refusals.send_if_modified(|known| {
            let is_news = *known != adopted.refused;
            for refusal in adopted.refused.iter().filter(|one| !known.contains(one)) {
                let refusal = refusal as &dyn std::error::Error;
                tracing::warn!(%peer, error = refusal, "a server of a peer is not taken in");
            }
            if is_news {
                known.clone_from(&adopted.refused);
            }
            is_news
        });
    }
}

/// Waits until servers came or went for other reasons: a name may be free now.
async fn reconfigured(events: &mut broadcast::Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(event) if matches!(event.what, What::Config { .. }) => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
