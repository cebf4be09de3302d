//! What the file says of the broker, and of what its peers may do beside using tools.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::policy::Pattern;
use bowline_host::broker::Rights;

/// The name under which clients of the `bamboo-broker` crate look for the orchestrator.
const ORCHESTRATOR: &str = "bamboo-orchestrator";

/// What the broker takes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Peers that are connected at once.
    pub peers: u32,
    /// Mailboxes of one principal.
    pub mailboxes: u32,
    /// Messages that one connection may deliver in a second; beyond it is slowed down.
    pub deliver_rate: u32,
    /// Messages that it may have saved up.
    pub deliver_burst: u32,
    /// Live requests of one peer in flight.
    pub requests: u32,
    /// How often a message is handed out before it becomes a dead letter.
    pub attempts: u32,
    /// How long a message is kept that does not say so itself.
    pub ttl: Duration,
    /// Names under which peers reach the hub's own mailbox, beside `hub`. A peer of such a name
    /// goes first: then it is no alias.
    pub aliases: Vec<Arc<str>>,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            peers: 4_096,
            mailboxes: 16,
            deliver_rate: 500,
            deliver_burst: 1_000,
            requests: 256,
            attempts: 20,
            ttl: Duration::from_secs(24 * 60 * 60),
            aliases: vec![ORCHESTRATOR.into()],
        }
    }
}

/// What one principal may do as a peer, beside reaching the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerConfig {
    /// Principals whose mailboxes it may deliver to; `*` for all.
    pub to: Vec<Arc<str>>,
    /// Kinds of messages that it may send there.
    pub kinds: Vec<Arc<str>>,
    /// Names of servers that it may bring.
    pub offers: Vec<Pattern>,
}

impl PeerConfig {
    /// Returns the same as the hub wants it.
    pub(crate) fn rights(&self) -> Rights {
        Rights {
            to: self.to.clone(),
            kinds: self.kinds.clone(),
            offers: self.offers.clone(),
        }
    }
}
