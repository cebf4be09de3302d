//! Single measurements and medians of several.

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    BenchPlan,
    bench_target::{self, BenchTarget},
    bench_tools::BenchTools,
};
use crate::process;

/// Result of one closed-loop run against one target.
#[derive(Debug, Clone)]
pub(super) struct LoadRun {
    pub(super) raw: Value,
}

/// Figures of a run, by the names in `mcpbench` output.
pub(super) const FIGURES: &[&str] = &["rps", "p50_us", "p99_us", "gw_cpu_us", "gw_rss_mib"];

impl LoadRun {
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        self.raw.get(name).and_then(Value::as_f64)
    }
}

/// Calls the tool `echo` from `callers` connections for the plan's run time.
pub(super) fn run_load(
    tools: &BenchTools,
    plan: &BenchPlan,
    target: &BenchTarget,
    callers: usize,
) -> Result<LoadRun> {
    run_load_with(tools, plan, target, callers, &[])
}

/// Like [`run_load`], with extra options for `mcpbench load`.
pub(super) fn run_load_with(
    tools: &BenchTools,
    plan: &BenchPlan,
    target: &BenchTarget,
    callers: usize,
    options: &[&str],
) -> Result<LoadRun> {
    let mut command = Command::new(&tools.mcpbench);
    command.args(["load", "--c", &callers.to_string(), "--d", plan.run_seconds]);
    command
        .args(["--warm", plan.warm_seconds])
        .args(target.pids().iter().flat_map(|pid| ["--pid", pid.as_str()]))
        .args(target.load_options())
        .args(options);
    let raw = run_json_program(&command).with_context(|| format!("load on {}", target.name))?;
    let errors = raw.get("errors").and_then(Value::as_u64).unwrap_or(0);
    if errors > 0 {
        let samples = raw.get("error_samples").cloned().unwrap_or_default();
        bail!(
            "{}: {errors} wrong answers with {callers} callers: {samples}",
            target.name
        );
    }
    Ok(LoadRun { raw })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionMode {
    Shared,
    Dedicated,
}

/// Opens sessions and leaves them open at the gateway; returns the memory figures of
/// `mcpbench open`.
pub(super) fn open_sessions(
    tools: &BenchTools,
    target: &BenchTarget,
    sessions: usize,
    connections: ConnectionMode,
) -> Result<Value> {
    let mut command = Command::new(&tools.mcpbench);
    command.args(["open", "--n", &sessions.to_string(), "--pid", &target.pid()]);
    command.args(target.load_options());
    if connections == ConnectionMode::Dedicated {
        command.arg("--own-connection");
    }
    let raw = run_json_program(&command).with_context(|| format!("open on {}", target.name))?;
    let errors = raw.get("errors").and_then(Value::as_u64).unwrap_or(0);
    if errors > 0 {
        bail!(
            "{}: {errors} of {sessions} sessions failed: {raw}",
            target.name
        );
    }
    Ok(raw)
}

/// Returns the milliseconds from gateway start to the first successful call.
pub(super) fn time_first_call(tools: &BenchTools) -> Result<f64> {
    let prepared =
        bench_target::prepare_gateway(tools, "first", &bench_target::child_config(tools, 0))?;
    let command = prepared.up_command(&tools.bowline);
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let line: Vec<String> = words
        .map(|word| shell_quote(&word.to_string_lossy()))
        .collect();
    let url = format!("http://127.0.0.1:{}/mcp", prepared.port);
    let mut command = Command::new(&tools.mcpbench);
    command.args(["first", "--limit", "20", "--cmd", &line.join(" ")]);
    command.args(bench_target::load_options_for(
        &url,
        "b__echo",
        Some(&prepared.header),
    ));
    let raw = run_json_program(&command).context("first call")?;
    let _ = fs::remove_dir_all(&prepared.folder);
    raw.get("first_call_ms")
        .and_then(Value::as_f64)
        .with_context(|| format!("no right call came: {raw}"))
}

/// Runs a program and parses the last JSON line of its output; earlier lines are for humans.
fn run_json_program(command: &Command) -> Result<Value> {
    let output = process::run_captured(&mut bench_target::with_open_file_limit(command))?;
    let line = output
        .lines()
        .rfind(|line| line.starts_with('{'))
        .unwrap_or_default();
    let value: Value =
        serde_json::from_str(line).with_context(|| format!("no result: {}", output.trim()))?;
    match value.get("failed") {
        Some(reason) => bail!("failed: {reason}"),
        None => Ok(value),
    }
}

/// Quotes a word for a POSIX shell.
fn shell_quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the median; the midpoint of the two middle values if their number is even.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    values
        .get(middle - 1)
        .map(|lower| f64::midpoint(*lower, upper))
}

/// Returns the median of one figure over several runs.
pub(super) fn median_figure(runs: &[LoadRun], figure: &str) -> Option<f64> {
    median(runs.iter().filter_map(|run| run.figure(figure)).collect())
}

/// Returns the median over pairs of the second figure divided by the first: noise that affects both
/// runs of a pair cancels out.
pub(super) fn median_ratio(pairs: &[(LoadRun, LoadRun)], figure: &str) -> Option<f64> {
    let one =
        |(below, above): &(LoadRun, LoadRun)| Some(above.figure(figure)? / below.figure(figure)?);
    median(
        pairs
            .iter()
            .filter_map(one)
            .filter(|ratio| ratio.is_finite())
            .collect(),
    )
}

/// Runs two targets in turn, alternating the order in each pair.
pub(super) fn run_pairs(
    tools: &BenchTools,
    plan: &BenchPlan,
    below: &BenchTarget,
    above: &BenchTarget,
    callers: usize,
) -> Result<Vec<(LoadRun, LoadRun)>> {
    (0..plan.pairs)
        .map(|turn| {
            if turn % 2 == 0 {
                let first = run_load(tools, plan, below, callers)?;
                Ok((first, run_load(tools, plan, above, callers)?))
            } else {
                let first = run_load(tools, plan, above, callers)?;
                Ok((run_load(tools, plan, below, callers)?, first))
            }
        })
        .collect()
}

/// Returns the entry of `results.json` for several runs of one target.
pub(super) fn summarize_runs(name: &str, callers: usize, runs: &[LoadRun]) -> Value {
    let mut object = json!({"target": name, "callers": callers, "runs": runs.len()});
    if let Value::Object(object) = &mut object {
        for figure in FIGURES.iter().chain(&["other_cores"]) {
            object.insert((*figure).to_owned(), json!(median_figure(runs, figure)));
        }
        object.insert(
            "raw".to_owned(),
            runs.iter().map(|run| run.raw.clone()).collect(),
        );
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cpu: f64) -> LoadRun {
        LoadRun {
            raw: json!({"gw_cpu_us": cpu}),
        }
    }

    #[test]
    fn median_is_middle_value() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn ratio_is_computed_per_pair() {
        // The machine slows down: both runs of a pair double, and the ratio stays.
        let pairs = [
            (run(10.0), run(15.0)),
            (run(20.0), run(30.0)),
            (run(40.0), run(60.0)),
        ];
        assert_eq!(median_ratio(&pairs, "gw_cpu_us"), Some(1.5));
    }

    #[test]
    fn ratio_skips_pairs_without_figure() {
        assert_eq!(median_ratio(&[(run(0.0), run(1.0))], "gw_cpu_us"), None);
    }

    #[test]
    fn quoted_word_is_one_shell_word() {
        let said = process::run_captured(
            Command::new("sh").args(["-c", &format!("printf %s {}", shell_quote("a 'b' $c"))]),
        );
        assert_eq!(said.unwrap(), "a 'b' $c");
    }
}
