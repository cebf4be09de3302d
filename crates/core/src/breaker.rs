//! Stops calling a server that keeps failing, and probes it with one call when rest is over.

use std::time::Duration;

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

/// One server's breaker.
#[derive(Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// Counts openings, so that a call let through before one cannot close it afterwards.
    epoch: u64,
    /// The newest link whose loss was counted: many calls may go down with one link.
    lost: Option<u64>,
    /// What was told of it last.
    told: Circuit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Now },
    Probing,
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
    /// It could not be reached or kept silent.
    Bad,
    /// It died with the call: the loss of one link counts once, however many calls it held.
    Lost {
        /// Which of the server's links it was.
        generation: u64,
    },
    /// The caller went away before the server could show anything.
    Untold,
}

/// Proof of admission, handed back with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    epoch: u64,
    probe: bool,
}

impl Breaker {
    /// Returns a closed breaker.
    #[must_use]
    pub const fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: State::Closed { failures: 0 },
            epoch: 0,
            lost: None,
            told: Circuit::Closed,
        }
    }

    /// Admits a call, or says how long the rest still lasts.
    pub fn admit(&mut self, now: Now) -> Result<Pass, Duration> {
        let probe = match self.state {
            State::Closed { .. } => false,
            State::Open { until } if now < until => return Err(now.until(until)),
            State::Open { .. } => {
                self.state = State::Probing;
                true
            }
            State::Probing => return Err(Duration::ZERO),
        };
        Ok(Pass {
            epoch: self.epoch,
            probe,
        })
    }

    /// Records the end of a call that [`admit`](Self::admit) let through.
    ///
    /// A call from before the breaker opened says nothing about the server of today.
    pub fn record(&mut self, pass: Pass, health: Health, now: Now) {
        if pass.epoch != self.epoch {
            return;
        }
        let health = match health {
            Health::Lost { generation } if self.lost >= Some(generation) => Health::Untold,
            Health::Lost { generation } => {
                self.lost = Some(generation);
                Health::Bad
            }
            told => told,
        };
        match (health, self.state) {
            (Health::Good, State::Closed { .. } | State::Probing) => {
                self.state = State::Closed { failures: 0 };
            }
            (Health::Bad, State::Closed { failures })
                if failures.saturating_add(1) < self.policy.failures_max =>
            {
                self.state = State::Closed {
                    failures: failures.saturating_add(1),
                };
            }
            (Health::Bad, State::Closed { .. } | State::Probing) => {
                self.epoch = self.epoch.wrapping_add(1);
                self.state = State::Open {
                    until: now.plus(self.policy.rest),
                };
            }
            (Health::Untold, State::Probing) if pass.probe => {
                self.state = State::Open { until: now };
            }
            (Health::Untold | Health::Lost { .. }, _) | (_, State::Open { .. }) => {}
        }
    }

    /// Closes the breaker: a person asked for a fresh start.
    pub const fn reset(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = State::Closed { failures: 0 };
    }

    /// Returns what a person sees, at `now`.
    #[must_use]
    pub fn circuit(&self, now: Now) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::Open { until } if now < until => Circuit::Open,
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

    /// Returns how long calls are still refused, if they are.
    #[must_use]
    pub fn rest(&self, now: Now) -> Option<Duration> {
        match self.state {
            State::Open { until } if now < until => Some(now.until(until)),
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

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures_max: 2,
        rest: Duration::from_millis(100),
    };

    /// `?` asks and prints y or n; `f`, `g`, `u` end the oldest admitted call badly, well or
    /// untold; `.` passes 50 ms.
    fn check(script: &str, expect: &str) {
        let mut breaker = Breaker::new(POLICY);
        let mut now = Now(0);
        let mut seen = String::new();
        let mut passes = std::collections::VecDeque::new();
        for step in script.chars() {
            let health = match step {
                'f' => Health::Bad,
                'g' => Health::Good,
                'u' => Health::Untold,
                '.' => {
                    now = now.plus(Duration::from_millis(50));
                    continue;
                }
                '?' => {
                    let admitted = breaker.admit(now);
                    seen.push(if admitted.is_ok() { 'y' } else { 'n' });
                    passes.extend(admitted);
                    continue;
                }
                other => panic!("unknown step {other}"),
            };
            breaker.record(passes.pop_front().unwrap(), health, now);
        }
        assert_eq!(seen, expect, "{script}");
    }

    #[test]
    fn rests_after_repeated_failures_and_probes_once() {
        check("?f?f?", "yyn");
        check("??ff?..??", "yynyn");
        check("??ff..?g??", "yyyyy");
        check("??ff..?f?..?", "yyyny");
        check("???fgf?", "yyyy");
    }

    #[test]
    fn a_vanished_probe_does_not_wedge_the_breaker() {
        check("??ff..?u?", "yyyy");
    }

    #[test]
    fn many_calls_lost_with_one_link_count_once() {
        let mut breaker = Breaker::new(POLICY);
        let now = Now(0);
        for generation in [1, 1, 1, 1] {
            let pass = breaker.admit(now).unwrap();
            breaker.record(pass, Health::Lost { generation }, now);
        }
        assert_eq!(breaker.failures(), 1);
        let pass = breaker.admit(now).unwrap();
        breaker.record(pass, Health::Lost { generation: 2 }, now);
        assert!(
            breaker.admit(now).is_err(),
            "the loss of another link counts"
        );
    }

    #[test]
    fn it_opens_exactly_at_its_limit_and_half_opens_when_rest_is_over() {
        let mut breaker = Breaker::new(BreakerPolicy {
            failures_max: 5,
            rest: Duration::from_millis(100),
        });
        for failures in 1..=5 {
            let pass = breaker.admit(Now(0)).unwrap();
            breaker.record(pass, Health::Bad, Now(0));
            let open = failures == 5;
            let expect = if open { Circuit::Open } else { Circuit::Closed };
            assert_eq!(breaker.circuit(Now(0)), expect, "{failures}");
            assert_eq!(breaker.failures(), failures);
        }
        assert_eq!(breaker.circuit(Now(99)), Circuit::Open);
        assert_eq!(breaker.circuit(Now(100)), Circuit::HalfOpen);
    }

    #[test]
    fn a_success_zeroes_the_failures_and_closes_it() {
        let mut breaker = Breaker::new(POLICY);
        let pass = breaker.admit(Now(0)).unwrap();
        breaker.record(pass, Health::Bad, Now(0));
        assert_eq!(breaker.failures(), 1);
        breaker.record(pass, Health::Good, Now(0));
        assert_eq!(breaker.failures(), 0);
        for _ in 0..2 {
            breaker.record(pass, Health::Bad, Now(0));
        }
        let probe = breaker.admit(Now(100)).unwrap();
        breaker.record(probe, Health::Good, Now(100));
        assert_eq!(breaker.failures(), 0);
        assert_eq!(breaker.circuit(Now(100)), Circuit::Closed);
    }

    #[test]
    fn each_change_of_the_circuit_is_news_once() {
        let mut breaker = Breaker::new(POLICY);
        assert_eq!(breaker.news(Now(0)), None);
        let pass = breaker.admit(Now(0)).unwrap();
        for news in [None, Some(Circuit::Open)] {
            breaker.record(pass, Health::Bad, Now(0));
            assert_eq!(breaker.news(Now(0)), news);
            assert_eq!(breaker.news(Now(0)), None);
        }
        let probe = breaker.admit(Now(100)).unwrap();
        assert_eq!(breaker.news(Now(100)), Some(Circuit::HalfOpen));
        breaker.record(probe, Health::Untold, Now(120));
        assert_eq!(breaker.news(Now(120)), None, "it waits for another probe");
        let probe = breaker.admit(Now(120)).unwrap();
        assert_eq!(breaker.news(Now(120)), None);
        breaker.record(probe, Health::Good, Now(130));
        assert_eq!(breaker.news(Now(130)), Some(Circuit::Closed));
    }

    #[test]
    fn a_late_success_from_before_the_opening_does_not_close_it() {
        check("???ffg?", "yyyn");
    }
}
