//! Cost of the call path per call, measured in a single process over a link with instant responses.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::bench_report::BenchReport;
use crate::process;

/// Numbers of calls in two runs; the difference of their instructions cancels start-up.
const CALL_COUNTS: (u64, u64) = (1_000, 11_000);

/// Builds the host example `gates`.
pub(super) fn build_gates(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--profile", "dist", "--quiet"]);
    cargo.args(["--package", "bowline-host", "--example", "gates"]);
    process::run_inherited(cargo.current_dir(root))?;
    Ok(process::target_folder(root).join("dist/examples/gates"))
}

/// Builds and runs the example; counts instructions if valgrind is installed.
pub(super) fn measure_gates(root: &Path, report: &mut BenchReport) -> Result<()> {
    let gates = build_gates(root)?;
    let said = process::run_captured(&mut Command::new(&gates))?;
    let said: Value = serde_json::from_str(said.trim()).context("what `gates` said")?;
    let nanos = |kind: &str| said.get(kind).and_then(Value::as_f64);
    let added = |kind: &str, to: &str| Some((nanos(kind)? - nanos(to)?) / 1_000.0);
    let ratio = |kind: &str, to: &str| Some(nanos(kind)? / nanos(to)?);
    report.set_figure("gates_us", added("road", "direct"));
    report.set_figure("rules_us", added("looked", "fresh"));
    report.set_figure("rules_kept_us", added("kept", "fresh"));
    report.set_figure("hit_ratio", ratio("live-hit", "live"));
    report.set_figure("flat_rules", ratio("many", "ruled"));
    report.set_figure("redaction_ns_kib", nanos("redact"));
    report.set_figure("find_us", nanos("find").map(|find| find / 1_000.0));

    if process::run_captured_in(root, "valgrind", &["--version"]).is_err() {
        report.skip_part("gates, instructions", "valgrind is not installed");
        return Ok(());
    }
    let road = instructions_per_call(&gates, "road")? - instructions_per_call(&gates, "direct")?;
    report.set_figure("gates_instructions", Some(road));
    let flat = instructions_per_call(&gates, "many")? / instructions_per_call(&gates, "ruled")?;
    report.set_figure("flat_rules_instructions", Some(flat));
    Ok(())
}

/// Returns the instructions per call.
pub(super) fn instructions_per_call(gates: &Path, kind: &str) -> Result<f64> {
    let (few, many) = CALL_COUNTS;
    let counted = count_instructions(gates, kind, many)? - count_instructions(gates, kind, few)?;
    Ok(counted / (many - few) as f64)
}

fn count_instructions(gates: &Path, kind: &str, calls: u64) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    // Valgrind writes the count at the end of the log.
    valgrind.arg("--log-fd=1").arg(gates);
    let said = process::run_captured(valgrind.args([kind, &calls.to_string()]))?;
    parse_collected(&said).with_context(|| format!("valgrind counted nothing:\n{said}"))
}

/// `==42== Collected : 12345` -> `12345`
fn parse_collected(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("Collected"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_count_is_parsed_from_valgrind() {
        let said = "1000\n==7== Events    : Ir\n==7== Collected : 3439346\n==7==\n";
        assert_eq!(parse_collected(said), Some(3_439_346.0));
        assert_eq!(parse_collected("==7== I   refs:\n"), None);
    }
}
