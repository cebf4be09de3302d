//! `cargo xtask fleet`: a hub and a worker in a network of its own, numbered calls in both
//! directions, and everything between them cut, held up and killed meanwhile.
//!
//! The servers of both write each number into a ledger before they answer, so what really ran is
//! known whatever anybody was told; the tally holds one against the other.

mod agents;
mod faults;
pub(crate) mod gateway;
mod network;
mod plain;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod tally;
mod world;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{gateway::build_release, process};
use agents::Agent;
use faults::Faults;
use plain::Peer;
use tally::Ended;
use world::World;

/// Calls of a whole run, and the faults meanwhile.
const CALLS: u64 = 10_000;
const FAULTS: u64 = 60;

/// The same of the short form.
const CALLS_SHORT: u64 = 400;
const FAULTS_SHORT: u64 = 8;

/// How long and how hard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    calls: u64,
    faults: u64,
    seed: u64,
    /// Whether half a minute without any packet is among the faults.
    long: bool,
    /// A proxy instead of a namespace.
    proxy: bool,
    /// The gateway to run; built where none is named.
    binary: Option<PathBuf>,
    /// Whether what it wrote stays.
    keep: bool,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    if let [word, what] = rest
        && word == "--child"
    {
        return child(what);
    }
    let plan = plan(rest)?;
    let well = carry_out(root, &plan)?;
    Ok(if well {
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
    let mut world = World::start(root, &binary, plan)?;
    let mut faults = Faults::new(plan.seed, plan.long);
    let broken = faults.run(&mut world, plan.faults);
    let tally = world.finish();
    let (tally, broken) = match (tally, broken) {
        (Ok(tally), Ok(())) => (tally, None),
        (Ok(tally), Err(error)) => (tally, Some(error)),
        (Err(error), _) => return Err(error.context(world.last_words())),
    };
    println!(
        "fleet: {} calls, seed {}, {}; {faults}",
        plan.calls, plan.seed, world.way
    );
    print!("{tally}");
    if let Some(error) = broken {
        bail!("{error:#}\n{}", world.last_words());
    }
    let well = tally.is_well();
    let verdict = if well { "ok" } else { "FAILED" };
    println!("fleet: {verdict} ({} s)", start.elapsed().as_secs());
    if !well {
        eprintln!("{}", world.last_words());
    }
    Ok(well)
}

impl Plan {
    pub(crate) fn full() -> Self {
        Self {
            calls: CALLS,
            faults: FAULTS,
            seed: 1,
            long: true,
            proxy: false,
            binary: None,
            keep: false,
        }
    }

    /// The short form behind a proxy: tests change nothing of the machine they run on.
    pub(crate) fn among_tests(binary: PathBuf) -> Self {
        Self {
            proxy: true,
            ..Self::short(Some(binary))
        }
    }

    /// A few hundred calls, and no fault that takes long.
    pub(crate) fn short(binary: Option<PathBuf>) -> Self {
        Self {
            calls: CALLS_SHORT,
            faults: FAULTS_SHORT,
            long: false,
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
            words
                .next()
                .with_context(|| format!("`{word}` needs a value"))
        };
        let number = |value: &str| -> Result<u64> {
            value
                .parse()
                .with_context(|| format!("`{word}` needs a number"))
        };
        match word.as_str() {
            "--short" => {
                plan = Plan {
                    seed: plan.seed,
                    proxy: plan.proxy,
                    keep: plan.keep,
                    ..Plan::short(plan.binary)
                };
            }
            "--calls" => plan.calls = number(value()?)?,
            "--faults" => plan.faults = number(value()?)?,
            "--seed" => plan.seed = number(value()?)?,
            "--binary" => plan.binary = Some(PathBuf::from(value()?)),
            "--proxy" => plan.proxy = true,
            "--keep" => plan.keep = true,
            other => bail!(
                "unknown option `{other}`; known: --calls N, --faults N, --seed S, --short, \
                 --proxy, --binary PATH, --keep"
            ),
        }
    }
    if plan.calls < 40 {
        bail!("at least 40 calls");
    }
    Ok(plan)
}

/// What agents and peers do: in a process of their own, because a namespace is a process's.
/// Each line that it prints is the end of one call.
fn child(what: &str) -> Result<ExitCode> {
    let what: Value = serde_json::from_str(what).context("what the child is to do")?;
    let text = |value: &Value, key: &str| -> Result<String> {
        let text = value.get(key).and_then(Value::as_str);
        Ok(text.with_context(|| format!("no `{key}`"))?.to_owned())
    };
    let whole = |value: &Value, key: &str| -> Result<u64> {
        let number = value.get(key).and_then(Value::as_u64);
        number.with_context(|| format!("no `{key}`"))
    };
    let (address, server) = (text(&what, "address")?.parse()?, text(&what, "server")?);
    let plain = what.get("plain") == Some(&json!(true));
    let all = what.get("all").and_then(Value::as_array).cloned();
    let out = Mutex::new(std::io::stdout());
    let say = |ended: &Ended| {
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody listens any more when the run was given up.
        let _ = writeln!(out, "{}", ended.line());
    };
    thread::scope(|scope| {
        for one in all.unwrap_or_default() {
            let (name, token) = (text(&one, "name")?, text(&one, "token")?);
            let (first, count) = (whole(&one, "first")?, whole(&one, "count")?);
            let server = server.clone();
            if plain {
                let peer = Peer {
                    address,
                    name,
                    token,
                    server,
                    first,
                    count,
                };
                scope.spawn(move || peer.work(say));
            } else {
                let agent = Agent {
                    address,
                    token,
                    server,
                    first,
                    count,
                };
                scope.spawn(move || agent.work(say));
            }
        }
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Plan> {
        plan(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn options_are_understood_or_refused_by_name() {
        let short = of(&["--seed", "7", "--short", "--proxy"]).unwrap();
        let wanted = Plan {
            seed: 7,
            proxy: true,
            ..Plan::short(None)
        };
        assert_eq!(short, wanted);
        assert_eq!(of(&[]).unwrap(), Plan::full());
        for (words, named) in [(&["--calls"][..], "--calls"), (&["--fast"], "--fast")] {
            let error = of(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
