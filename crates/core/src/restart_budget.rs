//! Restart budget of a server before ejection.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::MonotonicTime;

/// Restart limit within a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Restarts allowed within `window`.
    pub restarts_max: u32,
    /// Length of the window.
    pub window: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            restarts_max: 5,
            window: Duration::from_secs(300),
        }
    }
}

/// Tracks restarts within the window.
#[derive(Debug)]
pub struct RestartBudget {
    policy: RestartPolicy,
    /// Restart times within the window, oldest first; at most `restarts_max + 1` entries.
    restarts: VecDeque<MonotonicTime>,
}

/// The decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartDecision {
    /// Restart.
    Restart,
    /// Budget exhausted: stay down until an operator intervenes.
    Eject,
}

impl RestartBudget {
    /// Returns an unused budget.
    #[must_use]
    pub const fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            restarts: VecDeque::new(),
        }
    }

    /// Charges one restart, or ejects if the budget is exhausted.
    pub fn spend_restart(&mut self, now: MonotonicTime) -> RestartDecision {
        self.prune_expired(now);
        if self.spent_restarts() >= self.policy.restarts_max {
            return RestartDecision::Eject;
        }
        self.restarts.push_back(now);
        RestartDecision::Restart
    }

    /// Returns the earliest time, not before `at`, with a restart available. With a limit of zero,
    /// one window passes.
    #[must_use]
    pub fn next_allowed(&self, at: MonotonicTime) -> MonotonicTime {
        let Some(allowed) = usize::try_from(self.policy.restarts_max)
            .ok()
            .filter(|allowed| *allowed > 0)
        else {
            return at.plus(self.policy.window);
        };
        // Enough of the oldest restarts must expire to make room for one more.
        let Some(last) = self.restarts.len().checked_sub(allowed) else {
            return at;
        };
        let free = self.restarts.get(last);
        free.map_or(at, |oldest| oldest.plus(self.policy.window).max(at))
    }

    /// Moves the last charged restart to `now`, because the start was delayed.
    pub fn postpone_last(&mut self, now: MonotonicTime) {
        if let Some(last) = self.restarts.back_mut() {
            *last = now.max(*last);
        }
    }

    /// Drops restarts outside the window.
    pub fn prune_expired(&mut self, now: MonotonicTime) {
        while let Some(oldest) = self.restarts.front() {
            if oldest.plus(self.policy.window) > now {
                break;
            }
            self.restarts.pop_front();
        }
    }

    /// Returns the restarts within the window.
    #[must_use]
    pub fn spent_restarts(&self) -> u32 {
        u32::try_from(self.restarts.len()).unwrap_or(u32::MAX)
    }

    /// Clears the budget on an operator's request.
    pub fn reset(&mut self) {
        self.restarts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_beyond_budget_ejects() {
        let mut budget = RestartBudget::new(RestartPolicy {
            restarts_max: 2,
            window: Duration::from_secs(10),
        });
        assert_eq!(
            budget.spend_restart(MonotonicTime(0)),
            RestartDecision::Restart
        );
        assert_eq!(
            budget.spend_restart(MonotonicTime(1)),
            RestartDecision::Restart
        );
        assert_eq!(
            budget.spend_restart(MonotonicTime(2)),
            RestartDecision::Eject
        );
        assert_eq!(
            budget.spend_restart(MonotonicTime(10_000)),
            RestartDecision::Restart
        );
        budget.reset();
        assert_eq!(budget.spent_restarts(), 0);
    }

    #[test]
    fn spent_budget_reports_next_restart() {
        let window = Duration::from_secs(10);
        let mut budget = RestartBudget::new(RestartPolicy {
            restarts_max: 2,
            window,
        });
        assert_eq!(budget.next_allowed(MonotonicTime(5)), MonotonicTime(5));
        budget.spend_restart(MonotonicTime(1_000));
        assert_eq!(
            budget.next_allowed(MonotonicTime(1_001)),
            MonotonicTime(1_001)
        );
        budget.spend_restart(MonotonicTime(3_000));
        assert_eq!(
            budget.next_allowed(MonotonicTime(3_001)),
            MonotonicTime(11_000)
        );
        assert_eq!(
            budget.spend_restart(MonotonicTime(11_000)),
            RestartDecision::Restart
        );
        assert_eq!(
            budget.next_allowed(MonotonicTime(11_001)),
            MonotonicTime(13_000)
        );
        assert_eq!(
            budget.next_allowed(MonotonicTime(50_000)),
            MonotonicTime(50_000)
        );
        let nothing = RestartBudget::new(RestartPolicy {
            restarts_max: 0,
            window,
        });
        assert_eq!(
            nothing.next_allowed(MonotonicTime(7)),
            MonotonicTime(10_007)
        );
    }
}
