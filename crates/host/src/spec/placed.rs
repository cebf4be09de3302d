//! A server whose process an executor runs in its own network.

use std::fmt;
use std::sync::Arc;

use bowline_link::executor::Distant;
use bowline_link::stdio::Spawn;

/// Has the processes of one server started by an executor.
pub type DistantSpawn = dyn Spawn<Process = Distant>;

/// A server that an executor runs.
#[derive(Clone)]
pub struct PlacedSpec {
    /// The executor.
    pub executor: Arc<str>,
    /// The name of the server in the executor's own configuration.
    pub server: Arc<str>,
    /// Has it started there.
    pub spawn: Arc<DistantSpawn>,
}

impl PlacedSpec {
    /// Returns what people may read of it.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{} on executor {}", self.server, self.executor)
    }
}

impl fmt::Debug for PlacedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacedSpec")
            .field("executor", &self.executor)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
