//! The right to make one call. A dropped ticket says that the caller went away.

use std::sync::Arc;

use bowline_core::breaker::{Breaker, Circuit, Health, Pass};
use bowline_core::error::CallError;
use bowline_core::time::Now;

use super::{Shared, lock};
use crate::events::What;

/// Proof that the breaker let a call through; tells it how the call ended.
#[derive(Debug)]
pub struct Ticket {
    shared: Arc<Shared>,
    /// Until the breaker was told.
    pass: Option<Pass>,
}

impl Ticket {
    pub(super) fn take(shared: &Arc<Shared>) -> Result<Self, CallError> {
        let now = shared.clock.now();
        let admitted = shared.with_breaker(now, |breaker| breaker.admit(now));
        let pass = admitted.map_err(|rest| CallError::Resting {
            server: Arc::clone(&shared.spec.name),
            rest,
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            pass: Some(pass),
        })
    }

    /// Reports how the call ended.
    pub fn report(self, health: Health) {
        let now = self.shared.clock.now();
        self.report_at(health, now);
    }

    /// The same where the time is known.
    pub(crate) fn report_at(mut self, health: Health, now: Now) {
        self.tell(health, now);
    }

    fn tell(&mut self, health: Health, now: Now) {
        if let Some(pass) = self.pass.take() {
            self.shared
                .with_breaker(now, |breaker| breaker.record(pass, health, now));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.pass.is_some() {
            self.tell(Health::Untold, self.shared.clock.now());
        }
    }
}

impl Shared {
    /// Does something with the breaker, and tells those who watch when its circuit changed by
    /// it. Told under the lock, so that changes are told in their order.
    pub(super) fn with_breaker<T>(&self, now: Now, act: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let done = act(&mut breaker);
        if let Some(circuit) = breaker.news(now) {
            if circuit == Circuit::Open {
                self.opened.notify_one();
            }
            let circuit = circuit.as_str();
            tracing::info!(server = %self.spec.name, circuit, "the breaker changed");
            self.events.tell(What::Circuit {
                server: Arc::clone(&self.spec.name),
                circuit,
            });
        }
        done
    }
}
