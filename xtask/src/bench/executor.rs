//! What it costs to reach a server through an executor, beside a plain WebSocket relay of the same
//! bytes and the exec-server of Codex: bodies alone, and calls through a gateway.

mod bodies;
mod ways;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{
    Plan,
    measure::{self, Run},
    report::Report,
    target::Target,
    tools::Tools,
};

pub(super) use bodies::serve;

/// The ways, in the order in which they are told.
const DIRECT: &str = "no executor";
const RELAY: &str = "websocket relay";
const OURS: &str = "executor";
const JOINED: &str = "executor, joined";
const CODEX: &str = "codex exec-server";

/// Text of a large answer, in KiB.
const BLOB_KIB: usize = 4_096;

/// Callers of small answers, and of large ones.
const CALLERS: &[usize] = &[1, 16];
const CALLERS_BLOB: &[usize] = &[1, 4];

/// Measures bodies through the ways, then calls through a gateway that uses them.
pub(super) fn executor(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    tools.build_floor()?;
    // One that cannot be measured must not take the other with it.
    if let Err(error) = bodies::measure(tools, plan, report) {
        report.leave_out("executor, bodies alone", &format!("{error:#}"));
    }
    calls(tools, plan, report).context("calls through a gateway")
}

/// A gateway for each way, all before the same kind of backend.
fn calls(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let mut targets = Vec::new();
    let mut take = |name: &str, made: Result<Target>| match made {
        Ok(target) => targets.push(target),
        Err(error) => report.leave_out(name, &format!("{error:#}")),
    };
    take(DIRECT, ways::direct(tools));
    take(RELAY, ways::relay(tools));
    take(OURS, ways::dialled(tools));
    take(JOINED, ways::joined(tools));
    take(CODEX, ways::codex(tools));
    for callers in CALLERS.iter().copied() {
        let runs = interleaved(tools, plan, &mut targets, callers, &[])?;
        tell(report, "", callers, &runs);
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
        let runs = interleaved(tools, plan, &mut targets, callers, &blob)?;
        tell(report, ", 4 MiB", callers, &runs);
    }
    Ok(())
}

/// Every target in turn; neighbours stay neighbours, but who goes first changes.
fn interleaved(
    tools: &Tools,
    plan: &Plan,
    targets: &mut [Target],
    callers: usize,
    options: &[&str],
) -> Result<BTreeMap<&'static str, Vec<Run>>> {
    let mut runs: BTreeMap<&'static str, Vec<Run>> = BTreeMap::new();
    for turn in 0..plan.pairs {
        if turn > 0 {
            targets.reverse();
        }
        for target in targets.iter() {
            let run = measure::load_with(tools, plan, target, callers, options)?;
            runs.entry(target.name).or_default().push(run);
        }
    }
    Ok(runs)
}

/// The runs of every way, and each way against the relay.
fn tell(report: &mut Report, what: &str, callers: usize, runs: &BTreeMap<&'static str, Vec<Run>>) {
    for name in [DIRECT, RELAY, OURS, JOINED, CODEX] {
        if let Some(runs) = runs.get(name) {
            let name = format!("{name}{what}");
            report.runs.push(measure::summary(&name, callers, runs));
        }
    }
    for (name, floor) in [
        (OURS, RELAY),
        (JOINED, RELAY),
        (CODEX, RELAY),
        (OURS, CODEX),
    ] {
        if let Some(pairs) = pairs(runs, floor, name) {
            report.compare(&format!("{name}/{floor}{what}"), callers, &pairs);
        }
    }
}

/// Runs of the same turn.
fn pairs(
    runs: &BTreeMap<&'static str, Vec<Run>>,
    below: &str,
    above: &str,
) -> Option<Vec<(Run, Run)>> {
    let (below, above) = (runs.get(below)?, runs.get(above)?);
    Some(below.iter().cloned().zip(above.iter().cloned()).collect())
}

/// What the second way adds to the first's time of a small answer, by what the floor adds: the
/// median over the turns.
fn added(runs: &BTreeMap<&'static str, Vec<Run>>) -> Option<f64> {
    let (direct, relay, ours) = (runs.get(DIRECT)?, runs.get(RELAY)?, runs.get(OURS)?);
    let ratios = direct
        .iter()
        .zip(relay)
        .zip(ours)
        .filter_map(|((direct, relay), ours)| {
            let p50 = |run: &Run| run.figure("p50_us");
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
    fn what_a_way_adds_is_held_against_what_the_relay_adds() {
        let of = |p50: &[f64]| {
            let runs = p50.iter().map(|p50| Run {
                raw: json!({"p50_us": p50}),
            });
            runs.collect::<Vec<_>>()
        };
        let runs = BTreeMap::from([
            (DIRECT, of(&[50.0, 60.0, 50.0])),
            (RELAY, of(&[100.0, 120.0, 100.0])),
            (OURS, of(&[125.0, 180.0, 200.0])),
        ]);
        assert_eq!(added(&runs), Some(2.0));
        assert_eq!(added(&BTreeMap::new()), None);
    }
}
