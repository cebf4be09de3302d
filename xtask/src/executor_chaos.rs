//! `cargo xtask executor-chaos`: calls through an executor while the connection is cut repeatedly
//! at random moments.
//!
//! Each response must match its request byte for byte; each write must match the server's ledger.

mod executor_callers;
mod executor_setup;
mod executor_tally;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{broker_chaos::seeded_random::SeededRandom, process, running_gateway::build_dist};
use executor_setup::ExecutorChaosSetup;

/// Cuts of a full run and of the short form.
const CUTS_FULL: u64 = 100;
const CUTS_SHORT: u64 = 12;

/// Longest delay between full recovery and the next cut.
const CUT_DELAY_MS_MAX: u64 = 150;

/// Time limit after a cut for the executor to reconnect and every caller to get a response.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Number of cuts, seed and binary of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExecutorChaosPlan {
    cuts: u64,
    seed: u64,
    /// Binary for gateway and executor; built if `None`.
    binary: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    Ok(if run_plan(root, &plan)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan, prints the tally and returns whether the tally has no violation.
pub(crate) fn run_plan(root: &Path, plan: &ExecutorChaosPlan) -> Result<bool> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_dist(root)?,
    };
    let start = process::now();
    let mut world = ExecutorChaosSetup::start(root, &binary, plan.seed)?;
    let cut = cut_connections(&world, plan);
    let tally = world.finish().with_context(|| world.log_tails())?;
    println!("executor-chaos: {} cuts, seed {}", plan.cuts, plan.seed);
    print!("{tally}");
    if let Err(error) = cut {
        bail!("{error:#}\n{}", world.log_tails());
    }
    let well = tally.has_no_violations();
    let verdict = if well { "ok" } else { "FAILED" };
    println!(
        "executor-chaos: {verdict} ({} s)",
        start.elapsed().as_secs()
    );
    if !well {
        eprintln!("{}", world.log_tails());
    }
    Ok(well)
}

/// Cuts once the executor is connected and every caller got a response since the last cut. The
/// gateway retries a call once, so a call hit by two cuts would fail without a defect.
fn cut_connections(world: &ExecutorChaosSetup, plan: &ExecutorChaosPlan) -> Result<()> {
    let mut random = SeededRandom::new(plan.seed);
    let mut seen = world.finished_counts();
    for nth in 0..plan.cuts {
        let start = process::now();
        while !world.proxy.has_connections() || !world.has_finished_since(&seen) {
            if start.elapsed() > RECOVERY_TIMEOUT {
                bail!("the executor or a call did not come back after cut {nth}");
            }
            thread::sleep(POLL_INTERVAL);
        }
        thread::sleep(Duration::from_millis(random.below(CUT_DELAY_MS_MAX)));
        world.proxy.cut_connections();
        seen = world.finished_counts();
    }
    Ok(())
}

impl ExecutorChaosPlan {
    pub(crate) fn full() -> Self {
        Self {
            cuts: CUTS_FULL,
            seed: 1,
            binary: None,
        }
    }

    /// The form that `cargo xtask test` runs.
    pub(crate) fn short(binary: Option<PathBuf>) -> Self {
        Self {
            cuts: CUTS_SHORT,
            binary,
            ..Self::full()
        }
    }
}

fn parse_plan(rest: &[String]) -> Result<ExecutorChaosPlan> {
    let mut plan = ExecutorChaosPlan::full();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            let value = words.next();
            value.with_context(|| format!("`{word}` needs a value"))
        };
        let number = |value: &str| -> Result<u64> {
            let number = value.parse();
            number.with_context(|| format!("`{word}` needs a number"))
        };
        match word.as_str() {
            "--short" => plan.cuts = CUTS_SHORT,
            "--cuts" => plan.cuts = number(value()?)?,
            "--seed" => plan.seed = number(value()?)?,
            "--binary" => plan.binary = Some(PathBuf::from(value()?)),
            other => {
                bail!("unknown option `{other}`; known: --cuts N, --seed S, --short, --binary PATH")
            }
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_parses_options_or_names_unknown() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            parse_plan(&words)
        };
        let wanted = ExecutorChaosPlan {
            seed: 7,
            ..ExecutorChaosPlan::short(None)
        };
        assert_eq!(of(&["--short", "--seed", "7"]).unwrap(), wanted);
        assert_eq!(of(&[]).unwrap(), ExecutorChaosPlan::full());
        for (words, named) in [(&["--cuts"][..], "--cuts"), (&["--fast"], "--fast")] {
            let error = of(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
