//! The ordeal of the journal in its short form; `cargo xtask ordeal` is the long one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Builds the program that suffers the way this test was built; where `cargo test` has built it
/// before, there is nothing to do.
fn program() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let profile = here.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "bowline-journal"]);
    cargo.args(["--example", "ordeal"]);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    assert!(
        cargo.status().unwrap().success(),
        "the ordeal does not build"
    );
    profile.join("examples/ordeal")
}

/// Runs one part and returns what it tells; it fails by itself where a promise was broken.
fn ordeal(words: &[&str]) -> Value {
    let output = Command::new(program()).args(words).output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{words:?}: {said}{errors}");
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let tally = ordeal(&["kill", "--rounds", "10"]);
    assert_eq!(tally["kills"], 10, "{tally}");
    assert!(tally["acknowledged"].as_u64().unwrap() > 1_000, "{tally}");
}

#[test]
fn nothing_acknowledged_is_lost_when_the_power_is_cut() {
    let tally = ordeal(&["cut", "--rounds", "2"]);
    if tally.get("left_out").is_some() {
        return;
    }
    assert!(tally["acknowledged"].as_u64().unwrap() > 100, "{tally}");
    // The same on a disk that lies about its syncs: this test would see a loss.
    let output = Command::new(program())
        .args(["cut", "--rounds", "4", "--unsynced"])
        .output()
        .unwrap();
    assert!(
        !output.status.success(),
        "a disk that syncs nothing lost nothing"
    );
}

#[test]
fn a_flipped_bit_is_harmless_or_named() {
    let tally = ordeal(&["flips", "--rounds", "100"]);
    assert!(tally["unaffected"].as_u64().unwrap() < 100, "{tally}");
}

#[test]
fn a_disk_that_fails_at_any_call_makes_no_false_acknowledgement() {
    let tally = ordeal(&["faults", "--step", "13"]);
    assert!(tally["runs"].as_u64().unwrap() > 50, "{tally}");
}

#[test]
fn a_log_that_ends_too_early_opens_as_it_was_at_some_moment() {
    let tally = ordeal(&["tail", "--step", "509"]);
    assert!(tally["moments_seen"].as_u64().unwrap() > 3, "{tally}");
}
