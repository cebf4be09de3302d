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

/// An embedding program must be shorter than this.
const EXAMPLE_LINES_MAX: usize = 40;

/// Path of the library in the manifest of an example.
const LIBRARY_PATH: &str = "../../crates/host";

/// An example, with the prefix of each line that it prints.
struct ExampleProgram {
    name: &'static str,
    output: &'static [&'static str],
}

const EMBED: ExampleProgram = ExampleProgram {
    name: "embed",
    output: &[
        r#"offers ["demo__echo", "demo__add", "demo__now", "demo__dice", "#,
        r#"offers ["basic__echo"]"#,
        "demo__add: 5",
        "mcp_demo_add: 5",
        "add: 5",
        "basic__echo: hi",
        "ask: the user says yes",
        "basic__fail: principal `agent-1` may not use `fail` of server `basic`",
    ],
};

const SMALLEST: ExampleProgram = ExampleProgram {
    name: "smallest",
    output: &[
        "5",
        "server `far` needs the feature `http` of bowline-host, which is not built in",
    ],
};

/// Runs all examples.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    run_example(root, &EMBED)?;
    run_example(root, &SMALLEST)?;
    println!("examples: ok");
    Ok(ExitCode::SUCCESS)
}

/// Copies an example out of the workspace, builds the copy against this checkout with the
/// workspace's lock file, and compares the output.
fn run_example(root: &Path, example: &ExampleProgram) -> Result<()> {
    let outside = copy_example(root, example.name)?;
    let target = root.join("target");
    process::run_captured_in(
        root,
        "cargo",
        &["build", "--quiet", "--package", "bowline-fixture"],
    )?;
    let mut build = Command::new("cargo");
    // Shares the workspace's target directory, so that few crates need a build. The copy is built
    // once, and an interrupted incremental build must not be resumed.
    build
        .args(["build", "--quiet", "--offline"])
        .current_dir(&outside)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_INCREMENTAL", "0");
    process::run_captured(&mut build)?;
    let (fixture, program) = (
        target.join("debug/bowline-fixture"),
        target.join("debug").join(example.name),
    );
    let output = process::run_captured(Command::new(program).arg(fixture))?;
    let output: Vec<&str> = output.lines().collect();
    let expected = |(line, expect): (&&str, &&str)| line.starts_with(expect);
    let as_expected =
        output.len() == example.output.len() && output.iter().zip(example.output).all(expected);
    ensure!(as_expected, "{} says\n{}", example.name, output.join("\n"));
    Ok(())
}

/// Copies an example out of the workspace, with the lock file of the workspace.
pub(crate) fn copy_example(root: &Path, name: &str) -> Result<PathBuf> {
    let example = root.join("examples").join(name);
    let program = read_file(&example.join("src/main.rs"))?;
    let lines = program.lines().count();
    ensure!(lines < EXAMPLE_LINES_MAX, "{name} has {lines} lines");
    let outside = example_folder(root, name);
    fs::create_dir_all(outside.join("src")).context("make a folder outside the workspace")?;
    let manifest = read_file(&example.join("Cargo.toml"))?;
    ensure!(
        manifest.contains(LIBRARY_PATH),
        "{name} does not name {LIBRARY_PATH}"
    );
    let library = root.join("crates/host");
    let manifest = manifest.replace(LIBRARY_PATH, &library.to_string_lossy());
    write_file(&outside, "Cargo.toml", &manifest)?;
    write_file(&outside, "src/main.rs", &program)?;
    let lock = read_file(&root.join("Cargo.lock"))?;
    write_file(&outside, "Cargo.lock", &lock)?;
    Ok(outside)
}

/// Returns a folder specific to this checkout and stable, so that a build reuses the previous one.
fn example_folder(root: &Path, name: &str) -> PathBuf {
    let mut mixer = DefaultHasher::new();
    root.hash(&mut mixer);
    std::env::temp_dir().join(format!("bowline-{name}-{:016x}", mixer.finish()))
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
        run_example(&crate::repo::workspace_root().unwrap(), &EMBED).unwrap();
    }

    #[test]
    fn program_without_features_calls_stdio_server() {
        run_example(&crate::repo::workspace_root().unwrap(), &SMALLEST).unwrap();
    }
}
