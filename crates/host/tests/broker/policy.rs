//! Whether anybody gets past the rules over a broker: random rules and peers, who ask live and
//! stored, list, forge, replay and alter; each case is held against what the policy itself says.
//!
//! `BOWLINE_BROKER_CASES=100000` runs all; `BOWLINE_POLICY_SEED=N` runs the batch of that seed.

mod attack;
mod rules;
mod world;

use std::collections::BTreeMap;

use self::attack::Way;
use self::world::World;

/// Cases of one world, so that its journal stays small.
const BATCH: usize = 1_000;

/// Cases that are run where nobody says otherwise.
const CASES: usize = 5_000;

/// The first seed; each batch has the next one.
const SEED: u64 = 0xb0a7;

/// What is counted, over all ways or of one.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How often each way was allowed and denied.
    ways: BTreeMap<(Way, bool), usize>,
    /// What must never be.
    escapes: Vec<String>,
}

impl Tally {
    pub(crate) fn count(&mut self, way: Way, allowed: bool) {
        *self.ways.entry((way, allowed)).or_default() += 1;
    }

    /// Notes an escape unless `holds`.
    pub(crate) fn hold(&mut self, holds: bool, said: impl FnOnce() -> String) {
        if !holds {
            self.escapes.push(said());
        }
    }

    fn add(&mut self, other: Self) {
        for (way, count) in other.ways {
            *self.ways.entry(way).or_default() += count;
        }
        self.escapes.extend(other.escapes);
    }

    fn sum(&self, counts: impl Fn(Way, bool) -> bool) -> usize {
        let ways = self.ways.iter();
        let fitting = ways.filter(|((way, allowed), _)| counts(*way, *allowed));
        fitting.map(|(_, count)| count).sum()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how much to run is said by whoever runs it"
)]
fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
#[expect(clippy::print_stderr, reason = "a count is worth reading")]
fn nothing_runs_is_listed_or_is_answered_over_a_broker_that_the_rules_deny() {
    let cases = asked("BOWLINE_BROKER_CASES");
    let cases = cases.map_or(CASES, |cases| usize::try_from(cases).unwrap());
    let only = asked("BOWLINE_POLICY_SEED");
    let first = only.unwrap_or(SEED);
    let batches = only.map_or_else(|| cases.div_ceil(BATCH), |_| 1);
    let mut tally = Tally::default();
    for seed in (first..).take(batches) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        tally.add(runtime.block_on(async move {
            let mut world = World::begin(seed).await;
            for nth in 0..BATCH {
                world.case(nth).await;
            }
            world.end().await
        }));
    }
    eprintln!(
        "broker policy: {} cases, {} denied, {} allowed, {} forged or replayed, {} escapes",
        tally.sum(|_, _| true),
        tally.sum(|_, allowed| !allowed),
        tally.sum(|_, allowed| allowed),
        tally.sum(|way, _| way.is_attack()),
        tally.escapes.len()
    );
    for ((way, allowed), count) in &tally.ways {
        let outcome = if *allowed { "allowed" } else { "denied" };
        eprintln!("  {way:?} {outcome}: {count}");
    }
    assert_eq!(tally.escapes, Vec::<String>::new(), "seed {first}");
    // A test that never denies, or never allows, shows nothing.
    for way in Way::ALL {
        let denied = tally.sum(|one, allowed| one == way && !allowed);
        let allowed = tally.sum(|one, allowed| one == way && allowed);
        assert!(denied >= batches, "{way:?} denied: {denied}");
        assert!(way.is_forged() || allowed >= batches, "{way:?} allowed");
    }
}
