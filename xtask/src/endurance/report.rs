//! What an endurance run showed, against its goals.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    faults::{Fault, Recovery, UNDISTURBED},
    load::{Answer, Calls, Failure, Kind, NUMBERS},
};
use crate::fleet::tally::executions;

/// The slope of the gateway's memory that is no growth.
const SLOPE_KIB_PER_HOUR_MAX: f64 = 4.0 * 1_000.0 * 1_000.0 / 1_024.0;

/// How long after its return a restarted server's callers may be refused.
const REFUSED_AFTER_RESTART_MAX: Duration = Duration::from_secs(1);

/// How long after an outage writes may be answered as queued.
const QUEUED_AFTER_OUTAGE_MAX: Duration = Duration::from_secs(5);

/// The samples that count: the last two thirds.
const COUNTED_OF_THREE: usize = 2;

/// Everything that was seen.
#[derive(Debug)]
pub(super) struct Report {
    calls: Calls,
    faults: BTreeMap<Fault, u64>,
    /// Writes that were acknowledged or queued and did not run.
    lost: u64,
    /// Writes that ran more than once, or although they were refused.
    repeated: u64,
    /// Writes that ran after a later write of their session.
    out_of_order: u64,
    /// Writes in the outbox at the end.
    left: usize,
    /// The longest time after the return of a server in which a call was refused.
    refused_after_restart: Duration,
    /// The longest time after an outage in which a write was queued.
    queued_after_outage: Duration,
    slope_kib_per_hour: f64,
    /// Resident memory once a minute.
    minutes_kib: Vec<u64>,
}

impl Report {
    pub(super) fn new(
        calls: Calls,
        recoveries: &[Recovery],
        ledger: &str,
        left: usize,
        samples: &[u64],
    ) -> Self {
        let mut faults = BTreeMap::new();
        for recovery in recoveries {
            *faults.entry(recovery.fault).or_default() += 1;
        }
        let (lost, repeated) = compare(&calls.writes, &executions(ledger));
        let refused = |failure: &Failure| {
            failure.kind == Kind::Read && matches!(failure.answer, Answer::NotStarted(_))
        };
        let queued = |failure: &Failure| failure.answer == Answer::Queued;
        let restarts = returns(recoveries, Fault::Restart);
        let outages = returns(recoveries, Fault::Outage);
        let counted = samples.len() - samples.len() * COUNTED_OF_THREE / 3;
        let counted = samples.get(counted..).unwrap_or_default();
        Self {
            faults,
            lost,
            repeated,
            out_of_order: count_out_of_order(ledger),
            left,
            refused_after_restart: longest(&restarts, recoveries, &calls.failures, refused),
            queued_after_outage: longest(&outages, recoveries, &calls.failures, queued),
            slope_kib_per_hour: slope(counted) * 3_600.0,
            minutes_kib: samples.iter().step_by(60).copied().collect(),
            calls,
        }
    }

    /// Goals that were missed, in words.
    pub(super) fn missed(&self) -> Vec<&'static str> {
        let goals = [
            (self.calls.wrong_count == 0, "wrong answers"),
            (self.lost == 0, "lost writes"),
            (self.repeated == 0, "repeated writes"),
            (self.out_of_order == 0, "writes out of order"),
            (self.left == 0, "writes left in the outbox"),
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
        let answers = self.calls.answers.iter();
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
            "late": self.calls.late,
            "lost": self.lost,
            "repeated": self.repeated,
            "out_of_order": self.out_of_order,
            "left_in_outbox": self.left,
            "refused_after_restart_ms": millis(self.refused_after_restart),
            "queued_after_outage_ms": millis(self.queued_after_outage),
            "rss_slope_kib_per_hour": self.slope_kib_per_hour,
            "rss_minutes_kib": self.minutes_kib,
            "missed": self.missed(),
        })
    }

    pub(super) fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for ((kind, answer), count) in &self.calls.answers {
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
            left,
            ..
        } = self;
        let _ = writeln!(
            out,
            "writes: {lost} lost, {repeated} repeated, {out_of_order} out of order, {left} left; \
             {} calls began late",
            self.calls.late
        );
        let _ = writeln!(
            out,
            "refused for {} ms at most after a restart, queued for {} ms at most after an outage",
            millis(self.refused_after_restart),
            millis(self.queued_after_outage)
        );
        let _ = writeln!(
            out,
            "memory: slope {:.0} KiB/h (goal {:.0}), each minute in KiB: {:?}",
            self.slope_kib_per_hour, SLOPE_KIB_PER_HOUR_MAX, self.minutes_kib
        );
        let missed = self.missed().join(", ");
        let _ = if missed.is_empty() {
            writeln!(out, "endurance: ok")
        } else {
            writeln!(out, "endurance: missed: {missed}")
        };
        out
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Compares what writers were told with the ledger; returns lost and repeated writes.
fn compare(told: &BTreeMap<u64, Answer>, executed: &BTreeMap<u64, u64>) -> (u64, u64) {
    let (mut lost, mut repeated) = (0, 0);
    for (number, answer) in told {
        let times = executed.get(number).copied().unwrap_or(0);
        match answer {
            Answer::Live | Answer::Queued if times == 0 => lost += 1,
            Answer::NotStarted(_) if times > 0 => repeated += 1,
            _ if times > 1 => repeated += 1,
            _ => {}
        }
    }
    (lost, repeated)
}

/// Counts writes that stand in the ledger after a later one of the same session.
fn count_out_of_order(ledger: &str) -> u64 {
    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut count = 0;
    for line in ledger.lines() {
        let mut parts = line.split('\t');
        let number = parts.next().filter(|word| *word == "write");
        let number = number.and_then(|_| parts.next()?.parse::<u64>().ok());
        let Some(number) = number else { continue };
        let last = latest.entry(number / NUMBERS).or_default();
        if number < *last {
            count += 1;
        }
        *last = number.max(*last);
    }
    count
}

/// When the server was back from each fault of this kind.
fn returns(recoveries: &[Recovery], fault: Fault) -> Vec<Instant> {
    let wanted = recoveries.iter().filter(|one| one.fault == fault);
    wanted.map(|one| one.back).collect()
}

/// The longest time from a return to a matching failure before the next fault.
fn longest(
    returns: &[Instant],
    recoveries: &[Recovery],
    failures: &[Failure],
    matches: impl Fn(&Failure) -> bool,
) -> Duration {
    let mut longest = Duration::ZERO;
    for failure in failures.iter().filter(|failure| matches(failure)) {
        let before = recoveries.iter().filter(|one| one.back <= failure.at);
        let Some(last) = before.map(|one| one.back).max() else {
            continue;
        };
        // A later failure belongs to the next fault.
        let after = failure.at - last;
        if returns.contains(&last) && after < UNDISTURBED {
            longest = longest.max(after);
        }
    }
    longest
}

/// The slope of a least-squares line through samples that are one second apart, per second.
fn slope(samples: &[u64]) -> f64 {
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
    fn slope_of_a_line_is_its_rise() {
        let samples: Vec<u64> = (0..100).map(|nth| 1_000 + 3 * nth).collect();
        assert!((slope(&samples) - 3.0).abs() < 1e-9);
        assert!(slope(&[7, 7, 7]).abs() < 1e-9);
        assert!(slope(&[]).abs() < 1e-9);
    }

    #[test]
    fn compare_counts_lost_and_repeated_writes() {
        let told = BTreeMap::from([
            (1, Answer::Live),
            (2, Answer::Queued),
            (3, Answer::NotStarted("x".to_owned())),
            (4, Answer::Live),
            (5, Answer::Unknown("y".to_owned())),
        ]);
        let executed = BTreeMap::from([(1, 1), (3, 1), (4, 2)]);
        assert_eq!(compare(&told, &executed), (1, 2));
    }

    #[test]
    fn order_is_counted_for_each_session() {
        let ledger = "write\t1000001\nwrite\t2000001\nwrite\t1000003\nwrite\t1000002\n";
        assert_eq!(count_out_of_order(ledger), 1);
    }
}
