//! `cargo deny`: checks licences, sources and duplicate crates by `deny.toml`, and advisories where
//! the advisory database can be fetched.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process;

/// The version to install where none is found.
const VERSION: &str = "0.20.2";

/// Checks the dependencies; a violated rule is an error.
pub(crate) fn run(root: &Path) -> Result<()> {
    let program = find_or_install(root)?;
    // The rules cover crates of every platform; a build downloads only those of its own.
    let mut fetch = Command::new("cargo");
    fetch.args(["fetch", "--locked", "--quiet"]);
    process::run_inherited(fetch.current_dir(root)).context("cargo fetch")?;
    let mut rules = Command::new(&program);
    rules.args([
        "--log-level",
        "error",
        "--offline",
        "check",
        "--hide-inclusion-graph",
    ]);
    rules.args(["bans", "licenses", "sources"]);
    process::run_inherited(rules.current_dir(root))
        .context("cargo deny check bans licenses sources")?;
    let mut database = Command::new(&program);
    database.args(["--log-level", "error", "fetch", "db"]);
    if process::run_captured(database.current_dir(root)).is_err() {
        println!("deny: the advisory database cannot be had here; advisories were not checked");
        return Ok(());
    }
    let mut advisories = Command::new(&program);
    advisories.args(["--log-level", "error", "check", "advisories"]);
    process::run_inherited(advisories.current_dir(root)).context("cargo deny check advisories")
}

/// Returns `cargo-deny` from PATH, or builds the program into `target/tools` once.
fn find_or_install(root: &Path) -> Result<PathBuf> {
    let in_path = PathBuf::from("cargo-deny");
    let wanted = format!("cargo-deny {VERSION}");
    let is_wanted = |program: &Path| {
        process::run_captured(Command::new(program).arg("--version"))
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
            // The program runs for a second: build time matters, not speed.
            .args(["--debug", "--quiet", "--force", "--root"])
            .arg(&folder)
            // Shared with the build of the workspace, so that a second install is quick.
            .env("CARGO_TARGET_DIR", folder.join("build"));
        process::run_inherited(install.current_dir(root)).context("install cargo-deny")?;
    }
    Ok(program)
}
