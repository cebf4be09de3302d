//! Policy and guard in force, replaceable while calls continue.

use std::sync::Arc;

use bowline_core::policy::Policy;
use tokio::sync::watch;

use super::Host;
use crate::access_guard::AccessGuard;
use crate::callpath::output_schema::UncheckedTool;

impl Host {
    /// Replaces the policy, for lists and calls alike.
    pub fn set_policy(&self, policy: Policy) {
        self.call_path.authorizer.set_policy(policy);
    }

    /// Returns the policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.call_path.authorizer.policy()
    }

    /// Replaces the guard; `None` removes it.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::access_guard::{AccessGuard, GuardDecision};
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with("now", "The time.", &json!({}), |_, _| async {
    ///     Ok(ToolOutput::from_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// #[derive(Debug)]
    /// struct Closed;
    ///
    /// impl AccessGuard for Closed {
    ///     fn check_access(&self, _server: &str, _tool: Option<&str>) -> GuardDecision {
    ///         let reason = "we are closed".into();
    ///         GuardDecision::Deny { reason }
    ///     }
    /// }
    ///
    /// let owner = Principal::new("me", Role::Owner);
    /// host.set_guard(Some(Box::new(Closed)));
    /// let refused = host.call_tool(&owner, "clock", "now", json!({})).await.unwrap_err();
    /// assert!(refused.to_string().contains("we are closed"), "{refused}");
    /// assert!(host.list_tools(&owner, "clock").await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_guard(&self, guard: Option<Box<dyn AccessGuard>>) {
        self.call_path.authorizer.set_guard(guard);
    }

    /// Returns the number of denials per rule source.
    #[must_use]
    pub fn denial_counts(&self) -> Vec<(&'static str, u64)> {
        self.call_path.authorizer.denials.counts()
    }

    /// Returns the tools with unchecked results because of an unusable schema.
    #[must_use]
    pub fn unchecked_tools(&self) -> Vec<UncheckedTool> {
        self.call_path.validator.unchecked_tools()
    }

    /// Returns a receiver of policy and guard replacements.
    #[must_use]
    pub fn policy_changes(&self) -> watch::Receiver<u64> {
        self.call_path.authorizer.subscribe_version()
    }
}
