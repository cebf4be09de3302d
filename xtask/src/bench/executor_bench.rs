//! Cost of reaching a server through an executor, relative to a plain WebSocket relay of the same
//! bytes and to Codex's exec-server: bodies without a gateway, and calls through a gateway.

mod executor_targets;
mod raw_bodies;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{
    BenchPlan,
    bench_report::BenchReport,
    bench_target::BenchTarget,
    bench_tools::BenchTools,
    measure::{self, LoadRun},
};

pub(super) use raw_bodies::serve_bodies;

/// Variants, in report order.
const DIRECT: &str = "no executor";
const RELAY: &str = "websocket relay";
const DIALED: &str = "executor";
const JOINED_EXECUTOR: &str = "executor, joined";
const CODEX: &str = "codex exec-server";

/// Text of a large result, in KiB.
const BLOB_KIB: usize = 4_096;

/// Callers for small results, and for large results.
const CALLERS: &[usize] = &[1, 16];
const CALLERS_BLOB: &[usize] = &[1, 4];

/// Measures bodies through each variant, then calls through gateways.
pub(super) fn measure_executor(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    tools.build_floor_programs()?;
    // A failure of the bodies must not prevent the calls.
    if let Err(error) = raw_bodies::measure_bodies(tools, plan, report) {
        report.skip_part("executor, bodies alone", &format!("{error:#}"));
    }
    measure_calls(tools, plan, report).context("calls through a gateway")
}

/// Measures one gateway per variant, all with the same kind of backend.
fn measure_calls(tools: &BenchTools, plan: &BenchPlan, report: &mut BenchReport) -> Result<()> {
    let mut targets = Vec::new();
    let mut take = |name: &str, made: Result<BenchTarget>| match made {
        Ok(target) => targets.push(target),
        Err(error) => report.skip_part(name, &format!("{error:#}")),
    };
    take(DIRECT, executor_targets::start_direct(tools));
    take(RELAY, executor_targets::start_relayed(tools));
    take(DIALED, executor_targets::start_dialed(tools));
    take(JOINED_EXECUTOR, executor_targets::start_joined(tools));
    take(CODEX, executor_targets::start_codex(tools));
    for callers in CALLERS.iter().copied() {
        let runs = run_interleaved(tools, plan, &mut targets, callers, &[])?;
        report_runs(report, "", callers, &runs);
    }
    let arguments = format!("{{\"kib\":{BLOB_KIB}}}");
    let kib = BLOB_KIB.to_string();
    let blob = [
        "--tool",
        "b__blob",
        "--args",
        &arguments,
        "--expect-len",
        &kib,
    ];
    for callers in CALLERS_BLOB.iter().copied() {
        let runs = run_interleaved(tools, plan, &mut targets, callers, &blob)?;
        report_runs(report, ", 4 MiB", callers, &runs);
    }
    Ok(())
}

/// Runs every target in turn; reversing alternates the order and keeps neighbours adjacent.
fn run_interleaved(
    tools: &BenchTools,
    plan: &BenchPlan,
    targets: &mut [BenchTarget],
    callers: usize,
    options: &[&str],
) -> Result<BTreeMap<&'static str, Vec<LoadRun>>> {
    let mut runs: BTreeMap<&'static str, Vec<LoadRun>> = BTreeMap::new();
    for turn in 0..plan.pairs {
        if turn > 0 {
            targets.reverse();
        }
        for target in targets.iter() {
            let run = measure::run_load_with(tools, plan, target, callers, options)?;
            runs.entry(target.name).or_default().push(run);
        }
    }
    Ok(runs)
}

/// Reports the runs of every variant, and the ratio of each variant to the relay.
fn report_runs(
    report: &mut BenchReport,
    what: &str,
    callers: usize,
    runs: &BTreeMap<&'static str, Vec<LoadRun>>,
) {
    for name in [DIRECT, RELAY, DIALED, JOINED_EXECUTOR, CODEX] {
        if let Some(runs) = runs.get(name) {
            let name = format!("{name}{what}");
            report
                .runs
                .push(measure::summarize_runs(&name, callers, runs));
        }
    }
    for (name, floor) in [
        (DIALED, RELAY),
        (JOINED_EXECUTOR, RELAY),
        (CODEX, RELAY),
        (DIALED, CODEX),
    ] {
        if let Some(pairs) = pair_runs(runs, floor, name) {
            report.add_ratios(&format!("{name}/{floor}{what}"), callers, &pairs);
        }
    }
}

/// Pairs the runs of the same turn.
fn pair_runs(
    runs: &BTreeMap<&'static str, Vec<LoadRun>>,
    below: &str,
    above: &str,
) -> Option<Vec<(LoadRun, LoadRun)>> {
    let (below, above) = (runs.get(below)?, runs.get(above)?);
    Some(below.iter().cloned().zip(above.iter().cloned()).collect())
}

/// Returns the executor's added latency for a small result divided by the relay's added latency:
/// the median over the turns.
fn added_latency_ratio(runs: &BTreeMap<&'static str, Vec<LoadRun>>) -> Option<f64> {
    let (direct, relay, ours) = (runs.get(DIRECT)?, runs.get(RELAY)?, runs.get(DIALED)?);
    let ratios = direct
        .iter()
        .zip(relay)
        .zip(ours)
        .filter_map(|((direct, relay), ours)| {
            let p50 = |run: &LoadRun| run.figure("p50_us");
            let direct = p50(direct)?;
            Some((p50(ours)? - direct) / (p50(relay)? - direct))
        });
    measure::median(ratios.filter(|ratio| ratio.is_finite()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn added_latency_is_relative_to_relay() {
        let of = |p50: &[f64]| {
            let runs = p50.iter().map(|p50| LoadRun {
                raw: json!({"p50_us": p50}),
            });
            runs.collect::<Vec<_>>()
        };
        let runs = BTreeMap::from([
            (DIRECT, of(&[50.0, 60.0, 50.0])),
            (RELAY, of(&[100.0, 120.0, 100.0])),
            (DIALED, of(&[125.0, 180.0, 200.0])),
        ]);
        assert_eq!(added_latency_ratio(&runs), Some(2.0));
        assert_eq!(added_latency_ratio(&BTreeMap::new()), None);
    }
}
