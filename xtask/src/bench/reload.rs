//! How long a changed file of many servers takes to come into force.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Plan, measure, report::Report, target, tools::Tools};
use crate::process;

const SERVERS: usize = 200;

/// From the order on the command line to its answer, with every second server changed; and the
/// part of it that the gateway took from the order to the new servers.
pub(super) fn reload(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let target = target::bowline_with(tools, &config(tools, 0))?;
    let (mut whole, mut own) = (Vec::new(), Vec::new());
    for turn in 1..=plan.pairs {
        fs::write(target.folder().join("bowline.toml"), config(tools, turn))?;
        let mut command = Command::new(&tools.bowline);
        command.args(["reload", "--json", "--state"]);
        command.arg(target.folder().join("state"));
        let start = process::now();
        let told = process::quiet(&mut command)?;
        whole.push(start.elapsed().as_secs_f64() * 1_000.0);
        let told: Value = serde_json::from_str(told.trim()).context("the answer is not JSON")?;
        let changed = told.get("changed").and_then(Value::as_array).map(Vec::len);
        ensure!(changed == Some(SERVERS / 2), "{changed:?} servers changed");
        own.extend(told.get("took_ms").and_then(Value::as_f64));
    }
    report.set("reload_ms", measure::median(whole));
    report.set("reload_own_ms", measure::median(own));
    Ok(())
}

/// Servers as people have them, which wait for their first call; every second one says something
/// else at each turn.
fn config(tools: &Tools, turn: usize) -> String {
    let mut config = target::one_child(tools, 0);
    for nth in 0..SERVERS {
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
