//! `cargo xtask embed-cost`: how many crates, and how much processor time, the smallest embedding
//! program takes to build.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{examples, process};

/// Maximum number of crates from elsewhere, without any feature.
const CRATES_MAX: usize = 45;

/// Maximum processor time of a cold build without any feature, in seconds.
const CPU_SECONDS_MAX: f64 = 45.0;

/// Builds `examples/smallest` into an empty target directory, without a feature and with `http`,
/// and fails if the first of the two is over a limit.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let program = examples::copy_example(root, "smallest")?;
    let mut is_over = false;
    for options in [&[][..], &["--features", "http"]] {
        let (own, external) = count_crates(&program, options)?;
        let seconds = build_cold(&program, options)?;
        let name = options.last().unwrap_or(&"no feature");
        println!(
            "{name}: {external} crates from elsewhere, {own} of this workspace, \
             {seconds:.1} s of processor time"
        );
        is_over |= options.is_empty() && (external > CRATES_MAX || seconds > CPU_SECONDS_MAX);
    }
    println!("limits without a feature: {CRATES_MAX} crates from elsewhere, {CPU_SECONDS_MAX} s");
    Ok(match is_over {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Returns the numbers of crates of this workspace, without the program, and from elsewhere.
fn count_crates(program: &Path, options: &[&str]) -> Result<(usize, usize)> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["tree", "--offline", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(options)
        .current_dir(program);
    let tree = process::run_captured(&mut cargo)?;
    let crates: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let is_own = |name: &&&str| name.starts_with("bowline-");
    let own = crates.iter().filter(is_own).count();
    // The program itself is a crate of the tree.
    Ok((own, crates.len().saturating_sub(own + 1)))
}

/// Builds into an empty target directory and returns the processor time of all its processes.
fn build_cold(program: &Path, options: &[&str]) -> Result<f64> {
    let target = program.join("target");
    if target.exists() {
        fs::remove_dir_all(&target).context("empty the target directory")?;
    }
    let before = process::children_cpu_us();
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--quiet", "--offline"])
        .args(options)
        .current_dir(program)
        .env("CARGO_TARGET_DIR", &target)
        // As for crates from a registry, which are never built incrementally.
        .env("CARGO_INCREMENTAL", "0");
    process::run_captured(&mut cargo)?;
    let spent = Duration::from_micros(process::children_cpu_us() - before);
    Ok(spent.as_secs_f64())
}
