//! Role of a gateway at the other end of a broker connection.

/// Role of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// The joined hub: authorizes this gateway by its credential alone.
    Hub,
    /// A worker that joined this gateway: receives the principal and applies its own policy.
    Worker,
}

impl PeerRole {
    /// Returns the display word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Worker => "worker",
        }
    }
}
