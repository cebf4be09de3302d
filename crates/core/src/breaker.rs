//! Circuit breaker: stops calls to a failing server and detects recovery.
//!
//! The breaker counts events, not calls: all calls lost in an outage count as a single failure.
//! Reachability checks detect the end of an outage. A fixed cooldown applies to servers that are
//! reachable but do not respond.

use std::time::Duration;

use crate::retry::Retry;
use crate::time::MonotonicTime;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Consecutive failures that open the breaker.
    pub failures_max: u32,
    /// Time in the open state before the breaker admits one probe.
    pub cooldown: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures_max: 5,
            cooldown: Duration::from_secs(30),
        }
    }
}

/// The circuit breaker of one server.
#[derive(Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    /// Reachability checks since the last response, with their waits; absent if the owner runs no
    /// checks.
    checks: Option<Retry>,
    state: BreakerState,
    /// Counts openings, so that a call admitted before an opening cannot close the breaker.
    epoch: u64,
    /// The newest link with a counted loss. Many calls may be lost with one link.
    last_lost_generation: Option<u64>,
    /// Outages counted so far. A call admitted before the last outage belongs to the outage.
    outage_count: u64,
    /// The state last returned by [`Breaker::take_transition`].
    last_reported: CircuitState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed {
        failures: u32,
    },
    Open {
        until: MonotonicTime,
        check: Option<ScheduledCheck>,
    },
    Probing,
}

/// The next reachability check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScheduledCheck {
    due: MonotonicTime,
    /// Whether the server was unreachable when last seen. If so, the check decides when calls are
    /// admitted again.
    is_unreachable: bool,
}

/// A reachability check, passed back to the breaker with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachabilityCheck {
    epoch: u64,
    /// When the check is due.
    pub due: MonotonicTime,
}

/// The state shown in status and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open,
    /// One probe call may pass or is in flight.
    HalfOpen,
}

impl CircuitState {
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

/// Health of the server, as shown by the outcome of an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthSignal {
    /// The server responded, possibly with a tool error.
    Healthy,
    /// The server did not respond, or throttles. Each such call counts.
    Unhealthy,
    /// The server was unreachable, or the connection was lost during the call. One outage counts
    /// once, regardless of the number of lost calls.
    Lost {
        /// The generation of the lost link; `None` if the link is still up.
        generation: Option<u64>,
    },
    /// The call was cancelled before the server could respond.
    Unknown,
}

/// Proof of admission, passed back to the breaker with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerAdmission {
    epoch: u64,
    is_probe: bool,
    /// The outage count at admission.
    outage_count: u64,
}

impl Breaker {
    /// Returns a closed breaker.
    #[must_use]
    pub const fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            checks: None,
            state: BreakerState::Closed { failures: 0 },
            epoch: 0,
            last_lost_generation: None,
            outage_count: 0,
            last_reported: CircuitState::Closed,
        }
    }

    /// Returns a closed breaker whose owner runs reachability checks in the open state.
    #[must_use]
    pub fn with_checks(policy: BreakerPolicy, checks: Retry) -> Self {
        Self {
            checks: Some(checks),
            ..Self::new(policy)
        }
    }

    /// Admits a call, or returns how long calls are still refused.
    pub fn admit_call(&mut self, now: MonotonicTime) -> Result<BreakerAdmission, Duration> {
        let probe = match self.state {
            BreakerState::Closed { .. } => false,
            BreakerState::Open { until, check } if now < until => {
                return Err(remaining_refusal(until, check, now));
            }
            BreakerState::Open { .. } => {
                self.state = BreakerState::Probing;
                true
            }
            BreakerState::Probing => return Err(Duration::ZERO),
        };
        Ok(BreakerAdmission {
            epoch: self.epoch,
            is_probe: probe,
            outage_count: self.outage_count,
        })
    }

    /// Records the outcome of a call admitted by [`admit_call`](Self::admit_call).
    ///
    /// Calls admitted before the last opening are ignored: they are no evidence of current health.
    pub fn record_outcome(
        &mut self,
        admission: BreakerAdmission,
        health: HealthSignal,
        now: MonotonicTime,
    ) {
        if admission.epoch != self.epoch {
            return;
        }
        let is_away = match health {
            HealthSignal::Healthy => return self.on_success(),
            HealthSignal::Unknown => return self.release_probe(admission, now),
            HealthSignal::Lost { generation } => {
                if !self.count_outage(admission, generation) {
                    return self.release_probe(admission, now);
                }
                true
            }
            HealthSignal::Unhealthy => false,
        };
        match self.state {
            BreakerState::Closed { failures }
                if failures.saturating_add(1) < self.policy.failures_max =>
            {
                self.state = BreakerState::Closed {
                    failures: failures.saturating_add(1),
                };
            }
            BreakerState::Closed { .. } | BreakerState::Probing => self.trip(is_away, now),
            BreakerState::Open { .. } => {}
        }
    }

    const fn on_success(&mut self) {
        if let BreakerState::Closed { .. } | BreakerState::Probing = self.state {
            self.state = BreakerState::Closed { failures: 0 };
            self.reset_checks();
        }
    }

    /// Frees the probe slot after a probe without evidence.
    fn release_probe(&mut self, admission: BreakerAdmission, now: MonotonicTime) {
        if admission.is_probe && self.state == BreakerState::Probing {
            self.state = BreakerState::Open {
                until: now,
                check: None,
            };
        }
    }

    /// Counts an outage if the lost call is the first of the outage; returns whether it was.
    fn count_outage(&mut self, admission: BreakerAdmission, generation: Option<u64>) -> bool {
        if admission.outage_count < self.outage_count {
            return false;
        }
        if generation.is_some() {
            if self.last_lost_generation >= generation {
                return false;
            }
            self.last_lost_generation = generation;
        }
        self.outage_count = self.outage_count.saturating_add(1);
        true
    }

    fn trip(&mut self, is_away: bool, now: MonotonicTime) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = BreakerState::Open {
            until: now.plus(self.policy.cooldown),
            check: self.schedule_check(is_away, now),
        };
    }

    /// Check intervals grow until the next response, even if the breaker closes in between.
    fn schedule_check(&mut self, is_away: bool, now: MonotonicTime) -> Option<ScheduledCheck> {
        Some(ScheduledCheck {
            due: now.plus(self.checks.as_mut()?.next_wait(now)),
            is_unreachable: is_away,
        })
    }

    /// Returns the next reachability check, if needed.
    #[must_use]
    pub const fn next_check(&self) -> Option<ReachabilityCheck> {
        match self.state {
            BreakerState::Open {
                check: Some(ScheduledCheck { due, .. }),
                ..
            } => Some(ReachabilityCheck {
                epoch: self.epoch,
                due,
            }),
            BreakerState::Open { check: None, .. }
            | BreakerState::Closed { .. }
            | BreakerState::Probing => None,
        }
    }

    /// Records the outcome of a reachability check.
    ///
    /// If an unreachable server is reachable again, the breaker closes; one further failure reopens
    /// the breaker. If the server was reachable but unresponsive, the cooldown continues, because a
    /// check does not prove that calls succeed. A failed check marks the server unreachable.
    pub fn record_check(
        &mut self,
        checkup: ReachabilityCheck,
        is_reached: bool,
        now: MonotonicTime,
    ) {
        let BreakerState::Open {
            until,
            check: Some(check),
        } = self.state
        else {
            return;
        };
        if checkup.epoch != self.epoch {
            return;
        }
        match (is_reached, check.is_unreachable) {
            (true, true) => self.mark_reachable(),
            (true, false) => self.state = BreakerState::Open { until, check: None },
            (false, _) => {
                self.state = BreakerState::Open {
                    // Checks replace probe calls until a check succeeds.
                    until: now.plus(self.policy.cooldown),
                    check: self.schedule_check(true, now),
                }
            }
        }
    }

    /// Ends an outage after a successful check or a new link.
    pub const fn mark_reachable(&mut self) {
        if let BreakerState::Open {
            check:
                Some(ScheduledCheck {
                    is_unreachable: true,
                    ..
                }),
            ..
        } = self.state
        {
            self.state = BreakerState::Closed {
                failures: self.policy.failures_max.saturating_sub(1),
            };
        }
    }

    /// Closes the breaker on an operator's request.
    pub const fn reset(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = BreakerState::Closed { failures: 0 };
        self.reset_checks();
    }

    const fn reset_checks(&mut self) {
        if let Some(checks) = &mut self.checks {
            checks.reset();
        }
    }

    /// Returns the state at `now`, for status and events.
    #[must_use]
    pub fn circuit_state(&self, now: MonotonicTime) -> CircuitState {
        match self.state {
            BreakerState::Closed { .. } => CircuitState::Closed,
            BreakerState::Open { until, .. } if now < until => CircuitState::Open,
            BreakerState::Open { .. } | BreakerState::Probing => CircuitState::HalfOpen,
        }
    }

    /// Returns the state if changed since the last call, so that each transition is reported once.
    pub fn take_transition(&mut self, now: MonotonicTime) -> Option<CircuitState> {
        let circuit = self.circuit_state(now);
        let previous = std::mem::replace(&mut self.last_reported, circuit);
        (previous != circuit).then_some(circuit)
    }

    /// Returns how long calls are still refused, if at all: until the next reachability check for
    /// an unreachable server, otherwise until the end of the cooldown.
    #[must_use]
    pub fn remaining_cooldown(&self, now: MonotonicTime) -> Option<Duration> {
        match self.state {
            BreakerState::Open { until, check } if now < until => {
                Some(remaining_refusal(until, check, now))
            }
            BreakerState::Open { .. } | BreakerState::Closed { .. } | BreakerState::Probing => None,
        }
    }

    /// Returns the consecutive failures; at least the limit for an open breaker.
    #[must_use]
    pub const fn failure_count(&self) -> u32 {
        match self.state {
            BreakerState::Closed { failures } => failures,
            BreakerState::Open { .. } | BreakerState::Probing => self.policy.failures_max,
        }
    }
}

const fn remaining_refusal(
    until: MonotonicTime,
    check: Option<ScheduledCheck>,
    now: MonotonicTime,
) -> Duration {
    match check {
        Some(ScheduledCheck {
            due,
            is_unreachable: true,
        }) => now.duration_until(due),
        Some(_) | None => now.duration_until(until),
    }
}

#[cfg(test)]
mod tests;
