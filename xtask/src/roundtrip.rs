//! `cargo xtask roundtrip`: a thousand generated messages of every type through the gateway.

use std::{
    io::Read,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

use crate::{omitted_tests, process};

/// Messages of each type by default; `cargo test` sends fewer.
const INSTANCES: usize = 1000;
/// The tests that send them, one per era.
const TESTS: [&str; 2] = [
    "roundtrip::generated_legacy_messages_pass_unchanged",
    "roundtrip::modern::generated_modern_messages_pass_unchanged",
];

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let instances = match rest {
        [] => INSTANCES,
        [flag, number] if flag == "--instances" => {
            number.parse().context("--instances wants a number")?
        }
        [other, ..] => bail!("unknown option `{other}`; known: --instances N"),
    };
    let start = process::now();
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--quiet", "--package", "bowline", "--test", "it"])
        .args(["--", "--nocapture", "--test-threads=1", "--exact"])
        .args(TESTS)
        .env("BOWLINE_ROUNDTRIP", instances.to_string())
        .current_dir(root);
    let print = |stdout: &mut dyn Read| Ok(std::io::copy(stdout, &mut std::io::stdout())?);
    let (_, status, omitted) = omitted_tests::run_tests(&mut cargo, print)?;
    omitted_tests::print_omitted(&omitted);
    // A round trip that did not happen is no success.
    if !status.success() || !omitted.is_empty() {
        bail!(
            "{} of {} tests left out, {status}",
            omitted.len(),
            TESTS.len()
        );
    }
    println!("roundtrip: ok ({} s)", start.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}
