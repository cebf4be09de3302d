//! Cost of a call through a worker, live and stored, relative to the same call at the hub; cost of
//! storing; memory of an idle peer.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    BenchPlan,
    bench_report::BenchReport,
    bench_target::{self, BenchTarget},
    bench_tools::BenchTools,
    measure::{self, LoadRun},
};
use crate::{
    blocking_client::BlockingClient,
    process,
    raw_websocket::{RawWebSocket, SocketRead},
};

/// Numbers of concurrent callers.
const CALLERS: &[usize] = &[1, 16, 64];
const CALLERS_MAX: usize = 64;

/// Peers that are connected and idle.
const IDLE_PEERS: usize = 5_000;

/// Messages per connection in a delivery run.
const DELIVERIES_PER_RUN: usize = 300;

/// Timeout of a delivery receipt.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Principals other than the owner.
const WORKER: &str = "worker";
const PEER: &str = "peer";

/// Returns the hub's configuration: `echo` is a read and goes live, `slow` a write and is stored.
fn hub_config(tools: &BenchTools) -> String {
    format!(
        "[broker]\npeers = {}\nmailboxes = 65536\ndeliver_rate = 1000000\ndeliver_burst = 1000000\n\
         [limits]\nprincipal_requests_per_s = 1000000\n\
         principal_requests_burst = 1000000\n\
         [roles.agent]\nallow = [\"*\"]\n\
         [principals.{WORKER}]\nbroker = true\n\
         [principals.{PEER}]\nrole = \"agent\"\nto = [\"{PEER}\"]\nkinds = [\"note\"]\n{}\
         [servers.b.tools.echo]\neffect = \"read\"\n\
         [servers.b.tools.slow]\neffect = \"write\"\n",
        IDLE_PEERS + 100,
        bench_target::child_config(tools, 0)
    )
}

/// One variant of the call, and its options for the load generator.
struct BrokerVariant<'a> {
    name: &'static str,
    target: &'a BenchTarget,
    options: Vec<String>,
}

pub(super) fn measure_broker(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let hub = bench_target::start_bowline_with_config(tools, &hub_config(tools))?;
    let (address, owner) = hub.address_and_token()?;
    let worker = bench_target::start_worker(tools, &hub, &create_token(address, owner, WORKER)?)?;
    let also = ["--pid".to_owned(), hub.pid()];
    let write = [
        "--tool",
        "b__slow",
        "--args",
        r#"{"ms":0,"message":"$MSG"}"#,
    ];
    let write = write.map(str::to_owned);
    let mut ways = [
        BrokerVariant {
            name: "local",
            target: &hub,
            options: Vec::new(),
        },
        BrokerVariant {
            name: "worker, live",
            target: &worker,
            options: also.to_vec(),
        },
        BrokerVariant {
            name: "worker, stored",
            target: &worker,
            options: [&also[..], &write].concat(),
        },
    ];
    for callers in CALLERS.iter().copied() {
        let runs = run_interleaved(tools, plan, &mut ways, callers)?;
        for (name, runs) in &runs {
            report
                .runs
                .push(measure::summarize_runs(name, callers, runs));
        }
        let local = runs.get("local").context("no local run")?;
        for name in ["worker, live", "worker, stored"] {
            let there = runs.get(name).context("no run")?;
            let pairs: Vec<(LoadRun, LoadRun)> =
                local.iter().cloned().zip(there.iter().cloned()).collect();
            report.add_ratios(&format!("{name}/local"), callers, &pairs);
            if name == "worker, live" && callers == CALLERS_MAX {
                report.set_figure("broker_live_c64", measure::median_figure(there, "rps"));
                let ratio = measure::median_ratio(&pairs, "rps").map(|ratio| 1.0 / ratio);
                report.set_figure("broker_live_ratio", ratio);
            }
        }
    }
    drop(worker);
    measure_deliveries(plan, &hub, report)?;
    report.set_figure("broker_peer_kib", Some(measure_idle_peers(tools)?));
    Ok(())
}

/// Runs every variant in turn; reversing alternates the order and keeps neighbours adjacent.
fn run_interleaved(
    tools: &BenchTools,
    plan: &BenchPlan,
    ways: &mut [BrokerVariant<'_>],
    callers: usize,
) -> Result<BTreeMap<&'static str, Vec<LoadRun>>> {
    let mut runs: BTreeMap<&'static str, Vec<LoadRun>> = BTreeMap::new();
    for turn in 0..plan.pairs {
        if turn > 0 {
            ways.reverse();
        }
        for way in ways.iter() {
            let options: Vec<&str> = way.options.iter().map(String::as_str).collect();
            let run = measure::run_load_with(tools, plan, way.target, callers, &options)?;
            runs.entry(way.name).or_default().push(run);
        }
    }
    Ok(runs)
}

fn create_token(address: SocketAddr, owner: &str, principal: &str) -> Result<String> {
    let wanted = json!({"principal": principal, "role": "agent"});
    let made = BlockingClient::connect(address, owner)?.call_api_with_body(
        "POST",
        "/api/v1/tokens",
        &wanted,
    )?;
    let token = made.get("token").and_then(Value::as_str);
    Ok(token
        .with_context(|| format!("no token: {made}"))?
        .to_owned())
}

/// Measures messages without a reader: time until each is stored, sequentially and from many peers
/// at once.
fn measure_deliveries(plan: &BenchPlan, hub: &BenchTarget, report: &mut BenchReport) -> Result<()> {
    let (address, owner) = hub.address_and_token()?;
    let token = create_token(address, owner, PEER)?;
    for callers in [1, CALLERS_MAX] {
        let mut runs = Vec::new();
        for turn in 0..plan.pairs {
            let pid: u32 = hub.pid().parse()?;
            let (cpu, start) = (process::thread_cpu_us(pid), process::now());
            let each = DELIVERIES_PER_RUN / if callers == 1 { 1 } else { 8 };
            let mut took = thread::scope(|scope| -> Result<Vec<f64>> {
                let peers: Vec<_> = (0..callers)
                    .map(|nth| {
                        let name = format!("d{turn}-{nth}-{callers}");
                        let token = &token;
                        scope.spawn(move || deliver_messages(address, token, &name, each))
                    })
                    .collect();
                let mut took = Vec::new();
                for peer in peers {
                    took.extend(
                        peer.join()
                            .map_err(|_| anyhow::anyhow!("a peer panicked"))??,
                    );
                }
                Ok(took)
            })?;
            let (calls, seconds) = (took.len() as f64, start.elapsed().as_secs_f64());
            let cpu = process::thread_cpu_us(pid).saturating_sub(cpu) as f64;
            took.sort_by(f64::total_cmp);
            let at = |share: usize| took.get(took.len() * share / 100).copied();
            runs.push(LoadRun {
                raw: json!({
                    "rps": calls / seconds, "p50_us": at(50), "p99_us": at(99),
                    "gw_cpu_us": cpu / calls, "gw_rss_mib": process::rss_kib(pid)? as f64 / 1024.0,
                }),
            });
        }
        report
            .runs
            .push(measure::summarize_runs("deliver, receipt", callers, &runs));
    }
    Ok(())
}

/// Delivers messages one at a time; returns the time until each receipt, in microseconds.
fn deliver_messages(
    address: SocketAddr,
    token: &str,
    name: &str,
    count: usize,
) -> Result<Vec<f64>> {
    let mut socket = RawWebSocket::connect_peer(address, PEER, token)?;
    let mut took = Vec::with_capacity(count);
    for nth in 0..count {
        let id = format!("{name}-{nth}");
        let message = json!({
            "id": id, "kind": "note", "body": {"text": "of no interest"},
            "created_at": "2026-01-01T00:00:00Z", "ttl_ms": 1_000,
        });
        let start = process::now();
        socket.send_json(&json!({"kind": "deliver", "to": PEER, "message": message}))?;
        wait_for_receipt(&mut socket, &id, start)?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(took)
}

fn wait_for_receipt(socket: &mut RawWebSocket, id: &str, start: Instant) -> Result<()> {
    loop {
        let left = RECEIPT_TIMEOUT.saturating_sub(start.elapsed());
        let frame = wait_for_frame(socket, left, "delivered")?;
        if frame.get("id") == Some(&json!(id)) {
            return Ok(());
        }
    }
}

/// Returns the next frame of the kind `wanted`; an `error` frame is an error.
fn wait_for_frame(socket: &mut RawWebSocket, patience: Duration, wanted: &str) -> Result<Value> {
    loop {
        let SocketRead::Text(text) = socket.read_message(patience)? else {
            bail!("no `{wanted}` came");
        };
        let frame: Value = serde_json::from_slice(&text)?;
        match frame.get("kind").and_then(Value::as_str) {
            Some(kind) if kind == wanted => return Ok(frame),
            Some("error") => bail!("refused: {frame}"),
            _ => {}
        }
    }
}

/// Returns the hub's memory per connected and subscribed peer, in KiB. The first 50 peers are not
/// counted, because they allocate structures that later peers share.
fn measure_idle_peers(tools: &BenchTools) -> Result<f64> {
    process::raise_descriptor_limit()?;
    let hub = bench_target::start_bowline_with_config(tools, &hub_config(tools))?;
    let (address, owner) = hub.address_and_token()?;
    let pid: u32 = hub.pid().parse()?;
    let mut open = Vec::with_capacity(IDLE_PEERS + 50);
    let mut before = 0;
    // Each peer needs a separate mailbox: peers of one mailbox fence each other.
    let token = create_token(address, owner, PEER)?;
    for nth in 0..IDLE_PEERS + 50 {
        if nth == 50 {
            before = process::rss_kib(pid)?;
        }
        let mut socket = RawWebSocket::connect_peer(address, &format!("{PEER}#{nth}"), &token)
            .with_context(|| format!("peer {nth}"))?;
        socket.send_json(&json!({"kind": "subscribe"}))?;
        open.push(socket);
    }
    // The hub handles frames in order: a response proves that the subscription was processed.
    if let Some(last) = open.last_mut() {
        last.send_json(&json!({"kind": "list_connected"}))?;
        wait_for_frame(last, RECEIPT_TIMEOUT, "connected")?;
    }
    let after = process::rss_kib(pid)?;
    eprintln!("bench: {IDLE_PEERS} idle peers: {before} KiB before, {after} KiB after");
    Ok(after.saturating_sub(before) as f64 / IDLE_PEERS as f64)
}
