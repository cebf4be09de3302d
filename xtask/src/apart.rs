//! `cargo xtask apart`: servers and an executor in one network, the gateway and its clients in
//! another, and no way between the two but the one that the executor opens.

mod walls;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{peers, process};
use walls::Walls;

/// The test that walks.
const TEST: &str =
    "peers::matrix::server_everything_is_called_where_nothing_but_an_executor_reaches_it";

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    if let Some(word) = rest.first() {
        bail!("unexpected argument `{word}`");
    }
    let start = process::now();
    let program = build(root)?;
    let walls = Walls::put_up(root)?;
    let mut command = walls.near(&program);
    command
        .args(["--exact", "--nocapture", TEST])
        .env("BOWLINE_PEERS", peers::file(root))
        .env("BOWLINE_APART", walls.told())
        .current_dir(root.join("crates/bowline"));
    process::show(&mut command)?;
    println!("apart: ok ({} s; {walls})", start.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}

/// Builds the tests, and says where they are: behind the walls nothing can be fetched.
fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--package", "bowline", "--test", "it"]);
    cargo.args(["--message-format", "json"]);
    let said = process::quiet(cargo.current_dir(root))?;
    let mut built = said.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message.pointer("/target/name").and_then(Value::as_str) == Some("it");
        let program = message.get("executable")?.as_str().map(PathBuf::from);
        program.filter(|_| is_it)
    });
    built.next_back().context("the tests were not built")
}
