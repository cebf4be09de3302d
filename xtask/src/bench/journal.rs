//! How fast the journal is beside the disk it writes to, and how much room it takes.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::{Plan, QUICK, report::Report};
use crate::ordeal;

/// Churned messages of a quick run: too few for the goal of a full one.
const CHURN_QUICK: &str = "50000";

/// Figures of the example that have a goal: its name for them, and ours.
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

/// Measures with the example `ordeal` of the journal.
pub(super) fn measure(root: &Path, plan: &Plan, report: &mut Report) -> Result<()> {
    let program = ordeal::build(root)?;
    let is_quick = plan.run_seconds == QUICK.1;
    let words: &[&str] = match is_quick {
        true => &["bench", "--churn", CHURN_QUICK, "--seconds", "1"],
        false => &["bench"],
    };
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let (told, _) = ordeal::part(&program, &words)?;
    let figure = |name: &str| told.get(name).and_then(Value::as_f64);
    for (theirs, ours) in FIGURES {
        report.set(ours, figure(theirs));
    }
    if !is_quick {
        let megabytes = figure("churn_bytes").map(|bytes| bytes / 1e6);
        report.set("journal_churn_mb", megabytes);
    }
    Ok(())
}
