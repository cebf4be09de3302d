//! A last word for whoever embeds the host: asked before a server is used, and before its answer
//! is passed on.

use std::fmt;
use std::sync::Arc;

use bowline_core::call::Route;

/// What a guard says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Allow,
    /// Do not.
    Deny {
        /// Why, as one clause.
        reason: Arc<str>,
    },
}

/// Decides in addition to the policy; it can take away and never grant.
///
/// Both functions are asked on the way of a call, so neither may wait.
pub trait Guard: fmt::Debug + Send + Sync {
    /// Whether a server may be used at all (`tool` is `None`), or one thing of it.
    fn check(&self, server: &str, tool: Option<&str>) -> Verdict;

    /// Whether a result may be passed on to its caller.
    fn answer(&self, _route: &Route, _result: &[u8]) -> Verdict {
        Verdict::Allow
    }
}
