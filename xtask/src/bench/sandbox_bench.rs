//! Start-up cost of the sandbox, with named ports and with only the gateway's port closed.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::bench_report::BenchReport;
use super::measure;
use crate::blocking_client::BlockingClient;
use crate::process;
use crate::running_gateway::{RunningGateway, build_dist};

/// Starts of each server; the median counts.
const STARTS_PER_SERVER: usize = 20;

/// Servers started in turn: name, and sandbox settings of the configuration entry.
const SERVERS: [(&str, &str); 3] = [
    ("off", "sandbox = \"off\""),
    ("ports", "net = [443]"),
    ("closed", ""),
];

/// Measures from the start request to the response that reports the server ready.
pub(super) fn measure_sandbox(root: &Path, report: &mut BenchReport) -> Result<()> {
    let binary = build_dist(root)?;
    let entries = SERVERS.iter().map(|(name, sandbox)| {
        let command = json!(process::fixture_binary(&binary));
        format!("[servers.{name}]\ncommand = {command}\n{sandbox}\n")
    });
    let config: String = entries.collect();
    let gateway = RunningGateway::start(root, Command::new(&binary), &config)?;
    let mut api = gateway.api_client()?;
    let mut starts = SERVERS.map(|_| Vec::with_capacity(STARTS_PER_SERVER));
    // The first round runs with cold file caches and is discarded.
    for round in 0..=STARTS_PER_SERVER {
        for ((name, _), starts) in SERVERS.iter().zip(&mut starts) {
            send_command(&mut api, name, "stop")?;
            let started = process::now();
            let state = send_command(&mut api, name, "start")?;
            ensure!(state == "ready", "server `{name}` is {state}");
            if round > 0 {
                starts.push(started.elapsed().as_secs_f64() * 1_000.0);
            }
        }
    }
    let [off, ports, closed] = starts.map(measure::median);
    let added = |kind: Option<f64>| Some(kind? - off?);
    report.set_figure("sandbox_start_ms", added(ports));
    report.set_figure("sandbox_port_start_ms", added(closed));
    Ok(())
}

/// Starts or stops a server and returns the resulting state.
fn send_command(api: &mut BlockingClient, server: &str, order: &str) -> Result<String> {
    let path = format!("/api/v1/servers/{server}/{order}");
    let said = api.call_api("POST", &path)?;
    let state = said.pointer("/server/state").and_then(Value::as_str);
    let state = state.with_context(|| format!("{path}: {said}"))?;
    Ok(state.to_owned())
}
