//! A server that a peer has, as one more link: supervised, listed and called like any other.

use std::sync::Arc;

use crate::broker::Remote;

/// A link to one server of a peer.
#[derive(Debug)]
pub struct PeerLink {
    /// The peer.
    pub remote: Arc<dyn Remote>,
    /// The name of the server there.
    pub server: Arc<str>,
}
