//! What a call costs that goes through a worker, live and stored, beside the same call at the hub;
//! what storing costs; and what a peer that says nothing costs.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    Plan,
    measure::{self, Run},
    report::Report,
    target::{self, Target},
    tools::Tools,
};
use crate::{
    client::Client,
    process,
    socket::{Came, Socket},
};

/// Callers at once.
const CALLERS: &[usize] = &[1, 16, 64];
const CALLERS_MANY: usize = 64;

/// Peers that only listen.
const PEERS: usize = 5_000;

/// Messages of one connection in a run of deliveries.
const DELIVERIES: usize = 300;

/// How long a receipt may take.
const RECEIPT: Duration = Duration::from_secs(30);

/// The name of everybody who is not the owner.
const WORKER: &str = "worker";
const PEER: &str = "peer";

/// A tool that is only read goes live, one that writes is stored.
fn config(tools: &Tools) -> String {
    format!(
        "[broker]\npeers = {}\nmailboxes = 65536\ndeliver_rate = 1000000\ndeliver_burst = 1000000\n\
         [limits]\nprincipal_requests_per_s = 1000000\n\
         principal_requests_burst = 1000000\n\
         [roles.agent]\nallow = [\"*\"]\n\
         [principals.{WORKER}]\nbroker = true\n\
         [principals.{PEER}]\nrole = \"agent\"\nto = [\"{PEER}\"]\nkinds = [\"note\"]\n{}\
         [servers.b.tools.echo]\neffect = \"read\"\n\
         [servers.b.tools.slow]\neffect = \"write\"\n",
        PEERS + 100,
        target::one_child(tools, 0)
    )
}

/// One way to make the call, and its options of the load generator.
struct Way<'a> {
    name: &'static str,
    target: &'a Target,
    options: Vec<String>,
}

pub(super) fn broker(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let hub = target::bowline_with(tools, &config(tools))?;
    let (address, owner) = hub.address()?;
    let worker = target::worker(tools, &hub, &token(address, owner, WORKER)?)?;
    let also = ["--pid".to_owned(), hub.pid()];
    let write = [
        "--tool",
        "b__slow",
        "--args",
        r#"{"ms":0,"message":"$MSG"}"#,
    ];
    let write = write.map(str::to_owned);
    let mut ways = [
        Way {
            name: "local",
            target: &hub,
            options: Vec::new(),
        },
        Way {
            name: "worker, live",
            target: &worker,
            options: also.to_vec(),
        },
        Way {
            name: "worker, stored",
            target: &worker,
            options: [&also[..], &write].concat(),
        },
    ];
    for callers in CALLERS.iter().copied() {
        let runs = interleaved(tools, plan, &mut ways, callers)?;
        for (name, runs) in &runs {
            report.runs.push(measure::summary(name, callers, runs));
        }
        let local = runs.get("local").context("no local run")?;
        for name in ["worker, live", "worker, stored"] {
            let there = runs.get(name).context("no run")?;
            let pairs: Vec<(Run, Run)> = local.iter().cloned().zip(there.iter().cloned()).collect();
            report.compare(&format!("{name}/local"), callers, &pairs);
            if name == "worker, live" && callers == CALLERS_MANY {
                report.set("broker_live_c64", measure::median_of(there, "rps"));
                let ratio = measure::ratio(&pairs, "rps").map(|ratio| 1.0 / ratio);
                report.set("broker_live_ratio", ratio);
            }
        }
    }
    drop(worker);
    deliveries(plan, &hub, report)?;
    report.set("broker_peer_kib", Some(idle(tools)?));
    Ok(())
}

/// Every way in turn; neighbours stay neighbours, but who goes first changes.
fn interleaved(
    tools: &Tools,
    plan: &Plan,
    ways: &mut [Way<'_>],
    callers: usize,
) -> Result<BTreeMap<&'static str, Vec<Run>>> {
    let mut runs: BTreeMap<&'static str, Vec<Run>> = BTreeMap::new();
    for turn in 0..plan.pairs {
        if turn > 0 {
            ways.reverse();
        }
        for way in ways.iter() {
            let options: Vec<&str> = way.options.iter().map(String::as_str).collect();
            let run = measure::load_with(tools, plan, way.target, callers, &options)?;
            runs.entry(way.name).or_default().push(run);
        }
    }
    Ok(runs)
}

fn token(address: SocketAddr, owner: &str, principal: &str) -> Result<String> {
    let wanted = json!({"principal": principal, "role": "agent"});
    let made = Client::connect(address, owner)?.tell("POST", "/api/v1/tokens", &wanted)?;
    let token = made.get("token").and_then(Value::as_str);
    Ok(token
        .with_context(|| format!("no token: {made}"))?
        .to_owned())
}

/// Messages of which nobody takes notice: how long until each is stored, one after the other and
/// of many peers at once.
fn deliveries(plan: &Plan, hub: &Target, report: &mut Report) -> Result<()> {
    let (address, owner) = hub.address()?;
    let token = token(address, owner, PEER)?;
    for callers in [1, CALLERS_MANY] {
        let mut runs = Vec::new();
        for turn in 0..plan.pairs {
            let pid: u32 = hub.pid().parse()?;
            let (cpu, start) = (process::cpu_us(pid), process::now());
            let each = DELIVERIES / if callers == 1 { 1 } else { 8 };
            let mut took = thread::scope(|scope| -> Result<Vec<f64>> {
                let peers: Vec<_> = (0..callers)
                    .map(|nth| {
                        let name = format!("d{turn}-{nth}-{callers}");
                        let token = &token;
                        scope.spawn(move || deliver(address, token, &name, each))
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
            let cpu = process::cpu_us(pid).saturating_sub(cpu) as f64;
            took.sort_by(f64::total_cmp);
            let at = |share: usize| took.get(took.len() * share / 100).copied();
            runs.push(Run {
                raw: json!({
                    "rps": calls / seconds, "p50_us": at(50), "p99_us": at(99),
                    "gw_cpu_us": cpu / calls, "gw_rss_mib": process::rss_kib(pid)? as f64 / 1024.0,
                }),
            });
        }
        report
            .runs
            .push(measure::summary("deliver, receipt", callers, &runs));
    }
    Ok(())
}

/// Delivers messages one after the other; how long each took to be stored, in microseconds.
fn deliver(address: SocketAddr, token: &str, name: &str, count: usize) -> Result<Vec<f64>> {
    let mut socket = Socket::join(address, PEER, token)?;
    let mut took = Vec::with_capacity(count);
    for nth in 0..count {
        let id = format!("{name}-{nth}");
        let message = json!({
            "id": id, "kind": "note", "body": {"text": "of no interest"},
            "created_at": "2026-01-01T00:00:00Z", "ttl_ms": 1_000,
        });
        let start = process::now();
        socket.say(&json!({"kind": "deliver", "to": PEER, "message": message}))?;
        until_delivered(&mut socket, &id, start)?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(took)
}

fn until_delivered(socket: &mut Socket, id: &str, start: Instant) -> Result<()> {
    loop {
        let left = RECEIPT.saturating_sub(start.elapsed());
        let frame = until(socket, left, "delivered")?;
        if frame.get("id") == Some(&json!(id)) {
            return Ok(());
        }
    }
}

/// The next frame of this kind; a refusal is an error.
fn until(socket: &mut Socket, patience: Duration, wanted: &str) -> Result<Value> {
    loop {
        let Came::Text(text) = socket.hear(patience)? else {
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

/// Memory of the hub for each of many peers that said hello and subscribed, in KiB. Nobody else
/// used it before but a few, so that what the first ones need is not counted.
fn idle(tools: &Tools) -> Result<f64> {
    process::raise_descriptor_limit()?;
    let hub = target::bowline_with(tools, &config(tools))?;
    let (address, owner) = hub.address()?;
    let pid: u32 = hub.pid().parse()?;
    let mut open = Vec::with_capacity(PEERS + 50);
    let mut before = 0;
    // A mailbox of its own for each: they would fence each other.
    let token = token(address, owner, PEER)?;
    for nth in 0..PEERS + 50 {
        if nth == 50 {
            before = process::rss_kib(pid)?;
        }
        let mut socket = Socket::join(address, &format!("{PEER}#{nth}"), &token)
            .with_context(|| format!("peer {nth}"))?;
        socket.say(&json!({"kind": "subscribe"}))?;
        open.push(socket);
    }
    // The last subscription is dealt with once something after it is answered.
    if let Some(last) = open.last_mut() {
        last.say(&json!({"kind": "list_connected"}))?;
        until(last, RECEIPT, "connected")?;
    }
    let after = process::rss_kib(pid)?;
    eprintln!("bench: {PEERS} idle peers: {before} KiB before, {after} KiB after");
    Ok(after.saturating_sub(before) as f64 / PEERS as f64)
}
