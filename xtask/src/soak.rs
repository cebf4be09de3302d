//! `cargo xtask soak`: all long-running checks, summarized in one table.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Result;

use crate::{broker_chaos, chaos, crash_test, executor_chaos, process, sim, write_chaos};

/// Seeds for the simulator.
const SIM_SEEDS: u64 = 20_000;

/// Tests with a long form selected by an environment variable: package and test program, test name,
/// variable, value.
const LONG_TESTS: &[([&str; 2], &str, &str, &str)] = &[
    (
        ["bowline-host", "broker"],
        "policy_escapes::denied_requests_never_escape_the_broker",
        "BOWLINE_BROKER_CASES",
        "100000",
    ),
    (
        ["bowline", "it"],
        "storm::exiting_servers_are_started_within_budget",
        "BOWLINE_STORM_SERVERS",
        "1000",
    ),
    (
        ["bowline", "it"],
        "freeze::frozen_server_calls_end_at_deadline",
        "BOWLINE_FREEZE_SECONDS",
        "60",
    ),
];

pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let figures = sim::run_seeds(root, SIM_SEEDS)?;
    rows.push((
        "sim".to_owned(),
        sim::broken_count(&figures) == 0,
        sim::format_figures(&figures),
    ));
    for ([package, program], test, variable, value) in LONG_TESTS {
        let start = process::now();
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet", "--package", package, "--test", program]);
        cargo.args(["--", "--exact", "--nocapture", test]);
        cargo.env(variable, value).current_dir(root);
        let well = process::run_inherited(&mut cargo).is_ok();
        let name = test.split(':').next().unwrap_or(test);
        let said = format!("{variable}={value}, {} s", start.elapsed().as_secs());
        rows.push((name.to_owned(), well, said));
    }
    let kept = crash_test::run(root, &[])? == ExitCode::SUCCESS;
    rows.push(("crash-test".to_owned(), kept, "see above".to_owned()));
    let once = write_chaos::run(root, &[])? == ExitCode::SUCCESS;
    rows.push(("write-chaos".to_owned(), once, "see above".to_owned()));
    let fleet = broker_chaos::run_plan(root, &broker_chaos::BrokerChaosPlan::full())?;
    rows.push(("broker-chaos".to_owned(), fleet, "see above".to_owned()));
    let cuts = executor_chaos::run_plan(root, &executor_chaos::ExecutorChaosPlan::full())?;
    rows.push(("executor-chaos".to_owned(), cuts, "see above".to_owned()));
    let report = chaos::run_plan(root, &chaos::ChaosPlan::full())?;
    print!("{}", report.to_table());
    let missed = report.missed_goals();
    let said = if missed.is_empty() {
        "every goal met".to_owned()
    } else {
        missed.join(", ")
    };
    rows.push(("chaos".to_owned(), missed.is_empty(), said));
    println!();
    for (name, well, said) in &rows {
        let verdict = if *well { "ok" } else { "FAILED" };
        println!("{name:<16}{verdict:<8}{said}");
    }
    Ok(if rows.iter().all(|(_, well, _)| *well) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
