//! A server whose process an executor runs in its own network.

use std::sync::Arc;

/// A server that an executor runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedSpec {
    /// The executor.
    pub executor: Arc<str>,
    /// The name of the server in the executor's own configuration.
    pub server: Arc<str>,
}

impl PlacedSpec {
    /// Returns what people may read of it.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{} on executor {}", self.server, self.executor)
    }
}
