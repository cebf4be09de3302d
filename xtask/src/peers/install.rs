//! Installs one peer into its folder with npm, pip, cargo or go, unless already present.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::peer_locks;
use super::peer_pins::{PathKind, PeerPath, PeerSource, PinnedPeer, node_package, npm_platform};
use crate::process;

/// Names of Python interpreters, the most common first.
const PYTHONS: &[&str] = &[
    "python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
];
/// Minimum minor version of Python 3.
const PYTHON_MINOR_MIN: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstallAction {
    AlreadyPresent,
    Fetched,
}

/// An installed peer.
#[derive(Debug)]
pub(super) struct InstalledPeer {
    pub(super) action: InstallAction,
    /// Path of each of the peer's entries, in order.
    pub(super) paths: Vec<PathBuf>,
}

/// Installs a peer. A repeated call does nothing; a changed pin or a missing file reinstalls.
pub(super) fn ensure_installed(peers: &Path, peer: &PinnedPeer) -> Result<InstalledPeer> {
    let folder = peers.join(peer.name);
    let stamp = folder.join("stamp");
    let lock = peer_locks::read_lock(peer);
    // A changed lock reinstalls, like a changed pin.
    let stamped = format!("{}{}", peer.stamp(), lock.as_deref().unwrap_or_default());
    let is_stamped = fs::read_to_string(&stamp).is_ok_and(|text| text == stamped);
    if is_stamped && let Ok(places) = locate_all(&folder, peer) {
        return Ok(InstalledPeer {
            action: InstallAction::AlreadyPresent,
            paths: places,
        });
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    match &peer.source {
        PeerSource::Node { .. } | PeerSource::Npm { .. } | PeerSource::Native { .. } => {
            install_npm(&folder, &peer.stamp(), lock.as_deref())?;
        }
        PeerSource::Python { pins } => install_pip(&folder, pins, lock.as_deref())?,
        PeerSource::Cargo {
            program,
            manifest,
            lock,
            source,
        } => {
            let files = [
                ("Cargo.toml", *manifest),
                ("Cargo.lock", *lock),
                ("src/main.rs", *source),
            ];
            build_cargo(&folder, program, &files)?;
        }
        PeerSource::Go { source } => build_go(&folder, source)?,
    }
    let places = locate_all(&folder, peer)?;
    // The stamp is written last, so that an interrupted installation is not reused.
    fs::write(&stamp, stamped).with_context(|| format!("write {}", stamp.display()))?;
    Ok(InstalledPeer {
        action: InstallAction::Fetched,
        paths: places,
    })
}

/// Returns the path of each entry of an installed peer; an error names the first missing path.
fn locate_all(folder: &Path, peer: &PinnedPeer) -> Result<Vec<PathBuf>> {
    peer.paths
        .iter()
        .map(|place| locate_path(folder, peer, place))
        .collect()
}

fn locate_path(folder: &Path, peer: &PinnedPeer, place: &PeerPath) -> Result<PathBuf> {
    let package = || match &peer.source {
        PeerSource::Node { .. } => Ok(folder.join("node_modules").join(node_package())),
        PeerSource::Npm { package, .. } => Ok(folder.join("node_modules").join(package)),
        PeerSource::Native { package, .. } => {
            let package = format!("{package}-{}", npm_platform());
            Ok(folder.join("node_modules").join(package))
        }
        PeerSource::Python { .. } => Err(anyhow!("an environment is no package")),
        PeerSource::Cargo { .. } | PeerSource::Go { .. } => Err(anyhow!("a program is no package")),
    };
    let path = match place.kind {
        PathKind::Folder => package()?,
        PathKind::Bin => package_program(&package()?)?,
        PathKind::Path(inside) => folder.join(inside),
        PathKind::Native(inside) => package()?.join(inside),
    };
    if !path.exists() {
        bail!("{} is not there after the installation", path.display());
    }
    Ok(path)
}

/// Returns the program named by `bin` in a package's `package.json`.
fn package_program(package: &Path) -> Result<PathBuf> {
    let description = package.join("package.json");
    let text = fs::read_to_string(&description)
        .with_context(|| format!("read {}", description.display()))?;
    let about: Value = serde_json::from_str(&text)?;
    let bin = match about.get("bin") {
        Some(Value::String(path)) => Some(path.as_str()),
        Some(Value::Object(all)) => all.values().next().and_then(Value::as_str),
        _ => None,
    };
    Ok(package.join(bin.with_context(|| format!("{} names no program", description.display()))?))
}

/// Installs the packages in the stamp, one per line, with the dependency versions of the lock.
fn install_npm(folder: &Path, stamp: &str, lock: Option<&str>) -> Result<()> {
    fs::write(folder.join("package.json"), peer_locks::package_json(stamp))?;
    let mut npm = Command::new("npm");
    // Not `npm ci`, which rejects locks without the packages of other platforms.
    npm.arg("install");
    match lock {
        Some(lock) => fs::write(folder.join("package-lock.json"), lock)?,
        None => drop(npm.arg("--no-package-lock")),
    }
    npm.args(["--no-audit", "--no-fund", "--no-update-notifier"])
        .args(["--ignore-scripts", "--loglevel=error"])
        .current_dir(folder);
    process::run_captured(&mut npm)?;
    match lock {
        Some(lock) => peer_locks::check_installed(folder, lock),
        None => Ok(()),
    }
}

fn install_pip(folder: &Path, pins: &[&str], lock: Option<&str>) -> Result<()> {
    let python = find_python()?;
    process::run_captured(
        Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(folder),
    )?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet"])
        .arg("--disable-pip-version-check");
    match lock {
        Some(lock) => {
            let file = folder.join("requirements.txt");
            fs::write(&file, lock)?;
            pip.args(["--require-hashes", "--requirement"]).arg(file);
        }
        None => {
            pip.args(pins);
        }
    }
    process::run_captured(&mut pip).map(drop)
}

/// Builds a program with the dependency versions of its lock.
fn build_cargo(folder: &Path, program: &str, files: &[(&str, &str)]) -> Result<()> {
    let package = folder.join("package");
    let target = folder.join("target");
    fs::create_dir_all(package.join("src"))?;
    for (name, text) in files {
        fs::write(package.join(name), text)?;
    }
    let mut build = Command::new("cargo");
    build
        .args(["build", "--quiet", "--locked"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(&package);
    process::run_captured(&mut build)?;
    fs::rename(target.join("debug").join(program), folder.join(program))
        .with_context(|| format!("move {program} out of its build"))?;
    // Only the program is needed later.
    fs::remove_dir_all(&target).context("remove what the build left")
}

/// Builds a program of one file, without network access.
fn build_go(folder: &Path, source: &str) -> Result<()> {
    let is_there = || process::run_captured(Command::new("go").arg("version")).is_ok();
    if !is_there() {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends", "golang-go"])
            .env("DEBIAN_FRONTEND", "noninteractive");
        process::run_captured(&mut apt).context("no Go compiler is installed")?;
    }
    fs::write(folder.join("main.go"), source)?;
    let mut build = Command::new("go");
    build
        .args(["build", "-o", "server", "main.go"])
        .env("GOFLAGS", "-mod=mod")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", folder.join("cache"))
        .current_dir(folder);
    process::run_captured(&mut build)?;
    // Only the program is needed later.
    fs::remove_dir_all(folder.join("cache")).context("remove the cache of the compiler")
}

fn find_python() -> Result<&'static str> {
    let is_new_enough = |name: &&&str| {
        let question = format!("import sys; sys.exit(sys.version_info < (3, {PYTHON_MINOR_MIN}))");
        process::run_captured(Command::new(**name).args(["-c", &question])).is_ok()
    };
    PYTHONS
        .iter()
        .find(is_new_enough)
        .copied()
        .with_context(|| format!("no Python 3.{PYTHON_MINOR_MIN} or newer is installed"))
}
