//! Single measurements, and the medians of several.

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    Plan,
    target::{self, Target},
    tools::Tools,
};
use crate::process;

/// One closed-loop run against one target.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) raw: Value,
}

/// The figures that a run reports, by the names `mcpbench` gives them.
pub(super) const FIGURES: &[&str] = &["rps", "p50_us", "p99_us", "gw_cpu_us", "gw_rss_mib"];

impl Run {
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        self.raw.get(name).and_then(Value::as_f64)
    }
}

/// Calls the tool `echo` from `callers` connections for a while.
pub(super) fn load(tools: &Tools, plan: &Plan, target: &Target, callers: usize) -> Result<Run> {
    load_with(tools, plan, target, callers, &[])
}

/// The same with other options of `mcpbench load`.
pub(super) fn load_with(
    tools: &Tools,
    plan: &Plan,
    target: &Target,
    callers: usize,
    options: &[&str],
) -> Result<Run> {
    let mut command = Command::new(&tools.mcpbench);
    command.args(["load", "--c", &callers.to_string(), "--d", plan.run_seconds]);
    command
        .args(["--warm", plan.warm_seconds])
        .args(target.pids().iter().flat_map(|pid| ["--pid", pid.as_str()]))
        .args(target.options())
        .args(options);
    let raw = last_line(&command).with_context(|| format!("load on {}", target.name))?;
    let errors = raw.get("errors").and_then(Value::as_u64).unwrap_or(0);
    if errors > 0 {
        let samples = raw.get("error_samples").cloned().unwrap_or_default();
        bail!(
            "{}: {errors} wrong answers with {callers} callers: {samples}",
            target.name
        );
    }
    Ok(Run { raw })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connections {
    Shared,
    Own,
}

/// Opens sessions and leaves them open at the gateway; what `mcpbench open` says of memory.
pub(super) fn open(
    tools: &Tools,
    target: &Target,
    sessions: usize,
    connections: Connections,
) -> Result<Value> {
    let mut command = Command::new(&tools.mcpbench);
    command.args(["open", "--n", &sessions.to_string(), "--pid", &target.pid()]);
    command.args(target.options());
    if connections == Connections::Own {
        command.arg("--own-connection");
    }
    let raw = last_line(&command).with_context(|| format!("open on {}", target.name))?;
    let errors = raw.get("errors").and_then(Value::as_u64).unwrap_or(0);
    if errors > 0 {
        bail!(
            "{}: {errors} of {sessions} sessions failed: {raw}",
            target.name
        );
    }
    Ok(raw)
}

/// Milliseconds from the start of the gateway to its first right call.
pub(super) fn first(tools: &Tools) -> Result<f64> {
    let prepared = target::prepare(tools, "first", &target::one_child(tools, 0))?;
    let command = prepared.command(tools);
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let line: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    let url = format!("http://127.0.0.1:{}/mcp", prepared.port);
    let mut command = Command::new(&tools.mcpbench);
    command.args(["first", "--limit", "20", "--cmd", &line.join(" ")]);
    command.args(target::options(&url, "b__echo", Some(&prepared.header)));
    let raw = last_line(&command).context("first call")?;
    let _ = fs::remove_dir_all(&prepared.folder);
    raw.get("first_call_ms")
        .and_then(Value::as_f64)
        .with_context(|| format!("no right call came: {raw}"))
}

/// The programs print one JSON line; what stands before it is for people.
fn last_line(command: &Command) -> Result<Value> {
    let said = process::quiet(&mut target::under_limits(command))?;
    let line = said
        .lines()
        .rfind(|line| line.starts_with('{'))
        .unwrap_or_default();
    let value: Value =
        serde_json::from_str(line).with_context(|| format!("no result: {}", said.trim()))?;
    match value.get("failed") {
        Some(reason) => bail!("failed: {reason}"),
        None => Ok(value),
    }
}

/// For a shell: nothing in it is special but the quote itself.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The middle of the values; between the two middle ones when their number is even.
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

/// The median of one figure over several runs.
pub(super) fn median_of(runs: &[Run], figure: &str) -> Option<f64> {
    median(runs.iter().filter_map(|run| run.figure(figure)).collect())
}

/// The median over pairs of the second's figure divided by the first's: what moved both runs of
/// a pair cancels out.
pub(super) fn ratio(pairs: &[(Run, Run)], figure: &str) -> Option<f64> {
    let one = |(below, above): &(Run, Run)| Some(above.figure(figure)? / below.figure(figure)?);
    median(
        pairs
            .iter()
            .filter_map(one)
            .filter(|ratio| ratio.is_finite())
            .collect(),
    )
}

/// Runs two targets in turn, each first in every other pair.
pub(super) fn pairs(
    tools: &Tools,
    plan: &Plan,
    below: &Target,
    above: &Target,
    callers: usize,
) -> Result<Vec<(Run, Run)>> {
    (0..plan.pairs)
        .map(|turn| {
            if turn % 2 == 0 {
                let first = load(tools, plan, below, callers)?;
                Ok((first, load(tools, plan, above, callers)?))
            } else {
                let first = load(tools, plan, above, callers)?;
                Ok((load(tools, plan, below, callers)?, first))
            }
        })
        .collect()
}

/// What `results.json` keeps of several runs of one target.
pub(super) fn summary(name: &str, callers: usize, runs: &[Run]) -> Value {
    let mut object = json!({"target": name, "callers": callers, "runs": runs.len()});
    if let Value::Object(object) = &mut object {
        for figure in FIGURES.iter().chain(&["other_cores"]) {
            object.insert((*figure).to_owned(), json!(median_of(runs, figure)));
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

    fn run(cpu: f64) -> Run {
        Run {
            raw: json!({"gw_cpu_us": cpu}),
        }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn the_ratio_is_taken_within_each_pair() {
        // The machine slows down: both runs of a pair double, and the ratio stays.
        let pairs = [
            (run(10.0), run(15.0)),
            (run(20.0), run(30.0)),
            (run(40.0), run(60.0)),
        ];
        assert_eq!(ratio(&pairs, "gw_cpu_us"), Some(1.5));
    }

    #[test]
    fn a_pair_that_measured_nothing_is_left_out_of_the_ratio() {
        assert_eq!(ratio(&[(run(0.0), run(1.0))], "gw_cpu_us"), None);
    }

    #[test]
    fn a_quoted_word_is_one_word_to_a_shell() {
        let said = process::quiet(
            Command::new("sh").args(["-c", &format!("printf %s {}", quoted("a 'b' $c"))]),
        );
        assert_eq!(said.unwrap(), "a 'b' $c");
    }
}
