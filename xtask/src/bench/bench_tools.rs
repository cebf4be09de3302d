//! Programs that a measurement needs: built, found, or reported as missing.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process;
use crate::running_gateway::build_release;

/// Paths of the programs, and a scratch folder.
#[derive(Debug)]
pub(super) struct BenchTools {
    pub(super) mcpbench: PathBuf,
    pub(super) bowline: PathBuf,
    /// Release build of this tool, used as relay and body server; see `build_floor_programs`.
    pub(super) xtask: PathBuf,
    /// The host example that reads bodies; see `build_floor_programs`.
    pub(super) bodies: PathBuf,
    /// Repository root.
    pub(super) root: PathBuf,
    pub(super) nginx: Option<PathBuf>,
    pub(super) is_root: bool,
    folder: PathBuf,
    folders_made: Cell<usize>,
}

impl BenchTools {
    /// Builds all programs; `None` if the source of the load generator is missing.
    pub(super) fn build_programs(root: &Path) -> Result<Option<Self>> {
        let Some(source) = find_bench_source(root) else {
            return Ok(None);
        };
        let targets =
            process::env_var("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        eprintln!("bench: building mcpbench");
        let built = targets.join("mcpbench");
        let mut cargo = Command::new("cargo");
        cargo.args([
            "build",
            "--release",
            "--quiet",
            "--locked",
            "--manifest-path",
        ]);
        cargo
            .arg(source.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&built);
        process::run_inherited(cargo.current_dir(root))?;
        let bowline = build_release(root)?;
        let folder = targets.join(format!("bench/run-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let is_root =
            process::run_captured_in(root, "id", &["-u"]).is_ok_and(|id| id.trim() == "0");
        Ok(Some(Self {
            mcpbench: built.join("release/mcpbench"),
            bowline,
            xtask: targets.join("release/xtask"),
            bodies: targets.join("release/examples/bodies"),
            root: root.to_owned(),
            nginx: find_nginx(root, is_root),
            is_root,
            folder,
            folders_made: Cell::new(0),
        }))
    }

    /// Builds the floor programs for measurements of forwarded bytes.
    pub(super) fn build_floor_programs(&self) -> Result<()> {
        let builds: [&[&str]; 2] = [
            &["--package", "xtask"],
            &["--package", "bowline-host", "--example", "bodies"],
        ];
        for what in builds {
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--release", "--quiet"]).args(what);
            process::run_inherited(cargo.current_dir(&self.root))?;
        }
        Ok(())
    }

    /// Creates a new empty folder.
    pub(super) fn new_folder(&self, name: &str) -> Result<PathBuf> {
        let number = self.folders_made.get();
        self.folders_made.set(number + 1);
        let folder = self.folder.join(format!("{number}-{name}"));
        fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(folder)
    }
}

impl Drop for BenchTools {
    fn drop(&mut self) {
        // Scratch files only; leftovers stay below `target`.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the source of the load generator, outside this repository.
fn find_bench_source(root: &Path) -> Option<PathBuf> {
    let configured = process::env_var("BOWLINE_MCPBENCH").map(PathBuf::from);
    let usual = root.join("../shared/bench");
    [configured, Some(usual)]
        .into_iter()
        .flatten()
        .find(|path| path.join("Cargo.toml").exists())
}

/// Returns nginx from PATH, installing the package if running as root.
fn find_nginx(root: &Path, is_root: bool) -> Option<PathBuf> {
    let find = || {
        let found = process::run_captured_in(root, "sh", &["-c", "command -v nginx"]).ok()?;
        Some(PathBuf::from(found.trim()))
    };
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.args([
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            "nginx-light",
        ]);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        process::run_captured(&mut apt).ok()
    };
    find().or_else(|| is_root.then(install).flatten().and_then(|_| find()))
}
