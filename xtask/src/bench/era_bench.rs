//! Cost of translating between the two protocol eras: calls over the pipes of a real child process,
//! measured in one process and interleaved.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{bench_report::BenchReport, gate_bench};
use crate::process;

/// Each translated call is compared with a call of the same client era without translation.
const ERA_PAIRS: [(&str, &str, &str, &str); 2] = [
    (
        "to-modern",
        "live",
        "to_modern_ratio",
        "to_modern_instructions",
    ),
    (
        "to-legacy",
        "modern",
        "to_legacy_ratio",
        "to_legacy_instructions",
    ),
];

/// Builds and runs the host example `gates`; counts instructions if valgrind is installed.
pub(super) fn measure_eras(root: &Path, report: &mut BenchReport) -> Result<()> {
    let gates = gate_bench::build_gates(root)?;
    let output = process::run_captured(Command::new(&gates).arg("eras"))?;
    let output: Value = serde_json::from_str(output.trim()).context("what `gates` said")?;
    let nanos = |kind: &str| output.get(kind).and_then(Value::as_f64);
    for (translated, same, figure, _) in ERA_PAIRS {
        let ratio = nanos(translated).zip(nanos(same));
        report.set_figure(figure, ratio.map(|(one, other)| one / other));
    }
    if process::run_captured_in(root, "valgrind", &["--version"]).is_err() {
        report.skip_part("eras, instructions", "valgrind is not installed");
        return Ok(());
    }
    for (translated, same, _, figure) in ERA_PAIRS {
        let ratio = gate_bench::instructions_per_call(&gates, translated)?
            / gate_bench::instructions_per_call(&gates, same)?;
        report.set_figure(figure, Some(ratio));
    }
    Ok(())
}
