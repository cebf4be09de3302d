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
/// Both methods run during calls and must not block. A closure that takes the server and the tool
/// is a guard that passes every result:
///
/// ```
/// use bowline_host::Host;
/// use bowline_host::access_guard::GuardDecision;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let guard = |server: &str, _tool: Option<&str>| match server {
///     "vault" => GuardDecision::Deny { reason: "the vault is closed".into() },
///     _ => GuardDecision::Allow,
/// };
/// let host = Host::builder().guard(guard).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait AccessGuard: Send + Sync {
    /// Decides about a server (`tool` is `None`) or an item of it.
    fn check_access(&self, server: &str, tool: Option<&str>) -> GuardDecision;

    /// Decides whether a result may be returned to the caller.
    fn check_result(&self, _route: &Route, _result: &[u8]) -> GuardDecision {
        GuardDecision::Allow
    }
}

impl<F> AccessGuard for F
where
    F: Fn(&str, Option<&str>) -> GuardDecision + Send + Sync,
{
    fn check_access(&self, server: &str, tool: Option<&str>) -> GuardDecision {
        self(server, tool)
    }
}

/// A guard may be a closure, which has nothing to show.
impl fmt::Debug for dyn AccessGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessGuard")
    }
}
