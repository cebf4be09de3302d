//! Random worlds from seeds: the host keeps its invariants in every history.
//!
//! A seed gives a single history: `BOWLINE_SEED=n` runs this world alone and prints all events.
//! `cargo xtask sim` runs 20,000 of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod calls;
mod commands;
mod judge;
mod laws;
mod seeds;
mod world_run;
mod worlds;

/// Worlds of a plain test run.
const SEEDS: u64 = 2_000;

/// Worlds run twice and compared.
const TWICE: u64 = 50;

#[test]
fn every_call_ends_in_exactly_one_way() {
    let report = seeds::run_all(SEEDS);
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
}

#[test]
fn one_seed_gives_one_history() {
    for seed in 0..TWICE {
        let (first, second) = (world_run::run_world(seed), world_run::run_world(seed));
        if first.history == second.history && first.ends == second.ends {
            continue;
        }
        let pairs = first.history.iter().zip(&second.history);
        let differs = pairs.filter(|(one, other)| one != other).take(3);
        panic!(
            "seed {seed} has two histories: {:#?}",
            differs.collect::<Vec<_>>()
        );
    }
}
