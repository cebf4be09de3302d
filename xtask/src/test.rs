//! `cargo xtask test`: check, peers, every test of the workspace, then short runs of broker-chaos,
//! executor-chaos and floods. CI runs this command.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::omitted_tests::{self, OmittedTests};
use crate::{broker_chaos, check, executor_chaos, floods, peers, process};

/// Sums of the test programs' results.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestCounts {
    programs: usize,
    passed: usize,
    failed: usize,
    /// Ignored tests verify nothing; tidy rejects them.
    ignored: usize,
}

/// Stops at the first failed step; within the test step all tests run.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let start = process::now();
    if check::run(root)? != ExitCode::SUCCESS {
        println!("test: failed (check), no test was run");
        return Ok(ExitCode::FAILURE);
    }
    if peers::run(root, &[])? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    // Tests of every crate may start the binaries, but `cargo test` builds each for one crate only.
    process::run_inherited(
        Command::new("cargo")
            .args([
                "build",
                "--quiet",
                "--package",
                "bowline",
                "--package",
                "bowline-fixture",
            ])
            .current_dir(root),
    )?;
    let (count, ended_well, omitted) = run_cargo_test(root)?;
    let targets = process::target_folder(root);
    let binary = targets.join("debug/bowline");
    let fleet = broker_chaos::run_plan(
        root,
        &broker_chaos::BrokerChaosPlan::short_with_proxy(binary.clone()),
    )?;
    let cuts = executor_chaos::run_plan(
        root,
        &executor_chaos::ExecutorChaosPlan::short(Some(binary.clone())),
    )?;
    // Last, because floods pins this process to one core.
    let floods = floods::run_plan(root, &floods::FloodPlan::short(Some(binary)))?;
    let well = ended_well && count.failed == 0 && fleet && cuts && floods;
    let verdict = if well { "ok" } else { "failed" };
    let TestCounts {
        programs,
        passed,
        failed,
        ignored,
    } = count;
    omitted_tests::print_omitted(&omitted);
    println!(
        "test: {verdict} ({passed} passed, {} of them left out, {failed} failed, {ignored} ignored \
         in {programs} programs, {} s)",
        omitted.len(),
        start.elapsed().as_secs()
    );
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_cargo_test(root: &Path) -> Result<(TestCounts, bool, OmittedTests)> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("BOWLINE_PEERS", peers::peers_file(root))
        .current_dir(root);
    let (count, status, omitted) =
        omitted_tests::run_tests(&mut cargo, |stdout| count_results(stdout))?;
    Ok((count, status.success(), omitted))
}

/// Prints the output line by line and sums the result lines of the test programs.
fn count_results(stdout: impl Read) -> Result<TestCounts> {
    let mut count = TestCounts::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("read the output of `cargo test`")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        count.add_line(&line);
    }
    Ok(count)
}

impl TestCounts {
    /// `test result: ok. 42 passed; 0 failed; 0 ignored; …`
    fn add_line(&mut self, line: &str) {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        self.programs += 1;
        for part in rest.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (number, what) = (
                words.next().and_then(|word| word.parse::<usize>().ok()),
                words.next(),
            );
            match (number, what) {
                (Some(number), Some("passed")) => self.passed += number,
                (Some(number), Some("failed")) => self.failed += number,
                (Some(number), Some("ignored")) => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_programs_are_summed() {
        let output = "running 2 tests\n\
            test result: ok. 42 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let count = count_results(output.as_bytes()).unwrap();
        assert_eq!(
            count,
            TestCounts {
                programs: 2,
                passed: 45,
                failed: 2,
                ignored: 1
            }
        );
    }
}
