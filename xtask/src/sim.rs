//! `cargo xtask sim`: runs thousands of random simulations in two processes; a seed fixes a run.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::process;

/// Seeds of one run.
const SEEDS_FULL: u64 = 20_000;

/// Processes that share the seeds.
const PROCESS_COUNT: u64 = 2;

/// The test that runs the simulations.
const SIM_TEST: &str = "every_call_ends_in_exactly_one_way";

/// Range of seeds to run.
#[derive(Debug)]
struct SimPlan {
    seeds: u64,
    from: u64,
    /// Runs only this seed, with full output.
    seed: Option<u64>,
    json: bool,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    let program = build_test_program(root)?;
    if let Some(seed) = plan.seed {
        let mut command = test_command(root, &program);
        let status = command.env("BOWLINE_SEED", seed.to_string()).status();
        let well = status.context("could not run the test")?.success();
        return Ok(if well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let summary = run_worlds(root, &program, plan.from, plan.seeds)?;
    if plan.json {
        println!("{}", Value::Object(summary.clone()));
    } else {
        println!("sim: {}", format_figures(&summary));
    }
    Ok(match broken_count(&summary) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Runs `seeds` simulations for `soak` and returns the figures.
pub(crate) fn run_seeds(root: &Path, seeds: u64) -> Result<Map<String, Value>> {
    run_worlds(root, &build_test_program(root)?, 0, seeds)
}

/// Returns the number of seeds that violated an invariant; 1 if the figure is missing.
pub(crate) fn broken_count(summary: &Map<String, Value>) -> u64 {
    summary.get("broken").and_then(Value::as_u64).unwrap_or(1)
}

/// Formats the figures as one line.
pub(crate) fn format_figures(summary: &Map<String, Value>) -> String {
    const WORDS: &[&str] = &[
        "seeds",
        "calls",
        "answered",
        "executions",
        "starts",
        "restarts",
        "ejections",
        "retries",
        "timeouts",
        "late",
        "probes",
        "broken",
        "seconds",
    ];
    let figures = WORDS.iter().filter_map(|word| {
        let figure = summary.get(*word)?;
        Some(format!("{figure} {word}"))
    });
    figures.collect::<Vec<_>>().join(", ")
}

fn parse_plan(rest: &[String]) -> Result<SimPlan> {
    let mut plan = SimPlan {
        seeds: SEEDS_FULL,
        from: 0,
        seed: None,
        json: false,
    };
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64> {
            let value = words.next();
            let value = value.with_context(|| format!("`{word}` needs a value"))?;
            value
                .parse()
                .with_context(|| format!("`{word}` needs a number"))
        };
        match word.as_str() {
            "--seeds" => plan.seeds = number()?,
            "--from" => plan.from = number()?,
            "--seed" => plan.seed = Some(number()?),
            "--json" => plan.json = true,
            other => bail!("unknown option `{other}`"),
        }
    }
    Ok(plan)
}

/// Builds the test program and returns the path.
fn build_test_program(root: &Path) -> Result<PathBuf> {
    eprintln!("sim: building");
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "bowline-host"]);
    cargo.args(["--test", "random", "--no-run", "--message-format=json"]);
    let output = process::run_captured(cargo.current_dir(root))?;
    let mut programs = output.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let program = message.get("executable")?.as_str()?;
        Some(PathBuf::from(program))
    });
    programs.next_back().context("cargo named no test program")
}

fn test_command(root: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args([SIM_TEST, "--exact", "--nocapture", "--quiet"]);
    command.current_dir(root.join("crates/host"));
    command
}

fn run_worlds(root: &Path, program: &Path, from: u64, seeds: u64) -> Result<Map<String, Value>> {
    let start = process::now();
    let half = seeds.div_ceil(PROCESS_COUNT);
    let mut running = Vec::new();
    for nth in 0..PROCESS_COUNT {
        let first = from + (nth * half).min(seeds);
        let last = from + ((nth + 1) * half).min(seeds);
        let mut command = test_command(root, program);
        command.env("BOWLINE_SEEDS_FROM", first.to_string());
        command.env("BOWLINE_SEEDS_TO", last.to_string());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().context("could not run the test")?;
        running.push(thread::spawn(move || collect_figures(child)));
    }
    let mut sum = Map::new();
    for one in running {
        let part = one.join().ok().context("a listener panicked")??;
        for (word, figure) in part {
            let so_far = sum.get(&word).and_then(Value::as_u64).unwrap_or(0);
            let figure = figure.as_u64().unwrap_or(0);
            sum.insert(word, (so_far + figure).into());
        }
    }
    sum.insert("seconds".to_owned(), start.elapsed().as_secs().into());
    Ok(sum)
}

/// Forwards the output of one process to stderr and returns the figures.
fn collect_figures(mut child: Child) -> Result<Map<String, Value>> {
    let stderr = child.stderr.take().context("no output")?;
    let mut figures = None;
    for line in BufReader::new(stderr).lines() {
        let line = line.context("read the output of the test")?;
        let found = line.strip_prefix("sim: {").is_some();
        let json = line.trim_start_matches("sim: ");
        match serde_json::from_str(json) {
            Ok(Value::Object(object)) if found => figures = Some(object),
            _ => eprintln!("{line}"),
        }
    }
    child.wait().context("wait for the test")?;
    figures.context("the test said no figures")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_one_line() {
        let summary = serde_json::json!({"seeds": 3, "broken": 0, "calls": 7});
        let summary = summary.as_object().unwrap();
        assert_eq!(format_figures(summary), "3 seeds, 7 calls, 0 broken");
        assert_eq!(broken_count(summary), 0);
        assert_eq!(broken_count(&Map::new()), 1, "no figures are no success");
    }
}
