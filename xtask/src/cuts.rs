//! `cargo xtask cuts`: calls through an executor while the connection with it is cut, again and
//! again, wherever it happens to be.
//!
//! Each answer is held against what was asked, to the byte; each write against the ledger that its
//! server keeps.

mod callers;
mod tally;
mod world;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{fleet::random::Random, gateway::build_release, process};
use world::World;

/// Cuts of a whole run, and of the short form.
const CUTS: u64 = 100;
const CUTS_SHORT: u64 = 12;

/// Longest time between all is well and a cut.
const APART_MS_MAX: u64 = 150;

/// How long the executor, and an answer to everybody, may take after a cut.
const BACK: Duration = Duration::from_secs(60);

const LOOK: Duration = Duration::from_millis(2);

/// How often.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    cuts: u64,
    seed: u64,
    /// The gateway and executor to run; built where none is named.
    binary: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = plan(rest)?;
    Ok(if carry_out(root, &plan)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan, prints the tally and says whether nothing was that must not be.
pub(crate) fn carry_out(root: &Path, plan: &Plan) -> Result<bool> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_release(root)?,
    };
    let start = process::now();
    let mut world = World::start(root, &binary, plan.seed)?;
    let cut = cut(&world, plan);
    let tally = world.finish().with_context(|| world.last_words())?;
    println!("cuts: {} cuts, seed {}", plan.cuts, plan.seed);
    print!("{tally}");
    if let Err(error) = cut {
        bail!("{error:#}\n{}", world.last_words());
    }
    let well = tally.is_well();
    let verdict = if well { "ok" } else { "FAILED" };
    println!("cuts: {verdict} ({} s)", start.elapsed().as_secs());
    if !well {
        eprintln!("{}", world.last_words());
    }
    Ok(well)
}

/// Cuts whenever the executor is back and everybody has had an answer since: what is asked again
/// is asked again once, and a call that is met twice would be about nothing but haste.
fn cut(world: &World, plan: &Plan) -> Result<()> {
    let mut random = Random::new(plan.seed);
    let mut seen = world.ended();
    for nth in 0..plan.cuts {
        let start = process::now();
        while !world.proxy.carries() || !world.ended_since(&seen) {
            if start.elapsed() > BACK {
                bail!("the executor or a call did not come back after cut {nth}");
            }
            thread::sleep(LOOK);
        }
        thread::sleep(Duration::from_millis(random.below(APART_MS_MAX)));
        world.proxy.cut();
        seen = world.ended();
    }
    Ok(())
}

impl Plan {
    pub(crate) fn full() -> Self {
        Self {
            cuts: CUTS,
            seed: 1,
            binary: None,
        }
    }

    /// A few, among tests.
    pub(crate) fn short(binary: Option<PathBuf>) -> Self {
        Self {
            cuts: CUTS_SHORT,
            binary,
            ..Self::full()
        }
    }
}

fn plan(rest: &[String]) -> Result<Plan> {
    let mut plan = Plan::full();
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
    fn options_are_understood_or_refused_by_name() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            plan(&words)
        };
        let wanted = Plan {
            seed: 7,
            ..Plan::short(None)
        };
        assert_eq!(of(&["--short", "--seed", "7"]).unwrap(), wanted);
        assert_eq!(of(&[]).unwrap(), Plan::full());
        for (words, named) in [(&["--cuts"][..], "--cuts"), (&["--fast"], "--fast")] {
            let error = of(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
