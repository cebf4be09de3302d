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
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::guard::{Guard, Verdict};
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// #[derive(Debug)]
    /// struct Closed;
    ///
    /// impl Guard for Closed {
    ///     fn check(&self, _server: &str, _tool: Option<&str>) -> Verdict {
    ///         let reason = "we are closed".into();
    ///         Verdict::Deny { reason }
    ///     }
    /// }
    ///
    /// let owner = Principal::new("me", Role::Owner);
    /// host.set_guard(Some(Box::new(Closed)));
    /// let refused = host.call_tool(&owner, "clock", "now", json!({})).await.unwrap_err();
    /// assert!(refused.to_string().contains("we are closed"), "{refused}");
    /// assert!(host.tools(&owner, "clock").await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
