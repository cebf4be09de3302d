//! Numbered writes while everything is killed: what was acknowledged or queued runs once and in
//! order where the server knows a write again, and never twice where it does not.
//!
//! An agent sends its writes one after the other and goes on to the next once one was acknowledged
//! or queued. Where its server knows writes again, it repeats one until then, under the same key;
//! so the lane of that agent must show every number once, each after the one before it. Where the
//! server does not, it repeats only what it was told did not start.
//!
//! Breaker, restart budget, timeouts and pings are the shipped ones: an agent never slows down for a
//! backlog, and a server that spent its budget is started again by its operator.

mod agent;
mod kills;
mod outage;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use self::agent::{Agent, Tally};
use self::kills::Kills;
use crate::harness::network::Network;
use crate::harness::served::Served;
use crate::harness::{Gateway, PATIENCE, eventually, fixture, last};
use crate::props::number;

/// Agents of each kind: they repeat, or they do not; over HTTP, or over pipes.
const AGENTS_PER_KIND: usize = 2;

/// Servers that each kind of agent writes to.
const SERVERS: usize = 2;

/// Numbers of one agent.
const NUMBERS: u64 = 1_000_000;

/// What is killed, and the agents' way to it.
#[derive(Debug)]
pub(crate) struct World {
    gateway: Mutex<Gateway>,
    web: Mutex<Served>,
    network: Network,
    /// Writes that ended well for their agents.
    done: AtomicU64,
}

fn tools(name: &str, channel: &str) -> String {
    format!(
        "[servers.{name}.tools.write_once]\nqueue = \"1h\"\nidempotency = \"{channel}\"\n\
         [servers.{name}.tools.write_again]\neffect = \"write\"\n"
    )
}

impl World {
    fn start(dir: &Path) -> Self {
        let ledgers = ["web", "pipe"].map(|name| dir.join(name).display().to_string());
        let writes = |ledger| ["--toolset", "writes", "--ledger", ledger];
        let web = Served::start(&writes(&ledgers[0]));
        let network = Network::to(web.address());
        let config = [
            "[roles.agent]\nallow = [\"*\"]\n".to_owned(),
            format!("[servers.web]\nurl = \"http://{}/mcp\"\n", network.address),
            tools("web", "header:Idempotency-Key"),
            fixture("pipe", &writes(&ledgers[1])),
            tools("pipe", "meta"),
        ];
        let gateway = Gateway::up(&config.concat());
        for server in ["web", "pipe"] {
            gateway.wait_for(server, "ready");
        }
        Self {
            gateway: Mutex::new(gateway),
            web: Mutex::new(web),
            network,
            done: AtomicU64::new(0),
        }
    }

    fn agents(&self, calls: u64) -> Vec<Agent> {
        let gateway = self.gateway.lock().unwrap();
        let kinds = [
            ("web", "write_once"),
            ("pipe", "write_once"),
            ("web", "write_again"),
            ("pipe", "write_again"),
        ];
        let all = (0..kinds.len() * AGENTS_PER_KIND).map(|nth| {
            let (server, tool) = kinds[nth % kinds.len()];
            let wanted = json!({"principal": format!("agent-{nth}"), "role": "agent"});
            let (_, token) = gateway.token_of(&wanted);
            let session = gateway.session_as(&token, "/mcp");
            let first = nth as u64 * NUMBERS;
            let each = calls / (SERVERS * AGENTS_PER_KIND) as u64;
            Agent::new((server, tool), (first, each), token, session.id)
        });
        all.collect()
    }

    /// Starts the server over pipes again where it spent its restart budget, as its operator would.
    fn start_ejected_server(&self) {
        let gateway = self.gateway.lock().unwrap();
        if gateway.status("pipe")["state"] == "ejected" {
            let out = gateway.cli(&["restart", "pipe"]);
            assert!(out.status.success(), "{out:?}");
        }
    }
}

/// Waits until no write is queued; a dead letter fails the test.
fn await_empty_outbox(gateway: &Gateway) {
    let end = Instant::now() + 4 * PATIENCE;
    loop {
        let outbox = gateway.api("/api/v1/outbox");
        let entries = outbox["entries"].as_array().unwrap();
        if entries.is_empty() {
            return;
        }
        let dead = entries.iter().find(|entry| entry["state"] == "dead");
        assert_eq!(dead, None, "a write is dead");
        assert!(Instant::now() < end, "never drained: {}", entries.len());
        last(Duration::from_millis(50));
    }
}

/// The numbers in a ledger, in the order in which they were written.
fn numbers(ledger: &str) -> Vec<u64> {
    let numbers = ledger.lines().filter_map(|line| {
        let mut parts = line.split('\t');
        parts.next().filter(|word| *word == "write")?;
        parts.next()?.parse().ok()
    });
    numbers.collect()
}

/// The numbers that one agent's writes left in a ledger, in order.
fn executed(ledger: &str, agent: &Agent) -> Vec<u64> {
    let mut numbers = numbers(ledger);
    numbers.retain(|number| agent.owns(*number));
    numbers
}

#[test]
fn each_acknowledged_or_queued_write_runs_once_and_in_order_whatever_is_killed() {
    // As many to tools that know a write again, and as many to tools that do not.
    let calls = number("BOWLINE_WRITES", 160);
    let kills = number("BOWLINE_KILLS", 6);
    let seed = number("BOWLINE_SEED", u64::from(std::process::id()));
    eprintln!("writes: BOWLINE_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path());
    let mut agents = world.agents(calls);
    let started = Instant::now();
    let killed = std::thread::scope(|scope| {
        for agent in &mut agents {
            scope.spawn(|| agent.work(&world));
        }
        let mut chaos = Kills::new(seed);
        chaos.run(&world, 2 * calls, kills);
        chaos
    });
    let sent_in = started.elapsed();
    eventually("web is back", || {
        world.gateway.lock().unwrap().status("web")["state"] == "ready"
    });
    world.start_ejected_server();
    await_empty_outbox(&world.gateway.lock().unwrap());
    let ledgers = ["web", "pipe"].map(|name| std::fs::read_to_string(dir.path().join(name)));
    let ledgers: BTreeMap<_, _> = ["web", "pipe"]
        .into_iter()
        .zip(ledgers.map(Result::unwrap))
        .collect();
    let mut tallies: BTreeMap<_, Tally> = BTreeMap::new();
    for agent in &agents {
        let executed = executed(&ledgers[agent.server], agent);
        agent.check(&executed);
        let tally = tallies.entry(agent.tool).or_default();
        tally.add(&agent.tally, &executed);
    }
    let sent: u64 = tallies.values().map(|tally| tally.sent).sum();
    assert_eq!(world.done.load(Ordering::SeqCst), sent);
    assert_eq!(killed.total(), kills);
    for (tool, tally) in &tallies {
        eprintln!("{tool}: {tally}");
    }
    eprintln!(
        "killed: {killed}\nsent in {sent_in:?}, drained {:?} later",
        started.elapsed().saturating_sub(sent_in)
    );
}
