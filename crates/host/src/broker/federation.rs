//! Brings the servers of a peer into a host, and takes them out again when it is gone for long.

mod takes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep_until;

use super::link::menu::server_of;
use super::{Remote, Wares};
use crate::events::{Event, What};
use crate::host::{AdoptError, Host};
use crate::spec::Side;

pub use takes::{Takes, WORKER_KEEP};

/// How the servers of one peer are taken in.
#[derive(Clone, Debug)]
pub struct Federation {
    /// The host that takes them in.
    pub host: Host,
    /// What the peer is to it.
    pub side: Side,
    /// How long servers stay, as last known, when their peer is away; for good where absent.
    pub keep: Option<Duration>,
    /// What we offer to the peer: when it comes back from there, it is ours and nothing new.
    pub own: Option<Wares>,
}

/// A peer whose servers are in a host; they go with this.
#[derive(Debug)]
pub struct Following {
    ties: Arc<Ties>,
    stop: watch::Sender<bool>,
}

impl Following {
    /// Whether it is this very peer that is followed.
    #[must_use]
    pub fn is_of(&self, remote: &Arc<dyn Remote>) -> bool {
        Arc::ptr_eq(&self.ties.remote, remote)
    }

    /// Takes in what the peer offers now, and says what of that is not taken.
    pub fn look(&self) -> Vec<AdoptError> {
        self.ties.look();
        self.ties.refused.borrow().clone()
    }

    /// Sees which servers of the peer are not taken in, and why.
    #[must_use]
    pub fn refused(&self) -> watch::Receiver<Vec<AdoptError>> {
        self.ties.refused.subscribe()
    }

    /// Takes the servers of the peer out at once: they are not missed when it goes.
    pub fn end(self) {
        self.ties.adopt(&[]);
    }

    /// Whether the peer was gone for so long that its servers went.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stop.receiver_count() == 0
    }
}

impl Federation {
    /// Follows what a peer offers, from this moment on and until what is returned is dropped. What
    /// it offers now is taken in when this returns.
    #[must_use]
    pub fn follow(self, remote: Arc<dyn Remote>) -> Following {
        let (stop, stopped) = watch::channel(false);
        let (changes, events) = (remote.changes(), self.host.events().watch());
        let tasks = self.host.tasks().clone();
        let ties = Arc::new(Ties {
            federation: self,
            remote,
            refused: watch::Sender::default(),
            lost: Mutex::default(),
            has_adopted: AtomicBool::new(false),
        });
        ties.look();
        tasks.spawn(
            "federation",
            run(Arc::clone(&ties), stopped, changes, events),
        );
        Following { ties, stop }
    }
}

/// What ties a peer to a host.
#[derive(Debug)]
struct Ties {
    federation: Federation,
    remote: Arc<dyn Remote>,
    refused: watch::Sender<Vec<AdoptError>>,
    /// Since when the peer is away.
    lost: Mutex<Option<Now>>,
    /// Whether servers of the peer were taken in before.
    has_adopted: AtomicBool,
}

async fn run(
    ties: Arc<Ties>,
    mut stopped: watch::Receiver<bool>,
    mut changes: watch::Receiver<u64>,
    mut events: broadcast::Receiver<Event>,
) {
    let host = &ties.federation.host;
    let mut closing = host.events().ended();
    loop {
        let lost = *lock(&ties.lost);
        let until = lost.zip(ties.federation.keep);
        let until = until.map(|(lost, keep)| host.clock().instant(lost.plus(keep)));
        let late = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return,
            // Dropped is stopped.
            _ = stopped.wait_for(|stopped| *stopped) => break,
            changed = changes.changed() => if changed.is_err() { break },
            () = late => {
                tracing::info!(peer = %ties.remote.name(), "gone for long; its servers go");
                break;
            }
            () = reconfigured(&mut events) => {}
        }
        if ties.look() {
            host.greet(&ties.remote).await;
        }
    }
    // Before they go: who looks whether this is over must not find it so too late.
    drop(stopped);
    ties.adopt(&[]);
}

impl Ties {
    /// Takes in what the peer offers, where it is there; `true` where it is there again. Of a peer
    /// that is not there yet, what it offered in another life of this host is taken in.
    fn look(&self) -> bool {
        let mut lost = lock(&self.lost);
        let is_connected = self.remote.is_connected();
        if !is_connected {
            let now = self.federation.host.clock().now();
            lost.get_or_insert(now);
        }
        if !is_connected && self.has_adopted.load(Ordering::Relaxed) {
            return false;
        }
        let manifest = self.remote.manifest();
        let of_tools = manifest.items.iter().map(server_of);
        let whole = manifest.servers.iter().map(|ware| &*ware.name);
        let servers: BTreeSet<&str> = of_tools.chain(whole).collect();
        let own = |server: &&str| {
            let own = self.federation.own.as_ref();
            own.is_some_and(|own| own.has(server))
        };
        let servers = servers.into_iter().filter(|server| !own(server));
        let servers: Vec<Arc<str>> = servers.map(Arc::from).collect();
        if !servers.is_empty() {
            self.has_adopted.store(true, Ordering::Relaxed);
        }
        self.adopt(&servers);
        is_connected && lost.take().is_some()
    }

    fn adopt(&self, servers: &[Arc<str>]) {
        let Federation { host, side, .. } = &self.federation;
        if host.is_closing() {
            return;
        }
        let adopted = host.adopt(&self.remote, *side, servers);
        let peer = self.remote.name();
        if !adopted.added.is_empty() || !adopted.removed.is_empty() {
            let (added, removed) = (adopted.added.len(), adopted.removed.len());
            tracing::info!(%peer, added, removed, "the servers of a peer changed");
        }
        self.refused.send_if_modified(|known| {
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
