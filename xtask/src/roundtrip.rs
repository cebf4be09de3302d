//! `cargo xtask roundtrip`: a thousand generated messages of every type through the gateway.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

use crate::process;

/// Of each type, unless said otherwise. Tests send fewer.
const INSTANCES: usize = 1000;
/// The tests that send them: one for each era.
const TESTS: [&str; 2] = [
    "roundtrip::generated_messages_of_every_legacy_schema_go_through_unchanged",
    "roundtrip::modern::generated_messages_of_the_modern_schema_go_through_unchanged",
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
    process::show(
        Command::new("cargo")
            .args(["test", "--quiet", "--package", "bowline", "--test", "it"])
            .args(["--", "--nocapture", "--test-threads=1", "--exact"])
            .args(TESTS)
            .env("BOWLINE_ROUNDTRIP", instances.to_string())
            .current_dir(root),
    )?;
    println!("roundtrip: ok ({} s)", start.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}
