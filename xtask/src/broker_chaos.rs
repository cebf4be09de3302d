//! `cargo xtask broker-chaos`: a hub and a worker in a separate network, numbered calls in both
//! directions, while connections are cut or delayed and both gateways are killed.
//!
//! Both servers write each number to a ledger before they respond, so the ledgers show what really
//! ran; the tally compares them with the responses.

mod broker_faults;
mod broker_setup;
pub(crate) mod broker_tally;
pub(crate) mod fault_proxy;
mod http_agents;
mod hub_network;
mod plain_peer;
pub(crate) mod restartable_gateway;
pub(crate) mod seeded_random;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{process, running_gateway::build_dist};
use broker_faults::BrokerFaults;
use broker_setup::BrokerChaosSetup;
use broker_tally::BrokerCallRecord;
use http_agents::HttpAgent;
use plain_peer::PlainBrokerPeer;

/// Calls and faults of a full run.
const CALLS_FULL: u64 = 10_000;
const FAULTS_FULL: u64 = 60;

/// Calls and faults of the short form.
const CALLS_SHORT: u64 = 400;
const FAULTS_SHORT: u64 = 8;

/// Size, faults and binary of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BrokerChaosPlan {
    calls: u64,
    faults: u64,
    seed: u64,
    /// Whether outages of half a minute are among the faults.
    long: bool,
    /// Use a proxy instead of a network namespace.
    proxy: bool,
    /// The gateway binary; built if `None`.
    binary: Option<PathBuf>,
    /// Keep the files of the run.
    keep: bool,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    if let [word, what] = rest
        && word == "--child"
    {
        return run_child(what);
    }
    let plan = parse_plan(rest)?;
    let well = run_plan(root, &plan)?;
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan, prints the tally and returns whether the tally has no violation.
pub(crate) fn run_plan(root: &Path, plan: &BrokerChaosPlan) -> Result<bool> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_dist(root)?,
    };
    let start = process::now();
    let mut world = BrokerChaosSetup::start(root, &binary, plan)?;
    let mut faults = BrokerFaults::new(plan.seed, plan.long);
    let broken = faults.run(&mut world, plan.faults);
    let tally = world.finish();
    let (tally, broken) = match (tally, broken) {
        (Ok(tally), Ok(())) => (tally, None),
        (Ok(tally), Err(error)) => (tally, Some(error)),
        (Err(error), _) => return Err(error.context(world.log_tails())),
    };
    println!(
        "broker-chaos: {} calls, seed {}, {}; {faults}",
        plan.calls, plan.seed, world.network_note
    );
    print!("{tally}");
    if let Some(error) = broken {
        bail!("{error:#}\n{}", world.log_tails());
    }
    let well = tally.has_no_violations();
    let verdict = if well { "ok" } else { "FAILED" };
    println!("broker-chaos: {verdict} ({} s)", start.elapsed().as_secs());
    if !well {
        eprintln!("{}", world.log_tails());
    }
    Ok(well)
}

impl BrokerChaosPlan {
    pub(crate) fn full() -> Self {
        Self {
            calls: CALLS_FULL,
            faults: FAULTS_FULL,
            seed: 1,
            long: true,
            proxy: false,
            binary: None,
            keep: false,
        }
    }

    /// The short form with a proxy: tests must not change the network of the machine.
    pub(crate) fn short_with_proxy(binary: PathBuf) -> Self {
        Self {
            proxy: true,
            ..Self::short(Some(binary))
        }
    }

    /// A few hundred calls, without long faults.
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

fn parse_plan(rest: &[String]) -> Result<BrokerChaosPlan> {
    let mut plan = BrokerChaosPlan::full();
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
                plan = BrokerChaosPlan {
                    seed: plan.seed,
                    proxy: plan.proxy,
                    keep: plan.keep,
                    ..BrokerChaosPlan::short(plan.binary)
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

/// Runs agents or peers in a child process, because a network namespace applies to a process. Each
/// printed line is the record of one call.
fn run_child(spec: &str) -> Result<ExitCode> {
    let spec: Value = serde_json::from_str(spec).context("what the child is to do")?;
    let text = |value: &Value, key: &str| -> Result<String> {
        let text = value.get(key).and_then(Value::as_str);
        Ok(text.with_context(|| format!("no `{key}`"))?.to_owned())
    };
    let whole = |value: &Value, key: &str| -> Result<u64> {
        let number = value.get(key).and_then(Value::as_u64);
        number.with_context(|| format!("no `{key}`"))
    };
    let (address, server) = (text(&spec, "address")?.parse()?, text(&spec, "server")?);
    let plain = spec.get("plain") == Some(&json!(true));
    let all = spec.get("all").and_then(Value::as_array).cloned();
    let out = Mutex::new(std::io::stdout());
    let say = |ended: &BrokerCallRecord| {
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        // The parent closes the pipe when the run is aborted.
        let _ = writeln!(out, "{}", ended.to_line());
    };
    thread::scope(|scope| {
        for one in all.unwrap_or_default() {
            let (name, token) = (text(&one, "name")?, text(&one, "token")?);
            let (first, count) = (whole(&one, "first")?, whole(&one, "count")?);
            let server = server.clone();
            if plain {
                let peer = PlainBrokerPeer {
                    address,
                    name,
                    token,
                    server,
                    first_number: first,
                    count,
                };
                scope.spawn(move || peer.deliver_all(say));
            } else {
                let agent = HttpAgent {
                    address,
                    token,
                    server,
                    first_number: first,
                    count,
                };
                scope.spawn(move || agent.call_all(say));
            }
        }
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<BrokerChaosPlan> {
        parse_plan(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn plan_parses_options_or_names_unknown() {
        let short = parse_words(&["--seed", "7", "--short", "--proxy"]).unwrap();
        let wanted = BrokerChaosPlan {
            seed: 7,
            proxy: true,
            ..BrokerChaosPlan::short(None)
        };
        assert_eq!(short, wanted);
        assert_eq!(parse_words(&[]).unwrap(), BrokerChaosPlan::full());
        for (words, named) in [(&["--calls"][..], "--calls"), (&["--fast"], "--fast")] {
            let error = parse_words(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
