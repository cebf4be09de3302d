//! The port between a hub and the gateway around it.

use std::fmt;
use std::sync::Arc;

use bowline_core::accounts::PrincipalAccounts;
use bowline_core::call::Principal;
use bowline_runtime::{Clock, TaskTracker};
use tokio::sync::watch;

/// The gateway around a hub: clock and tasks, the accounts of principals, and the tools that each
/// principal sees.
pub trait HubGateway: fmt::Debug + Send + Sync {
    /// Returns the clock.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// Returns the tracker of all tasks.
    fn tasks(&self) -> &TaskTracker;

    /// Returns the accounts that limit what one principal may send and store.
    fn accounts(&self) -> &PrincipalAccounts;

    /// Returns a digest of the tools that a principal sees. A peer is notified of a new digest.
    fn tools_digest(&self, principal: &Principal) -> [u8; 32];

    /// Subscribes to changes of the tools of any principal.
    fn catalog_changes(&self) -> watch::Receiver<u64>;

    /// Subscribes to changes of the rules for principals.
    fn policy_changes(&self) -> watch::Receiver<u64>;

    /// Reports a change of a peer: `joined`, `left` or `fenced`.
    fn on_peer_change(&self, mailbox: &Arc<str>, state: &'static str);
}
