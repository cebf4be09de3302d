//! What the road adds to a call, measured in one process over a link that answers at once.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::Report;
use crate::process;

/// Instructions are counted over the difference of so many calls, so that the start is left out.
const CALLS: (u64, u64) = (1_000, 11_000);

/// Builds the example `gates` of the host.
pub(super) fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--package", "bowline-host"]);
    process::show(cargo.args(["--example", "gates"]).current_dir(root))?;
    let targets =
        process::env("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(targets.join("release/examples/gates"))
}

/// Builds and runs the example; counts instructions where valgrind is there.
pub(super) fn measure(root: &Path, report: &mut Report) -> Result<()> {
    let gates = build(root)?;
    let said = process::quiet(&mut Command::new(&gates))?;
    let said: Value = serde_json::from_str(said.trim()).context("what `gates` said")?;
    let nanos = |kind: &str| said.get(kind).and_then(Value::as_f64);
    let added = |kind: &str, to: &str| Some((nanos(kind)? - nanos(to)?) / 1_000.0);
    let ratio = |kind: &str, to: &str| Some(nanos(kind)? / nanos(to)?);
    report.set("gates_us", added("road", "direct"));
    report.set("rules_us", added("looked", "fresh"));
    report.set("rules_kept_us", added("kept", "fresh"));
    report.set("hit_ratio", ratio("live-hit", "live"));
    report.set("flat_rules", ratio("many", "ruled"));
    report.set("redaction_ns_kib", nanos("redact"));
    report.set("find_us", nanos("find").map(|find| find / 1_000.0));

    if process::output(root, "valgrind", &["--version"]).is_err() {
        report.leave_out("gates, instructions", "valgrind is not installed");
        return Ok(());
    }
    let road = per_call(&gates, "road")? - per_call(&gates, "direct")?;
    report.set("gates_instructions", Some(road));
    let flat = per_call(&gates, "many")? / per_call(&gates, "ruled")?;
    report.set("flat_rules_instructions", Some(flat));
    Ok(())
}

/// Counts the instructions of one call.
pub(super) fn per_call(gates: &Path, kind: &str) -> Result<f64> {
    let (few, many) = CALLS;
    let counted = instructions(gates, kind, many)? - instructions(gates, kind, few)?;
    Ok(counted / (many - few) as f64)
}

fn instructions(gates: &Path, kind: &str, calls: u64) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    // What it counted stands at the end of what it logs.
    valgrind.arg("--log-fd=1").arg(gates);
    let said = process::quiet(valgrind.args([kind, &calls.to_string()]))?;
    collected(&said).with_context(|| format!("valgrind counted nothing:\n{said}"))
}

/// `==42== Collected : 12345` -> `12345`
fn collected(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("Collected"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_what_valgrind_says() {
        let said = "1000\n==7== Events    : Ir\n==7== Collected : 3439346\n==7==\n";
        assert_eq!(collected(said), Some(3_439_346.0));
        assert_eq!(collected("==7== I   refs:\n"), None);
    }
}
