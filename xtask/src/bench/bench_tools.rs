//! Programs that a measurement needs: built, found, or reported as missing.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::running_gateway::build_dist;
use crate::{load_generator, process};

/// Name of the gateway of this tree in reports.
pub(super) const BOWLINE: &str = "bowline";
/// Name of the gateway that `--before` names.
pub(super) const BEFORE: &str = "before";

/// A gateway binary, under the name that the report gives to its figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatewayProgram<'a> {
    pub(super) name: &'static str,
    pub(super) binary: &'a Path,
}

/// Paths of the programs, and a scratch folder.
#[derive(Debug)]
pub(super) struct BenchTools {
    pub(super) mcpbench: PathBuf,
    pub(super) bowline: PathBuf,
    /// Binary of an earlier gateway, measured in the same run.
    pub(super) before: Option<PathBuf>,
    /// Optimised build of this tool, used as relay and body server; see `build_floor_programs`.
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
    /// Builds the gateway and the load generator.
    pub(super) fn build_programs(root: &Path, before: Option<&Path>) -> Result<Self> {
        let mcpbench = load_generator::build_dist(root)?;
        let bowline = build_dist(root)?;
        let targets = process::target_folder(root);
        let folder = targets.join(format!("bench/run-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let is_root =
            process::run_captured_in(root, "id", &["-u"]).is_ok_and(|id| id.trim() == "0");
        Ok(Self {
            mcpbench,
            bowline,
            before: before.map(Path::to_owned),
            xtask: targets.join("dist/xtask"),
            bodies: targets.join("dist/examples/bodies"),
            root: root.to_owned(),
            nginx: find_nginx(root, is_root),
            is_root,
            folder,
            folders_made: Cell::new(0),
        })
    }

    /// Returns the gateways to compare: of this tree, and the earlier one where there is one.
    pub(super) fn gateways(&self) -> Vec<GatewayProgram<'_>> {
        let before = self.before.as_deref().map(|binary| GatewayProgram {
            name: BEFORE,
            binary,
        });
        [self.gateway(BOWLINE)].into_iter().chain(before).collect()
    }

    /// Returns the gateway of this tree under a name of its own.
    pub(super) fn gateway(&self, name: &'static str) -> GatewayProgram<'_> {
        GatewayProgram {
            name,
            binary: &self.bowline,
        }
    }

    /// Builds the floor programs for measurements of forwarded bytes.
    pub(super) fn build_floor_programs(&self) -> Result<()> {
        let builds: [&[&str]; 2] = [
            &["--package", "xtask"],
            &["--package", "bowline-host", "--example", "bodies"],
        ];
        for what in builds {
            let mut cargo = Command::new("cargo");
            cargo
                .args(["build", "--profile", "dist", "--quiet"])
                .args(what);
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
