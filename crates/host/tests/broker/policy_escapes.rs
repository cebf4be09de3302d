//! Tries to bypass the policy over a broker: random rules and peers that call live and stored,
//! list, forge, replay and alter; each case is compared with the decision of the policy itself.
//!
//! `BOWLINE_BROKER_CASES=100000` runs all; `BOWLINE_POLICY_SEED=N` runs the batch of this seed.

mod attack;
mod broker_world;
mod random_rules;

use std::collections::BTreeMap;

use self::attack::AttackPath;
use self::broker_world::BrokerWorld;

/// Cases per world, to keep the journal small.
const BATCH: usize = 1_000;

/// Default number of cases.
const CASES: usize = 5_000;

/// The first seed; each batch has the next seed.
const SEED: u64 = 0xb0a7;

/// Counts over all attack paths, or of one path.
#[derive(Debug, Default)]
pub(crate) struct AttackTally {
    /// Allowed and denied cases per path.
    ways: BTreeMap<(AttackPath, bool), usize>,
    /// Policy violations.
    escapes: Vec<String>,
}

impl AttackTally {
    pub(crate) fn count(&mut self, way: AttackPath, allowed: bool) {
        *self.ways.entry((way, allowed)).or_default() += 1;
    }

    /// Records an escape unless `holds`.
    pub(crate) fn check(&mut self, holds: bool, said: impl FnOnce() -> String) {
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

    fn sum(&self, counts: impl Fn(AttackPath, bool) -> bool) -> usize {
        let ways = self.ways.iter();
        let fitting = ways.filter(|((way, allowed), _)| counts(*way, *allowed));
        fitting.map(|(_, count)| count).sum()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how much to run is said by whoever runs it"
)]
fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
#[expect(clippy::print_stderr, reason = "a count is worth reading")]
fn denied_requests_never_escape_the_broker() {
    let cases = env_number("BOWLINE_BROKER_CASES");
    let cases = cases.map_or(CASES, |cases| usize::try_from(cases).unwrap());
    let only = env_number("BOWLINE_POLICY_SEED");
    let first = only.unwrap_or(SEED);
    let batches = only.map_or_else(|| cases.div_ceil(BATCH), |_| 1);
    let mut tally = AttackTally::default();
    for seed in (first..).take(batches) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        tally.add(runtime.block_on(async move {
            let mut world = BrokerWorld::start(seed).await;
            for nth in 0..BATCH {
                world.run_next(nth).await;
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
    // A test that never denies, or never allows, proves nothing.
    for way in AttackPath::ALL {
        let denied = tally.sum(|one, allowed| one == way && !allowed);
        let allowed = tally.sum(|one, allowed| one == way && allowed);
        assert!(denied >= batches, "{way:?} denied: {denied}");
        assert!(way.is_forged() || allowed >= batches, "{way:?} allowed");
    }
}
