//! `cargo xtask examples`: builds the examples as other people would, outside the workspace, and
//! runs them.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

use crate::process;

/// The program of a framework's author is shorter than this.
const LINES_MAX: usize = 40;

/// Where in its manifest the example says where the library is.
const LIBRARY: &str = "../../crates/host";

/// How each line begins that the example says.
const SAYS: [&str; 8] = [
    r#"offers ["demo__echo", "demo__add", "demo__now", "demo__dice", "#,
    r#"offers ["basic__echo"]"#,
    "demo__add: 5",
    "mcp_demo_add: 5",
    "add: 5",
    "basic__echo: hi",
    "ask: the user says yes",
    "basic__fail: principal `agent-1` may not use `fail` of server `basic`",
];

/// Runs all of them; there is one.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    embed(root)?;
    println!("examples: ok");
    Ok(ExitCode::SUCCESS)
}

/// Copies `examples/embed` out of the workspace, builds it against this checkout with the
/// versions that the workspace has, and compares what it says.
fn embed(root: &Path) -> Result<()> {
    let example = root.join("examples/embed");
    let program = read(&example.join("src/main.rs"))?;
    let lines = program.lines().count();
    ensure!(lines < LINES_MAX, "the example has {lines} lines");
    let outside = outside(root);
    fs::create_dir_all(outside.join("src")).context("make a folder outside the workspace")?;
    let manifest = read(&example.join("Cargo.toml"))?;
    ensure!(
        manifest.contains(LIBRARY),
        "the example does not name {LIBRARY}"
    );
    let library = root.join("crates/host");
    write(
        &outside,
        "Cargo.toml",
        &manifest.replace(LIBRARY, &library.to_string_lossy()),
    )?;
    write(&outside, "src/main.rs", &program)?;
    write(&outside, "Cargo.lock", &read(&root.join("Cargo.lock"))?)?;
    let target = root.join("target");
    let cargo = |folder: &Path, args: &[&str]| {
        let mut cargo = Command::new("cargo");
        // Beside what the workspace built, so that little is left to do.
        let target = cargo
            .args(args)
            .current_dir(folder)
            .env("CARGO_TARGET_DIR", &target);
        // It is built once: what a build that was ended half-way leaves must not be gone on with.
        process::quiet(target.env("CARGO_INCREMENTAL", "0"))
    };
    process::output(root, "cargo", &["build", "--quiet", "--package", "bowline"])?;
    cargo(&outside, &["build", "--quiet", "--offline"])?;
    let bowline = target.join("debug/bowline");
    let said = process::quiet(Command::new(target.join("debug/embed")).arg(bowline))?;
    let said: Vec<&str> = said.lines().collect();
    let expected = |(line, expect): (&&str, &&str)| line.starts_with(expect);
    let as_expected = said.len() == SAYS.len() && said.iter().zip(&SAYS).all(expected);
    ensure!(as_expected, "the example says\n{}", said.join("\n"));
    Ok(())
}

/// A folder of this checkout's own, the same each time, so that a build finds the last one.
fn outside(root: &Path) -> PathBuf {
    let mut mixer = DefaultHasher::new();
    root.hash(&mut mixer);
    std::env::temp_dir().join(format!("bowline-example-{:016x}", mixer.finish()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_outside_the_workspace_embeds_the_host_in_under_forty_lines() {
        embed(&crate::repo::root().unwrap()).unwrap();
    }
}
