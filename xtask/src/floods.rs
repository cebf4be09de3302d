//! `cargo xtask floods`: one low principal, or nobody, floods the gateway while its owner works.
//!
//! The gateway has one core, the flooder and the owner share the other. Each flood meets a gateway
//! of its own with the shipped defaults. Seen are the growth of memory, the latency of the owner's
//! calls beside that of a quiet gateway, what was refused to the owner, and whether anything of
//! others was cancelled.

mod attacks;
mod gateway;
mod http;
mod witness;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::gateway::build_release;
use crate::process;

use attacks::{ATTACKS, Attack, Size};
use gateway::Gateway;
use witness::{Bystanders, Seen};

/// Memory that a flood may take.
const GROWTH_MIB_MAX: u64 = 64;

/// The 99th percentile of the owner's calls may be so many times that of a quiet gateway.
const SLOWER_MAX: u32 = 10;

/// Or this, where the quiet gateway is faster.
const P99_MAX: Duration = Duration::from_millis(20);

/// How often the memory of the gateway is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How long, which, and of what.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Of each flood.
    flood: Duration,
    /// Of the quiet gateway before it.
    quiet: Duration,
    /// Empty for all.
    only: Vec<String>,
    /// The gateway to run; built for release where none is named.
    binary: Option<PathBuf>,
    /// How much each flood sends.
    size: Size,
    /// Latency is judged only where the machine has nothing else to do.
    judge_latency: bool,
    json: bool,
}

impl Plan {
    /// A few seconds of each, for a build without optimisation among other tests.
    pub(crate) fn short(binary: Option<PathBuf>) -> Self {
        Self {
            flood: Duration::from_secs(2),
            quiet: Duration::from_millis(500),
            only: Vec::new(),
            binary,
            size: Size::Short,
            judge_latency: false,
            json: false,
        }
    }

    fn full() -> Self {
        Self {
            flood: Duration::from_secs(30),
            quiet: Duration::from_secs(5),
            size: Size::Full,
            judge_latency: true,
            ..Self::short(None)
        }
    }
}

/// What one flood did.
#[derive(Debug)]
struct Outcome {
    name: &'static str,
    /// What the flooder got through, and what it was refused.
    taken: u64,
    refused: u64,
    growth_kib: u64,
    quiet: Seen,
    flooded: Seen,
    /// What of others did not survive it.
    broken: Vec<String>,
}

impl Outcome {
    fn p99_max(&self) -> Duration {
        (self.quiet.percentile(99) * SLOWER_MAX).max(P99_MAX)
    }

    fn missed(&self, plan: &Plan) -> Vec<String> {
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

    fn to_json(&self, plan: &Plan) -> Value {
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
            "missed": self.missed(plan),
        })
    }
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse(rest)?;
    Ok(if carry_out(root, &plan)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the plan, prints what was seen, and returns whether every goal was met.
pub(crate) fn carry_out(root: &Path, plan: &Plan) -> Result<bool> {
    let binary = match &plan.binary {
        Some(binary) => binary.clone(),
        None => build_release(root)?,
    };
    process::raise_descriptor_limit()?;
    let cores = Cores::find();
    cores.pin_self()?;
    let mut outcomes = Vec::new();
    for attack in ATTACKS {
        if plan.only.is_empty() || plan.only.iter().any(|name| name == attack.name) {
            eprintln!("floods: {}, {} s", attack.name, plan.flood.as_secs());
            let outcome = meet(root, &binary, attack, plan, cores);
            outcomes.push(outcome.with_context(|| format!("flood `{}`", attack.name))?);
        }
    }
    if plan.json {
        let all: Vec<_> = outcomes.iter().map(|one| one.to_json(plan)).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print_table(&outcomes, plan);
    }
    Ok(outcomes.iter().all(|one| one.missed(plan).is_empty()))
}

fn meet(root: &Path, binary: &Path, attack: &Attack, plan: &Plan, cores: Cores) -> Result<Outcome> {
    let gateway = Gateway::start(root, binary, cores)?;
    let bystanders = Bystanders::settle(&gateway, plan.flood)?;
    // The first calls build what later ones use.
    witness::work(&gateway, plan.quiet / 2)?;
    let quiet = witness::work(&gateway, plan.quiet)?;
    let before = process::rss_kib(gateway.pid())?;
    let stop = AtomicBool::new(false);
    let (flood, flooded, peak) = thread::scope(|scope| {
        let flooding = scope.spawn(|| (attack.run)(&gateway, &stop, plan.size));
        let memory = scope.spawn(|| peak_of(&gateway, before, &stop));
        let flooded = witness::work(&gateway, plan.flood);
        stop.store(true, Ordering::Relaxed);
        (flooding.join(), flooded, memory.join())
    });
    let peak = peak.unwrap_or(Ok(u64::MAX))?;
    let flood = flood.map_err(|_panic| anyhow::anyhow!("the flooder ended too soon"))?;
    let attacks::Flood { taken, refused } = flood;
    Ok(Outcome {
        name: attack.name,
        taken,
        refused,
        growth_kib: peak.saturating_sub(before),
        quiet,
        flooded: flooded?,
        broken: bystanders.broken(&gateway),
    })
}

fn peak_of(gateway: &Gateway, before: u64, stop: &AtomicBool) -> Result<u64> {
    let mut peak = before;
    while !stop.load(Ordering::Relaxed) {
        peak = peak.max(process::rss_kib(gateway.pid())?);
        thread::sleep(LOOK);
    }
    Ok(peak)
}

/// Which core the gateway has and which the others; one core serves all.
#[derive(Clone, Copy, Debug)]
struct Cores {
    count: usize,
}

impl Cores {
    fn find() -> Self {
        let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { count }
    }

    /// Keeps this process and its threads from the core of the gateway.
    fn pin_self(self) -> Result<()> {
        if self.count < 2 {
            return Ok(());
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(1);
        rustix::thread::sched_setaffinity(None, &set).context("take a core")
    }

    /// Returns the command that starts a program on the core of the gateway.
    fn command(self, program: &Path) -> Command {
        if self.count < 2 {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(program);
        command
    }
}

fn print_table(outcomes: &[Outcome], plan: &Plan) {
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
        for missed in one.missed(plan) {
            println!("missed: {}: {missed}", one.name);
        }
    }
    let met = outcomes.iter().filter(|one| one.missed(plan).is_empty());
    println!("floods: {} of {} held", met.count(), outcomes.len());
}

fn parse(rest: &[String]) -> Result<Plan> {
    let mut plan = Plan::full();
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
            // The gateway starts it from a directory of its own.
            "--binary" => plan.binary = Some(std::path::absolute(value()?)?),
            "--short" => plan = Plan::short(plan.binary.take()),
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
    fn options_choose_floods_and_refuse_unknown_ones() {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let plan = parse(&words("--seconds 3 --only sessions,ping")).unwrap();
        assert_eq!(plan.flood, Duration::from_secs(3));
        assert_eq!(plan.only, ["sessions", "ping"]);
        assert!(parse(&words("--only nothing")).is_err());
        assert!(parse(&words("--seconds")).is_err());
    }

    #[test]
    fn outcome_names_every_missed_goal() {
        let seen = |ms: u64, refused| Seen {
            latencies: vec![Duration::from_millis(ms); 100],
            refused,
        };
        let outcome = Outcome {
            name: "x",
            taken: 0,
            refused: 0,
            growth_kib: 65 * 1024,
            quiet: seen(1, 0),
            flooded: seen(21, 1),
            broken: vec!["gone".to_owned()],
        };
        assert_eq!(outcome.missed(&Plan::full()).len(), 4);
        assert_eq!(outcome.missed(&Plan::short(None)).len(), 3);
    }
}
