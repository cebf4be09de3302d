//! `cargo xtask chaos`: healthy servers beside five that crash, hang, flap, respond slowly and
//! write noise.
//!
//! The same healthy load runs undisturbed and disturbed, in interleaved halves against one gateway,
//! so that the disturbance is the only difference.

mod chaos_gateway;
mod chaos_load;
mod chaos_report;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::running_gateway::build_dist;

use chaos_gateway::ChaosGateway;
use chaos_load::ChaosLoad;
pub(crate) use chaos_report::ChaosReport;

/// Duration and rates of a run.
#[derive(Debug)]
pub(crate) struct ChaosPlan {
    /// Disturbed time in total; the undisturbed time is equally long.
    seconds: u64,
    calls_per_second: u32,
    crashes_per_minute: u32,
    /// The gateway binary; built if `None`.
    binary: Option<PathBuf>,
    json: bool,
}

/// Halves of each kind.
const HALVES: u64 = 2;

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    let report = run_plan(root, &plan)?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.to_table());
    }
    Ok(if report.missed_goals().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan and returns the report.
pub(crate) fn run_plan(root: &Path, plan: &ChaosPlan) -> Result<ChaosReport> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_dist(root)?,
    };
    let gateway = ChaosGateway::start(root, &binary)?;
    let mut report = ChaosReport::default();
    if !gateway.has_everything() {
        report.skip_part("server-everything: no peers; run `cargo xtask peers`");
    }
    gateway.restart_faulty()?;
    // Warm-up: the first calls create connections and buffers that later calls reuse.
    ChaosLoad::new(&gateway, plan.calls_per_second).run(Duration::from_secs(3), None)?;
    gateway.restart_faulty()?;
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
            let cpu = gateway.cpu_time()?;
            let outcome = ChaosLoad::new(&gateway, plan.calls_per_second).run(half, crashes)?;
            report.add_outcome(disturbed, outcome, &gateway.cpu_time()?.since(&cpu));
            gateway.restart_faulty()?;
        }
        if nth == 0 {
            report.middle = gateway.vitals()?;
        }
    }
    report.after = gateway.wait_for_vitals(&report.before)?;
    Ok(report)
}

impl ChaosPlan {
    /// The full run.
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

fn parse_plan(rest: &[String]) -> Result<ChaosPlan> {
    let mut plan = ChaosPlan::full();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("`{word}` needs a value"))
        };
        match word.as_str() {
            "--minutes" => plan.seconds = parse_number::<u64>(word, value()?)? * 60,
            "--seconds" => plan.seconds = parse_number(word, value()?)?,
            "--rate" => plan.calls_per_second = parse_number(word, value()?)?,
            "--crashes-per-minute" => plan.crashes_per_minute = parse_number(word, value()?)?,
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

fn parse_number<T: std::str::FromStr>(word: &str, value: &str) -> Result<T> {
    let number = value.parse().ok();
    number.with_context(|| format!("`{word}` needs a number"))
}
