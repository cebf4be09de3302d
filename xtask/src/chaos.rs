//! `cargo xtask chaos`: healthy servers beside five that crash, hang, flap, dawdle and babble.
//!
//! The same healthy load runs undisturbed and disturbed, in interleaved halves of one gateway's
//! life, so that what differs is the disturbance.

mod gateway;
mod load;
mod report;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::gateway::build_release;

use gateway::Gateway;
use load::Load;
pub(crate) use report::Report;

/// How long and how hard.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Of disturbance in all; the undisturbed time is as long.
    seconds: u64,
    calls_per_second: u32,
    crashes_per_minute: u32,
    /// The gateway to run; built where none is named.
    binary: Option<PathBuf>,
    json: bool,
}

/// Halves of each kind.
const HALVES: u64 = 2;

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = plan(rest)?;
    let report = measure(root, &plan)?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.table());
    }
    Ok(if report.missed().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan and returns what was seen.
pub(crate) fn measure(root: &Path, plan: &Plan) -> Result<Report> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_release(root)?,
    };
    let gateway = Gateway::start(root, &binary)?;
    let mut report = Report::default();
    if !gateway.has_everything() {
        report.leave_out("server-everything: no peers; run `cargo xtask peers`");
    }
    gateway.settle()?;
    // The first calls build what later ones use: connections, buffers, compiled code.
    Load::new(&gateway, plan.calls_per_second).run(Duration::from_secs(3), None)?;
    gateway.settle()?;
    report.before = gateway.vitals()?;
    let half = Duration::from_secs((plan.seconds / HALVES).max(1));
    for nth in 0..HALVES {
        for disturbed in [false, true] {
            let crashes = disturbed.then_some(plan.crashes_per_minute);
            let word = if disturbed {
                "disturbed"
            } else {
                "undisturbed"
            };
            eprintln!("chaos: {word}, {} s", half.as_secs());
            let cpu = gateway.cpu()?;
            let outcome = Load::new(&gateway, plan.calls_per_second).run(half, crashes)?;
            report.add(disturbed, outcome, &gateway.cpu()?.since(&cpu));
            gateway.settle()?;
        }
        if nth == 0 {
            report.middle = gateway.vitals()?;
        }
    }
    report.after = gateway.vitals_like(&report.before)?;
    Ok(report)
}

impl Plan {
    /// The whole run.
    pub(crate) const fn full() -> Self {
        Self {
            seconds: 300,
            calls_per_second: 200,
            crashes_per_minute: 5,
            binary: None,
            json: false,
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
        match word.as_str() {
            "--minutes" => plan.seconds = number::<u64>(word, value()?)? * 60,
            "--seconds" => plan.seconds = number(word, value()?)?,
            "--rate" => plan.calls_per_second = number(word, value()?)?,
            "--crashes-per-minute" => plan.crashes_per_minute = number(word, value()?)?,
            "--binary" => plan.binary = Some(PathBuf::from(value()?)),
            "--json" => plan.json = true,
            other => bail!("unknown option `{other}`"),
        }
    }
    if plan.calls_per_second < 10 || plan.seconds < 4 || plan.crashes_per_minute == 0 {
        bail!("at least 10 calls a second, 4 seconds and one crash a minute");
    }
    Ok(plan)
}

fn number<T: std::str::FromStr>(word: &str, value: &str) -> Result<T> {
    let number = value.parse().ok();
    number.with_context(|| format!("`{word}` needs a number"))
}
