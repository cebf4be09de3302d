//! Results of an endurance run against its goals.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    endurance_faults::{EnduranceFault, FaultRecovery, UNDISTURBED_TIME},
    endurance_load::{
        CallTotals, EnduranceCallKind, EnduranceFailure, EnduranceOutcome, NUMBERS_PER_WRITER,
    },
};
use crate::broker_chaos::broker_tally::count_executions;

/// Slope of the gateway's memory that still counts as flat.
const SLOPE_KIB_PER_HOUR_MAX: f64 = 4.0 * 1_000.0 * 1_000.0 / 1_024.0;

/// Longest time after a restart in which calls may be rejected.
const REFUSED_AFTER_RESTART_MAX: Duration = Duration::from_secs(1);

/// Longest time after an outage in which writes may be queued.
const QUEUED_AFTER_OUTAGE_MAX: Duration = Duration::from_secs(5);

/// Thirds of the samples that count: the last two.
const COUNTED_OF_THREE: usize = 2;

/// Results of the whole run.
#[derive(Debug)]
pub(super) struct EnduranceReport {
    calls: CallTotals,
    faults: BTreeMap<EnduranceFault, u64>,
    /// Writes that were acknowledged or queued and never ran.
    lost: u64,
    /// Writes that ran more than once, or ran despite a rejection.
    repeated: u64,
    /// Writes that ran after a later write of the same session.
    out_of_order: u64,
    /// Writes in the outbox at the end.
    left_in_outbox: usize,
    /// Longest time after a restart in which a call was rejected.
    refused_after_restart: Duration,
    /// Longest time after an outage in which a write was queued.
    queued_after_outage: Duration,
    slope_kib_per_hour: f64,
    /// Resident memory, sampled once a minute.
    minutes_kib: Vec<u64>,
}

impl EnduranceReport {
    pub(super) fn new(
        calls: CallTotals,
        recoveries: &[FaultRecovery],
        ledger: &str,
        left_in_outbox: usize,
        samples: &[u64],
    ) -> Self {
        let mut faults = BTreeMap::new();
        for recovery in recoveries {
            *faults.entry(recovery.fault).or_default() += 1;
        }
        let (lost, repeated) = count_lost_and_repeated(&calls.writes, &count_executions(ledger));
        let refused = |failure: &EnduranceFailure| {
            failure.kind == EnduranceCallKind::Read
                && matches!(failure.outcome, EnduranceOutcome::NotStarted(_))
        };
        let queued = |failure: &EnduranceFailure| failure.outcome == EnduranceOutcome::Queued;
        let restarts = return_times(recoveries, EnduranceFault::Restart);
        let outages = return_times(recoveries, EnduranceFault::Outage);
        let counted = samples.len() - samples.len() * COUNTED_OF_THREE / 3;
        let counted = samples.get(counted..).unwrap_or_default();
        Self {
            faults,
            lost,
            repeated,
            out_of_order: count_out_of_order(ledger),
            left_in_outbox,
            refused_after_restart: longest_after_return(
                &restarts,
                recoveries,
                &calls.failures,
                refused,
            ),
            queued_after_outage: longest_after_return(
                &outages,
                recoveries,
                &calls.failures,
                queued,
            ),
            slope_kib_per_hour: least_squares_slope(counted) * 3_600.0,
            minutes_kib: samples.iter().step_by(60).copied().collect(),
            calls,
        }
    }

    /// Returns the missed goals in words.
    pub(super) fn missed_goals(&self) -> Vec<&'static str> {
        let goals = [
            (self.calls.wrong_count == 0, "wrong answers"),
            (self.lost == 0, "lost writes"),
            (self.repeated == 0, "repeated writes"),
            (self.out_of_order == 0, "writes out of order"),
            (self.left_in_outbox == 0, "writes left in the outbox"),
            (
                self.refused_after_restart <= REFUSED_AFTER_RESTART_MAX,
                "calls refused after a restart",
            ),
            (
                self.queued_after_outage <= QUEUED_AFTER_OUTAGE_MAX,
                "writes queued after an outage",
            ),
            (
                self.slope_kib_per_hour < SLOPE_KIB_PER_HOUR_MAX,
                "slope of memory",
            ),
        ];
        let missed = goals.into_iter().filter(|(met, _)| !met);
        missed.map(|(_, goal)| goal).collect()
    }

    pub(super) fn to_json(&self) -> Value {
        let answers = self.calls.outcomes.iter();
        let answers: BTreeMap<String, u64> = answers
            .map(|((kind, answer), count)| (format!("{kind:?} {answer:?}"), *count))
            .collect();
        let faults = self.faults.iter();
        let faults: BTreeMap<String, u64> = faults
            .map(|(fault, count)| (format!("{fault:?}"), *count))
            .collect();
        json!({
            "answers": answers,
            "faults": faults,
            "wrong": self.calls.wrong_count,
            "wrong_examples": self.calls.wrong,
            "late": self.calls.late_calls,
            "lost": self.lost,
            "repeated": self.repeated,
            "out_of_order": self.out_of_order,
            "left_in_outbox": self.left_in_outbox,
            "refused_after_restart_ms": to_millis(self.refused_after_restart),
            "queued_after_outage_ms": to_millis(self.queued_after_outage),
            "rss_slope_kib_per_hour": self.slope_kib_per_hour,
            "rss_minutes_kib": self.minutes_kib,
            "missed": self.missed_goals(),
        })
    }

    pub(super) fn to_table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for ((kind, answer), count) in &self.calls.outcomes {
            let _ = writeln!(out, "  {kind:?} {answer:?}: {count}");
        }
        for (fault, count) in &self.faults {
            let _ = writeln!(out, "  fault {fault:?}: {count}");
        }
        for wrong in &self.calls.wrong {
            let _ = writeln!(out, "  wrong: {wrong}");
        }
        let Self {
            lost,
            repeated,
            out_of_order,
            left_in_outbox: left,
            ..
        } = self;
        let _ = writeln!(
            out,
            "writes: {lost} lost, {repeated} repeated, {out_of_order} out of order, {left} left; \
             {} calls began late",
            self.calls.late_calls
        );
        let _ = writeln!(
            out,
            "refused for {} ms at most after a restart, queued for {} ms at most after an outage",
            to_millis(self.refused_after_restart),
            to_millis(self.queued_after_outage)
        );
        let _ = writeln!(
            out,
            "memory: slope {:.0} KiB/h (goal {:.0}), each minute in KiB: {:?}",
            self.slope_kib_per_hour, SLOPE_KIB_PER_HOUR_MAX, self.minutes_kib
        );
        let missed = self.missed_goals().join(", ");
        let _ = if missed.is_empty() {
            writeln!(out, "endurance: ok")
        } else {
            writeln!(out, "endurance: missed: {missed}")
        };
        out
    }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Compares the outcomes of writes with the ledger; returns lost and repeated writes.
fn count_lost_and_repeated(
    expected: &BTreeMap<u64, EnduranceOutcome>,
    executed: &BTreeMap<u64, u64>,
) -> (u64, u64) {
    let (mut lost, mut repeated) = (0, 0);
    for (number, answer) in expected {
        let times = executed.get(number).copied().unwrap_or(0);
        match answer {
            EnduranceOutcome::Live | EnduranceOutcome::Queued if times == 0 => lost += 1,
            EnduranceOutcome::NotStarted(_) if times > 0 => repeated += 1,
            _ if times > 1 => repeated += 1,
            _ => {}
        }
    }
    (lost, repeated)
}

/// Counts writes that appear in the ledger after a later write of the same session.
fn count_out_of_order(ledger: &str) -> u64 {
    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut count = 0;
    for line in ledger.lines() {
        let mut parts = line.split('\t');
        let number = parts.next().filter(|word| *word == "write");
        let number = number.and_then(|_| parts.next()?.parse::<u64>().ok());
        let Some(number) = number else { continue };
        let last = latest.entry(number / NUMBERS_PER_WRITER).or_default();
        if number < *last {
            count += 1;
        }
        *last = number.max(*last);
    }
    count
}

/// Returns the recovery times of one kind of fault.
fn return_times(recoveries: &[FaultRecovery], fault: EnduranceFault) -> Vec<Instant> {
    let wanted = recoveries.iter().filter(|one| one.fault == fault);
    wanted.map(|one| one.back_at).collect()
}

/// Returns the longest time from a recovery to a matching failure before the next fault.
fn longest_after_return(
    returns: &[Instant],
    recoveries: &[FaultRecovery],
    failures: &[EnduranceFailure],
    matches: impl Fn(&EnduranceFailure) -> bool,
) -> Duration {
    let mut longest = Duration::ZERO;
    for failure in failures.iter().filter(|failure| matches(failure)) {
        let before = recoveries
            .iter()
            .filter(|one| one.back_at <= failure.failed_at);
        let Some(last) = before.map(|one| one.back_at).max() else {
            continue;
        };
        // A later failure belongs to the next fault.
        let after = failure.failed_at - last;
        if returns.contains(&last) && after < UNDISTURBED_TIME {
            longest = longest.max(after);
        }
    }
    longest
}

/// Returns the slope of the least-squares line through samples one second apart, per second.
fn least_squares_slope(samples: &[u64]) -> f64 {
    let count = samples.len() as f64;
    if samples.len() < 2 {
        return 0.0;
    }
    let mean_x = (count - 1.0) / 2.0;
    let mean_y = samples.iter().map(|sample| *sample as f64).sum::<f64>() / count;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (nth, sample) in samples.iter().enumerate() {
        let x = nth as f64 - mean_x;
        covariance += x * (*sample as f64 - mean_y);
        variance += x * x;
    }
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_of_line_is_its_rise() {
        let samples: Vec<u64> = (0..100).map(|nth| 1_000 + 3 * nth).collect();
        assert!((least_squares_slope(&samples) - 3.0).abs() < 1e-9);
        assert!(least_squares_slope(&[7, 7, 7]).abs() < 1e-9);
        assert!(least_squares_slope(&[]).abs() < 1e-9);
    }

    #[test]
    fn lost_and_repeated_writes_are_counted() {
        let told = BTreeMap::from([
            (1, EnduranceOutcome::Live),
            (2, EnduranceOutcome::Queued),
            (3, EnduranceOutcome::NotStarted("x".to_owned())),
            (4, EnduranceOutcome::Live),
            (5, EnduranceOutcome::Unknown("y".to_owned())),
        ]);
        let executed = BTreeMap::from([(1, 1), (3, 1), (4, 2)]);
        assert_eq!(count_lost_and_repeated(&told, &executed), (1, 2));
    }

    #[test]
    fn out_of_order_writes_count_per_session() {
        let ledger = "write\t1000001\nwrite\t2000001\nwrite\t1000003\nwrite\t1000002\n";
        assert_eq!(count_out_of_order(ledger), 1);
    }
}
