//! Breaker permit of a call. Dropping a permit reports that the caller left.

use std::sync::Arc;

use bowline_core::breaker::{Breaker, BreakerAdmission, CircuitState, HealthSignal};
use bowline_core::error::CallError;
use bowline_core::time::MonotonicTime;

use super::{SupervisorShared, lock};
use crate::events::EventKind;

/// Proof of admission by the breaker; reports the outcome of the call.
#[derive(Debug)]
pub struct BreakerPermit {
    shared: Arc<SupervisorShared>,
    /// `None` once reported.
    admission: Option<BreakerAdmission>,
}

impl BreakerPermit {
    pub(super) fn acquire(shared: &Arc<SupervisorShared>) -> Result<Self, CallError> {
        let now = shared.clock.now();
        let admitted = shared.with_breaker(now, |breaker| breaker.admit_call(now));
        let pass = admitted.map_err(|cooldown| CallError::CircuitOpen {
            server: Arc::clone(&shared.spec.name),
            cooldown,
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            admission: Some(pass),
        })
    }

    /// Reports the outcome of the call.
    pub fn report(self, health: HealthSignal) {
        let now = self.shared.clock.now();
        self.report_at(health, now);
    }

    /// Reports the outcome at a known time.
    pub(crate) fn report_at(mut self, health: HealthSignal, now: MonotonicTime) {
        self.record(health, now);
    }

    fn record(&mut self, health: HealthSignal, now: MonotonicTime) {
        if let Some(pass) = self.admission.take() {
            self.shared
                .with_breaker(now, |breaker| breaker.record_outcome(pass, health, now));
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.admission.is_some() {
            self.record(HealthSignal::Unknown, self.shared.clock.now());
        }
    }
}

impl SupervisorShared {
    /// Runs `act` on the breaker and emits an event if the circuit changed. Emitted under the lock,
    /// so that events keep their order.
    pub(super) fn with_breaker<T>(
        &self,
        now: MonotonicTime,
        act: impl FnOnce(&mut Breaker) -> T,
    ) -> T {
        let mut breaker = lock(&self.breaker);
        let done = act(&mut breaker);
        if let Some(circuit) = breaker.take_transition(now) {
            if circuit == CircuitState::Open {
                self.breaker.wake();
            }
            let circuit = circuit.as_str();
            tracing::info!(server = %self.spec.name, circuit, "breaker changed state");
            self.events.publish(EventKind::Circuit {
                server: Arc::clone(&self.spec.name),
                circuit: circuit.into(),
            });
        }
        done
    }
}
