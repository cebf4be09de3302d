//! What becomes of a server that failed: started again soon, tried again slowly, or left down.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::supervision::{RestartBudget, RestartPolicy, Verdict};
use crate::time::Now;

/// No wait between slow retries is longer.
pub const SLOW_WAIT_MAX: Duration = Duration::from_secs(60);

/// No wait between tries to reach a server that runs elsewhere is longer: a try costs a connection,
/// and callers are refused until one succeeds.
pub const REMOTE_WAIT_MAX: Duration = Duration::from_millis(1_500);

/// Where a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a process that we start: each try costs one.
    Child,
    /// Elsewhere: a try costs a connection.
    Remote,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A link that served ended by itself.
    Lost,
    /// No link could be made.
    Unstarted,
    /// No link could be made, and nothing that answered refused one.
    Unreachable,
    /// Its program does not exist, so nothing was started.
    ProgramNotFound,
    /// The way to it failed, before or after it served; nothing is known against itself.
    Away,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Start it again after a while.
    Retry(Duration),
    /// Leave it down until a person says otherwise.
    Eject,
}

/// Remembers how a server fared since a person last asked for a fresh start.
#[derive(Debug)]
pub struct Recovery {
    place: Place,
    backoff: Backoff,
    budget: RestartBudget,
    /// Whether it has served.
    served: bool,
    /// Failures in a row.
    failures: u32,
    /// Whether a restart was spent that has not begun.
    due: bool,
}

impl Recovery {
    /// Returns the memory of a server of which nothing was seen yet.
    #[must_use]
    pub const fn new(place: Place, backoff: Backoff, restart: RestartPolicy) -> Self {
        Self {
            place,
            backoff,
            budget: RestartBudget::new(restart),
            served: false,
            failures: 0,
            due: false,
        }
    }

    /// A start begins. Where it was put off, it counts from now on.
    pub fn begins(&mut self, now: Now) {
        if std::mem::take(&mut self.due) {
            self.budget.put_off(now);
        }
    }

    /// It serves.
    pub const fn served(&mut self) {
        self.served = true;
    }

    /// It served long enough to have overcome whatever ailed it.
    pub const fn recovered(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and decides what comes next; `jitter` is any number.
    ///
    /// A server that never served may only be waiting for something: it is retried slowly for
    /// ever. A process that served and keeps dying is ejected. A server that runs elsewhere is
    /// retried for ever: often while it cannot be reached, slowly while it refuses us. However a
    /// server fails, no more processes are started than the budget allows.
    pub fn failed(&mut self, failure: Failure, now: Now, jitter: u64) -> Next {
        if failure == Failure::ProgramNotFound {
            // No process ran: nothing is counted, and only a person can change the next outcome.
            let rare = Backoff {
                base: SLOW_WAIT_MAX,
                cap: SLOW_WAIT_MAX,
            };
            return Next::Retry(rare.wait(1, jitter));
        }
        self.failures = self.failures.saturating_add(1);
        let slow = Backoff {
            base: self.backoff.base,
            cap: SLOW_WAIT_MAX.max(self.backoff.cap),
        };
        let remote = Backoff {
            base: self.backoff.base,
            cap: REMOTE_WAIT_MAX.min(self.backoff.cap),
        };
        let wait = |pace: Backoff| pace.wait(self.failures, jitter);
        match (failure, self.place, self.served) {
            (Failure::Lost | Failure::Unreachable | Failure::Away, Place::Remote, _) => {
                Next::Retry(wait(remote))
            }
            (Failure::Unstarted, Place::Remote, _)
            | (Failure::Away, Place::Child, _)
            | (Failure::ProgramNotFound, _, _) => Next::Retry(wait(slow)),
            (Failure::Unstarted | Failure::Unreachable, Place::Child, false) => {
                let at = self.budget.allowed_from(now.plus(wait(slow)));
                self.budget.spend(at);
                self.due = true;
                Next::Retry(now.until(at))
            }
            (Failure::Unstarted | Failure::Unreachable, Place::Child, true)
            | (Failure::Lost, Place::Child, _) => {
                let wait = wait(self.backoff);
                match self.budget.spend(now.plus(wait)) {
                    Verdict::Restart => {
                        self.due = true;
                        Next::Retry(wait)
                    }
                    Verdict::Eject => Next::Eject,
                }
            }
        }
    }

    /// Returns how many restarts are counted against the budget.
    #[must_use]
    pub fn spent(&self) -> u32 {
        self.budget.spent()
    }

    /// Returns how often in a row it failed.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Forgets everything: a person asked for a fresh start.
    pub fn reset(&mut self) {
        self.served = false;
        self.failures = 0;
        self.due = false;
        self.budget.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(5),
    };

    const RESTART: RestartPolicy = RestartPolicy {
        restarts_max: 2,
        window: Duration::from_secs(300),
    };

    /// `s` serves, `l` loses the link, `u` cannot be started, `n` cannot be reached, `a` loses the
    /// way, `p` has no program; prints the waits in seconds, or `e`.
    /// Time passes as long as was to be waited.
    fn check(place: Place, script: &str, expect: &[&str]) {
        let mut recovery = Recovery::new(place, BACKOFF, RESTART);
        let mut now = Now(0);
        let mut seen = Vec::new();
        for step in script.chars() {
            let failure = match step {
                's' => {
                    recovery.served();
                    continue;
                }
                'l' => Failure::Lost,
                'u' => Failure::Unstarted,
                'n' => Failure::Unreachable,
                'a' => Failure::Away,
                'p' => Failure::ProgramNotFound,
                other => panic!("unknown step {other}"),
            };
            match recovery.failed(failure, now, 0) {
                Next::Retry(wait) => {
                    now = now.plus(wait);
                    seen.push(wait.as_secs().to_string());
                }
                Next::Eject => seen.push("e".to_owned()),
            }
        }
        assert_eq!(seen, expect, "{script}");
    }

    #[test]
    fn a_child_that_never_served_is_retried_for_ever_within_its_budget() {
        // The third start waits until the first is forgotten, 300 s after it.
        check(Place::Child, "uuuuuu", &["1", "2", "298", "8", "292", "32"]);
    }

    #[test]
    fn a_child_that_served_is_ejected_when_its_budget_is_gone() {
        check(Place::Child, "slll", &["1", "2", "e"]);
        check(Place::Child, "sluu", &["1", "2", "e"]);
        check(Place::Child, "usluu", &["1", "2", "e", "e"]);
    }

    #[test]
    fn a_way_that_fails_is_never_held_against_the_server_at_its_end() {
        check(
            Place::Child,
            "saaaalll",
            &["1", "2", "4", "8", "5", "5", "e"],
        );
        check(Place::Child, "aaslll", &["1", "2", "4", "5", "e"]);
    }

    #[test]
    fn missing_program_spends_no_restart_and_is_retried_slowly() {
        check(Place::Child, "pppp", &["60", "60", "60", "60"]);
        check(
            Place::Child,
            "slppplpl",
            &["1", "60", "60", "60", "2", "60", "e"],
        );
    }

    #[test]
    fn remote_server_is_never_ejected() {
        // Waits are capped at 1.5 s, and printed in whole seconds.
        check(Place::Remote, "slslslslsl", &["1"; 5]);
        check(Place::Remote, "slnnnnnnnn", &["1"; 9]);
        check(Place::Remote, "nnnnaaaa", &["1"; 8]);
        let mut recovery = Recovery::new(Place::Remote, BACKOFF, RESTART);
        for _ in 0..50 {
            recovery.served();
            let next = recovery.failed(Failure::Lost, Now(0), 0);
            assert!(matches!(next, Next::Retry(wait) if wait <= REMOTE_WAIT_MAX));
        }
        assert_eq!(recovery.spent(), 0, "the budget is for processes");
    }

    #[test]
    fn remote_server_that_refuses_us_is_retried_slowly() {
        check(
            Place::Remote,
            "uuuuuuu",
            &["1", "2", "4", "8", "16", "32", "60"],
        );
    }

    #[test]
    fn a_start_that_had_to_wait_counts_from_when_it_began() {
        let mut recovery = Recovery::new(Place::Child, BACKOFF, RESTART);
        let second = Duration::from_secs(1);
        assert_eq!(
            recovery.failed(Failure::Unstarted, Now(0), 0),
            Next::Retry(second)
        );
        recovery.begins(Now(41_000));
        assert_eq!(
            recovery.failed(Failure::Unstarted, Now(41_000), 0),
            Next::Retry(2 * second)
        );
        recovery.begins(Now(43_000));
        let next = recovery.failed(Failure::Unstarted, Now(43_000), 0);
        assert_eq!(next, Next::Retry(298 * second), "300 s after it began");
    }

    #[test]
    fn a_fresh_start_forgets_that_it_served_and_what_it_spent() {
        let mut recovery = Recovery::new(Place::Child, BACKOFF, RESTART);
        recovery.served();
        for _ in 0..3 {
            recovery.failed(Failure::Lost, Now(0), 0);
        }
        recovery.reset();
        assert_eq!((recovery.spent(), recovery.failures()), (0, 0));
        let next = recovery.failed(Failure::Unstarted, Now(0), 0);
        assert_eq!(next, Next::Retry(Duration::from_secs(1)));
    }
}
