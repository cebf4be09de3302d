//! What the sandbox adds to the start of a server, and what the closed port costs of it.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::measure;
use super::report::Report;
use crate::client::Client;
use crate::gateway::{RunningGateway, build_release};
use crate::process;

/// Starts of each server; the median counts.
const STARTS: usize = 20;

/// The servers that are started in turn: a name, and what its entry says of the sandbox.
const SERVERS: [(&str, &str); 3] = [
    ("off", "sandbox = \"off\""),
    ("ports", "net = [443]"),
    ("closed", ""),
];

/// Measures from the order to start a server to the answer that it is ready.
pub(super) fn measure(root: &Path, report: &mut Report) -> Result<()> {
    let binary = build_release(root)?;
    let entries = SERVERS.iter().map(|(name, sandbox)| {
        let command = json!(binary);
        format!("[servers.{name}]\ncommand = {command}\nargs = [\"fixture\"]\n{sandbox}\n")
    });
    let config: String = entries.collect();
    let gateway = RunningGateway::start(root, Command::new(&binary), &config)?;
    let mut api = gateway.api()?;
    let mut starts = SERVERS.map(|_| Vec::with_capacity(STARTS));
    // The first round finds files in no cache and counts for nothing.
    for round in 0..=STARTS {
        for ((name, _), starts) in SERVERS.iter().zip(&mut starts) {
            order(&mut api, name, "stop")?;
            let begun = process::now();
            let state = order(&mut api, name, "start")?;
            ensure!(state == "ready", "server `{name}` is {state}");
            if round > 0 {
                starts.push(begun.elapsed().as_secs_f64() * 1_000.0);
            }
        }
    }
    let [off, ports, closed] = starts.map(measure::median);
    let added = |kind: Option<f64>| Some(kind? - off?);
    report.set("sandbox_start_ms", added(ports));
    report.set("sandbox_port_start_ms", added(closed));
    Ok(())
}

/// Orders a server to start or stop, and returns its state afterwards.
fn order(api: &mut Client, server: &str, order: &str) -> Result<String> {
    let path = format!("/api/v1/servers/{server}/{order}");
    let said = api.api("POST", &path)?;
    let state = said.pointer("/server/state").and_then(Value::as_str);
    let state = state.with_context(|| format!("{path}: {said}"))?;
    Ok(state.to_owned())
}
