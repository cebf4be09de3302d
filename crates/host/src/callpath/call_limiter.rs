//! Limits the calls in flight of each principal; dropping a permit releases it.

use std::sync::{Arc, Mutex};

use bowline_core::accounts::{ConcurrencyCounter, ConcurrencyView};
use bowline_core::call::Principal;
use bowline_core::error::CallError;
use bowline_core::sync::lock;

/// The limiter of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct CallLimiter(Arc<Mutex<ConcurrencyCounter>>);

impl CallLimiter {
    pub(crate) fn new(limit: u32) -> Self {
        Self(Arc::new(Mutex::new(ConcurrencyCounter::new(limit))))
    }

    pub(crate) fn usage(&self) -> ConcurrencyView {
        lock(&self.0).view()
    }

    /// Changes the limit per principal; permits in use stay valid.
    pub(crate) fn set_limit(&self, limit: u32) {
        lock(&self.0).set_limit(limit);
    }

    pub(crate) fn acquire(&self, principal: &Arc<Principal>) -> Result<CallPermit, CallError> {
        lock(&self.0)
            .try_acquire(&principal.name)
            .map_err(|limit| CallError::TooManyCalls {
                principal: Arc::clone(&principal.name),
                limit,
            })?;
        Ok(CallPermit {
            limiter: self.clone(),
            principal: Arc::clone(principal),
        })
    }
}

/// Permission for a single call in flight.
#[derive(Debug)]
pub(crate) struct CallPermit {
    limiter: CallLimiter,
    principal: Arc<Principal>,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        lock(&self.limiter.0).release_permit(&self.principal.name);
    }
}
