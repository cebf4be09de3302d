//! Time of a configuration reload with many servers.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{BenchPlan, bench_report::BenchReport, bench_target, bench_tools::BenchTools, measure};
use crate::process;

const SERVER_COUNT: usize = 200;

/// Measures a reload with every second server changed: total time of the command, and the gateway's
/// part from request to new servers.
pub(super) fn measure_reload(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let target = bench_target::start_bowline_with_config(tools, &servers_config(tools, 0))?;
    let (mut total_ms, mut gateway_ms) = (Vec::new(), Vec::new());
    for turn in 1..=plan.pairs {
        fs::write(
            target.folder().join("bowline.toml"),
            servers_config(tools, turn),
        )?;
        let mut command = Command::new(&tools.bowline);
        command.args(["reload", "--json", "--state"]);
        command.arg(target.folder().join("state"));
        let start = process::now();
        let response = process::run_captured(&mut command)?;
        total_ms.push(start.elapsed().as_secs_f64() * 1_000.0);
        let response: Value =
            serde_json::from_str(response.trim()).context("the answer is not JSON")?;
        let changed = response
            .get("changed")
            .and_then(Value::as_array)
            .map(Vec::len);
        ensure!(
            changed == Some(SERVER_COUNT / 2),
            "{changed:?} servers changed"
        );
        gateway_ms.extend(response.get("took_ms").and_then(Value::as_f64));
    }
    report.set_figure("reload_ms", measure::median(total_ms));
    report.set_figure("reload_own_ms", measure::median(gateway_ms));
    Ok(())
}

/// Returns a configuration of typical lazy servers; every second server changes with `turn`.
fn servers_config(tools: &BenchTools, turn: usize) -> String {
    let mut config = bench_target::child_config(tools, 0);
    for nth in 0..SERVER_COUNT {
        let timeout = if nth % 2 == 0 { 10 } else { 10 + turn };
        config.push_str(&format!(
            "[servers.s{nth}]\ncommand = \"node\"\n\
             args = [\"server.js\", \"--root\", \"/srv/{nth}\", \"--token\", \"secret-{nth}\"]\n\
             env = {{ API_KEY = \"key-of-{nth}\", REGION = \"eu-{nth}\", LOG_LEVEL = \"info\" }}\n\
             lazy = true\ntimeout = \"{timeout}s\"\n\
             [servers.s{nth}.tools.write]\neffect = \"write\"\ntimeout = \"5s\"\n"
        ));
    }
    config
}
