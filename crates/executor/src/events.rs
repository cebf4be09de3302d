//! The port for what happens to executors, so that a gateway can announce it.

use std::fmt;
use std::sync::Arc;

/// Receives the connects and disconnects of executors.
pub trait ExecutorEvents: fmt::Debug + Send + Sync {
    /// Handles the new state of an executor: `connected`, `lost`, `left`, `fenced` or `refused`.
    /// The reason is absent for `connected`.
    fn on_executor_state(&self, name: &Arc<str>, state: &'static str, reason: Option<Arc<str>>);
}
