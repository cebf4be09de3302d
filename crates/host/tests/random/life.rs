//! One world from its first moment to its last, and what was seen of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_sim::{Happened, Moment, Record, World};
use tokio::task::JoinSet;

use crate::calls::{Made, one_call};
use crate::hands::meddle;
use crate::judge;
use crate::laws;
use crate::worlds::{Draw, LIMITED, SERVERS};

/// How long all tasks may take to end once the host is down.
const QUIET_WAIT: Duration = Duration::from_secs(600);

/// What came of one world.
#[derive(Debug)]
pub(crate) struct Lived {
    /// What the host was told of each server, for people.
    pub(crate) specs: Vec<String>,
    pub(crate) history: Vec<Moment>,
    pub(crate) ends: Vec<Made>,
    pub(crate) ejections: u64,
    /// Which laws were broken, and how.
    pub(crate) broken: Vec<String>,
}

/// Lives the world of a seed.
pub(crate) fn run(seed: u64) -> Lived {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(live(Draw::new(seed)))
}

async fn live(mut draw: Draw) -> Lived {
    let servers = &SERVERS[..draw.rng.usize(1..=SERVERS.len())];
    let scripts: Vec<_> = servers.iter().map(|name| (*name, draw.script())).collect();
    let specs: Vec<_> = servers.iter().map(|name| draw.spec(name)).collect();
    let world = World::new(scripts);
    let limits = HostLimits {
        principal_calls_max: draw.rng.u32(1..30),
        starts_max: if LIMITED { draw.rng.usize(1..4) } else { 16 },
        ..HostLimits::default()
    };
    let host = world.host(specs.clone(), limits);
    let both = || (host.clone(), world.clone());

    let mut calls = JoinSet::new();
    let count = draw.rng.usize(1..40);
    for nth in 0..count {
        let spec = specs[draw.rng.usize(..specs.len())].clone();
        calls.spawn(one_call(both(), nth, spec, draw.fork()));
    }
    let mut hands = JoinSet::new();
    for _ in 0..draw.rng.usize(0..6) {
        let server = servers[draw.rng.usize(..servers.len())];
        hands.spawn(meddle(both(), server, draw.fork()));
    }
    let mut watch = Watch::default();
    let mut ends = Vec::new();
    while let Some(ended) = calls.join_next().await {
        ends.push(ended.unwrap());
        world.look(|record| watch.look(&host, record, &specs));
    }
    while hands.join_next().await.transpose().unwrap().is_some() {}
    world.look(|record| watch.look(&host, record, &specs));
    let statuses = host.status();
    let ejections = statuses.iter().filter(|status| status.ejected).count();

    world.note(Happened::Noted("shutdown".to_owned()));
    host.shutdown().await;
    world.note(Happened::Noted("down".to_owned()));
    let mut broken = watch.broken;
    let tasks = host.tasks().clone();
    drop(host);
    if tokio::time::timeout(QUIET_WAIT, tasks.finished())
        .await
        .is_err()
    {
        broken.push("after shutdown: tasks of the host live on".to_owned());
    }
    let record = world.record();
    for server in servers {
        if record.alive(server) != 0 {
            broken.push(format!("after shutdown: {server} lives on"));
        }
    }
    judge::judge(&ends, &specs, &record, &mut broken);
    laws::check(&record, &specs, &limits, &mut broken);
    if ends.len() != count {
        broken.push(format!("{} of {count} calls ended", ends.len()));
    }
    Lived {
        specs: specs.iter().map(told).collect(),
        history: record.history,
        ends,
        ejections: ejections as u64,
        broken,
    }
}

fn told(spec: &ServerSpec) -> String {
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

/// What was seen of each server, to compare with what is seen later.
#[derive(Debug, Default)]
struct Watch {
    generations: BTreeMap<String, u64>,
    broken: Vec<String>,
}

impl Watch {
    fn look(&mut self, host: &Host, record: &Record, specs: &[ServerSpec]) {
        for status in host.status() {
            let seen = self.generations.entry(status.name.to_string()).or_default();
            let mut demand = |holds: bool, law: &str| {
                if !holds {
                    self.broken.push(format!("{law}: {status:?}"));
                }
            };
            demand(status.generation >= *seen, "a generation went backwards");
            *seen = status.generation;
            let alive = record.alive(&status.name);
            demand(alive <= 1, "two processes of one server");
            let serves = matches!(status.state, "ready" | "probing");
            demand(status.active == serves, "active is not what state says");
            demand(status.errors <= status.calls, "more errors than calls");
            let spec = specs.iter().find(|spec| spec.name == status.name).unwrap();
            demand(status.queued <= spec.queue_max, "a queue is too long");
            let spent = status.restart_count <= u64::from(spec.restart.restarts_max);
            demand(spent, "more restarts than the budget has");
        }
    }
}
