//! Limits of the host.

use std::time::Duration;

use bowline_core::cache::CacheLimits;
use bowline_core::rate_limiter::RateLimits;
use bowline_core::shares::ShareLimits;

use super::Host;
use crate::offload::OffloadPool;

/// Limits of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Calls in flight per principal.
    pub principal_calls_max: u32,
    /// Concurrent server starts.
    pub starts_max: usize,
    /// Maximum wait of the first list for starting servers.
    pub first_list_wait: Duration,
    /// Maximum duration of a shutdown.
    pub stop_wait: Duration,
    /// Limits of the response cache.
    pub cache: CacheLimits,
    /// Limits of shared resources, per principal and in total.
    pub shares: ShareLimits,
    /// Rates of requests and bytes per principal.
    pub rates: RateLimits,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            principal_calls_max: 1_024,
            starts_max: 16,
            first_list_wait: Duration::from_millis(1_500),
            stop_wait: Duration::from_secs(6),
            cache: CacheLimits::default(),
            shares: ShareLimits::default(),
            rates: RateLimits::default(),
        }
    }
}

impl Host {
    /// Returns the pool for long computations.
    #[must_use]
    pub fn offload(&self) -> &OffloadPool {
        &self.call_path.offload
    }
}
