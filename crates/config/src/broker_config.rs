//! Settings of the broker and rights of peers.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::policy::FeaturePattern;
use bowline_host::broker::PeerRights;

/// Mailbox name used by clients of the `bamboo-broker` crate for the orchestrator.
const ORCHESTRATOR_ALIAS: &str = "bamboo-orchestrator";

/// Settings of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Maximum connected peers.
    pub peers: u32,
    /// Maximum mailboxes of a principal.
    pub mailboxes: u32,
    /// Messages per second of a connection; more are slowed down.
    pub deliver_rate: u32,
    /// Burst size of the delivery rate.
    pub deliver_burst: u32,
    /// Live requests of a peer in flight.
    pub requests: u32,
    /// Deliveries of a message before dead-lettering.
    pub attempts: u32,
    /// Default time to live of a message.
    pub ttl: Duration,
    /// Names of the hub's own mailbox besides `hub`. A peer with the same name takes precedence
    /// over the alias.
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
            aliases: vec![ORCHESTRATOR_ALIAS.into()],
        }
    }
}

/// Rights of a principal as a peer, besides reaching the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerConfig {
    /// Recipient principals; `*` for all.
    pub to: Vec<Arc<str>>,
    /// Permitted kinds of messages.
    pub kinds: Vec<Arc<str>>,
    /// Patterns of servers the peer may offer.
    pub offers: Vec<FeaturePattern>,
}

impl PeerConfig {
    /// Converts to the rights type of the hub.
    pub fn to_rights(&self) -> PeerRights {
        PeerRights {
            to: self.to.clone(),
            kinds: self.kinds.clone(),
            offers: self.offers.clone(),
        }
    }
}
