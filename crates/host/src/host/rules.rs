//! Who may do what here, replaced whole while calls go on.

use std::sync::Arc;

use bowline_core::policy::Policy;
use tokio::sync::watch;

use super::Host;
use crate::callpath::checked::Unchecked;
use crate::guard::Guard;

impl Host {
    /// Brings a policy into force, for listing and calling alike.
    pub fn set_policy(&self, policy: Policy) {
        self.path.decider.set_policy(policy);
    }

    /// Returns the policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.path.decider.policy()
    }

    /// Lets `guard` have the last word; `None` takes the one there is away.
    pub fn set_guard(&self, guard: Option<Box<dyn Guard>>) {
        self.path.decider.set_guard(guard);
    }

    /// Returns how often each sort of rule denied somebody something.
    #[must_use]
    pub fn denials(&self) -> Vec<(&'static str, u64)> {
        self.path.decider.denials.counts()
    }

    /// Returns the tools whose results are not checked because their schema cannot be used.
    #[must_use]
    pub fn unchecked(&self) -> Vec<Unchecked> {
        self.path.checker.unchecked()
    }

    /// Returns a receiver that is told when policy or guard were replaced.
    #[must_use]
    pub fn policy_changes(&self) -> watch::Receiver<u64> {
        self.path.decider.changes()
    }
}
