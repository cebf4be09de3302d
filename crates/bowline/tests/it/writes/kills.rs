//! What is killed while agents write, and when.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::World;
use crate::harness::network::Weather;
use crate::harness::{PATIENCE, last};

/// Kills by chance, the same ones for the same seed.
#[derive(Debug)]
pub(super) struct Kills {
    random: u64,
    by_kind: BTreeMap<&'static str, u64>,
}

/// How often the operator looks whether a server was given up.
const OPERATOR: Duration = Duration::from_secs(1);

/// Everything that can be killed.
const KINDS: [&str; 6] = [
    "gateway",
    "server over HTTP",
    "server over pipes",
    "connections cut",
    "network down",
    "answers lost",
];

impl Kills {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            by_kind: BTreeMap::new(),
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// Kills so many times, spread over the writes.
    pub(super) fn run(&mut self, world: &World, calls: u64, kills: u64) {
        for nth in 0..kills {
            let due = calls * (nth + 1) / (kills + 1);
            wait_for(world, due);
            // Each kind comes up, whatever chance says.
            let kind = match KINDS.get(usize::try_from(nth).unwrap()) {
                Some(kind) => kind,
                None => KINDS[usize::try_from(self.below(KINDS.len() as u64)).unwrap()],
            };
            self.kill(world, kind);
            *self.by_kind.entry(kind).or_default() += 1;
        }
        // The operator stays until the last write is done.
        wait_for(world, calls);
    }

    fn kill(&mut self, world: &World, kind: &str) {
        let pause = Duration::from_millis(self.below(300));
        match kind {
            "gateway" => world.gateway.lock().unwrap().restart_after_kill(),
            "server over HTTP" => {
                let mut web = world.web.lock().unwrap();
                web.kill();
                last(pause);
                web.restart();
            }
            "server over pipes" => {
                let status = world.gateway.lock().unwrap().status("pipe");
                // It may just be starting, or have died with another kill.
                if let Some(pid) = status["pid"].as_u64() {
                    let mut kill = Command::new("kill");
                    let _gone = kill.args(["-KILL", &pid.to_string()]).output();
                }
            }
            "connections cut" => world.network.cut(),
            "network down" => {
                world.network.turn(Weather::Down);
                last(pause);
                world.network.turn(Weather::Fair);
            }
            "answers lost" => {
                world.network.turn(Weather::Mute);
                last(pause);
                world.network.cut();
                world.network.turn(Weather::Fair);
            }
            other => panic!("{other}"),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }
}

/// Waits until so many writes are done.
fn wait_for(world: &World, due: u64) {
    let mut seen = (world.done.load(Ordering::SeqCst), Instant::now());
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() > OPERATOR {
            world.start_ejected_server();
            looked = Instant::now();
        }
        let done = world.done.load(Ordering::SeqCst);
        if done >= due {
            return;
        }
        if done > seen.0 {
            seen = (done, Instant::now());
        }
        assert!(seen.1.elapsed() < PATIENCE, "stuck at {done} of {due}");
        last(Duration::from_millis(1));
    }
}

impl fmt::Display for Kills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in all", self.total())?;
        let mut kinds = self.by_kind.iter();
        kinds.try_for_each(|(kind, count)| write!(f, ", {kind} {count}"))
    }
}
