//! Tests of outcomes and histograms.

use super::*;

fn completion(outcome: CallOutcome, took_us: u64) -> CallCompletion {
    CallCompletion {
        outcome,
        duration_us: took_us,
        is_retried: false,
    }
}

#[test]
fn each_outcome_has_its_own_counter() {
    let mut load = ServerLoad::new(MonotonicTime(0));
    for (at, outcome) in OUTCOMES.into_iter().enumerate() {
        assert_eq!(outcome.counter_index(), at, "{outcome:?}");
        load.record_call(completion(outcome, 10), MonotonicTime(0));
    }
    let totals = load.totals();
    for outcome in OUTCOMES {
        assert_eq!(totals.outcome_count(outcome), 1, "{outcome:?}");
    }
    assert_eq!(totals.call_count(), OUTCOMES.len() as u64);
    assert_eq!(totals.error_count(), OUTCOMES.len() as u64 - 3);
    assert_eq!(totals.shed_count(), 1);
}

#[test]
fn unsent_calls_do_not_affect_latency() {
    let mut load = ServerLoad::new(MonotonicTime(0));
    load.record_call(completion(CallOutcome::Succeeded, 1_000), MonotonicTime(0));
    for outcome in [
        CallOutcome::Shed,
        CallOutcome::Cancelled,
        CallOutcome::Failed(FailureClass::Unavailable),
        CallOutcome::Failed(FailureClass::SendFailed),
    ] {
        load.record_call(completion(outcome, 9_000_000), MonotonicTime(0));
    }
    let view = load.recent_view(MonotonicTime(0));
    assert_eq!((view.calls, view.errors), (5, 3));
    assert!((view.error_rate - 0.6).abs() < 1e-9, "{view:?}");
    assert!(view.p99_us < Some(1_100), "{view:?}");
    assert_eq!(load.totals().timed_count(), 1);
    assert_eq!(load.totals().timed_sum_us(), 1_000);
}

#[test]
fn window_drops_calls_older_than_two_halves() {
    let half = to_millis(HALF_WINDOW);
    let mut load = ServerLoad::new(MonotonicTime(0));
    assert_eq!(load.recent_view(MonotonicTime(0)), LoadView::default());
    load.record_call(
        completion(CallOutcome::Failed(FailureClass::Timeout), 5),
        MonotonicTime(1),
    );
    for (at, calls) in [(half - 1, 1), (half, 1), (2 * half - 1, 1), (2 * half, 0)] {
        assert_eq!(load.recent_view(MonotonicTime(at)).calls, calls, "{at}");
    }
    load.record_call(
        completion(CallOutcome::Succeeded, 5),
        MonotonicTime(2 * half),
    );
    assert_eq!(
        load.recent_view(MonotonicTime(20 * half)),
        LoadView::default()
    );
    assert_eq!(load.totals().call_count(), 2, "totals forget nothing");
}

#[test]
fn retried_call_counts_once() {
    let mut load = ServerLoad::new(MonotonicTime(0));
    let retried = CallCompletion {
        is_retried: true,
        ..completion(CallOutcome::Succeeded, 5)
    };
    load.record_call(retried, MonotonicTime(0));
    assert_eq!(
        (load.totals().call_count(), load.totals().retry_count()),
        (1, 1)
    );
}

#[test]
fn bucket_midpoint_is_within_ten_percent() {
    let mut us = 0_u64;
    while us < 1 << 32 {
        let told = bucket_midpoint(bucket_index(us));
        let off = told.abs_diff(us);
        assert!(off * 10 <= us, "{us} is told as {told}");
        us += 1 + us / 97;
    }
    assert_eq!(
        bucket_index(u64::MAX),
        BUCKETS - 1,
        "what is longer stays in"
    );
    assert_eq!(
        bucket_index((1 << 32) - 1),
        BUCKETS - 1,
        "no bucket is for nothing"
    );
}

#[test]
fn percentiles_cover_both_halves() {
    let (mut one, mut two) = (LatencyHistogram::default(), LatencyHistogram::default());
    assert_eq!(LatencyHistogram::quantile([&one, &two], 50), None);
    for us in 1..=500 {
        one.record_us(us);
        two.record_us(500 + us);
    }
    for (percent, truth) in [(50, 500_u64), (99, 990), (100, 1_000), (0, 1)] {
        let told = LatencyHistogram::quantile([&one, &two], percent).unwrap();
        assert!(told.abs_diff(truth) * 10 <= truth, "{percent}: {told}");
    }
}

#[test]
fn bounds_agree_in_seconds_and_microseconds() {
    for (s, us) in BOUNDS_S.into_iter().zip(BOUNDS_US) {
        assert!((s * 1e6 - us as f64).abs() < 1e-3, "{s} {us}");
    }
}

#[test]
fn coarse_buckets_are_cumulative() {
    let mut times = CoarseHistogram::default();
    for us in [0, 500, 501, 1_000, 60_000_000, 60_000_001] {
        times.record_us(us);
    }
    let told: Vec<_> = times.cumulative_buckets().collect();
    assert_eq!(told.len(), BOUNDS_S.len());
    assert_eq!(told[0], (0.0005, 2));
    assert_eq!(told[1], (0.001, 4));
    assert_eq!(told[12], (10.0, 4));
    assert_eq!(told[13], (60.0, 5));
    assert_eq!((times.count(), times.sum_us()), (6, 120_002_002));
}
