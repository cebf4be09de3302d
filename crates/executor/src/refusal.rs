//! Why a gateway refuses an executor.

use std::sync::Arc;

/// Why an executor is refused, or its right ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorRefusal {
    /// One clause for people.
    pub reason: Arc<str>,
    /// One word for machines: `auth`, `expired`, `not_allowed`.
    pub code: Option<Arc<str>>,
}
