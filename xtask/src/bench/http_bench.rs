//! Measurements with HTTP servers, tool lists and session set-up.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{
    BenchPlan,
    bench_report::BenchReport,
    bench_target::{self, BenchTarget},
    bench_tools::{BEFORE, BenchTools},
    measure::{self, LoadRun},
};

/// Numbers of concurrent callers: few, many, more than a machine serves at once.
const CALLERS: &[usize] = &[16, 64, 256];
const SERVER_COUNT: usize = 10;
/// Plus three tools that every server has: 1,000 tools in total.
const TOOLS_PER_SERVER: usize = 97;
const TOOLS_DIRECT: usize = 997;
/// Callers for session set-up.
const CALLERS_SETUP: usize = 16;

/// Measures the gateway, nginx and a parsing relay, each before a separate backend.
pub(super) fn measure_calls(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let mut targets = Vec::new();
    match &tools.nginx {
        Some(nginx) => targets.push(bench_target::start_nginx(tools, nginx)?),
        None => report.skip_part("nginx", "not installed"),
    }
    for program in tools.gateways() {
        targets.push(bench_target::start_bowline_http(tools, program)?);
    }
    targets.push(bench_target::start_relay(tools)?);
    let mut medians: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for callers in CALLERS.iter().copied() {
        let runs = run_interleaved(tools, plan, &mut targets, callers)?;
        for (name, runs) in &runs {
            report
                .runs
                .push(measure::summarize_runs(name, callers, runs));
            medians.extend(measure::median_figure(runs, "rps").map(|rps| ((*name, callers), rps)));
        }
        let pairs = |floor: &str| {
            let (floor, ours) = (runs.get(floor)?, runs.get("bowline")?);
            Some(floor.iter().cloned().zip(ours.iter().cloned()).collect())
        };
        let before: Option<Vec<_>> = pairs(BEFORE);
        if let Some(pairs) = before {
            report.add_ratios("bowline/before", callers, &pairs);
        }
        let nginx: Option<Vec<_>> = pairs("nginx");
        if let Some(pairs) = nginx {
            report.add_ratios("bowline/nginx", callers, &pairs);
            let figure = measure::median_ratio(&pairs, "gw_cpu_us");
            match callers {
                16 => report.set_figure("http_nginx_c16", figure),
                64 => report.set_figure("http_nginx_c64", figure),
                _ => {}
            }
        }
        let relay: Option<Vec<_>> = pairs("relay");
        if let Some(pairs) = relay {
            report.add_ratios("bowline/relay", callers, &pairs);
            if callers == 256 {
                report.set_figure(
                    "http_relay_c256",
                    measure::median_ratio(&pairs, "gw_cpu_us"),
                );
            }
        }
    }
    let share = |name| Some(medians.get(&(name, 256))? / medians.get(&(name, 16))?);
    let lost = share("relay").zip(share("bowline"));
    report.set_figure("http_kept", lost.map(|(relay, ours)| relay / ours));
    Ok(())
}

/// Runs every target in turn; reversing alternates the order and keeps neighbours adjacent.
fn run_interleaved(
    tools: &BenchTools,
    plan: &BenchPlan,
    targets: &mut [BenchTarget],
    callers: usize,
) -> Result<BTreeMap<&'static str, Vec<LoadRun>>> {
    let mut runs: BTreeMap<&'static str, Vec<LoadRun>> = BTreeMap::new();
    for turn in 0..plan.pairs {
        if turn > 0 {
            targets.reverse();
        }
        for target in targets.iter() {
            let run = measure::run_load(tools, plan, target, callers)?;
            runs.entry(target.name).or_default().push(run);
        }
    }
    Ok(runs)
}

/// Measures a list of a thousand tools: from ten servers through the gateway, and directly.
pub(super) fn measure_tool_list(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let direct = bench_target::start_backend_with_tools(tools, TOOLS_DIRECT)?;
    let many = bench_target::start_bowline_many_servers(tools, SERVER_COUNT, TOOLS_PER_SERVER)?;
    let options = ["--op", "list", "--expect", "1000"];
    let mut pairs = Vec::new();
    for turn in 0..plan.pairs {
        let below = || measure::run_load_with(tools, plan, &direct, 1, &options);
        let above = || measure::run_load_with(tools, plan, &many, 1, &options);
        pairs.push(if turn % 2 == 0 {
            let first = below()?;
            (first, above()?)
        } else {
            let first = above()?;
            (below()?, first)
        });
    }
    report.add_pair_runs(&direct, &many, 1, &pairs);
    report.add_ratios("list: bowline/direct", 1, &pairs);
    report.set_figure("list_ratio", measure::median_ratio(&pairs, "p50_us"));
    Ok(())
}

/// Measures how many sessions per second are opened and closed.
pub(super) fn measure_session_setups(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let target = bench_target::start_bowline(tools, "bowline, set-ups", 0)?;
    let runs = (0..plan.pairs)
        .map(|_| measure::run_load_with(tools, plan, &target, CALLERS_SETUP, &["--op", "session"]))
        .collect::<Result<Vec<_>>>()?;
    let first = runs.first().context("no run")?;
    eprintln!("bench: one run of set-ups: {}", first.raw);
    report
        .runs
        .push(measure::summarize_runs(target.name, CALLERS_SETUP, &runs));
    report.set_figure("setups", measure::median_figure(&runs, "rps"));
    Ok(())
}
