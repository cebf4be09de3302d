//! Servers that peers have: they come and go with their peers, and never in the place of one that
//! is this gateway's own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::name;
use bowline_core::sync::lock;
use thiserror::Error;

use super::{Applied, Host};
use crate::broker::Remote;
use crate::callpath::Servers;
use crate::spec::{PeerSpec, Reach, ServerSpec, Side};
use crate::supervisor::{Order, State, Supervisor};

/// Servers of one peer.
pub const PEER_SERVERS_MAX: usize = 256;

/// Why a server of a peer is not taken in.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AdoptError {
    /// The name cannot be one.
    #[error("`{0}` cannot name a server: lower-case letters, digits and hyphens, 32 at most")]
    BadName(Arc<str>),
    /// The guard does not want it.
    #[error("server `{server}` is refused: {reason}")]
    Denied {
        /// The server.
        server: Arc<str>,
        /// What the guard said.
        reason: Arc<str>,
    },
    /// A server of that name is this gateway's own.
    #[error("this gateway has a server `{0}` of its own")]
    Own(Arc<str>),
    /// Another peer has brought a server of that name.
    #[error("{by} has brought a server `{server}` before")]
    Brought {
        /// The server.
        server: Arc<str>,
        /// Who, for people.
        by: Arc<str>,
    },
    /// The peer has more servers than it may.
    #[error("server `{0}` is one too many: a peer brings {PEER_SERVERS_MAX} at most")]
    TooMany(Arc<str>),
    /// The host goes down.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

/// What became of the servers of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Servers that are new.
    pub added: Vec<Arc<str>>,
    /// Servers that are gone.
    pub removed: Vec<Arc<str>>,
    /// Servers that are not taken in, and why.
    pub refused: Vec<AdoptError>,
}

impl Host {
    /// Takes these servers of a peer into care, and lets those of its servers go that are not
    /// among them; all others stay as they are. Waits for nothing.
    pub fn adopt(&self, remote: &Arc<dyn Remote>, side: Side, servers: &[Arc<str>]) -> Adopted {
        let mut adopted = Adopted::default();
        let mut turn = lock(&self.turn);
        if self.path.closing.load(Ordering::Relaxed) {
            adopted.refused.push(AdoptError::ShuttingDown);
            return adopted;
        }
        let old = self.path.servers.load_full();
        let mut new = Servers::clone(&old);
        let wanted: BTreeSet<&Arc<str>> = servers.iter().collect();
        let mut gone = Vec::new();
        new.retain(|name, server| {
            let goes = is_of(server, remote) && !wanted.contains(name);
            if goes {
                server.forsake();
                adopted.removed.push(Arc::clone(name));
                gone.push(server.clone());
            }
            !goes
        });
        let mut specs = Vec::new();
        for (at, server) in wanted.into_iter().enumerate() {
            match self.may_adopt(server, at, remote, &new) {
                Ok(true) => {
                    let peer = PeerSpec::new(Arc::clone(remote), server, side);
                    specs.push(ServerSpec::peer(server, peer));
                }
                Ok(false) => {}
                Err(refusal) => adopted.refused.push(refusal),
            }
        }
        self.around.pins.know(&specs);
        let mut fresh = Vec::new();
        for spec in specs {
            adopted.added.push(Arc::clone(&spec.name));
            let server = self.take_in(spec, None);
            new.insert(Arc::clone(&server.spec().name), server.clone());
            fresh.push(server);
        }
        if fresh.is_empty() && gone.is_empty() {
            return adopted;
        }
        adopted.removed.sort();
        // Told before the catalog changes: whoever tells of lists waits for the fresh ones.
        turn.begin(&fresh, self.path.clock.now());
        self.path.servers.store(Arc::new(new));
        self.path.catalog.withdraw_all(&adopted.removed);
        for name in &adopted.removed {
            self.path.answers.forget(name);
        }
        drop(turn);
        for server in gone {
            drop(self.retired(server));
        }
        for server in &fresh {
            self.standing.poke(server);
        }
        self.tell(&Applied {
            added: adopted.added.clone(),
            removed: adopted.removed.clone(),
            ..Applied::default()
        });
        adopted
    }

    /// Has the servers of a peer that is there again tried at once, where they failed.
    pub(crate) async fn greet(&self, remote: &Arc<dyn Remote>) {
        let servers = self.path.servers.load_full();
        for server in servers.values().filter(|server| is_of(server, remote)) {
            let state = server.state().borrow().clone();
            if matches!(state, State::Backoff { .. } | State::Ejected { .. }) {
                // Where nobody takes it, the server is gone.
                let _gone = server.order(Order::Start).await;
            }
        }
    }

    /// Takes the name of a server away for one that has nothing to do with it.
    pub(super) fn oust(&self, server: &Supervisor) {
        let name = &server.spec().name;
        tracing::warn!(
            server = %name,
            peer = server.spec().reach.shown(),
            "a server of that name is configured here; the peer's is not served"
        );
        server.forsake();
        self.path.catalog.withdraw(name);
        self.path.answers.forget(name);
    }

    /// Whether a server is to be taken in; not where it is here already.
    fn may_adopt(
        &self,
        server: &Arc<str>,
        nth: usize,
        remote: &Arc<dyn Remote>,
        servers: &Servers,
    ) -> Result<bool, AdoptError> {
        if !name::is_server(server) {
            return Err(AdoptError::BadName(Arc::clone(server)));
        }
        match servers.get(server) {
            Some(here) if is_of(here, remote) => return Ok(false),
            Some(here) if here.is_peers() => {
                return Err(AdoptError::Brought {
                    server: Arc::clone(server),
                    by: here.spec().reach.shown().into(),
                });
            }
            Some(_) => return Err(AdoptError::Own(Arc::clone(server))),
            None => {}
        }
        if nth >= PEER_SERVERS_MAX {
            return Err(AdoptError::TooMany(Arc::clone(server)));
        }
        match self.path.decider.welcomes(server) {
            Ok(()) => Ok(true),
            Err(refusal) => Err(AdoptError::Denied {
                server: Arc::clone(server),
                reason: refusal.reason,
            }),
        }
    }
}

/// Whether a server is one of this very peer.
fn is_of(server: &Supervisor, remote: &Arc<dyn Remote>) -> bool {
    matches!(&server.spec().reach, Reach::Peer(peer) if peer.is_of(remote))
}
