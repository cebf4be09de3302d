//! Breaker scripts with calls, outages and checks.

use super::*;
use crate::backoff::Backoff;
use crate::retry::JitterSource;

const POLICY: BreakerPolicy = BreakerPolicy {
    failures_max: 2,
    cooldown: Duration::from_millis(100),
};

const fn lost(generation: Option<u64>) -> HealthSignal {
    HealthSignal::Lost { generation }
}

/// `?` requests admission and prints y or n; `f`, `g`, `u` end the oldest admitted call as
/// unhealthy, healthy or unknown; `.` advances 50 ms.
fn assert_admissions(script: &str, expect: &str) {
    let mut breaker = Breaker::new(POLICY);
    let mut now = MonotonicTime(0);
    let mut seen = String::new();
    let mut passes = std::collections::VecDeque::new();
    for step in script.chars() {
        let health = match step {
            'f' => HealthSignal::Unhealthy,
            'g' => HealthSignal::Healthy,
            'u' => HealthSignal::Unknown,
            '.' => {
                now = now.plus(Duration::from_millis(50));
                continue;
            }
            '?' => {
                let admitted = breaker.admit_call(now);
                seen.push(if admitted.is_ok() { 'y' } else { 'n' });
                passes.extend(admitted);
                continue;
            }
            other => panic!("unknown step {other}"),
        };
        breaker.record_outcome(passes.pop_front().unwrap(), health, now);
    }
    assert_eq!(seen, expect, "{script}");
}

#[test]
fn breaker_opens_after_failures_and_probes_once() {
    assert_admissions("?f?f?", "yyn");
    assert_admissions("??ff?..??", "yynyn");
    assert_admissions("??ff..?g??", "yyyyy");
    assert_admissions("??ff..?f?..?", "yyyny");
    assert_admissions("???fgf?", "yyyy");
}

#[test]
fn cancelled_probe_does_not_wedge_breaker() {
    assert_admissions("??ff..?u?", "yyyy");
}

#[test]
fn calls_lost_with_one_link_count_once() {
    let mut breaker = Breaker::new(POLICY);
    let now = MonotonicTime(0);
    for generation in [1, 1, 1, 1] {
        let pass = breaker.admit_call(now).unwrap();
        breaker.record_outcome(pass, lost(Some(generation)), now);
    }
    assert_eq!(breaker.failure_count(), 1);
    let pass = breaker.admit_call(now).unwrap();
    breaker.record_outcome(pass, lost(Some(2)), now);
    assert!(
        breaker.admit_call(now).is_err(),
        "the loss of another link counts"
    );
}

#[test]
fn breaker_opens_at_limit_half_opens_after_cooldown() {
    let mut breaker = Breaker::new(BreakerPolicy {
        failures_max: 5,
        cooldown: Duration::from_millis(100),
    });
    for failures in 1..=5 {
        let pass = breaker.admit_call(MonotonicTime(0)).unwrap();
        breaker.record_outcome(pass, HealthSignal::Unhealthy, MonotonicTime(0));
        let open = failures == 5;
        let expect = if open {
            CircuitState::Open
        } else {
            CircuitState::Closed
        };
        assert_eq!(
            breaker.circuit_state(MonotonicTime(0)),
            expect,
            "{failures}"
        );
        assert_eq!(breaker.failure_count(), failures);
    }
    assert_eq!(breaker.circuit_state(MonotonicTime(99)), CircuitState::Open);
    assert_eq!(
        breaker.circuit_state(MonotonicTime(100)),
        CircuitState::HalfOpen
    );
}

#[test]
fn success_resets_failures_and_closes_breaker() {
    let mut breaker = Breaker::new(POLICY);
    let pass = breaker.admit_call(MonotonicTime(0)).unwrap();
    breaker.record_outcome(pass, HealthSignal::Unhealthy, MonotonicTime(0));
    assert_eq!(breaker.failure_count(), 1);
    breaker.record_outcome(pass, HealthSignal::Healthy, MonotonicTime(0));
    assert_eq!(breaker.failure_count(), 0);
    for _ in 0..2 {
        breaker.record_outcome(pass, HealthSignal::Unhealthy, MonotonicTime(0));
    }
    let probe = breaker.admit_call(MonotonicTime(100)).unwrap();
    breaker.record_outcome(probe, HealthSignal::Healthy, MonotonicTime(100));
    assert_eq!(breaker.failure_count(), 0);
    assert_eq!(
        breaker.circuit_state(MonotonicTime(100)),
        CircuitState::Closed
    );
}

#[test]
fn circuit_transition_is_reported_once() {
    let mut breaker = Breaker::new(POLICY);
    assert_eq!(breaker.take_transition(MonotonicTime(0)), None);
    let pass = breaker.admit_call(MonotonicTime(0)).unwrap();
    for news in [None, Some(CircuitState::Open)] {
        breaker.record_outcome(pass, HealthSignal::Unhealthy, MonotonicTime(0));
        assert_eq!(breaker.take_transition(MonotonicTime(0)), news);
        assert_eq!(breaker.take_transition(MonotonicTime(0)), None);
    }
    let probe = breaker.admit_call(MonotonicTime(100)).unwrap();
    assert_eq!(
        breaker.take_transition(MonotonicTime(100)),
        Some(CircuitState::HalfOpen)
    );
    breaker.record_outcome(probe, HealthSignal::Unknown, MonotonicTime(120));
    assert_eq!(
        breaker.take_transition(MonotonicTime(120)),
        None,
        "it waits for another probe"
    );
    let probe = breaker.admit_call(MonotonicTime(120)).unwrap();
    assert_eq!(breaker.take_transition(MonotonicTime(120)), None);
    breaker.record_outcome(probe, HealthSignal::Healthy, MonotonicTime(130));
    assert_eq!(
        breaker.take_transition(MonotonicTime(130)),
        Some(CircuitState::Closed)
    );
}

#[test]
fn late_success_does_not_close_open_breaker() {
    assert_admissions("???ffg?", "yyyn");
}

const CHECK_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(10),
    cap: Duration::from_millis(40),
};

/// Returns a breaker with checks, opened by sequential calls.
fn open_breaker(health: HealthSignal) -> Breaker {
    let mut breaker = Breaker::with_checks(POLICY, Retry::new(CHECK_BACKOFF, JitterSource::none()));
    for _ in 0..POLICY.failures_max {
        let pass = breaker.admit_call(MonotonicTime(0)).unwrap();
        breaker.record_outcome(pass, health, MonotonicTime(0));
    }
    assert_eq!(breaker.circuit_state(MonotonicTime(0)), CircuitState::Open);
    breaker
}

/// Runs the next check when due; returns the due time.
fn run_next_check(breaker: &mut Breaker, is_reached: bool) -> MonotonicTime {
    let checkup = breaker.next_check().unwrap();
    breaker.record_check(checkup, is_reached, checkup.due);
    checkup.due
}

#[test]
fn calls_lost_in_one_outage_count_once() {
    let mut breaker = Breaker::new(POLICY);
    let passes: Vec<_> = (0..8)
        .map(|_| breaker.admit_call(MonotonicTime(0)).unwrap())
        .collect();
    for pass in passes {
        breaker.record_outcome(pass, lost(None), MonotonicTime(1));
    }
    assert_eq!(breaker.failure_count(), 1);
    assert_eq!(
        breaker.circuit_state(MonotonicTime(1)),
        CircuitState::Closed
    );
    let later = breaker.admit_call(MonotonicTime(2)).unwrap();
    breaker.record_outcome(later, lost(None), MonotonicTime(2));
    assert_eq!(
        breaker.circuit_state(MonotonicTime(2)),
        CircuitState::Open,
        "new evidence"
    );
}

#[test]
fn each_call_timeout_counts_as_failure() {
    let mut breaker = Breaker::new(POLICY);
    let passes = [MonotonicTime(0), MonotonicTime(0)].map(|now| breaker.admit_call(now).unwrap());
    for pass in passes {
        breaker.record_outcome(pass, HealthSignal::Unhealthy, MonotonicTime(1));
    }
    assert_eq!(breaker.circuit_state(MonotonicTime(1)), CircuitState::Open);
}

#[test]
fn reachable_server_closes_breaker_before_cooldown() {
    let mut breaker = open_breaker(lost(None));
    assert!(breaker.admit_call(MonotonicTime(0)).unwrap_err() <= Duration::from_millis(10));
    let waits: Vec<_> = (0..5)
        .map(|_| run_next_check(&mut breaker, false).0)
        .collect();
    assert!(waits.windows(2).all(|pair| pair[1] - pair[0] <= 40));
    let last = waits.last().unwrap();
    assert!(*last > 100, "longer than the rest: {last}");
    assert_eq!(
        breaker.circuit_state(MonotonicTime(*last)),
        CircuitState::Open
    );

    let at = run_next_check(&mut breaker, true);
    assert_eq!(breaker.circuit_state(at), CircuitState::Closed);
    let passes: Vec<_> = (0..8).map(|_| breaker.admit_call(at).unwrap()).collect();
    breaker.record_outcome(passes[0], lost(None), at);
    assert_eq!(
        breaker.circuit_state(at),
        CircuitState::Open,
        "one more failure"
    );
    assert!(breaker.admit_call(at).unwrap_err() > Duration::from_millis(20));
}

#[test]
fn unresponsive_server_cools_down_unless_checks_fail() {
    let mut breaker = open_breaker(HealthSignal::Unhealthy);
    assert_eq!(
        breaker.remaining_cooldown(MonotonicTime(0)),
        Some(POLICY.cooldown)
    );
    run_next_check(&mut breaker, true);
    assert_eq!(breaker.next_check(), None, "it is there");
    assert_eq!(breaker.circuit_state(MonotonicTime(99)), CircuitState::Open);
    assert_eq!(
        breaker.circuit_state(MonotonicTime(100)),
        CircuitState::HalfOpen
    );

    let mut breaker = open_breaker(HealthSignal::Unhealthy);
    run_next_check(&mut breaker, false);
    let at = run_next_check(&mut breaker, true);
    assert!(at < MonotonicTime(100));
    assert_eq!(breaker.circuit_state(at), CircuitState::Closed);
}

#[test]
fn stale_check_after_reset_changes_nothing() {
    let mut breaker = open_breaker(lost(None));
    let checkup = breaker.next_check().unwrap();
    breaker.reset();
    breaker.record_check(checkup, false, MonotonicTime(10));
    assert_eq!(
        breaker.circuit_state(MonotonicTime(10)),
        CircuitState::Closed
    );
    breaker.mark_reachable();
    assert_eq!(breaker.failure_count(), 0);
}
