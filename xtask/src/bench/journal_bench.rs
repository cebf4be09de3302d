//! Speed of the journal relative to the disk below, and disk space used.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::{BenchPlan, QUICK, bench_report::BenchReport};
use crate::crash_test;

/// Churned messages of a quick run: too few for the goal of a full run.
const CHURN_MESSAGES_QUICK: &str = "50000";

/// Figures with a goal: name in the example's output, name in the report.
const FIGURES: &[(&str, &str)] = &[
    ("ops_per_second", "journal_ops"),
    ("enqueue_p50_ms", "journal_p50_ms"),
    ("enqueue_p99_ms", "journal_p99_ms"),
    ("one_to_disk", "journal_to_disk"),
    ("disk_p50_ms", "journal_disk_ms"),
    ("one_p50_ms", "journal_one_ms"),
    ("open_ms", "journal_open_ms"),
    ("churn_messages_per_second", "journal_churn"),
    ("syncs_per_commit", "journal_syncs"),
];

/// Measures with the journal's crash program.
pub(super) fn measure_journal(
    root: &Path,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let program = crash_test::build_crash_program(root)?;
    let is_quick = plan.run_seconds == QUICK.1;
    let words: &[&str] = match is_quick {
        true => &["bench", "--churn", CHURN_MESSAGES_QUICK, "--seconds", "1"],
        false => &["bench"],
    };
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let (figures, _) = crash_test::run_part(&program, &words)?;
    let figure = |name: &str| figures.get(name).and_then(Value::as_f64);
    for (theirs, ours) in FIGURES {
        report.set_figure(ours, figure(theirs));
    }
    if !is_quick {
        let megabytes = figure("churn_bytes").map(|bytes| bytes / 1e6);
        report.set_figure("journal_churn_mb", megabytes);
    }
    Ok(())
}
