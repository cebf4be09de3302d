//! `cargo xtask netns`: servers and an executor in one network namespace, gateway and clients in
//! another. The executor's outbound connection is the only path between both.

mod namespaces;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{peers, process};
use namespaces::NamespacePair;

/// Test that runs inside the namespaces.
const TEST: &str = "peers::matrix::everything_server_is_reached_by_executor_only";

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    if let Some(word) = rest.first() {
        bail!("unexpected argument `{word}`");
    }
    let start = process::now();
    let program = build_tests(root)?;
    let walls = NamespacePair::create(root)?;
    let mut command = walls.gateway_side_command(&program);
    command
        .args(["--exact", "--nocapture", TEST])
        .env("BOWLINE_PEERS", peers::peers_file(root))
        .env("BOWLINE_APART", walls.test_spec())
        .current_dir(root.join("crates/bowline"));
    process::run_inherited(&mut command)?;
    println!("netns: ok ({} s; {walls})", start.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}

/// Builds the test program and returns the path; inside the namespaces nothing can be downloaded.
fn build_tests(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--package", "bowline", "--test", "it"]);
    cargo.args(["--message-format", "json"]);
    let said = process::run_captured(cargo.current_dir(root))?;
    let mut built = said.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message.pointer("/target/name").and_then(Value::as_str) == Some("it");
        let program = message.get("executable")?.as_str().map(PathBuf::from);
        program.filter(|_| is_it)
    });
    built.next_back().context("the tests were not built")
}
