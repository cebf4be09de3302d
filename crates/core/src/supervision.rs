//! How often a server may be restarted before it is ejected.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Now;

/// How many restarts are allowed within which window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Restarts allowed within `window`.
    pub restarts_max: u32,
    /// How long a restart is remembered.
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

/// Remembers restarts and says when there were too many.
#[derive(Debug)]
pub struct RestartBudget {
    policy: RestartPolicy,
    /// Moments of the restarts still inside the window, oldest first; at most
    /// `restarts_max + 1` entries.
    restarts: VecDeque<Now>,
}

/// What a further failure of a server leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start it again.
    Restart,
    /// Too many restarts: leave it down until a person says otherwise.
    Eject,
}

impl RestartBudget {
    /// Returns a budget of which nothing is spent.
    #[must_use]
    pub const fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            restarts: VecDeque::new(),
        }
    }

    /// Spends one restart, or says that the budget is gone.
    pub fn spend(&mut self, now: Now) -> Verdict {
        self.prune(now);
        if self.spent() >= self.policy.restarts_max {
            return Verdict::Eject;
        }
        self.restarts.push_back(now);
        Verdict::Restart
    }

    /// Forgets restarts that lie outside the window.
    pub fn prune(&mut self, now: Now) {
        while let Some(oldest) = self.restarts.front() {
            if oldest.plus(self.policy.window) > now {
                break;
            }
            self.restarts.pop_front();
        }
    }

    /// Returns how many restarts the window holds.
    #[must_use]
    pub fn spent(&self) -> u32 {
        u32::try_from(self.restarts.len()).unwrap_or(u32::MAX)
    }

    /// Forgets everything: a person asked for a fresh start.
    pub fn reset(&mut self) {
        self.restarts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_restart_in_the_window_ejects_when_two_are_allowed() {
        let mut budget = RestartBudget::new(RestartPolicy {
            restarts_max: 2,
            window: Duration::from_secs(10),
        });
        assert_eq!(budget.spend(Now(0)), Verdict::Restart);
        assert_eq!(budget.spend(Now(1)), Verdict::Restart);
        assert_eq!(budget.spend(Now(2)), Verdict::Eject);
        assert_eq!(budget.spend(Now(10_000)), Verdict::Restart);
        budget.reset();
        assert_eq!(budget.spent(), 0);
    }
}
