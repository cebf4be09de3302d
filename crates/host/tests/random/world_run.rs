//! Runs a world from start to shutdown and records the results.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_testkit::{HistoryEntry, HistoryEvent, SimRecord, SimWorld};
use tokio::task::JoinSet;

use crate::calls::{FinishedCall, make_random_call};
use crate::commands::disturb_server;
use crate::judge;
use crate::laws;
use crate::worlds::{Draw, LIMITED, SERVERS};

/// Maximum time for all tasks to end after shutdown.
const QUIET_WAIT: Duration = Duration::from_secs(600);

/// Result of a world.
#[derive(Debug)]
pub(crate) struct WorldRun {
    /// The specs, for display.
    pub(crate) specs: Vec<String>,
    pub(crate) history: Vec<HistoryEntry>,
    pub(crate) ends: Vec<FinishedCall>,
    pub(crate) ejections: u64,
    /// Violated invariants.
    pub(crate) broken: Vec<String>,
}

/// Runs the world of a seed.
pub(crate) fn run_world(seed: u64) -> WorldRun {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(simulate(Draw::new(seed)))
}

async fn simulate(mut draw: Draw) -> WorldRun {
    let servers = &SERVERS[..draw.rng.usize(1..=SERVERS.len())];
    let scripts: Vec<_> = servers
        .iter()
        .map(|name| (*name, draw.random_script()))
        .collect();
    let specs: Vec<_> = servers.iter().map(|name| draw.random_spec(name)).collect();
    let world = SimWorld::new(scripts);
    let limits = HostLimits {
        principal_calls_max: draw.rng.u32(1..30),
        starts_max: if LIMITED { draw.rng.usize(1..4) } else { 16 },
        ..HostLimits::default()
    };
    let host = world.start_host(specs.clone(), limits);

    let mut calls = JoinSet::new();
    let count = draw.rng.usize(1..40);
    for nth in 0..count {
        let spec = specs[draw.rng.usize(..specs.len())].clone();
        let (host, world) = (host.clone(), world.clone());
        calls.spawn(make_random_call(host, world, nth, spec, draw.fork()));
    }
    let mut hands = JoinSet::new();
    for _ in 0..draw.rng.usize(0..6) {
        let server = servers[draw.rng.usize(..servers.len())];
        let (host, world) = (host.clone(), world.clone());
        hands.spawn(disturb_server(host, world, server, draw.fork()));
    }
    let mut watch = GenerationWatch::default();
    let mut ends = Vec::new();
    while let Some(ended) = calls.join_next().await {
        ends.push(ended.unwrap());
        world.with_record(|record| watch.check_generations(&host, record, &specs));
    }
    while hands.join_next().await.transpose().unwrap().is_some() {}
    world.with_record(|record| watch.check_generations(&host, record, &specs));
    let statuses = host.status();
    let ejections = statuses.iter().filter(|status| status.ejected).count();

    world.record_event(HistoryEvent::Note("shutdown".to_owned()));
    host.shutdown().await;
    world.record_event(HistoryEvent::Note("down".to_owned()));
    let mut broken = watch.broken;
    let tasks = host.tasks().clone();
    drop(host);
    if tokio::time::timeout(QUIET_WAIT, tasks.wait_finished())
        .await
        .is_err()
    {
        broken.push("after shutdown: tasks of the host live on".to_owned());
    }
    let record = world.record();
    for server in servers {
        if record.live_count(server) != 0 {
            broken.push(format!("after shutdown: {server} lives on"));
        }
    }
    judge::check_calls(&ends, &specs, &record, &mut broken);
    laws::check_invariants(&record, &specs, &limits, &mut broken);
    if ends.len() != count {
        broken.push(format!("{} of {count} calls ended", ends.len()));
    }
    WorldRun {
        specs: specs.iter().map(describe_spec).collect(),
        history: record.history,
        ends,
        ejections: ejections as u64,
        broken,
    }
}

fn describe_spec(spec: &ServerSpec) -> String {
    format!(
        "{}: {:?} {:?} {:?} call {:?} start {:?} drain {:?} idle {:?} calls {} queue {} {:?}",
        spec.name,
        spec.restart,
        spec.backoff,
        spec.breaker,
        spec.call_timeout,
        spec.start_timeout,
        spec.drain_timeout,
        spec.idle_stop,
        spec.calls_max,
        spec.queue_max,
        spec.tools
    )
}

/// Server states, for comparison with later states.
#[derive(Debug, Default)]
struct GenerationWatch {
    generations: BTreeMap<String, u64>,
    broken: Vec<String>,
}

impl GenerationWatch {
    fn check_generations(&mut self, host: &Host, record: &SimRecord, specs: &[ServerSpec]) {
        for status in host.status() {
            let seen = self.generations.entry(status.name.to_string()).or_default();
            let mut demand = |holds: bool, law: &str| {
                if !holds {
                    self.broken.push(format!("{law}: {status:?}"));
                }
            };
            demand(status.generation >= *seen, "a generation went backwards");
            *seen = status.generation;
            let alive = record.live_count(&status.name);
            demand(alive <= 1, "two processes of one server");
            let serves = matches!(&*status.state, "ready" | "probing");
            demand(status.active == serves, "active is not what state says");
            demand(status.errors <= status.calls, "more errors than calls");
            let spec = specs.iter().find(|spec| spec.name == status.name).unwrap();
            demand(status.queued <= spec.queue_max, "a queue is too long");
            let spent = status.restart_count <= u64::from(spec.restart.restarts_max);
            demand(spent, "more restarts than the budget has");
        }
    }
}
