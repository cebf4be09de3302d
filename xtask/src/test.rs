//! `cargo xtask test`: check, peers, every test of the workspace, then a short run of the fleet,
//! of the cuts and of the floods. This is what CI runs.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result};

use crate::{check, cuts, fleet, floods, peers, process};

/// What the test programs counted, summed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    programs: usize,
    passed: usize,
    failed: usize,
    /// A test that is filtered out or ignored shows nothing; tidy refuses ignored ones.
    ignored: usize,
}

/// Stops at the first step that fails; tests all run, however many fail.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let start = process::now();
    if check::run(root)? != ExitCode::SUCCESS {
        println!("test: failed (check), no test was run");
        return Ok(ExitCode::FAILURE);
    }
    if peers::run(root, &[])? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    // Tests of every crate may drive the binary, and only those of its own crate would build it.
    process::show(
        Command::new("cargo")
            .args(["build", "--quiet", "--package", "bowline"])
            .current_dir(root),
    )?;
    let (count, ended_well) = cargo_test(root)?;
    let targets =
        process::env("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let binary = targets.join("debug/bowline");
    let fleet = fleet::carry_out(root, &fleet::Plan::among_tests(binary.clone()))?;
    let cuts = cuts::carry_out(root, &cuts::Plan::short(Some(binary.clone())))?;
    // Last, since it leaves this process on one core.
    let floods = floods::carry_out(root, &floods::Plan::short(Some(binary)))?;
    let well = ended_well && count.failed == 0 && fleet && cuts && floods;
    let verdict = if well { "ok" } else { "failed" };
    let Count {
        programs,
        passed,
        failed,
        ignored,
    } = count;
    println!(
        "test: {verdict} ({passed} passed, {failed} failed, {ignored} ignored in {programs} \
         programs, {} s)",
        start.elapsed().as_secs()
    );
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn cargo_test(root: &Path) -> Result<(Count, bool)> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("BOWLINE_PEERS", peers::file(root))
        .current_dir(root)
        .stdout(Stdio::piped());
    let mut child = cargo.spawn().context("could not start `cargo test`")?;
    let stdout = child.stdout.take().context("`cargo test` has no output")?;
    let count = watch(stdout)?;
    let status = child.wait().context("wait for `cargo test`")?;
    Ok((count, status.success()))
}

/// Shows the output line by line and counts what the test programs say at their end.
fn watch(stdout: impl Read) -> Result<Count> {
    let mut count = Count::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("read the output of `cargo test`")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        count.add(&line);
    }
    Ok(count)
}

impl Count {
    /// `test result: ok. 42 passed; 0 failed; 0 ignored; …`
    fn add(&mut self, line: &str) {
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
    fn the_counts_of_all_programs_are_summed() {
        let output = "running 2 tests\n\
            test result: ok. 42 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let count = watch(output.as_bytes()).unwrap();
        assert_eq!(
            count,
            Count {
                programs: 2,
                passed: 45,
                failed: 2,
                ignored: 1
            }
        );
    }
}
