//! Access guard of the embedding program: asked before a server is used and before a result is
//! returned.

use std::fmt;
use std::sync::Arc;

use bowline_core::call::Route;

/// Decision of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardDecision {
    /// Allow.
    Allow,
    /// Deny.
    Deny {
        /// The reason, a single clause.
        reason: Arc<str>,
    },
}

/// Decides in addition to the policy; can deny and never grant.
///
/// Both methods run during calls and must not block.
pub trait AccessGuard: fmt::Debug + Send + Sync {
    /// Decides about a server (`tool` is `None`) or an item of it.
    fn check_access(&self, server: &str, tool: Option<&str>) -> GuardDecision;

    /// Decides whether a result may be returned to the caller.
    fn check_result(&self, _route: &Route, _result: &[u8]) -> GuardDecision {
        GuardDecision::Allow
    }
}
