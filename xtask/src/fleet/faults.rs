//! What is broken while calls are under way, and when.

use std::{collections::BTreeMap, fmt, thread, time::Duration};

use anyhow::Result;

use super::{World, random::Random};
use crate::process;

/// A half-open connection must be found within half a minute; so long nothing passes.
const HALF_OPEN: Duration = Duration::from_secs(34);

/// The long faults of a run.
const LONG_MAX: u64 = 2;

/// How long nothing may end without a fault being the reason.
const STUCK: Duration = Duration::from_secs(240);

const LOOK: Duration = Duration::from_millis(5);

/// What can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// All connections end.
    Cut,
    /// The cable is out for a moment, and connections end.
    Unplugged,
    /// Nothing passes for a moment, and nobody is told.
    Lost,
    /// The same for longer than any heartbeat.
    HalfOpen,
    Slow,
    HubKilled,
    WorkerKilled,
    /// The worker is killed while the hub is away.
    BothKilled,
}

const ALL: [(Fault, &str); 8] = [
    (Fault::HubKilled, "hub killed"),
    (Fault::WorkerKilled, "worker killed"),
    (Fault::Cut, "connections cut"),
    (Fault::Unplugged, "link down"),
    (Fault::Lost, "packets dropped"),
    (Fault::Slow, "slow"),
    (Fault::HalfOpen, "half-open"),
    (Fault::BothKilled, "both killed"),
];

/// Faults by chance, the same ones for the same seed.
#[derive(Debug)]
pub(super) struct Faults {
    random: Random,
    by_kind: BTreeMap<Fault, u64>,
    /// How many long ones are left.
    long: u64,
}

impl Faults {
    pub(super) fn new(seed: u64, long: bool) -> Self {
        Self {
            random: Random::new(seed),
            by_kind: BTreeMap::new(),
            long: if long { LONG_MAX } else { 0 },
        }
    }

    /// Breaks so many things, spread over the calls, and heals each.
    pub(super) fn run(&mut self, world: &mut World, faults: u64) -> Result<()> {
        for nth in 0..faults {
            let due = world.calls() * (nth + 1) / (faults + 1);
            world.wait_for(due, STUCK, LOOK)?;
            let fault = self.choose(nth);
            *self.by_kind.entry(fault).or_default() += 1;
            if process::env("BOWLINE_FLEET_VERBOSE").is_some() {
                eprintln!("fleet: {} calls done, now {fault:?}", world.done());
            }
            self.break_and_heal(fault, world)?;
        }
        Ok(())
    }

    /// Each kind comes up, whatever chance says.
    fn choose(&mut self, nth: u64) -> Fault {
        let nth = usize::try_from(nth).unwrap_or(usize::MAX);
        let by_chance = usize::try_from(self.random.below(ALL.len() as u64)).unwrap_or(0);
        let at = if nth < ALL.len() { nth } else { by_chance };
        let fault = ALL.get(at).map_or(Fault::Cut, |(fault, _)| *fault);
        if fault != Fault::HalfOpen {
            return fault;
        }
        if self.long == 0 {
            return Fault::Lost;
        }
        self.long -= 1;
        fault
    }

    fn break_and_heal(&mut self, fault: Fault, world: &mut World) -> Result<()> {
        let mut pause = |most: u64| thread::sleep(Duration::from_millis(self.random.below(most)));
        match fault {
            Fault::Cut => world.network.cut(),
            Fault::Unplugged => {
                world.network.unplug()?;
                world.network.cut();
                pause(1_500);
            }
            Fault::Lost => {
                world.network.lose_everything()?;
                pause(2_500);
            }
            Fault::HalfOpen => {
                world.network.lose_everything()?;
                thread::sleep(HALF_OPEN);
            }
            Fault::Slow => {
                world.network.slow()?;
                pause(4_000);
            }
            Fault::HubKilled => {
                world.hub.kill();
                pause(700);
                world.hub.restart()?;
            }
            Fault::WorkerKilled => {
                world.worker.kill();
                pause(700);
                world.worker.restart()?;
            }
            Fault::BothKilled => {
                world.hub.kill();
                world.worker.kill();
                pause(700);
                world.hub.restart()?;
                world.worker.restart()?;
            }
        }
        world.network.heal()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults", self.by_kind.values().sum::<u64>())?;
        for (fault, name) in ALL {
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
    fn every_kind_comes_up_and_long_ones_are_few() {
        let mut faults = Faults::new(3, true);
        let chosen: Vec<Fault> = (0..200).map(|nth| faults.choose(nth)).collect();
        for (fault, name) in ALL {
            assert!(chosen.contains(&fault), "{name}");
        }
        let long = chosen.iter().filter(|fault| **fault == Fault::HalfOpen);
        assert_eq!(long.count(), 2);
        let mut short = Faults::new(3, false);
        assert!((0..200).all(|nth| short.choose(nth) != Fault::HalfOpen));
    }
}
