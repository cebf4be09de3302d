//! `cargo xtask floods`: a principal without rights, or an anonymous client, floods the gateway
//! while the owner calls tools.
//!
//! The gateway has one core; flooder and owner share the second. Each flood runs against a new
//! gateway with default settings. Measured are memory growth, the owner's latency relative to a
//! quiet gateway, failed calls of the owner, and damage to connections of other principals.

mod flood_attacks;
mod flood_gateway;
mod owner_calls;
mod raw_http;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;
use crate::running_gateway::build_dist;

use flood_attacks::{ATTACKS, FloodAttack, FloodSize};
use flood_gateway::FloodGateway;
use owner_calls::{Bystanders, OwnerStats};

/// Limit of memory growth during a flood.
const GROWTH_MIB_MAX: u64 = 64;

/// Limit of the owner's 99th percentile relative to a quiet gateway.
const P99_RATIO_MAX: u32 = 10;

/// The limit is at least this, for a fast quiet gateway.
const P99_MAX: Duration = Duration::from_millis(20);

/// Interval of memory samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Durations, selected floods and binary of a run.
#[derive(Debug)]
pub(crate) struct FloodPlan {
    /// Duration of each flood.
    flood: Duration,
    /// Duration of the quiet phase before a flood.
    quiet: Duration,
    /// Names of the selected floods; empty for all.
    only: Vec<String>,
    /// The gateway binary; a release build if `None`.
    binary: Option<PathBuf>,
    /// Amount of data in each flood.
    size: FloodSize,
    /// Whether latency goals apply; only on an otherwise idle machine.
    judge_latency: bool,
    json: bool,
}

impl FloodPlan {
    /// A few seconds of each flood, for a debug build in `cargo xtask test`.
    pub(crate) fn short(binary: Option<PathBuf>) -> Self {
        Self {
            flood: Duration::from_secs(2),
            quiet: Duration::from_millis(500),
            only: Vec::new(),
            binary,
            size: FloodSize::Short,
            judge_latency: false,
            json: false,
        }
    }

    fn full() -> Self {
        Self {
            flood: Duration::from_secs(30),
            quiet: Duration::from_secs(5),
            size: FloodSize::Full,
            judge_latency: true,
            ..Self::short(None)
        }
    }
}

/// Result of one flood.
#[derive(Debug)]
struct FloodOutcome {
    name: &'static str,
    /// Accepted and rejected requests of the flooder.
    taken: u64,
    refused: u64,
    growth_kib: u64,
    quiet: OwnerStats,
    flooded: OwnerStats,
    /// Connections and calls of other principals that did not survive.
    broken: Vec<String>,
}

impl FloodOutcome {
    fn p99_max(&self) -> Duration {
        (self.quiet.percentile(99) * P99_RATIO_MAX).max(P99_MAX)
    }

    fn missed_goals(&self, plan: &FloodPlan) -> Vec<String> {
        let mut missed = self.broken.clone();
        if self.growth_kib > GROWTH_MIB_MAX * 1024 {
            missed.push(format!("memory grew by {} MiB", self.growth_kib / 1024));
        }
        if self.flooded.refused > 0 {
            missed.push(format!(
                "{} of the owner's calls failed",
                self.flooded.refused
            ));
        }
        let p99 = self.flooded.percentile(99);
        if plan.judge_latency && p99 > self.p99_max() {
            missed.push(format!("p99 {p99:.1?} over {:.1?}", self.p99_max()));
        }
        missed
    }

    fn to_json(&self, plan: &FloodPlan) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "flood": self.name,
            "taken": self.taken,
            "refused": self.refused,
            "growth_mib": self.growth_kib / 1024,
            "quiet_p99_ms": ms(self.quiet.percentile(99)),
            "p50_ms": ms(self.flooded.percentile(50)),
            "p99_ms": ms(self.flooded.percentile(99)),
            "max_ms": ms(self.flooded.percentile(100)),
            "owner_calls": self.flooded.latencies.len(),
            "owner_refused": self.flooded.refused,
            "missed": self.missed_goals(plan),
        })
    }
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    Ok(if run_plan(root, &plan)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan, prints the results and returns whether every goal was met.
pub(crate) fn run_plan(root: &Path, plan: &FloodPlan) -> Result<bool> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_dist(root)?,
    };
    process::raise_descriptor_limit()?;
    let cores = CoreLayout::detect();
    cores.pin_self()?;
    let mut outcomes = Vec::new();
    for attack in ATTACKS {
        if plan.only.is_empty() || plan.only.iter().any(|name| name == attack.name) {
            eprintln!("floods: {}, {} s", attack.name, plan.flood.as_secs());
            let outcome = run_attack(root, &binary, attack, plan, cores);
            outcomes.push(outcome.with_context(|| format!("flood `{}`", attack.name))?);
        }
    }
    if plan.json {
        let all: Vec<_> = outcomes.iter().map(|one| one.to_json(plan)).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print_table(&outcomes, plan);
    }
    Ok(outcomes.iter().all(|one| one.missed_goals(plan).is_empty()))
}

fn run_attack(
    root: &Path,
    binary: &Path,
    attack: &FloodAttack,
    plan: &FloodPlan,
    cores: CoreLayout,
) -> Result<FloodOutcome> {
    let gateway = FloodGateway::start(root, binary, cores)?;
    let bystanders = Bystanders::connect_all(&gateway, plan.flood)?;
    // Warm-up: the first calls create connections and buffers that later calls reuse.
    owner_calls::call_as_owner(&gateway, plan.quiet / 2)?;
    let quiet = owner_calls::call_as_owner(&gateway, plan.quiet)?;
    let before = process::rss_kib(gateway.pid())?;
    let stop = AtomicBool::new(false);
    let (flood, flooded, peak) = thread::scope(|scope| {
        let flooding = scope.spawn(|| (attack.run)(&gateway, &stop, plan.size));
        let memory = scope.spawn(|| sample_peak_memory(&gateway, before, &stop));
        let flooded = owner_calls::call_as_owner(&gateway, plan.flood);
        stop.store(true, Ordering::Relaxed);
        (flooding.join(), flooded, memory.join())
    });
    let peak = peak.unwrap_or(Ok(u64::MAX))?;
    let flood = flood.map_err(|_panic| anyhow::anyhow!("the flooder ended too soon"))?;
    let flood_attacks::FloodCounts { taken, refused } = flood;
    Ok(FloodOutcome {
        name: attack.name,
        taken,
        refused,
        growth_kib: peak.saturating_sub(before),
        quiet,
        flooded: flooded?,
        broken: bystanders.broken_parts(&gateway),
    })
}

fn sample_peak_memory(gateway: &FloodGateway, before: u64, stop: &AtomicBool) -> Result<u64> {
    let mut peak = before;
    while !stop.load(Ordering::Relaxed) {
        peak = peak.max(process::rss_kib(gateway.pid())?);
        thread::sleep(SAMPLE_INTERVAL);
    }
    Ok(peak)
}

/// Assignment of cores: core 0 for the gateway, core 1 for this process; no pinning on one core.
#[derive(Clone, Copy, Debug)]
struct CoreLayout {
    count: usize,
}

impl CoreLayout {
    fn detect() -> Self {
        let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { count }
    }

    /// Pins this process and its threads to the second core.
    fn pin_self(self) -> Result<()> {
        if self.count < 2 {
            return Ok(());
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(1);
        rustix::thread::sched_setaffinity(None, &set).context("take a core")
    }

    /// Returns a command that runs the program on the gateway's core.
    fn gateway_command(self, program: &Path) -> Command {
        if self.count < 2 {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(program);
        command
    }
}

fn print_table(outcomes: &[FloodOutcome], plan: &FloodPlan) {
    println!(
        "{:<14}{:>10}{:>10}{:>9}{:>11}{:>9}{:>9}{:>9}{:>8}{:>8}",
        "flood", "taken", "refused", "MiB", "quiet p99", "p50", "p99", "max", "calls", "failed"
    );
    for one in outcomes {
        let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
        println!(
            "{:<14}{:>10}{:>10}{:>9}{:>11}{:>9}{:>9}{:>9}{:>8}{:>8}",
            one.name,
            one.taken,
            one.refused,
            one.growth_kib / 1024,
            ms(one.quiet.percentile(99)),
            ms(one.flooded.percentile(50)),
            ms(one.flooded.percentile(99)),
            ms(one.flooded.percentile(100)),
            one.flooded.latencies.len(),
            one.flooded.refused,
        );
    }
    for one in outcomes {
        for missed in one.missed_goals(plan) {
            println!("missed: {}: {missed}", one.name);
        }
    }
    let met = outcomes
        .iter()
        .filter(|one| one.missed_goals(plan).is_empty());
    println!("floods: {} of {} held", met.count(), outcomes.len());
}

fn parse_plan(rest: &[String]) -> Result<FloodPlan> {
    let mut plan = FloodPlan::full();
    let mut words = rest.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("{word} needs a value"))
        };
        match word {
            "--seconds" => plan.flood = Duration::from_secs(value()?.parse()?),
            "--only" => plan.only = value()?.split(',').map(str::to_owned).collect(),
            // The gateway starts the binary from another directory.
            "--binary" => plan.binary = Some(std::path::absolute(value()?)?),
            "--short" => plan = FloodPlan::short(plan.binary.take()),
            "--json" => plan.json = true,
            other => bail!("unknown option `{other}`"),
        }
    }
    let known = |name: &String| ATTACKS.iter().any(|attack| attack.name == name);
    if let Some(unknown) = plan.only.iter().find(|name| !known(name)) {
        let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
        bail!("no flood `{unknown}`; there are {}", names.join(", "));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_selects_floods_and_rejects_unknown() {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let plan = parse_plan(&words("--seconds 3 --only sessions,ping")).unwrap();
        assert_eq!(plan.flood, Duration::from_secs(3));
        assert_eq!(plan.only, ["sessions", "ping"]);
        assert!(parse_plan(&words("--only nothing")).is_err());
        assert!(parse_plan(&words("--seconds")).is_err());
    }

    #[test]
    fn outcome_names_every_missed_goal() {
        let seen = |ms: u64, refused| OwnerStats {
            latencies: vec![Duration::from_millis(ms); 100],
            refused,
        };
        let outcome = FloodOutcome {
            name: "x",
            taken: 0,
            refused: 0,
            growth_kib: 65 * 1024,
            quiet: seen(1, 0),
            flooded: seen(21, 1),
            broken: vec!["gone".to_owned()],
        };
        assert_eq!(outcome.missed_goals(&FloodPlan::full()).len(), 4);
        assert_eq!(outcome.missed_goals(&FloodPlan::short(None)).len(), 3);
    }
}
