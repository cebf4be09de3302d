//! The spec of a server that a connected gateway offers.

use std::time::Duration;

use bowline_core::restart_budget::RestartPolicy;

use super::{Isolation, PeerRole, PeerSpec, ServerSpec, ServerTransport};
use crate::pins::PinMode;

/// Maximum wait of calls for a recently lost peer; later calls fail at once.
pub(crate) const PEER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Lost peer connections are not the server's fault: counted, but never limited.
const UNLIMITED_RESTARTS: RestartPolicy = RestartPolicy {
    restarts_max: u32::MAX,
    window: Duration::from_secs(60),
};

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
