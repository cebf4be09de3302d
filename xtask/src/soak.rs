//! `cargo xtask soak`: everything that takes minutes, in one table.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Result;

use crate::{chaos, cuts, fleet, ordeal, process, sim, writes};

/// Worlds of the simulator.
const SEEDS: u64 = 20_000;

/// Tests that have a long form, which the environment asks for: package and program, the test, the
/// variable, its value.
const LONG: &[([&str; 2], &str, &str, &str)] = &[
    (
        ["bowline-host", "broker"],
        "policy::nothing_runs_is_listed_or_is_answered_over_a_broker_that_the_rules_deny",
        "BOWLINE_BROKER_CASES",
        "100000",
    ),
    (
        ["bowline", "it"],
        "storm::servers_that_exit_at_once_are_started_within_their_budget",
        "BOWLINE_STORM_SERVERS",
        "1000",
    ),
    (
        ["bowline", "it"],
        "freeze::calls_of_a_frozen_server_end_at_their_deadline",
        "BOWLINE_FREEZE_SECONDS",
        "60",
    ),
];

pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let figures = sim::measure(root, SEEDS)?;
    rows.push((
        "sim".to_owned(),
        sim::broken(&figures) == 0,
        sim::sentence(&figures),
    ));
    for ([package, program], test, variable, value) in LONG {
        let start = process::now();
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet", "--package", package, "--test", program]);
        cargo.args(["--", "--exact", "--nocapture", test]);
        cargo.env(variable, value).current_dir(root);
        let well = process::show(&mut cargo).is_ok();
        let name = test.split(':').next().unwrap_or(test);
        let said = format!("{variable}={value}, {} s", start.elapsed().as_secs());
        rows.push((name.to_owned(), well, said));
    }
    let kept = ordeal::run(root, &[])? == ExitCode::SUCCESS;
    rows.push(("ordeal".to_owned(), kept, "see above".to_owned()));
    let once = writes::run(root, &[])? == ExitCode::SUCCESS;
    rows.push(("writes".to_owned(), once, "see above".to_owned()));
    let fleet = fleet::carry_out(root, &fleet::Plan::full())?;
    rows.push(("fleet".to_owned(), fleet, "see above".to_owned()));
    let cuts = cuts::carry_out(root, &cuts::Plan::full())?;
    rows.push(("cuts".to_owned(), cuts, "see above".to_owned()));
    let report = chaos::measure(root, &chaos::Plan::full())?;
    print!("{}", report.table());
    let missed = report.missed();
    let said = if missed.is_empty() {
        "every goal met".to_owned()
    } else {
        missed.join(", ")
    };
    rows.push(("chaos".to_owned(), missed.is_empty(), said));
    println!();
    for (name, well, said) in &rows {
        let verdict = if *well { "ok" } else { "FAILED" };
        println!("{name:<8}{verdict:<8}{said}");
    }
    Ok(if rows.iter().all(|(_, well, _)| *well) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
