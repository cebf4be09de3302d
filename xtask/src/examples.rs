//! `cargo xtask examples`: builds the examples outside the workspace, as an external user would,
//! and runs them.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

use crate::process;

/// The embedding program must be shorter than this.
const EXAMPLE_LINES_MAX: usize = 40;

/// Path of the library in the example's manifest.
const LIBRARY_PATH: &str = "../../crates/host";

/// Prefix of each line that the example prints.
const EXPECTED_OUTPUT: [&str; 8] = [
    r#"offers ["demo__echo", "demo__add", "demo__now", "demo__dice", "#,
    r#"offers ["basic__echo"]"#,
    "demo__add: 5",
    "mcp_demo_add: 5",
    "add: 5",
    "basic__echo: hi",
    "ask: the user says yes",
    "basic__fail: principal `agent-1` may not use `fail` of server `basic`",
];

/// Runs all examples; currently one.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    run_embed_example(root)?;
    println!("examples: ok");
    Ok(ExitCode::SUCCESS)
}

/// Copies `examples/embed` out of the workspace, builds the copy against this checkout with the
/// workspace's lock file, and compares the output.
fn run_embed_example(root: &Path) -> Result<()> {
    let example = root.join("examples/embed");
    let program = read_file(&example.join("src/main.rs"))?;
    let lines = program.lines().count();
    ensure!(lines < EXAMPLE_LINES_MAX, "the example has {lines} lines");
    let outside = example_folder(root);
    fs::create_dir_all(outside.join("src")).context("make a folder outside the workspace")?;
    let manifest = read_file(&example.join("Cargo.toml"))?;
    ensure!(
        manifest.contains(LIBRARY_PATH),
        "the example does not name {LIBRARY_PATH}"
    );
    let library = root.join("crates/host");
    write_file(
        &outside,
        "Cargo.toml",
        &manifest.replace(LIBRARY_PATH, &library.to_string_lossy()),
    )?;
    write_file(&outside, "src/main.rs", &program)?;
    write_file(
        &outside,
        "Cargo.lock",
        &read_file(&root.join("Cargo.lock"))?,
    )?;
    let target = root.join("target");
    let cargo = |folder: &Path, args: &[&str]| {
        let mut cargo = Command::new("cargo");
        // Shares the workspace's target directory, so that few crates need a build.
        let target = cargo
            .args(args)
            .current_dir(folder)
            .env("CARGO_TARGET_DIR", &target);
        // The copy is built once, and an interrupted incremental build must not be resumed.
        process::run_captured(target.env("CARGO_INCREMENTAL", "0"))
    };
    process::run_captured_in(
        root,
        "cargo",
        &["build", "--quiet", "--package", "bowline-fixture"],
    )?;
    cargo(&outside, &["build", "--quiet", "--offline"])?;
    let fixture = target.join("debug/bowline-fixture");
    let output = process::run_captured(Command::new(target.join("debug/embed")).arg(fixture))?;
    let output: Vec<&str> = output.lines().collect();
    let expected = |(line, expect): (&&str, &&str)| line.starts_with(expect);
    let as_expected =
        output.len() == EXPECTED_OUTPUT.len() && output.iter().zip(&EXPECTED_OUTPUT).all(expected);
    ensure!(as_expected, "the example says\n{}", output.join("\n"));
    Ok(())
}

/// Returns a folder specific to this checkout and stable, so that a build reuses the previous one.
fn example_folder(root: &Path) -> PathBuf {
    let mut mixer = DefaultHasher::new();
    root.hash(&mut mixer);
    std::env::temp_dir().join(format!("bowline-example-{:016x}", mixer.finish()))
}

fn read_file(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_program_embeds_host_in_forty_lines() {
        run_embed_example(&crate::repo::workspace_root().unwrap()).unwrap();
    }
}
