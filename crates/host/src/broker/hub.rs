//! The broker: lets peers in, keeps their mailboxes, and carries messages between them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::mailbox::Mailbox;
use bowline_core::policy::Pattern;
use bowline_link::BoxFuture;
use bowline_wire::broker::{Hello, Refusal};

/// The bounds of a hub.
#[derive(Clone, Copy, Debug)]
pub struct HubLimits {
    /// Peers at once.
    pub peers_max: usize,
    /// Messages that a peer may deliver in a second; beyond it is slowed down.
    pub deliver_per_second: u32,
    /// Messages it may have saved up.
    pub deliver_burst: u32,
    /// Live requests of one peer in flight.
    pub requests_max: usize,
    /// Messages pushed to one subscriber that it has not acknowledged.
    pub unacked_max: usize,
    /// How often a message is handed out before it becomes a dead letter.
    pub deliveries_max: u32,
    /// How long a message that says nothing is kept.
    pub ttl: Duration,
}

/// A peer that proved who it is.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Who it is, here.
    pub principal: Arc<Principal>,
    /// Its mailbox.
    pub mailbox: Mailbox,
    /// The role that is stamped on what it sends.
    pub role: Option<Arc<str>>,
    /// What it may do beside using tools.
    pub rights: Rights,
}

/// What a peer may do. Nothing is granted by default but to reach the hub.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Mailboxes it may deliver to, send live requests to and see, beside the hub's: names of
    /// principals, `*` for any.
    pub to: Vec<Arc<str>>,
    /// Kinds of messages it may send there; `mcp_request` and `mcp_reply` where empty.
    pub kinds: Vec<Arc<str>>,
    /// Servers it may bring into the hub's catalog, by patterns of their names.
    pub offers: Vec<Pattern>,
}

/// Knows credentials; the edge.
pub trait Porter: fmt::Debug + Send + Sync {
    /// Lets a peer in, or says why not. The future ends when the credential does, with the reason.
    ///
    /// # Errors
    /// It is not let in.
    fn admit(&self, hello: &Hello) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal>;
}

/// A peer as it is shown.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// Its mailbox.
    pub mailbox: Mailbox,
    /// Its role.
    pub role: Option<Arc<str>>,
    /// Since when it is here, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Whether it takes messages.
    pub subscribed: bool,
    /// Its servers in our catalog.
    pub offers: Vec<Arc<str>>,
}

/// The broker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {
    _private: (),
}
