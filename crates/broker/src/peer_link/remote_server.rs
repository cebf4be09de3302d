//! A server offered by a connected gateway.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::peer_role::PeerRole;

use super::session_names::SessionNames;
use crate::RemotePeer;

/// A server of a peer.
#[derive(Clone)]
pub struct RemoteServer {
    /// The peer.
    pub remote: Arc<dyn RemotePeer>,
    /// The server name at the peer.
    pub server: Arc<str>,
    /// Role of the peer.
    pub role: PeerRole,
    /// Session names known to the peer.
    pub(super) session_names: Arc<SessionNames>,
    /// True if the peer was reachable since the last failed wait.
    may_wait: Arc<AtomicBool>,
}

impl RemoteServer {
    /// Names a server offered by `remote`.
    #[must_use]
    pub fn new(remote: Arc<dyn RemotePeer>, server: &str, role: PeerRole) -> Self {
        Self {
            remote,
            server: server.into(),
            role,
            session_names: Arc::new(SessionNames::new()),
            may_wait: Arc::new(AtomicBool::new(true)),
        }
    }

    /// True if this very peer offers the server.
    #[must_use]
    pub fn is_from(&self, remote: &Arc<dyn RemotePeer>) -> bool {
        Arc::ptr_eq(&self.remote, remote)
    }

    /// Returns a displayable target.
    #[must_use]
    pub fn display_target(&self) -> String {
        format!("{} {}", self.role.as_str(), self.remote.name())
    }

    /// True if a caller should wait; true once until the peer is reachable again.
    pub(super) fn take_wait_permission(&self) -> bool {
        self.may_wait.swap(false, Ordering::Relaxed)
    }

    /// Records that the peer is reachable.
    pub(super) fn mark_reachable(&self) {
        self.may_wait.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for RemoteServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteServer")
            .field("remote", &self.remote.name())
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
