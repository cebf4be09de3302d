//! Applies the restart budget of a server to dedicated links.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::CallError;
use bowline_core::restart_budget::{RestartBudget, RestartDecision, RestartPolicy};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;

use super::super::SupervisorShared;
use super::DedicatedLinks;

/// Error reason once the restart budget is used up.
const OUT_OF_RESTARTS: &str = "its processes ended too often";

/// Counts lost processes and their replacements.
///
/// The first link of a session or principal is free; each lost process is replaced within the
/// budget.
#[derive(Debug)]
pub(super) struct DedicatedRestarts(Mutex<ProcessLosses>);

#[derive(Debug)]
struct ProcessLosses {
    budget: RestartBudget,
    policy: RestartPolicy,
    /// Loss times of processes not replaced yet, oldest first; at most the budget plus one, none
    /// older than the window.
    losses: VecDeque<MonotonicTime>,
}

impl DedicatedRestarts {
    pub(super) const fn new(policy: RestartPolicy) -> Self {
        Self(Mutex::new(ProcessLosses {
            budget: RestartBudget::new(policy),
            policy,
            losses: VecDeque::new(),
        }))
    }

    /// Records a process that ended by itself or failed to start.
    pub(super) fn record_loss(&self, now: MonotonicTime) {
        let mut losses = lock(&self.0);
        let most = usize::try_from(losses.policy.restarts_max).unwrap_or(usize::MAX);
        if losses.losses.len() > most {
            losses.losses.pop_front();
        }
        losses.losses.push_back(now);
    }

    /// Allows a start now.
    ///
    /// # Errors
    /// The budget is used up; returns the time until a start is allowed.
    pub(super) fn allow_start(&self, now: MonotonicTime) -> Result<(), Duration> {
        let mut losses = lock(&self.0);
        let window = losses.policy.window;
        losses.losses.retain(|at| at.plus(window) > now);
        if losses.losses.is_empty() {
            return Ok(());
        }
        match losses.budget.spend_restart(now) {
            RestartDecision::Restart => {
                losses.losses.pop_front();
                Ok(())
            }
            RestartDecision::Eject => Err(now.duration_until(losses.budget.next_allowed(now))),
        }
    }

    /// Resets everything on an operator's restart.
    pub(super) fn reset(&self) {
        let mut losses = lock(&self.0);
        losses.losses.clear();
        losses.budget.reset();
    }
}

impl DedicatedLinks {
    /// Resets the losses on an operator's restart.
    pub(in super::super) fn reset_restarts(&self) {
        if let Some(restarts) = &self.restarts {
            restarts.reset();
        }
    }

    /// Records a process that ended by itself or failed to start.
    pub(super) fn record_loss(&self, shared: &SupervisorShared) {
        if let Some(restarts) = &self.restarts {
            restarts.record_loss(shared.clock.now());
        }
    }

    /// Charges the restart budget for a lost process.
    pub(super) fn charge_restart(&self, shared: &SupervisorShared) -> Result<(), CallError> {
        let Some(restarts) = &self.restarts else {
            return Ok(());
        };
        let allowed = restarts.allow_start(shared.clock.now());
        allowed.map_err(|retry_after| CallError::StartFailed {
            server: Arc::clone(&shared.spec.name),
            reason: OUT_OF_RESTARTS.into(),
            retry_after,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_processes_are_replaced_within_budget() {
        let restarts = DedicatedRestarts::new(RestartPolicy {
            restarts_max: 2,
            window: Duration::from_secs(10),
        });
        for _ in 0..9 {
            assert_eq!(
                restarts.allow_start(MonotonicTime(0)),
                Ok(()),
                "nothing was lost"
            );
        }
        for at in [1_000, 2_000] {
            restarts.record_loss(MonotonicTime(at));
            assert_eq!(restarts.allow_start(MonotonicTime(at)), Ok(()));
        }
        restarts.record_loss(MonotonicTime(3_000));
        let wait = Duration::from_secs(8);
        assert_eq!(restarts.allow_start(MonotonicTime(3_000)), Err(wait));
        assert_eq!(restarts.allow_start(MonotonicTime(11_000)), Ok(()));
        restarts.record_loss(MonotonicTime(11_001));
        assert!(restarts.allow_start(MonotonicTime(11_001)).is_err());
        assert_eq!(
            restarts.allow_start(MonotonicTime(21_001)),
            Ok(()),
            "that is long ago"
        );
        restarts.record_loss(MonotonicTime(21_002));
        restarts.reset();
        assert_eq!(restarts.allow_start(MonotonicTime(21_002)), Ok(()));
    }
}
