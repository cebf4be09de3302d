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

    /// Returns the first moment, not before `at`, when a restart would be within the budget. A
    /// budget of nothing at all lets one window pass.
    #[must_use]
    pub fn allowed_from(&self, at: Now) -> Now {
        let Some(allowed) = usize::try_from(self.policy.restarts_max)
            .ok()
            .filter(|allowed| *allowed > 0)
        else {
            return at.plus(self.policy.window);
        };
        // So many of the oldest must be forgotten before there is room for one more.
        let Some(last) = self.restarts.len().checked_sub(allowed) else {
            return at;
        };
        let free = self.restarts.get(last);
        free.map_or(at, |oldest| oldest.plus(self.policy.window).max(at))
    }

    /// The restart that was spent last happened only now: it had to wait for its turn.
    pub fn put_off(&mut self, now: Now) {
        if let Some(last) = self.restarts.back_mut() {
            *last = now.max(*last);
        }
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

    #[test]
    fn a_spent_budget_says_when_it_has_room_again() {
        let window = Duration::from_secs(10);
        let mut budget = RestartBudget::new(RestartPolicy {
            restarts_max: 2,
            window,
        });
        assert_eq!(budget.allowed_from(Now(5)), Now(5));
        budget.spend(Now(1_000));
        assert_eq!(budget.allowed_from(Now(1_001)), Now(1_001));
        budget.spend(Now(3_000));
        assert_eq!(budget.allowed_from(Now(3_001)), Now(11_000));
        assert_eq!(budget.spend(Now(11_000)), Verdict::Restart);
        assert_eq!(budget.allowed_from(Now(11_001)), Now(13_000));
        assert_eq!(budget.allowed_from(Now(50_000)), Now(50_000));
        let nothing = RestartBudget::new(RestartPolicy {
            restarts_max: 0,
            window,
        });
        assert_eq!(nothing.allowed_from(Now(7)), Now(10_007));
    }
}
