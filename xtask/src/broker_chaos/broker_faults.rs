//! Fault injection for broker-chaos.

use std::{collections::BTreeMap, fmt, thread, time::Duration};

use anyhow::Result;

use super::{BrokerChaosSetup, seeded_random::SeededRandom};
use crate::process;

/// Duration of a half-open connection: detection must take at most half a minute.
const HALF_OPEN_TIME: Duration = Duration::from_secs(34);

/// Long faults of a run.
const LONG_FAULTS_MAX: u64 = 2;

/// Longest time without a finished call before the run counts as stuck.
const STUCK_TIMEOUT: Duration = Duration::from_secs(240);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BrokerFault {
    /// All connections are reset.
    ConnectionsCut,
    /// The link is down for a moment, and connections are reset.
    LinkDown,
    /// All packets are dropped for a moment; connections stay open.
    PacketsDropped,
    /// All packets are dropped for longer than any heartbeat.
    HalfOpen,
    Slow,
    HubKilled,
    WorkerKilled,
    /// The worker is killed while the hub is down.
    BothKilled,
}

const FAULT_NAMES: [(BrokerFault, &str); 8] = [
    (BrokerFault::HubKilled, "hub killed"),
    (BrokerFault::WorkerKilled, "worker killed"),
    (BrokerFault::ConnectionsCut, "connections cut"),
    (BrokerFault::LinkDown, "link down"),
    (BrokerFault::PacketsDropped, "packets dropped"),
    (BrokerFault::Slow, "slow"),
    (BrokerFault::HalfOpen, "half-open"),
    (BrokerFault::BothKilled, "both killed"),
];

/// Random faults, reproducible from the seed.
#[derive(Debug)]
pub(super) struct BrokerFaults {
    random: SeededRandom,
    by_kind: BTreeMap<BrokerFault, u64>,
    /// Long faults that are still allowed.
    long_faults_left: u64,
}

impl BrokerFaults {
    pub(super) fn new(seed: u64, long: bool) -> Self {
        Self {
            random: SeededRandom::new(seed),
            by_kind: BTreeMap::new(),
            long_faults_left: if long { LONG_FAULTS_MAX } else { 0 },
        }
    }

    /// Injects `faults` faults, spread over the calls, and restores the network after each.
    pub(super) fn run(&mut self, world: &mut BrokerChaosSetup, faults: u64) -> Result<()> {
        for nth in 0..faults {
            let due = world.call_count() * (nth + 1) / (faults + 1);
            world.wait_for_calls(due, STUCK_TIMEOUT, POLL_INTERVAL)?;
            let fault = self.choose_fault(nth);
            *self.by_kind.entry(fault).or_default() += 1;
            if process::env_var("BOWLINE_FLEET_VERBOSE").is_some() {
                eprintln!(
                    "broker-chaos: {} calls done, now {fault:?}",
                    world.finished_count()
                );
            }
            self.inject_fault(fault, world)?;
        }
        Ok(())
    }

    /// Chooses each kind once, then at random.
    fn choose_fault(&mut self, nth: u64) -> BrokerFault {
        let nth = usize::try_from(nth).unwrap_or(usize::MAX);
        let by_chance = usize::try_from(self.random.below(FAULT_NAMES.len() as u64)).unwrap_or(0);
        let at = if nth < FAULT_NAMES.len() {
            nth
        } else {
            by_chance
        };
        let fault = FAULT_NAMES
            .get(at)
            .map_or(BrokerFault::ConnectionsCut, |(fault, _)| *fault);
        if fault != BrokerFault::HalfOpen {
            return fault;
        }
        if self.long_faults_left == 0 {
            return BrokerFault::PacketsDropped;
        }
        self.long_faults_left -= 1;
        fault
    }

    fn inject_fault(&mut self, fault: BrokerFault, world: &mut BrokerChaosSetup) -> Result<()> {
        let mut pause = |most: u64| thread::sleep(Duration::from_millis(self.random.below(most)));
        match fault {
            BrokerFault::ConnectionsCut => world.network.cut_connections(),
            BrokerFault::LinkDown => {
                world.network.take_link_down()?;
                world.network.cut_connections();
                pause(1_500);
            }
            BrokerFault::PacketsDropped => {
                world.network.drop_packets()?;
                pause(2_500);
            }
            BrokerFault::HalfOpen => {
                world.network.drop_packets()?;
                thread::sleep(HALF_OPEN_TIME);
            }
            BrokerFault::Slow => {
                world.network.slow_down()?;
                pause(4_000);
            }
            BrokerFault::HubKilled => {
                world.hub.kill();
                pause(700);
                world.hub.restart()?;
            }
            BrokerFault::WorkerKilled => {
                world.worker.kill();
                pause(700);
                world.worker.restart()?;
            }
            BrokerFault::BothKilled => {
                world.hub.kill();
                world.worker.kill();
                pause(700);
                world.hub.restart()?;
                world.worker.restart()?;
            }
        }
        world.network.restore()
    }
}

impl fmt::Display for BrokerFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults", self.by_kind.values().sum::<u64>())?;
        for (fault, name) in FAULT_NAMES {
            if let Some(count) = self.by_kind.get(&fault) {
                write!(f, ", {name} {count}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_occurs_and_long_ones_rarely() {
        let mut faults = BrokerFaults::new(3, true);
        let chosen: Vec<BrokerFault> = (0..200).map(|nth| faults.choose_fault(nth)).collect();
        for (fault, name) in FAULT_NAMES {
            assert!(chosen.contains(&fault), "{name}");
        }
        let long = chosen
            .iter()
            .filter(|fault| **fault == BrokerFault::HalfOpen);
        assert_eq!(long.count(), 2);
        let mut short = BrokerFaults::new(3, false);
        assert!((0..200).all(|nth| short.choose_fault(nth) != BrokerFault::HalfOpen));
    }
}
