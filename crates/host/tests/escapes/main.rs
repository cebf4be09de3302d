//! Whether anybody gets past the rules: random rules, principals and ways to name a thing, each
//! judged by an oracle that knows nothing of the code under test.
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

/// Cases of one world: as many as its ledger holds without trouble.
const BATCH: usize = 2_000;

/// Cases that are run where nobody says otherwise.
const CASES: usize = 20_000;

/// The first seed; each batch has the next one.
const SEED: u64 = 0x1dea;

#[expect(
    clippy::disallowed_methods,
    reason = "how much to run is said by whoever runs it"
)]
fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn nothing_runs_that_the_rules_deny_and_a_view_is_what_they_allow() {
    let cases =
        asked("BOWLINE_POLICY_CASES").map_or(CASES, |cases| usize::try_from(cases).unwrap());
    let only = asked("BOWLINE_POLICY_SEED");
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
            let mut walk = Walk::begin(seed).await;
            for nth in 0..BATCH {
                walk.case(nth).await;
            }
            walk.end()
        });
        for (what, count) in counted {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    println!("{seen:?}");
    // A test that never denies, or never allows, shows nothing.
    for what in walk::Path::ALL {
        for outcome in ["allowed", "denied"] {
            let key = format!("{what:?} {outcome}");
            let count = seen.get(&key).copied().unwrap_or(0);
            assert!(count >= batches, "{key}: {count}");
        }
    }
}
