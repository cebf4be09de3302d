//! A server process run by an executor in its own network.

use std::sync::Arc;

/// A server run by an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorProcessSpec {
    /// The executor.
    pub executor: Arc<str>,
    /// The server name in the executor's configuration.
    pub server: Arc<str>,
}

impl ExecutorProcessSpec {
    /// Returns a displayable target.
    #[must_use]
    pub fn display_target(&self) -> String {
        format!("{} on executor {}", self.server, self.executor)
    }
}
