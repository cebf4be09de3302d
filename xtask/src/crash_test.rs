//! `cargo xtask crash-test`: subjects the journal to kills, power cuts, flipped bits and failing
//! disks, and checks that every acknowledged operation survives.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;

/// Minimum of acknowledged operations in a full run of kills; a smaller run proves nothing.
const ACKNOWLEDGED_MIN: u64 = 50_000;

/// Bytes between two truncation points of the log tail: full form, quick form.
const TAIL_STEPS: (u64, u64) = (31, 509);

/// System calls between two injected failures: full form, quick form.
const FAULT_STEPS: (u64, u64) = (1, 13);

/// Which parts to run, and how many rounds of each.
#[derive(Debug, PartialEq, Eq)]
struct CrashTestPlan {
    kills: u64,
    cuts: u64,
    flips: u64,
    /// Calls from one injected failure to the next; 0 skips the part.
    fault_step: u64,
    tail_step: u64,
    seed: u64,
    json: bool,
}

const ROUNDS_FULL: (u64, u64, u64) = (200, 25, 1_000);
const ROUNDS_QUICK: (u64, u64, u64) = (10, 2, 100);

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    let program = build_crash_program(root)?;
    let mut rows = Vec::new();
    for words in part_arguments(&plan) {
        eprintln!("crash-test: {}", words.join(" "));
        let start = process::now();
        let (tally, kept) = run_part(&program, &words)?;
        rows.push((words.join(" "), tally, kept, start.elapsed().as_secs()));
    }
    if let Some((_, tally, kept, _)) = rows.iter_mut().find(|(name, ..)| name.starts_with("kill"))
        && plan.kills >= ROUNDS_FULL.0
    {
        *kept &= tally_number(tally, "acknowledged") >= ACKNOWLEDGED_MIN;
    }
    let well = rows.iter().all(|(_, _, kept, _)| *kept);
    if plan.json {
        let all: Vec<Value> = rows
            .iter()
            .map(|(name, tally, kept, seconds)| {
                json!({"name": name, "kept": kept, "seconds": seconds, "tally": tally})
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        for (name, tally, kept, seconds) in &rows {
            let verdict = if *kept { "ok" } else { "BROKEN" };
            println!("{name}: {verdict} ({seconds} s)\n  {}", format_tally(tally));
        }
    }
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn parse_plan(rest: &[String]) -> Result<CrashTestPlan> {
    let mut plan = CrashTestPlan {
        kills: ROUNDS_FULL.0,
        cuts: ROUNDS_FULL.1,
        flips: ROUNDS_FULL.2,
        fault_step: FAULT_STEPS.0,
        tail_step: TAIL_STEPS.0,
        seed: 1,
        json: false,
    };
    // Naming a part on the command line excludes all parts not named.
    let named =
        |word: &&String| ["--kills", "--cuts", "--flips", "--faults"].contains(&word.as_str());
    if rest.iter().any(|word| named(&word)) {
        (plan.kills, plan.cuts, plan.flips) = (0, 0, 0);
        (plan.fault_step, plan.tail_step) = (0, 0);
    }
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || -> Result<u64> {
            let value = words.next().and_then(|value| value.parse().ok());
            value.with_context(|| format!("`{word}` needs a number"))
        };
        match word.as_str() {
            "--kills" => plan.kills = value()?,
            "--cuts" => plan.cuts = value()?,
            "--flips" => plan.flips = value()?,
            "--seed" => plan.seed = value()?,
            "--faults" => plan.fault_step = FAULT_STEPS.0,
            "--quick" => {
                (plan.kills, plan.cuts, plan.flips) = ROUNDS_QUICK;
                (plan.fault_step, plan.tail_step) = (FAULT_STEPS.1, TAIL_STEPS.1);
            }
            "--json" => plan.json = true,
            other => bail!("unknown option `{other}`"),
        }
    }
    Ok(plan)
}

/// Returns the command-line arguments of each selected part.
fn part_arguments(plan: &CrashTestPlan) -> Vec<Vec<String>> {
    let seed = plan.seed.to_string();
    let counted = |part: &str, rounds: u64| {
        let words = [part, "--rounds", &rounds.to_string(), "--seed", &seed].map(str::to_owned);
        (rounds > 0).then(|| words.to_vec())
    };
    let faults = ["faults", "--step", &plan.fault_step.to_string()].map(str::to_owned);
    let tail = ["tail", "--step", &plan.tail_step.to_string()].map(str::to_owned);
    [
        counted("kill", plan.kills),
        counted("cut", plan.cuts),
        counted("flips", plan.flips),
        (plan.fault_step > 0).then(|| faults.to_vec()),
        (plan.fault_step == FAULT_STEPS.0).then(|| vec!["full".to_owned()]),
        (plan.tail_step > 0).then(|| tail.to_vec()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Builds the journal's crash program with the release profile.
pub(crate) fn build_crash_program(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "bowline-journal",
    ]);
    process::run_inherited(cargo.args(["--example", "crash_test"]).current_dir(root))?;
    let targets = process::target_folder(root);
    Ok(targets.join("release/examples/crash_test"))
}

/// Runs one part; returns its tally and whether every check passed.
pub(crate) fn run_part(program: &Path, words: &[String]) -> Result<(Value, bool)> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start {}", program.display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().last().unwrap_or_default();
    let tally = serde_json::from_str(line);
    let tally = tally.with_context(|| format!("`{}` told nothing", words.join(" ")))?;
    Ok((tally, output.status.success()))
}

fn tally_number(tally: &Value, name: &str) -> u64 {
    tally.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// `acknowledged 53124, lost 0, …`
fn format_tally(tally: &Value) -> String {
    let fields = tally.as_object().into_iter().flatten();
    let words = fields.filter(|(name, value)| {
        name.as_str() != "part" && value.as_array().is_none_or(|list| !list.is_empty())
    });
    let words: Vec<String> = words
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_parts(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let plan = parse_plan(&words).unwrap();
        part_arguments(&plan)
            .iter()
            .map(|part| part.join(" "))
            .collect()
    }

    #[test]
    fn every_part_runs_in_full_by_default() {
        assert_eq!(
            parse_parts(&[]),
            [
                "kill --rounds 200 --seed 1",
                "cut --rounds 25 --seed 1",
                "flips --rounds 1000 --seed 1",
                "faults --step 1",
                "full",
                "tail --step 31"
            ]
        );
    }

    #[test]
    fn named_part_excludes_other_parts() {
        assert_eq!(
            parse_parts(&["--kills", "3", "--seed", "7"]),
            ["kill --rounds 3 --seed 7"]
        );
        assert_eq!(parse_parts(&["--faults"]), ["faults --step 1", "full"]);
        assert_eq!(parse_parts(&["--quick"]).len(), 5);
    }

    #[test]
    fn option_without_number_is_named_in_error() {
        let error = parse_plan(&["--kills".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--kills"), "{error}");
    }
}
