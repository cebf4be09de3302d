//! Holds the links beside the shared one to the restart budget of their server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::CallError;
use bowline_core::supervision::{RestartBudget, RestartPolicy, Verdict};
use bowline_core::sync::lock;
use bowline_core::time::Now;

use super::super::Shared;
use super::OwnLinks;

/// What a caller is told whose link would take one more restart than the budget has.
const OUT_OF_RESTARTS: &str = "its processes ended too often";

/// Counts processes that ended by themselves, and starts in their place.
///
/// The first link of a session or a principal costs nothing; each process that was lost is
/// replaced only within the budget.
#[derive(Debug)]
pub(super) struct OwnRestarts(Mutex<Losses>);

#[derive(Debug)]
struct Losses {
    budget: RestartBudget,
    policy: RestartPolicy,
    /// When processes were lost that are not replaced yet, oldest first; at most one more than
    /// the budget allows, none longer ago than its window.
    open: VecDeque<Now>,
}

impl OwnRestarts {
    pub(super) const fn new(policy: RestartPolicy) -> Self {
        Self(Mutex::new(Losses {
            budget: RestartBudget::new(policy),
            policy,
            open: VecDeque::new(),
        }))
    }

    /// A process ended by itself, or could not be started.
    pub(super) fn lost(&self, now: Now) {
        let mut losses = lock(&self.0);
        let most = usize::try_from(losses.policy.restarts_max).unwrap_or(usize::MAX);
        if losses.open.len() > most {
            losses.open.pop_front();
        }
        losses.open.push_back(now);
    }

    /// Allows one start now.
    ///
    /// # Errors
    /// The budget is gone; returns how long it is until it has room.
    pub(super) fn allow(&self, now: Now) -> Result<(), Duration> {
        let mut losses = lock(&self.0);
        let window = losses.policy.window;
        losses.open.retain(|at| at.plus(window) > now);
        if losses.open.is_empty() {
            return Ok(());
        }
        match losses.budget.spend(now) {
            Verdict::Restart => {
                losses.open.pop_front();
                Ok(())
            }
            Verdict::Eject => Err(now.until(losses.budget.allowed_from(now))),
        }
    }

    /// Forgets everything: a person asked for a fresh start.
    pub(super) fn reset(&self) {
        let mut losses = lock(&self.0);
        losses.open.clear();
        losses.budget.reset();
    }
}

impl OwnLinks {
    /// Forgets which processes were lost: a person asked for a fresh start.
    pub(in super::super) fn forgive(&self) {
        if let Some(restarts) = &self.restarts {
            restarts.reset();
        }
    }

    /// Counts a process that ended by itself or could not be started.
    pub(super) fn note_lost(&self, shared: &Shared) {
        if let Some(restarts) = &self.restarts {
            restarts.lost(shared.clock.now());
        }
    }

    /// Processes that end by themselves are replaced within the budget of their server.
    pub(super) fn spend_restart(&self, shared: &Shared) -> Result<(), CallError> {
        let Some(restarts) = &self.restarts else {
            return Ok(());
        };
        let allowed = restarts.allow(shared.clock.now());
        allowed.map_err(|next| CallError::StartFailed {
            server: Arc::clone(&shared.spec.name),
            reason: OUT_OF_RESTARTS.into(),
            next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_processes_are_replaced_within_budget() {
        let restarts = OwnRestarts::new(RestartPolicy {
            restarts_max: 2,
            window: Duration::from_secs(10),
        });
        for _ in 0..9 {
            assert_eq!(restarts.allow(Now(0)), Ok(()), "nothing was lost");
        }
        for at in [1_000, 2_000] {
            restarts.lost(Now(at));
            assert_eq!(restarts.allow(Now(at)), Ok(()));
        }
        restarts.lost(Now(3_000));
        let wait = Duration::from_secs(8);
        assert_eq!(restarts.allow(Now(3_000)), Err(wait));
        assert_eq!(restarts.allow(Now(11_000)), Ok(()));
        restarts.lost(Now(11_001));
        assert!(restarts.allow(Now(11_001)).is_err());
        assert_eq!(restarts.allow(Now(21_001)), Ok(()), "that is long ago");
        restarts.lost(Now(21_002));
        restarts.reset();
        assert_eq!(restarts.allow(Now(21_002)), Ok(()));
    }
}
