//! Stops calling a server that keeps failing, and finds out when it may be called again.
//!
//! The breaker counts events, not calls: all calls that are lost in one outage are one failure. An
//! outage ends when the server can be reached again, which reachability checks find out; a rest of
//! a fixed length is for servers that can be reached and do not answer.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::time::Now;

/// When a breaker opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it.
    pub failures_max: u32,
    /// How long it stays open before one probe is let through.
    pub rest: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures_max: 5,
            rest: Duration::from_secs(30),
        }
    }
}

/// When a server whose breaker is open is asked whether it can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckPolicy {
    /// The waits between checks.
    pub backoff: Backoff,
    /// Any number, different for each server, so that servers that fail together are not checked
    /// together.
    pub seed: u64,
}

/// One server's breaker.
#[derive(Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    /// Absent where nothing checks whether the server can be reached.
    check_policy: Option<CheckPolicy>,
    state: State,
    /// Counts openings, so that a call let through before one cannot close it afterwards.
    epoch: u64,
    /// The newest link whose loss was counted: many calls may go down with one link.
    lost: Option<u64>,
    /// Outages counted so far; a call admitted before the last one is lost with it.
    outages: u64,
    /// Reachability checks since the last call that was answered.
    checks: u32,
    /// What was told of it last.
    told: Circuit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Now, check: Option<Check> },
    Probing,
}

/// The next reachability check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Check {
    due: Now,
    /// Whether the server could not be reached when it was last seen: then the check decides when
    /// calls are admitted again.
    is_away: bool,
}

/// One reachability check, handed back with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkup {
    epoch: u64,
    /// When it is due.
    pub due: Now,
}

/// What a person sees of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open,
    /// One call may pass, or is on its way, to see whether the server is well again.
    HalfOpen,
}

impl Circuit {
    /// Returns the word used in status and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// How an admitted call ended, as far as the server's health is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answered, be it with an error of the tool.
    Good,
    /// It kept silent, or refuses calls for now. Each such call counts.
    Bad,
    /// It could not be reached, or was lost with the call. One outage counts once, however many
    /// calls are lost in it.
    Lost {
        /// Which of the server's links ended; none where the link stands.
        generation: Option<u64>,
    },
    /// The caller went away before the server could show anything.
    Untold,
}

/// Proof of admission, handed back with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    epoch: u64,
    probe: bool,
    /// The outages that were counted when the call was admitted.
    outages: u64,
}

impl Breaker {
    /// Returns a closed breaker.
    #[must_use]
    pub const fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            check_policy: None,
            state: State::Closed { failures: 0 },
            epoch: 0,
            lost: None,
            outages: 0,
            checks: 0,
            told: Circuit::Closed,
        }
    }

    /// Returns a closed breaker whose owner carries out reachability checks while it is open.
    #[must_use]
    pub const fn with_checks(policy: BreakerPolicy, checks: CheckPolicy) -> Self {
        Self {
            check_policy: Some(checks),
            ..Self::new(policy)
        }
    }

    /// Admits a call, or says how long calls are still refused.
    pub fn admit(&mut self, now: Now) -> Result<Pass, Duration> {
        let probe = match self.state {
            State::Closed { .. } => false,
            State::Open { until, check } if now < until => {
                return Err(remaining(until, check, now));
            }
            State::Open { .. } => {
                self.state = State::Probing;
                true
            }
            State::Probing => return Err(Duration::ZERO),
        };
        Ok(Pass {
            epoch: self.epoch,
            probe,
            outages: self.outages,
        })
    }

    /// Records the end of a call that [`admit`](Self::admit) let through.
    ///
    /// A call from before the breaker opened says nothing about the server of today.
    pub fn record(&mut self, pass: Pass, health: Health, now: Now) {
        if pass.epoch != self.epoch {
            return;
        }
        let is_away = match health {
            Health::Good => return self.answered(),
            Health::Untold => return self.untold(pass, now),
            Health::Lost { generation } => {
                if !self.is_new_outage(pass, generation) {
                    return self.untold(pass, now);
                }
                true
            }
            Health::Bad => false,
        };
        match self.state {
            State::Closed { failures } if failures.saturating_add(1) < self.policy.failures_max => {
                self.state = State::Closed {
                    failures: failures.saturating_add(1),
                };
            }
            State::Closed { .. } | State::Probing => self.open(is_away, now),
            State::Open { .. } => {}
        }
    }

    const fn answered(&mut self) {
        if let State::Closed { .. } | State::Probing = self.state {
            self.state = State::Closed { failures: 0 };
            self.checks = 0;
        }
    }

    /// A probe that shows nothing makes room for the next one.
    fn untold(&mut self, pass: Pass, now: Now) {
        if pass.probe && self.state == State::Probing {
            self.state = State::Open {
                until: now,
                check: None,
            };
        }
    }

    /// Whether a lost call is the first one of its outage, which then is counted.
    fn is_new_outage(&mut self, pass: Pass, generation: Option<u64>) -> bool {
        if pass.outages < self.outages {
            return false;
        }
        if generation.is_some() {
            if self.lost >= generation {
                return false;
            }
            self.lost = generation;
        }
        self.outages = self.outages.saturating_add(1);
        true
    }

    fn open(&mut self, is_away: bool, now: Now) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = State::Open {
            until: now.plus(self.policy.rest),
            check: self.schedule_check(is_away, now),
        };
    }

    /// Checks grow rarer until a call is answered, also where the breaker closes in between.
    fn schedule_check(&mut self, is_away: bool, now: Now) -> Option<Check> {
        let policy = self.check_policy?;
        self.checks = self.checks.saturating_add(1);
        let jitter = policy.seed.wrapping_add(u64::from(self.checks) * 89);
        Some(Check {
            due: now.plus(policy.backoff.wait(self.checks, jitter)),
            is_away,
        })
    }

    /// Returns the reachability check that comes next, where one is needed.
    #[must_use]
    pub const fn next_check(&self) -> Option<Checkup> {
        match self.state {
            State::Open {
                check: Some(Check { due, .. }),
                ..
            } => Some(Checkup {
                epoch: self.epoch,
                due,
            }),
            State::Open { check: None, .. } | State::Closed { .. } | State::Probing => None,
        }
    }

    /// Records the outcome of a reachability check.
    ///
    /// A server that was away and is reached is called again, and one further failure opens the
    /// breaker. A server that is reached and had kept silent rests on: what it does not answer is
    /// calls, not checks. A server that is not reached is away, whatever was known before.
    pub fn record_check(&mut self, checkup: Checkup, is_reached: bool, now: Now) {
        let State::Open {
            until,
            check: Some(check),
        } = self.state
        else {
            return;
        };
        if checkup.epoch != self.epoch {
            return;
        }
        match (is_reached, check.is_away) {
            (true, true) => self.reached(),
            (true, false) => self.state = State::Open { until, check: None },
            (false, _) => {
                self.state = State::Open {
                    // Calls do not probe while checks do.
                    until: now.plus(self.policy.rest),
                    check: self.schedule_check(true, now),
                }
            }
        }
    }

    /// Ends an outage: the server was reached, by a check or by a new link.
    pub const fn reached(&mut self) {
        if let State::Open {
            check: Some(Check { is_away: true, .. }),
            ..
        } = self.state
        {
            self.state = State::Closed {
                failures: self.policy.failures_max.saturating_sub(1),
            };
        }
    }

    /// Closes the breaker: a person asked for a fresh start.
    pub const fn reset(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = State::Closed { failures: 0 };
        self.checks = 0;
    }

    /// Returns what a person sees, at `now`.
    #[must_use]
    pub fn circuit(&self, now: Now) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::Open { until, .. } if now < until => Circuit::Open,
            State::Open { .. } | State::Probing => Circuit::HalfOpen,
        }
    }

    /// Returns what a person sees, where that is not what was returned here before: each change
    /// is told once.
    pub fn news(&mut self, now: Now) -> Option<Circuit> {
        let circuit = self.circuit(now);
        let told = std::mem::replace(&mut self.told, circuit);
        (told != circuit).then_some(circuit)
    }

    /// Returns how long calls are still refused, if they are; until the next reachability check,
    /// where that decides.
    #[must_use]
    pub fn rest(&self, now: Now) -> Option<Duration> {
        match self.state {
            State::Open { until, check } if now < until => Some(remaining(until, check, now)),
            State::Open { .. } | State::Closed { .. } | State::Probing => None,
        }
    }

    /// Returns the failures in a row; an open breaker has at least its limit.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        match self.state {
            State::Closed { failures } => failures,
            State::Open { .. } | State::Probing => self.policy.failures_max,
        }
    }
}

const fn remaining(until: Now, check: Option<Check>, now: Now) -> Duration {
    match check {
        Some(Check { due, is_away: true }) => now.until(due),
        Some(_) | None => now.until(until),
    }
}

#[cfg(test)]
mod tests;
