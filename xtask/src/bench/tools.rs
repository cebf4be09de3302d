//! The programs a measurement needs: built, found, or left out by name.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::gateway::build_release;
use crate::process;

/// Where the programs are, and a folder for what they write.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) mcpbench: PathBuf,
    pub(super) bowline: PathBuf,
    /// This program as it is measured: it is a floor itself. `build_floor` makes it.
    pub(super) xtask: PathBuf,
    /// The example of the host that reads bodies. `build_floor` makes it.
    pub(super) bodies: PathBuf,
    /// The repository.
    pub(super) root: PathBuf,
    pub(super) nginx: Option<PathBuf>,
    pub(super) is_root: bool,
    folder: PathBuf,
    folders_made: Cell<usize>,
}

impl Tools {
    /// Builds everything; None where the load generator's source is not there.
    pub(super) fn build(root: &Path) -> Result<Option<Self>> {
        let Some(source) = bench_source(root) else {
            return Ok(None);
        };
        let targets =
            process::env("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
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
        process::show(cargo.current_dir(root))?;
        let bowline = build_release(root)?;
        let folder = targets.join(format!("bench/run-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let is_root = process::output(root, "id", &["-u"]).is_ok_and(|id| id.trim() == "0");
        Ok(Some(Self {
            mcpbench: built.join("release/mcpbench"),
            bowline,
            xtask: targets.join("release/xtask"),
            bodies: targets.join("release/examples/bodies"),
            root: root.to_owned(),
            nginx: nginx(root, is_root),
            is_root,
            folder,
            folders_made: Cell::new(0),
        }))
    }

    /// Builds what is measured beside the product where bytes are carried.
    pub(super) fn build_floor(&self) -> Result<()> {
        let builds: [&[&str]; 2] = [
            &["--package", "xtask"],
            &["--package", "bowline-host", "--example", "bodies"],
        ];
        for what in builds {
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--release", "--quiet"]).args(what);
            process::show(cargo.current_dir(&self.root))?;
        }
        Ok(())
    }

    /// A new empty folder.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let number = self.folders_made.get();
        self.folders_made.set(number + 1);
        let folder = self.folder.join(format!("{number}-{name}"));
        fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(folder)
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        // Only scratch; the next build of the folder `target` sweeps what is left.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The load generator lives outside this repository.
fn bench_source(root: &Path) -> Option<PathBuf> {
    let told = process::env("BOWLINE_MCPBENCH").map(PathBuf::from);
    let usual = root.join("../shared/bench");
    [told, Some(usual)]
        .into_iter()
        .flatten()
        .find(|path| path.join("Cargo.toml").exists())
}

/// Installed, or installed now where that is ours to do.
fn nginx(root: &Path, is_root: bool) -> Option<PathBuf> {
    let find = || {
        let found = process::output(root, "sh", &["-c", "command -v nginx"]).ok()?;
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
        process::quiet(&mut apt).ok()
    };
    find().or_else(|| is_root.then(install).flatten().and_then(|_| find()))
}
