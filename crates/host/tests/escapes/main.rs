//! Policy bypass test: random rules, principals and access paths, compared with an oracle that
//! shares no code with the product.
//!
//! `BOWLINE_POLICY_CASES=100000` runs all; `BOWLINE_POLICY_SEED=N` runs the batch of that seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests"
)]

mod oracle;
mod rules;
mod walk;
mod world;

use std::collections::BTreeMap;

use crate::walk::Walk;

/// Cases per world, within the capacity of its record.
const BATCH: usize = 2_000;

/// Default number of cases.
const CASES: usize = 20_000;

/// The first seed; batches use consecutive seeds.
const SEED: u64 = 0x1dea;

#[expect(
    clippy::disallowed_methods,
    reason = "how much to run is said by whoever runs it"
)]
fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn random_rules_match_oracle() {
    let cases =
        env_number("BOWLINE_POLICY_CASES").map_or(CASES, |cases| usize::try_from(cases).unwrap());
    let only = env_number("BOWLINE_POLICY_SEED");
    let first = only.unwrap_or(SEED);
    let batches = if only.is_some() {
        1
    } else {
        cases.div_ceil(BATCH)
    };
    println!("seed {first}, {batches} batches of {BATCH}");
    let mut seen = BTreeMap::new();
    for seed in (first..).take(batches) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let counted = runtime.block_on(async move {
            let mut walk = Walk::start_walk(seed).await;
            for nth in 0..BATCH {
                walk.run_case(nth).await;
            }
            walk.into_counts()
        });
        for (what, count) in counted {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    println!("{seen:?}");
    // Both outcomes must occur on every path, or the test proves nothing.
    for what in walk::AccessPath::ALL {
        for outcome in ["allowed", "denied"] {
            let key = format!("{what:?} {outcome}");
            let count = seen.get(&key).copied().unwrap_or(0);
            assert!(count >= batches, "{key}: {count}");
        }
    }
}
