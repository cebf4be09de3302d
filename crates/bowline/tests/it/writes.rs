//! Numbered writes during kills of every process: an acknowledged or queued write runs once and in
//! order if the server deduplicates, and never twice if it does not.
//!
//! An agent sends its writes in sequence and continues when a write is acknowledged or queued. If
//! the server deduplicates, the agent retries a write under the same key until then; so the agent's
//! lane must show every number once, in order. Otherwise the agent retries only writes that were
//! reported as not started.
//!
//! Breaker, restart budget, timeouts and pings have their shipped defaults: an agent never slows
//! down for a backlog, and its operator restarts a server that spent its restart budget.

mod agent;
mod kills;
mod outage;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{FaultyNetwork, FixtureServer, Gateway, fixture_config};
use bowline_testkit::{PollPace, WAIT_MAX, wait_until, wait_until_at};
use serde_json::json;

use self::agent::{WriteAgent, WriteCounts};
use self::kills::KillSchedule;
use crate::test_servers::env_number;

/// Agents of each kind: with and without retries, over HTTP and over pipes.
const AGENTS_PER_KIND: usize = 2;

/// Servers for each kind of agent.
const SERVERS: usize = 2;

/// Number range of an agent.
const NUMBERS: u64 = 1_000_000;

/// Pace of the look at the outbox: its list is long while writes drain.
const OUTBOX_PACE: PollPace = PollPace {
    interval: Duration::from_millis(50),
    limit: Duration::from_secs(4 * WAIT_MAX.as_secs()),
};

/// The processes to kill, and the agents' network.
#[derive(Debug)]
pub(crate) struct ChaosSetup {
    gateway: Mutex<Gateway>,
    http_server: Mutex<FixtureServer>,
    network: FaultyNetwork,
    /// Completed writes of all agents.
    completed_writes: WriteCounter,
}

/// A count that a thread can wait on.
#[derive(Debug, Default)]
struct WriteCounter {
    count: Mutex<u64>,
    /// Notified after each write.
    added: Condvar,
}

impl WriteCounter {
    fn add_one(&self) {
        *self.count.lock().unwrap() += 1;
        self.added.notify_all();
    }

    fn count(&self) -> u64 {
        *self.count.lock().unwrap()
    }

    /// Waits up to `limit` until this many writes are done, and returns the count.
    fn wait_for(&self, due: u64, limit: Duration) -> u64 {
        let count = self.count.lock().unwrap();
        let waited = self
            .added
            .wait_timeout_while(count, limit, |count| *count < due);
        *waited.unwrap().0
    }
}

fn tool_config(name: &str, channel: &str) -> String {
    format!(
        "[servers.{name}.tools.write_once]\nqueue = \"1h\"\nidempotency = \"{channel}\"\n\
         [servers.{name}.tools.write_again]\neffect = \"write\"\n"
    )
}

impl ChaosSetup {
    fn start(dir: &Path) -> Self {
        let ledgers = ["web", "pipe"].map(|name| dir.join(name).display().to_string());
        let writes = |ledger| ["--toolset", "writes", "--ledger", ledger];
        let web = FixtureServer::start(&writes(&ledgers[0]));
        let network = FaultyNetwork::start(web.address());
        let config = [
            "[roles.agent]\nallow = [\"*\"]\n".to_owned(),
            format!("[servers.web]\nurl = \"http://{}/mcp\"\n", network.address),
            tool_config("web", "header:Idempotency-Key"),
            fixture_config("pipe", &writes(&ledgers[1])),
            tool_config("pipe", "meta"),
        ];
        let gateway = Gateway::start(&config.concat());
        for server in ["web", "pipe"] {
            gateway.wait_for_state(server, "ready");
        }
        Self {
            gateway: Mutex::new(gateway),
            http_server: Mutex::new(web),
            network,
            completed_writes: WriteCounter::default(),
        }
    }

    fn create_agents(&self, calls: u64) -> Vec<WriteAgent> {
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
            let (_, token) = gateway.create_token(&wanted);
            let session = gateway.open_session_as(&token, "/mcp");
            let first = nth as u64 * NUMBERS;
            let each = calls / (SERVERS * AGENTS_PER_KIND) as u64;
            WriteAgent::new(server, tool, first, each, token, session.id)
        });
        all.collect()
    }

    /// Restarts the stdio server after a spent restart budget, as an operator would.
    fn restart_ejected_server(&self) {
        let gateway = self.gateway.lock().unwrap();
        if gateway.server_status("pipe")["state"] == "ejected" {
            let out = gateway.run_cli(&["restart", "pipe"]);
            assert!(out.status.success(), "{out:?}");
        }
    }
}

/// Waits until no write is queued; a dead letter fails the test.
fn wait_until_outbox_empty(gateway: &Gateway) {
    wait_until_at(OUTBOX_PACE, "the outbox is empty", || {
        let outbox = gateway.get_api("/api/v1/outbox");
        let entries = outbox["entries"].as_array().unwrap();
        let dead = entries.iter().find(|entry| entry["state"] == "dead");
        assert_eq!(dead, None, "a write is dead");
        entries.is_empty()
    });
}

/// The numbers in a ledger, in execution order.
fn ledger_numbers(ledger: &str) -> Vec<u64> {
    let numbers = ledger.lines().filter_map(|line| {
        let mut parts = line.split('\t');
        parts.next().filter(|word| *word == "write")?;
        parts.next()?.parse().ok()
    });
    numbers.collect()
}

/// The numbers of an agent in a ledger, in order.
fn executed_numbers(ledger: &str, agent: &WriteAgent) -> Vec<u64> {
    let mut numbers = ledger_numbers(ledger);
    numbers.retain(|number| agent.is_own_number(*number));
    numbers
}

#[test]
fn acknowledged_and_queued_writes_run_once_in_order() {
    // Half of the writes go to tools with deduplication, half to tools without.
    let calls = env_number("BOWLINE_WRITES", 160);
    let kills = env_number("BOWLINE_KILLS", 6);
    let seed = env_number("BOWLINE_SEED", u64::from(std::process::id()));
    eprintln!("writes: BOWLINE_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let world = ChaosSetup::start(dir.path());
    let mut agents = world.create_agents(calls);
    let started = Instant::now();
    let killed = std::thread::scope(|scope| {
        for agent in &mut agents {
            scope.spawn(|| agent.write_all(&world));
        }
        let mut chaos = KillSchedule::new(seed);
        chaos.run_kills(&world, 2 * calls, kills);
        chaos
    });
    let sent_in = started.elapsed();
    wait_until("web is back", || {
        world.gateway.lock().unwrap().server_status("web")["state"] == "ready"
    });
    world.restart_ejected_server();
    wait_until_outbox_empty(&world.gateway.lock().unwrap());
    let ledgers = ["web", "pipe"].map(|name| std::fs::read_to_string(dir.path().join(name)));
    let ledgers: BTreeMap<_, _> = ["web", "pipe"]
        .into_iter()
        .zip(ledgers.map(Result::unwrap))
        .collect();
    let mut tallies: BTreeMap<_, WriteCounts> = BTreeMap::new();
    for agent in &agents {
        let executed = executed_numbers(&ledgers[agent.server], agent);
        agent.assert_executed(&executed);
        let tally = tallies.entry(agent.tool).or_default();
        tally.add(&agent.counts, &executed);
    }
    let sent: u64 = tallies.values().map(|tally| tally.sent).sum();
    assert_eq!(world.completed_writes.count(), sent);
    assert_eq!(killed.total_kills(), kills);
    for (tool, tally) in &tallies {
        eprintln!("{tool}: {tally}");
    }
    eprintln!(
        "killed: {killed}\nsent in {sent_in:?}, drained {:?} later",
        started.elapsed().saturating_sub(sent_in)
    );
}
