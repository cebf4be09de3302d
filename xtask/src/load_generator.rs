//! `mcpbench`, the load generator and MCP backend of measurements, built from this workspace.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::process;

/// Builds with the profile of packages, for measurements of time, and returns the binary.
pub(crate) fn build_dist(root: &Path) -> Result<PathBuf> {
    build_binary(root, &["--profile", "dist"], "dist")
}

/// Builds with the dev profile, where only responses matter, and returns the binary.
pub(crate) fn build_unoptimized(root: &Path) -> Result<PathBuf> {
    build_binary(root, &[], "debug")
}

fn build_binary(root: &Path, options: &[&str], folder: &str) -> Result<PathBuf> {
    eprintln!("building mcpbench");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", "mcpbench"]);
    process::run_inherited(cargo.args(options).current_dir(root))?;
    Ok(process::target_folder(root).join(folder).join("mcpbench"))
}
