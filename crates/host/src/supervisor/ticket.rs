//! The right to make one call. A dropped ticket says that the caller went away.

use std::sync::Arc;

use bowline_core::breaker::{Health, Pass};
use bowline_core::error::CallError;

use super::{Shared, lock};

/// Proof that the breaker let a call through; tells it how the call ended.
#[derive(Debug)]
pub struct Ticket {
    shared: Arc<Shared>,
    pass: Pass,
    health: Health,
}

impl Ticket {
    pub(super) fn take(shared: &Arc<Shared>) -> Result<Self, CallError> {
        let pass = lock(&shared.breaker)
            .admit(shared.clock.now())
            .map_err(|rest| CallError::Resting {
                server: Arc::clone(&shared.spec.name),
                rest,
            })?;
        Ok(Self {
            shared: Arc::clone(shared),
            pass,
            health: Health::Untold,
        })
    }

    /// Reports how the call ended.
    pub fn report(mut self, health: Health) {
        self.health = health;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        lock(&self.shared.breaker).record(self.pass, self.health, now);
    }
}
