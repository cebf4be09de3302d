//! Random worlds from seeds: whatever happens, every call ends in exactly one known way.
//!
//! `BOWLINE_SEED=n` runs the one world of that seed, many times over: scripts, calls and times
//! are the same each time, but who of several that wake in the same moment goes first is not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::error::{CallError, Execution};
use bowline_core::supervision::RestartPolicy;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_host::{Host, HostLimits};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Record, Script, World, call, call_of, spec};
use fastrand::Rng;
use tokio::task::JoinSet;

/// Worlds of one run.
const SEEDS: u64 = 400;

/// How often a chosen world is run.
const REPLAYS: usize = 100;

/// How long anything random may be put off.
const DELAY_MS_MAX: u64 = 4_000;

/// No call may take longer than this, which is longer than every limit of every spec.
const CALL_MAX: Duration = Duration::from_secs(60);

const SERVERS: [&str; 3] = ["alpha", "beta", "gamma"];

/// How one call ended.
#[derive(Debug)]
enum End {
    Answered,
    Failed(CallError),
    /// Its caller went away.
    Dropped,
}

#[test]
fn every_call_ends_in_exactly_one_way() {
    let seeds: Vec<_> = match chosen_seed() {
        Some(seed) => vec![seed; REPLAYS],
        None => (0..SEEDS).collect(),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            tell(seed);
            resume_unwind(panic);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a seed to replay is no configuration"
)]
fn chosen_seed() -> Option<u64> {
    let text = std::env::var("BOWLINE_SEED").ok()?;
    Some(text.parse().expect("BOWLINE_SEED is a number"))
}

#[expect(
    clippy::print_stderr,
    reason = "who sees the failure must be able to replay it"
)]
fn tell(seed: u64) {
    eprintln!("replay with BOWLINE_SEED={seed}");
}

fn run(seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(live(Rng::with_seed(seed)));
}

async fn live(mut rng: Rng) {
    let servers = &SERVERS[..rng.usize(1..=SERVERS.len())];
    let scripts: Vec<_> = servers
        .iter()
        .map(|name| (*name, script(&mut rng)))
        .collect();
    let specs = servers
        .iter()
        .map(|name| random_spec(name, &mut rng))
        .collect();
    let world = World::new(scripts);
    let limits = HostLimits {
        principal_calls_max: rng.u32(1..20),
        ..HostLimits::default()
    };
    let host = world.host(specs, limits);

    let mut calls = JoinSet::new();
    let count = rng.usize(1..40);
    for nth in 0..count {
        calls.spawn(one_call(host.clone(), nth, servers.to_vec(), rng.fork()));
    }
    let mut hands = JoinSet::new();
    for _ in 0..rng.usize(0..6) {
        let server = servers[rng.usize(..servers.len())];
        hands.spawn(meddle(host.clone(), world.clone(), server, rng.fork()));
    }
    let mut watch = Watch::default();
    let mut ends = Vec::new();
    while let Some(ended) = calls.join_next().await {
        ends.push(ended.unwrap());
        watch.look(&host, &world.record());
    }
    while hands.join_next().await.transpose().unwrap().is_some() {}
    watch.look(&host, &world.record());

    assert_eq!(ends.len(), count);
    host.shutdown().await;
    let record = world.record();
    for (arguments, end) in &ends {
        judge(arguments, end, &record);
    }
    for server in servers {
        assert_eq!(record.alive(server), 0, "{server} lives on");
        let starts = record.starts.iter().filter(|life| *life.server == **server);
        let generations: Vec<_> = starts.map(|life| life.generation).collect();
        assert!(generations.is_sorted_by(|a, b| a < b), "{generations:?}");
    }
}

/// Makes one call some time, and perhaps drops it; returns its arguments and its end.
async fn one_call(host: Host, nth: usize, servers: Vec<&str>, mut rng: Rng) -> (String, End) {
    let arguments = format!("{{\"call\":{nth}}}");
    let server = servers[rng.usize(..servers.len())];
    let tool = format!("t{}", rng.usize(..6));
    let call = if rng.bool() {
        call(&format!("{server}__{tool}"), &arguments)
    } else {
        call_of(server, &tool, &arguments)
    };
    tokio::time::sleep(delay(&mut rng)).await;
    let patience = if rng.u8(..4) == 0 {
        delay(&mut rng)
    } else {
        CALL_MAX
    };
    let begun = host.clock().now();
    let end = match tokio::time::timeout(patience, host.call(call)).await {
        Ok(Ok(_)) => End::Answered,
        Ok(Err(error)) => End::Failed(error),
        Err(_) => End::Dropped,
    };
    let took = Duration::from_millis(host.clock().now().millis_since(begun));
    assert!(took < CALL_MAX, "{arguments} never ended");
    (arguments, end)
}

fn judge(arguments: &str, end: &End, record: &Record) {
    let ran = record.executions_with(arguments);
    let fine = match end {
        End::Answered => ran == 1,
        End::Failed(error) => match error.execution() {
            Execution::NotStarted => ran == 0,
            Execution::Unknown => ran <= 1,
            Execution::Completed => ran == 1,
        },
        End::Dropped => ran <= 1,
    };
    assert!(fine, "{arguments} ended as {end:?} and ran {ran} times");
    let taken_back = record
        .cancellations
        .iter()
        .filter(|deed| deed.arguments == arguments)
        .count();
    let told = match end {
        End::Answered => taken_back == 0,
        End::Failed(CallError::Timeout { .. }) => taken_back == ran,
        End::Failed(_) => taken_back == 0,
        End::Dropped => taken_back <= ran,
    };
    assert!(
        told,
        "{arguments} ended as {end:?} and was taken back {taken_back} times"
    );
}

/// Does something to a server some time.
async fn meddle(host: Host, world: World, server: &'static str, mut rng: Rng) {
    tokio::time::sleep(delay(&mut rng)).await;
    let order = match rng.u8(..6) {
        0 => Order::Start,
        1 => Order::Stop,
        2 => Order::Restart,
        3 => {
            world.change(server, generation(&mut rng));
            return;
        }
        _ => {
            world.kill(server, Exit::Signal(9));
            return;
        }
    };
    let wait = Duration::from_millis(rng.u64(..500));
    host.order(server, order, wait).await.unwrap();
}

/// What was seen of each server, to compare with what is seen later.
#[derive(Debug, Default)]
struct Watch(HashMap<String, u64>);

impl Watch {
    fn look(&mut self, host: &Host, record: &Record) {
        for status in host.status() {
            let seen = self.0.entry(status.name.to_string()).or_default();
            assert!(status.generation >= *seen, "{status:?}");
            *seen = status.generation;
            assert!(record.alive(&status.name) <= 1, "two processes: {status:?}");
            assert_eq!(status.active, status.state == "ready");
            assert!(status.errors <= status.calls, "{status:?}");
        }
    }
}

fn delay(rng: &mut Rng) -> Duration {
    Duration::from_millis(rng.u64(..DELAY_MS_MAX))
}

fn random_spec(server: &str, rng: &mut Rng) -> ServerSpec {
    ServerSpec {
        lazy: rng.bool(),
        start_timeout: Duration::from_millis(rng.u64(100..3_000)),
        call_timeout: Duration::from_millis(rng.u64(50..5_000)),
        restart: RestartPolicy {
            restarts_max: rng.u32(..6),
            window: Duration::from_millis(rng.u64(100..10_000)),
        },
        backoff: Backoff {
            base: Duration::from_millis(rng.u64(1..1_000)),
            cap: Duration::from_secs(5),
        },
        breaker: BreakerPolicy {
            failures_max: rng.u32(1..6),
            rest: delay(rng),
        },
        ..spec(server)
    }
}

fn script(rng: &mut Rng) -> Script {
    let first = Script::always(generation(rng));
    (0..rng.usize(..5)).fold(first, |script, _| script.then(generation(rng)))
}

fn generation(rng: &mut Rng) -> Generation {
    let offered: Vec<_> = (0..6).filter(|_| rng.u8(..5) > 0).collect();
    let names: Vec<_> = offered.iter().map(|n| format!("t{n}")).collect();
    let tools = names.iter().map(|name| (name.as_str(), act(rng)));
    let generation = Generation::tools(tools.collect::<Vec<_>>())
        .end_takes(Duration::from_millis(rng.u64(..400)))
        .list_takes(Duration::from_millis(rng.u64(..400)));
    match rng.u8(..8) {
        0 => Generation::fails("no luck"),
        1 => generation.hangs(&Gate::closed()),
        _ => generation,
    }
}

fn act(rng: &mut Rng) -> Act {
    match rng.u8(..12) {
        0 => Act::Hangs(Gate::closed()),
        1 => Act::Dies,
        2 => Act::DiesUnread,
        3 => Act::Closes,
        4 => Act::RpcError,
        5 => Act::ToolError,
        6 => Act::Garbles,
        7 => Act::Progress(2),
        8 | 9 => Act::AnswersAfter(delay(rng)),
        _ => Act::Answers,
    }
}
