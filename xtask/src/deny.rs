//! `cargo deny`: licences, sources and doubled crates by the rules of `deny.toml`, and advisories
//! where their database can be had.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process;

/// The version that is installed where none is.
const VERSION: &str = "0.20.2";

/// Checks the dependencies; a rule that is broken is an error.
pub(crate) fn run(root: &Path) -> Result<()> {
    let program = find(root)?;
    // The rules cover crates of every platform; a build downloads only those of its own.
    let mut fetch = Command::new("cargo");
    fetch.args(["fetch", "--locked", "--quiet"]);
    process::show(fetch.current_dir(root)).context("cargo fetch")?;
    let mut rules = Command::new(&program);
    rules.args([
        "--log-level",
        "error",
        "--offline",
        "check",
        "--hide-inclusion-graph",
    ]);
    rules.args(["bans", "licenses", "sources"]);
    process::show(rules.current_dir(root)).context("cargo deny check bans licenses sources")?;
    let mut database = Command::new(&program);
    database.args(["--log-level", "error", "fetch", "db"]);
    if process::quiet(database.current_dir(root)).is_err() {
        println!("deny: the advisory database cannot be had here; advisories were not checked");
        return Ok(());
    }
    let mut advisories = Command::new(&program);
    advisories.args(["--log-level", "error", "check", "advisories"]);
    process::show(advisories.current_dir(root)).context("cargo deny check advisories")
}

/// Returns `cargo-deny`: the one in PATH, or one that is built into `target/tools` once.
fn find(root: &Path) -> Result<PathBuf> {
    let in_path = PathBuf::from("cargo-deny");
    let wanted = format!("cargo-deny {VERSION}");
    let is_wanted = |program: &Path| {
        process::quiet(Command::new(program).arg("--version"))
            .is_ok_and(|version| version.trim() == wanted)
    };
    if is_wanted(&in_path) {
        return Ok(in_path);
    }
    let folder = root.join("target/tools");
    let program = folder.join("bin/cargo-deny");
    if !is_wanted(&program) {
        println!("deny: installing {wanted} into target/tools");
        let mut install = Command::new("cargo");
        install
            .args(["install", "cargo-deny", "--version", VERSION, "--locked"])
            // It runs for a second: what counts is how soon it is built.
            .args(["--debug", "--quiet", "--force", "--root"])
            .arg(&folder)
            // Shared with the build of the workspace, so that a second install is quick.
            .env("CARGO_TARGET_DIR", folder.join("build"));
        process::show(install.current_dir(root)).context("install cargo-deny")?;
    }
    Ok(program)
}
