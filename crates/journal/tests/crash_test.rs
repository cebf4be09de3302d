//! Short form of the journal crash test; `cargo xtask crash-test` runs the long form.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::PathBuf;
use std::process::Command;

use bowline_testkit::report_omitted;
use serde_json::Value;

/// Builds the crash test program with the profile of this test; a no-op if already built.
fn build_program() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let profile = here.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "bowline-journal"]);
    cargo.args(["--example", "crash_test"]);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    assert!(
        cargo.status().unwrap().success(),
        "the crash test does not build"
    );
    profile.join("examples/crash_test")
}

/// Runs a part and returns its figures; fails on a broken promise.
fn run_part(words: &[&str]) -> Value {
    let output = Command::new(build_program()).args(words).output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{words:?}: {said}{errors}");
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

#[test]
fn acknowledged_state_survives_kill() {
    let tally = run_part(&["kill", "--rounds", "10"]);
    assert_eq!(tally["kills"], 10, "{tally}");
    assert!(tally["acknowledged"].as_u64().unwrap() > 1_000, "{tally}");
}

#[test]
fn acknowledged_state_survives_power_cut() {
    let tally = run_part(&["cut", "--rounds", "2"]);
    if let Some(why) = tally.get("left_out") {
        let test = "acknowledged_state_survives_power_cut";
        return report_omitted(test, &why.to_string());
    }
    assert!(tally["acknowledged"].as_u64().unwrap() > 100, "{tally}");
    // The same on a disk that drops syncs: this test must detect the loss.
    let output = Command::new(build_program())
        .args(["cut", "--rounds", "4", "--unsynced"])
        .output()
        .unwrap();
    assert!(
        !output.status.success(),
        "a disk that syncs nothing lost nothing"
    );
}

#[test]
fn flipped_bit_is_harmless_or_reported() {
    let tally = run_part(&["flips", "--rounds", "100"]);
    assert!(tally["unaffected"].as_u64().unwrap() < 100, "{tally}");
}

#[test]
fn failing_disk_never_acknowledges_falsely() {
    let tally = run_part(&["faults", "--step", "13"]);
    assert!(tally["runs"].as_u64().unwrap() > 50, "{tally}");
}

#[test]
fn truncated_wal_opens_at_earlier_state() {
    let tally = run_part(&["tail", "--step", "509"]);
    assert!(tally["moments_seen"].as_u64().unwrap() > 3, "{tally}");
}
