//! Recovery of a failed server: quick restart, slow retry, or ejection.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::restart_budget::{RestartBudget, RestartDecision, RestartPolicy};
use crate::retry::{JitterSource, Retry};
use crate::time::MonotonicTime;

/// Longest wait between slow retries.
pub const SLOW_WAIT_MAX: Duration = Duration::from_secs(60);

/// Longest wait between attempts to reach a remote server. An attempt costs a connection, and
/// callers are refused until an attempt succeeds.
pub const REMOTE_WAIT_MAX: Duration = Duration::from_millis(1_500);

/// Location of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerLocation {
    /// A child process; each attempt starts a process.
    Child,
    /// Remote; each attempt opens a connection.
    Remote,
}

/// Cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFailure {
    /// A working link ended.
    LinkLost,
    /// The link could not be established.
    StartFailed,
    /// The link could not be established, and no peer responded with a refusal.
    Unreachable,
    /// The program does not exist, so no process was started.
    ProgramNotFound,
    /// The path to the server failed, before or after service; the server itself may be fine.
    PathLost,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Restart after this wait.
    Retry(Duration),
    /// Stay down until an operator intervenes.
    Eject,
}

/// Failure history of a server since the last operator reset.
#[derive(Debug)]
pub struct ServerRecovery {
    location: ServerLocation,
    backoff: Backoff,
    budget: RestartBudget,
    /// Whether the server has served.
    has_served: bool,
    /// Consecutive failures.
    retry: Retry,
    /// Whether a charged restart has not started yet.
    restart_pending: bool,
}

impl ServerRecovery {
    /// Returns an empty history.
    #[must_use]
    pub const fn new(
        location: ServerLocation,
        backoff: Backoff,
        restart: RestartPolicy,
        jitter: JitterSource,
    ) -> Self {
        Self {
            location,
            backoff,
            budget: RestartBudget::new(restart),
            has_served: false,
            retry: Retry::new(backoff, jitter),
            restart_pending: false,
        }
    }

    /// Records a start. A delayed restart counts from now.
    pub fn on_start(&mut self, now: MonotonicTime) {
        if std::mem::take(&mut self.restart_pending) {
            self.budget.postpone_last(now);
        }
    }

    /// Records successful service.
    pub const fn on_served(&mut self) {
        self.has_served = true;
    }

    /// Resets the failure count after stable service.
    pub const fn on_recovered(&mut self) {
        self.retry.reset();
    }

    /// Records a failure and decides the next step.
    ///
    /// A server without any service may depend on something not ready yet: retried slowly forever.
    /// A child process that served and keeps dying is ejected. A remote server is retried forever:
    /// often while unreachable, slowly while refusing. In any case the restart budget limits
    /// process starts.
    pub fn on_failure(&mut self, failure: ServerFailure, now: MonotonicTime) -> RecoveryAction {
        if failure == ServerFailure::ProgramNotFound {
            // No process ran: no charge, and only an operator can change the next outcome.
            let rare = Backoff {
                base: SLOW_WAIT_MAX,
                cap: SLOW_WAIT_MAX,
            };
            return RecoveryAction::Retry(self.retry.wait_within(rare, now));
        }
        self.retry.count_failure();
        let slow = Backoff {
            base: self.backoff.base,
            cap: SLOW_WAIT_MAX.max(self.backoff.cap),
        };
        let remote = Backoff {
            base: self.backoff.base,
            cap: REMOTE_WAIT_MAX.min(self.backoff.cap),
        };
        let wait = |pace: Backoff| self.retry.wait_within(pace, now);
        match (failure, self.location, self.has_served) {
            (
                ServerFailure::LinkLost | ServerFailure::Unreachable | ServerFailure::PathLost,
                ServerLocation::Remote,
                _,
            ) => RecoveryAction::Retry(wait(remote)),
            (ServerFailure::StartFailed, ServerLocation::Remote, _)
            | (ServerFailure::PathLost, ServerLocation::Child, _)
            | (ServerFailure::ProgramNotFound, _, _) => RecoveryAction::Retry(wait(slow)),
            (
                ServerFailure::StartFailed | ServerFailure::Unreachable,
                ServerLocation::Child,
                false,
            ) => {
                let at = self.budget.next_allowed(now.plus(wait(slow)));
                self.budget.spend_restart(at);
                self.restart_pending = true;
                RecoveryAction::Retry(now.duration_until(at))
            }
            (
                ServerFailure::StartFailed | ServerFailure::Unreachable,
                ServerLocation::Child,
                true,
            )
            | (ServerFailure::LinkLost, ServerLocation::Child, _) => {
                let wait = wait(self.backoff);
                match self.budget.spend_restart(now.plus(wait)) {
                    RestartDecision::Restart => {
                        self.restart_pending = true;
                        RecoveryAction::Retry(wait)
                    }
                    RestartDecision::Eject => RecoveryAction::Eject,
                }
            }
        }
    }

    /// Returns the restarts charged to the budget.
    #[must_use]
    pub fn spent_restarts(&self) -> u32 {
        self.budget.spent_restarts()
    }

    /// Returns the consecutive failures.
    #[must_use]
    pub const fn failure_count(&self) -> u32 {
        self.retry.failures()
    }

    /// Clears the history on an operator's request.
    pub fn reset(&mut self) {
        self.has_served = false;
        self.retry.reset();
        self.restart_pending = false;
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

    fn new_recovery(place: ServerLocation) -> ServerRecovery {
        ServerRecovery::new(place, BACKOFF, RESTART, JitterSource::none())
    }

    /// `s` serves, `l` loses the link, `u` cannot be started, `n` cannot be reached, `a` loses the
    /// way, `p` has no program; prints the waits in seconds, or `e`.
    /// Time passes as long as was to be waited.
    fn assert_actions(place: ServerLocation, script: &str, expect: &[&str]) {
        let mut recovery = new_recovery(place);
        let mut now = MonotonicTime(0);
        let mut seen = Vec::new();
        for step in script.chars() {
            let failure = match step {
                's' => {
                    recovery.on_served();
                    continue;
                }
                'l' => ServerFailure::LinkLost,
                'u' => ServerFailure::StartFailed,
                'n' => ServerFailure::Unreachable,
                'a' => ServerFailure::PathLost,
                'p' => ServerFailure::ProgramNotFound,
                other => panic!("unknown step {other}"),
            };
            match recovery.on_failure(failure, now) {
                RecoveryAction::Retry(wait) => {
                    now = now.plus(wait);
                    seen.push(wait.as_secs().to_string());
                }
                RecoveryAction::Eject => seen.push("e".to_owned()),
            }
        }
        assert_eq!(seen, expect, "{script}");
    }

    #[test]
    fn unserved_child_retries_forever_within_budget() {
        // The third start waits until the first leaves the window, 300 s later.
        assert_actions(
            ServerLocation::Child,
            "uuuuuu",
            &["1", "2", "298", "8", "292", "32"],
        );
    }

    #[test]
    fn served_child_is_ejected_when_budget_spent() {
        assert_actions(ServerLocation::Child, "slll", &["1", "2", "e"]);
        assert_actions(ServerLocation::Child, "sluu", &["1", "2", "e"]);
        assert_actions(ServerLocation::Child, "usluu", &["1", "2", "e", "e"]);
    }

    #[test]
    fn path_loss_spends_no_restart() {
        assert_actions(
            ServerLocation::Child,
            "saaaalll",
            &["1", "2", "4", "8", "5", "5", "e"],
        );
        assert_actions(ServerLocation::Child, "aaslll", &["1", "2", "4", "5", "e"]);
    }

    #[test]
    fn missing_program_spends_no_restart() {
        assert_actions(ServerLocation::Child, "pppp", &["60", "60", "60", "60"]);
        assert_actions(
            ServerLocation::Child,
            "slppplpl",
            &["1", "60", "60", "60", "2", "60", "e"],
        );
    }

    #[test]
    fn remote_server_is_never_ejected() {
        // Waits are capped at 1.5 s, and printed in whole seconds.
        assert_actions(ServerLocation::Remote, "slslslslsl", &["1"; 5]);
        assert_actions(ServerLocation::Remote, "slnnnnnnnn", &["1"; 9]);
        assert_actions(ServerLocation::Remote, "nnnnaaaa", &["1"; 8]);
        let mut recovery = new_recovery(ServerLocation::Remote);
        for _ in 0..50 {
            recovery.on_served();
            let next = recovery.on_failure(ServerFailure::LinkLost, MonotonicTime(0));
            assert!(matches!(next, RecoveryAction::Retry(wait) if wait <= REMOTE_WAIT_MAX));
        }
        assert_eq!(recovery.spent_restarts(), 0, "the budget is for processes");
    }

    #[test]
    fn refusing_remote_server_is_retried_slowly() {
        assert_actions(
            ServerLocation::Remote,
            "uuuuuuu",
            &["1", "2", "4", "8", "16", "32", "60"],
        );
    }

    #[test]
    fn delayed_restart_counts_from_actual_start() {
        let mut recovery = new_recovery(ServerLocation::Child);
        let second = Duration::from_secs(1);
        assert_eq!(
            recovery.on_failure(ServerFailure::StartFailed, MonotonicTime(0)),
            RecoveryAction::Retry(second)
        );
        recovery.on_start(MonotonicTime(41_000));
        assert_eq!(
            recovery.on_failure(ServerFailure::StartFailed, MonotonicTime(41_000)),
            RecoveryAction::Retry(2 * second)
        );
        recovery.on_start(MonotonicTime(43_000));
        let next = recovery.on_failure(ServerFailure::StartFailed, MonotonicTime(43_000));
        assert_eq!(
            next,
            RecoveryAction::Retry(298 * second),
            "300 s after it began"
        );
    }

    #[test]
    fn reset_forgets_service_and_restarts() {
        let mut recovery = new_recovery(ServerLocation::Child);
        recovery.on_served();
        for _ in 0..3 {
            recovery.on_failure(ServerFailure::LinkLost, MonotonicTime(0));
        }
        recovery.reset();
        assert_eq!(
            (recovery.spent_restarts(), recovery.failure_count()),
            (0, 0)
        );
        let next = recovery.on_failure(ServerFailure::StartFailed, MonotonicTime(0));
        assert_eq!(next, RecoveryAction::Retry(Duration::from_secs(1)));
    }
}
