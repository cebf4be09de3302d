//! Measurements with servers that speak HTTP, and of what is not a call.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{
    Plan,
    measure::{self, Run},
    report::Report,
    target::{self, Target},
    tools::Tools,
};

/// Callers at once: few, many, and more than a machine can serve at a time.
const CALLERS: &[usize] = &[16, 64, 256];
const SERVERS: usize = 10;
/// With the three that every server has, so many make a thousand.
const TOOLS_EACH: usize = 97;
const TOOLS_ALL: usize = 997;
/// Session set-ups are measured with so many callers.
const CALLERS_SETUP: usize = 16;

/// The product, a bare proxy and a bare relay that parses, each before its own backend.
pub(super) fn calls(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let mut targets = Vec::new();
    match &tools.nginx {
        Some(nginx) => targets.push(target::nginx(tools, nginx)?),
        None => report.leave_out("nginx", "not installed"),
    }
    targets.push(target::bowline_http(tools)?);
    targets.push(target::relay(tools)?);
    let mut kept: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for callers in CALLERS.iter().copied() {
        let runs = interleaved(tools, plan, &mut targets, callers)?;
        for (name, runs) in &runs {
            report.runs.push(measure::summary(name, callers, runs));
            kept.extend(measure::median_of(runs, "rps").map(|rps| ((*name, callers), rps)));
        }
        let pairs = |floor: &str| {
            let (floor, ours) = (runs.get(floor)?, runs.get("bowline")?);
            Some(floor.iter().cloned().zip(ours.iter().cloned()).collect())
        };
        let nginx: Option<Vec<_>> = pairs("nginx");
        if let Some(pairs) = nginx {
            report.compare("bowline/nginx", callers, &pairs);
            let figure = measure::ratio(&pairs, "gw_cpu_us");
            match callers {
                16 => report.set("http_nginx_c16", figure),
                64 => report.set("http_nginx_c64", figure),
                _ => {}
            }
        }
        let relay: Option<Vec<_>> = pairs("relay");
        if let Some(pairs) = relay {
            report.compare("bowline/relay", callers, &pairs);
            if callers == 256 {
                report.set("http_relay_c256", measure::ratio(&pairs, "gw_cpu_us"));
            }
        }
    }
    let share = |name| Some(kept.get(&(name, 256))? / kept.get(&(name, 16))?);
    let lost = share("relay").zip(share("bowline"));
    report.set("http_kept", lost.map(|(relay, ours)| relay / ours));
    Ok(())
}

/// Every target in turn; neighbours stay neighbours, but who goes first changes.
fn interleaved(
    tools: &Tools,
    plan: &Plan,
    targets: &mut [Target],
    callers: usize,
) -> Result<BTreeMap<&'static str, Vec<Run>>> {
    let mut runs: BTreeMap<&'static str, Vec<Run>> = BTreeMap::new();
    for turn in 0..plan.pairs {
        if turn > 0 {
            targets.reverse();
        }
        for target in targets.iter() {
            let run = measure::load(tools, plan, target, callers)?;
            runs.entry(target.name).or_default().push(run);
        }
    }
    Ok(runs)
}

/// How long a list of a thousand tools takes, from ten servers and from one directly.
pub(super) fn list(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let direct = target::serving(tools, TOOLS_ALL)?;
    let many = target::bowline_many(tools, SERVERS, TOOLS_EACH)?;
    let options = ["--op", "list", "--expect", "1000"];
    let mut pairs = Vec::new();
    for turn in 0..plan.pairs {
        let below = || measure::load_with(tools, plan, &direct, 1, &options);
        let above = || measure::load_with(tools, plan, &many, 1, &options);
        pairs.push(if turn % 2 == 0 {
            let first = below()?;
            (first, above()?)
        } else {
            let first = above()?;
            (below()?, first)
        });
    }
    report.pair(&direct, &many, 1, &pairs);
    report.compare("list: bowline/direct", 1, &pairs);
    report.set("list_ratio", measure::ratio(&pairs, "p50_us"));
    Ok(())
}

/// How many sessions can be opened and ended in a second.
pub(super) fn setups(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let target = target::bowline(tools, "bowline, set-ups", 0)?;
    let runs = (0..plan.pairs)
        .map(|_| measure::load_with(tools, plan, &target, CALLERS_SETUP, &["--op", "session"]))
        .collect::<Result<Vec<_>>>()?;
    let first = runs.first().context("no run")?;
    eprintln!("bench: one run of set-ups: {}", first.raw);
    report
        .runs
        .push(measure::summary(target.name, CALLERS_SETUP, &runs));
    report.set("setups", measure::median_of(&runs, "rps"));
    Ok(())
}
