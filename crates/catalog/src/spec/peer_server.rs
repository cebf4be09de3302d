//! The spec of a server that a connected gateway offers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::restart_budget::RestartPolicy;
use bowline_link::{Link, LinkConnectError, LinkEvent};
use bowline_runtime::{Clock, TaskTracker};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Isolation, PeerRole, ServerSpec, ServerTransport};
use crate::pins::PinMode;

/// Maximum wait of calls for a recently lost peer; later calls fail at once.
pub const PEER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Lost peer connections are not the server's fault: counted, but never limited.
const UNLIMITED_RESTARTS: RestartPolicy = RestartPolicy {
    restarts_max: u32::MAX,
    window: Duration::from_secs(60),
};

/// A new link, and the server's events outside calls.
pub type DialedLink = (Arc<dyn Link>, mpsc::Receiver<LinkEvent>);

/// The way to one server of a connected gateway. The broker is behind it.
pub trait PeerConnector: fmt::Debug + Send + Sync {
    /// Returns the display name of the peer.
    fn peer_name(&self) -> Arc<str>;

    /// Returns the identity of the peer within this process, the same for all its servers.
    fn peer_id(&self) -> usize;

    /// Opens a link to the server, which has the name `name` here.
    fn connect<'a>(
        &'a self,
        name: &'a Arc<str>,
        clock: &'a Arc<dyn Clock>,
        tasks: &'a TaskTracker,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>>;
}

/// A server of a peer.
#[derive(Clone)]
pub struct PeerSpec {
    /// The way to the server.
    pub connector: Arc<dyn PeerConnector>,
    /// The server name at the peer.
    pub server: Arc<str>,
    /// Role of the peer.
    pub role: PeerRole,
}

impl PeerSpec {
    /// Returns a displayable target.
    #[must_use]
    pub fn display_target(&self) -> String {
        format!("{} {}", self.role.as_str(), self.connector.peer_name())
    }

    /// True if the same server of the same peer is meant.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.connector.peer_id() == other.connector.peer_id()
            && self.server == other.server
            && self.role == other.role
    }
}

impl fmt::Debug for PeerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerSpec")
            .field("peer", &self.connector.peer_name())
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl ServerSpec {
    /// Creates a spec for a server of a peer.
    #[must_use]
    pub fn peer(name: &str, peer: PeerSpec) -> Self {
        Self {
            isolation: Isolation::Shared,
            start_timeout: PEER_WAIT_MAX,
            // The connection has its own heartbeat.
            ping: None,
            restart: UNLIMITED_RESTARTS,
            pin: match peer.role {
                // The hub applies pins to its servers already.
                PeerRole::Hub => PinMode::Off,
                PeerRole::Worker => PinMode::default(),
            },
            ..Self::with_transport(name, ServerTransport::Peer(peer))
        }
    }
}
