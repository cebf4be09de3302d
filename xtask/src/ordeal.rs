//! `cargo xtask ordeal`: kills, power cuts, flipped bits and failing disks, and what the journal
//! kept of what it had acknowledged.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;

/// Acknowledged operations without which a run of kills shows nothing.
const ACKNOWLEDGED_MIN: u64 = 50_000;

/// Bytes of the end of the log between two cuts of it, in the full form and in the quick one.
const TAIL_STEP: (u64, u64) = (31, 509);

/// Calls between two that fail, likewise.
const FAULT_STEP: (u64, u64) = (1, 13);

/// What is tried, and how often.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    kills: u64,
    cuts: u64,
    flips: u64,
    /// Calls from one that fails to the next that does; 0 leaves the part out.
    fault_step: u64,
    tail_step: u64,
    seed: u64,
    json: bool,
}

const FULL: (u64, u64, u64) = (200, 25, 1_000);
const QUICK: (u64, u64, u64) = (10, 2, 100);

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = plan(rest)?;
    let program = build(root)?;
    let mut rows = Vec::new();
    for words in parts(&plan) {
        eprintln!("ordeal: {}", words.join(" "));
        let start = process::now();
        let (tally, kept) = part(&program, &words)?;
        rows.push((words.join(" "), tally, kept, start.elapsed().as_secs()));
    }
    if let Some((_, tally, kept, _)) = rows.iter_mut().find(|(name, ..)| name.starts_with("kill"))
        && plan.kills >= FULL.0
    {
        *kept &= number(tally, "acknowledged") >= ACKNOWLEDGED_MIN;
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
            println!("{name}: {verdict} ({seconds} s)\n  {}", sentence(tally));
        }
    }
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn plan(rest: &[String]) -> Result<Plan> {
    let mut plan = Plan {
        kills: FULL.0,
        cuts: FULL.1,
        flips: FULL.2,
        fault_step: FAULT_STEP.0,
        tail_step: TAIL_STEP.0,
        seed: 1,
        json: false,
    };
    // Naming a part leaves out those that are not named.
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
            "--faults" => plan.fault_step = FAULT_STEP.0,
            "--quick" => {
                (plan.kills, plan.cuts, plan.flips) = QUICK;
                (plan.fault_step, plan.tail_step) = (FAULT_STEP.1, TAIL_STEP.1);
            }
            "--json" => plan.json = true,
            other => bail!("unknown option `{other}`"),
        }
    }
    Ok(plan)
}

/// The words of each part that was asked for.
fn parts(plan: &Plan) -> Vec<Vec<String>> {
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
        (plan.fault_step == FAULT_STEP.0).then(|| vec!["full".to_owned()]),
        (plan.tail_step > 0).then(|| tail.to_vec()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Builds the example of the journal, optimised, but not as a whole program: that takes minutes.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "bowline-journal",
    ]);
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    process::show(cargo.args(["--example", "ordeal"]).current_dir(root))?;
    let targets =
        process::env("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(targets.join("release/examples/ordeal"))
}

/// Runs one part: what it tells, and whether every promise was kept.
pub(crate) fn part(program: &Path, words: &[String]) -> Result<(Value, bool)> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().last().unwrap_or_default();
    let tally = serde_json::from_str(line);
    let tally = tally.with_context(|| format!("`{}` told nothing", words.join(" ")))?;
    Ok((tally, output.status.success()))
}

fn number(tally: &Value, name: &str) -> u64 {
    tally.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// `acknowledged 53124, lost 0, …`
fn sentence(tally: &Value) -> String {
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

    fn of(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let plan = plan(&words).unwrap();
        parts(&plan).iter().map(|part| part.join(" ")).collect()
    }

    #[test]
    fn without_options_every_part_is_tried_in_full() {
        assert_eq!(
            of(&[]),
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
    fn naming_a_part_leaves_out_the_others() {
        assert_eq!(
            of(&["--kills", "3", "--seed", "7"]),
            ["kill --rounds 3 --seed 7"]
        );
        assert_eq!(of(&["--faults"]), ["faults --step 1", "full"]);
        assert_eq!(of(&["--quick"]).len(), 5);
    }

    #[test]
    fn an_option_without_its_number_is_refused_by_name() {
        let error = plan(&["--kills".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--kills"), "{error}");
    }
}
