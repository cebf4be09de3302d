//! `cargo xtask write-chaos`: numbered writes while server, gateway and network are killed.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

use crate::process;

/// Writes and kills of a full run; `cargo test` runs fewer.
const CALLS: u64 = 10_000;
const KILLS: u64 = 100;
/// Test module with both tests: kills, and outages at a steady rate.
const TESTS: &str = "writes::";

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let (mut calls, mut kills, mut seed) = (CALLS, KILLS, None);
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        let value = || value.with_context(|| format!("`{word}` needs a number"));
        match word.as_str() {
            "--calls" => calls = value()?,
            "--kills" => kills = value()?,
            "--seed" => seed = Some(value()?),
            other => bail!("unknown option `{other}`; known: --calls N, --kills N, --seed S"),
        }
    }
    let start = process::now();
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--quiet", "--package", "bowline", "--test", "it"])
        .args(["--", "--nocapture", "--test-threads", "1", TESTS])
        .env("BOWLINE_WRITES", calls.to_string())
        .env("BOWLINE_KILLS", kills.to_string());
    if let Some(seed) = seed {
        cargo.env("BOWLINE_SEED", seed.to_string());
    }
    process::run_inherited(cargo.current_dir(root))?;
    println!("write-chaos: ok ({} s)", start.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}
