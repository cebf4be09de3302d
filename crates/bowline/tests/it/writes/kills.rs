//! The kills during the writes: targets and times.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use bowline_testkit::WAIT_MAX;
use bowline_testkit::gateway::NetworkState;

use super::ChaosSetup;
use crate::stimulus::sleep_as_stimulus;

/// Random kills, reproducible by seed.
#[derive(Debug)]
pub(super) struct KillSchedule {
    random: u64,
    by_kind: BTreeMap<&'static str, u64>,
}

/// Interval at which the operator looks for an ejected server.
const OPERATOR_INTERVAL: Duration = Duration::from_secs(1);

/// All targets.
const KINDS: [&str; 6] = [
    "gateway",
    "server over HTTP",
    "server over pipes",
    "connections cut",
    "network down",
    "answers lost",
];

impl KillSchedule {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            by_kind: BTreeMap::new(),
        }
    }

    pub(super) fn total_kills(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// Performs `kills` kills, spread over the writes.
    pub(super) fn run_kills(&mut self, world: &ChaosSetup, calls: u64, kills: u64) {
        for nth in 0..kills {
            let due = calls * (nth + 1) / (kills + 1);
            wait_for_writes(world, due);
            // Each kind occurs at least once, for every seed.
            let kind = match KINDS.get(usize::try_from(nth).unwrap()) {
                Some(kind) => kind,
                None => KINDS[usize::try_from(self.random_below(KINDS.len() as u64)).unwrap()],
            };
            self.kill_one(world, kind);
            *self.by_kind.entry(kind).or_default() += 1;
        }
        // The operator stays until the last write is done.
        wait_for_writes(world, calls);
    }

    fn kill_one(&mut self, world: &ChaosSetup, kind: &str) {
        let pause = Duration::from_millis(self.random_below(300));
        match kind {
            "gateway" => world.gateway.lock().unwrap().restart_after_kill(),
            "server over HTTP" => {
                let mut web = world.http_server.lock().unwrap();
                web.kill();
                sleep_as_stimulus(pause);
                web.restart();
            }
            "server over pipes" => {
                let status = world.gateway.lock().unwrap().server_status("pipe");
                // The process may just be starting, or have died with another kill.
                if let Some(pid) = status["pid"].as_u64() {
                    let mut kill = Command::new("kill");
                    let _gone = kill.args(["-KILL", &pid.to_string()]).output();
                }
            }
            "connections cut" => world.network.cut_connections(),
            "network down" => {
                world.network.set_state(NetworkState::Down);
                sleep_as_stimulus(pause);
                world.network.set_state(NetworkState::Up);
            }
            "answers lost" => {
                world.network.set_state(NetworkState::ResponsesLost);
                sleep_as_stimulus(pause);
                world.network.cut_connections();
                world.network.set_state(NetworkState::Up);
            }
            other => panic!("{other}"),
        }
    }

    fn random_below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }
}

/// Waits until this many writes are done.
fn wait_for_writes(world: &ChaosSetup, due: u64) {
    let (mut seen, mut progressed) = (world.completed_writes.count(), Instant::now());
    loop {
        let done = world.completed_writes.wait_for(due, OPERATOR_INTERVAL);
        if done >= due {
            return;
        }
        world.restart_ejected_server();
        if done > seen {
            (seen, progressed) = (done, Instant::now());
        }
        assert!(progressed.elapsed() < WAIT_MAX, "stuck at {done} of {due}");
    }
}

impl fmt::Display for KillSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in all", self.total_kills())?;
        let mut kinds = self.by_kind.iter();
        kinds.try_for_each(|(kind, count)| write!(f, ", {kind} {count}"))
    }
}
