//! The breaker by scripts of calls, outages and checks.

use super::*;

const POLICY: BreakerPolicy = BreakerPolicy {
    failures_max: 2,
    rest: Duration::from_millis(100),
};

const fn lost(generation: Option<u64>) -> Health {
    Health::Lost { generation }
}

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
        breaker.record(pass, lost(Some(generation)), now);
    }
    assert_eq!(breaker.failures(), 1);
    let pass = breaker.admit(now).unwrap();
    breaker.record(pass, lost(Some(2)), now);
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

const CHECKS: CheckPolicy = CheckPolicy {
    backoff: Backoff {
        base: Duration::from_millis(10),
        cap: Duration::from_millis(40),
    },
    seed: 0,
};

/// An open breaker with checks, opened by calls of which each began after the last had ended.
fn opened(health: Health) -> Breaker {
    let mut breaker = Breaker::with_checks(POLICY, CHECKS);
    for _ in 0..POLICY.failures_max {
        let pass = breaker.admit(Now(0)).unwrap();
        breaker.record(pass, health, Now(0));
    }
    assert_eq!(breaker.circuit(Now(0)), Circuit::Open);
    breaker
}

/// Carries out the next check when it is due; returns when that was.
fn check_next(breaker: &mut Breaker, is_reached: bool) -> Now {
    let checkup = breaker.next_check().unwrap();
    breaker.record_check(checkup, is_reached, checkup.due);
    checkup.due
}

#[test]
fn calls_lost_in_one_outage_count_once() {
    let mut breaker = Breaker::new(POLICY);
    let passes: Vec<_> = (0..8).map(|_| breaker.admit(Now(0)).unwrap()).collect();
    for pass in passes {
        breaker.record(pass, lost(None), Now(1));
    }
    assert_eq!(breaker.failures(), 1);
    assert_eq!(breaker.circuit(Now(1)), Circuit::Closed);
    let later = breaker.admit(Now(2)).unwrap();
    breaker.record(later, lost(None), Now(2));
    assert_eq!(breaker.circuit(Now(2)), Circuit::Open, "new evidence");
}

#[test]
fn timeouts_of_calls_in_flight_count_each() {
    let mut breaker = Breaker::new(POLICY);
    let passes = [Now(0), Now(0)].map(|now| breaker.admit(now).unwrap());
    for pass in passes {
        breaker.record(pass, Health::Bad, Now(1));
    }
    assert_eq!(breaker.circuit(Now(1)), Circuit::Open);
}

#[test]
fn reached_server_is_called_before_rest_is_over() {
    let mut breaker = opened(lost(None));
    assert!(breaker.admit(Now(0)).unwrap_err() <= Duration::from_millis(10));
    let waits: Vec<_> = (0..5).map(|_| check_next(&mut breaker, false).0).collect();
    assert!(waits.windows(2).all(|pair| pair[1] - pair[0] <= 40));
    let last = waits.last().unwrap();
    assert!(*last > 100, "longer than the rest: {last}");
    assert_eq!(breaker.circuit(Now(*last)), Circuit::Open);

    let at = check_next(&mut breaker, true);
    assert_eq!(breaker.circuit(at), Circuit::Closed);
    let passes: Vec<_> = (0..8).map(|_| breaker.admit(at).unwrap()).collect();
    breaker.record(passes[0], lost(None), at);
    assert_eq!(breaker.circuit(at), Circuit::Open, "one more failure");
    assert!(breaker.admit(at).unwrap_err() > Duration::from_millis(20));
}

#[test]
fn silent_server_rests_unless_checks_fail() {
    let mut breaker = opened(Health::Bad);
    assert_eq!(breaker.rest(Now(0)), Some(POLICY.rest));
    check_next(&mut breaker, true);
    assert_eq!(breaker.next_check(), None, "it is there");
    assert_eq!(breaker.circuit(Now(99)), Circuit::Open);
    assert_eq!(breaker.circuit(Now(100)), Circuit::HalfOpen);

    let mut breaker = opened(Health::Bad);
    check_next(&mut breaker, false);
    let at = check_next(&mut breaker, true);
    assert!(at < Now(100));
    assert_eq!(breaker.circuit(at), Circuit::Closed);
}

#[test]
fn checkup_from_before_reset_changes_nothing() {
    let mut breaker = opened(lost(None));
    let checkup = breaker.next_check().unwrap();
    breaker.reset();
    breaker.record_check(checkup, false, Now(10));
    assert_eq!(breaker.circuit(Now(10)), Circuit::Closed);
    breaker.reached();
    assert_eq!(breaker.failures(), 0);
}
