//! How much the host takes on.

use std::time::Duration;

use bowline_core::cache::CacheLimits;
use bowline_core::call::Principal;
use bowline_core::rates::{Pace, RateLimits, RequestCost};
use bowline_core::shares::ShareLimits;

use super::Host;
use crate::offload::Offload;

/// How much the host takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Calls one principal may have in flight.
    pub principal_calls_max: u32,
    /// Servers that may be started at the same time.
    pub starts_max: usize,
    /// How long the first list may wait for servers that are still starting.
    pub first_list_wait: Duration,
    /// How long a stop of all servers may take.
    pub stop_wait: Duration,
    /// How much is kept of what servers answered.
    pub cache: CacheLimits,
    /// How much each principal, and all together, may hold of what they share.
    pub shares: ShareLimits,
    /// How fast each principal may send requests and bytes.
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
    /// Charges a request to its principal, and says when it may go on.
    #[must_use]
    pub fn charge_request(&self, principal: &Principal, cost: RequestCost) -> Pace {
        self.accounts
            .charge(principal, cost, || self.path.clock.now())
    }

    /// Returns what runs long computations off the serving thread.
    #[must_use]
    pub fn offload(&self) -> &Offload {
        &self.path.offload
    }
}
