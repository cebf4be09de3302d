//! Answers requests, side by side and under limits, each once.

use std::sync::Arc;

use crate::broker::{Backend, Ledger};

/// The bounds of serving.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Requests that run at once.
    pub running_max: usize,
    /// Requests of one caller that run at once.
    pub caller_running_max: usize,
}

/// The engine that answers requests.
#[derive(Debug)]
pub struct Serving {
    /// Runs the tools.
    pub backend: Arc<dyn Backend>,
    /// Remembers what ran.
    pub ledger: Ledger,
    /// Its bounds.
    pub limits: ServeLimits,
}
