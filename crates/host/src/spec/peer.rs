//! A server that another gateway has, which we are connected with.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_core::supervision::RestartPolicy;

use super::{Isolation, Reach, ServerSpec};
use crate::broker::{Acquainted, Remote};
use crate::pins::PinMode;

/// How long calls wait for a peer that was there a moment ago, before they are refused at once.
pub(crate) const PEER_PATIENCE: Duration = Duration::from_secs(10);

/// A connection that comes and goes is no fault of the server behind it, so its losses are
/// counted and never judged.
const LOSSES: RestartPolicy = RestartPolicy {
    restarts_max: u32::MAX,
    window: Duration::from_secs(60),
};

/// What the peer is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The hub that we joined: it knows us by our credential, and decides by that alone.
    Hub,
    /// A worker that joined us: it is told on whose behalf we ask, and decides for itself.
    Worker,
}

impl Side {
    /// Returns the word for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Worker => "worker",
        }
    }
}

/// A server that a peer has.
#[derive(Clone)]
pub struct PeerSpec {
    /// The peer.
    pub remote: Arc<dyn Remote>,
    /// The name of the server there.
    pub server: Arc<str>,
    /// What the peer is to us.
    pub side: Side,
    /// The sessions that it knows.
    pub(crate) acquainted: Arc<Acquainted>,
    /// Whether it was there since somebody last waited for it in vain.
    patience: Arc<AtomicBool>,
}

impl PeerSpec {
    /// Returns the server of that name which `remote` has.
    #[must_use]
    pub fn new(remote: Arc<dyn Remote>, server: &str, side: Side) -> Self {
        Self {
            remote,
            server: server.into(),
            side,
            acquainted: Arc::new(Acquainted::new()),
            patience: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Whether it is a server of this very peer.
    #[must_use]
    pub fn is_of(&self, remote: &Arc<dyn Remote>) -> bool {
        Arc::ptr_eq(&self.remote, remote)
    }

    /// Returns what people may read of it.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{} {}", self.side.as_str(), self.remote.name())
    }

    /// Whether to wait for it; only once until it is met again.
    pub(crate) fn take_patience(&self) -> bool {
        self.patience.swap(false, Ordering::Relaxed)
    }

    /// It was met.
    pub(crate) fn met(&self) {
        self.patience.store(true, Ordering::Relaxed);
    }
}

impl ServerSpec {
    /// Returns a spec for a server that a peer has.
    #[must_use]
    pub fn peer(name: &str, peer: PeerSpec) -> Self {
        Self {
            isolation: Isolation::Shared,
            start_timeout: PEER_PATIENCE,
            // The connection has a heartbeat of its own.
            ping: None,
            restart: LOSSES,
            pin: match peer.side {
                // The hub judges what its servers say of themselves, and we say it again.
                Side::Hub => PinMode::Off,
                Side::Worker => PinMode::default(),
            },
            ..Self::reached(name, Reach::Peer(peer))
        }
    }
}

impl fmt::Debug for PeerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerSpec")
            .field("remote", &self.remote.name())
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
