//! Puts one peer into its folder, by npm or by pip, unless it is there already.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::lock;
use super::pins::{Peer, Place, Source, What, machine, node_package};
use crate::process;

/// Names of Python interpreters, the most common first.
const PYTHONS: &[&str] = &[
    "python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
];
/// What the peers need at least.
const PYTHON_MINOR_MIN: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Was {
    Present,
    Fetched,
}

/// A peer that is there.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) was: Was,
    /// Where each of its places is, in their order.
    pub(super) places: Vec<PathBuf>,
}

/// A second call does nothing; a changed pin or a missing file begins anew.
pub(super) fn ensure(peers: &Path, peer: &Peer) -> Result<Installed> {
    let folder = peers.join(peer.name);
    let stamp = folder.join("stamp");
    let lock = lock::read(peer);
    // A lock that changed is another installation, like a pin that did.
    let stamped = format!("{}{}", peer.stamp(), lock.as_deref().unwrap_or_default());
    let is_stamped = fs::read_to_string(&stamp).is_ok_and(|text| text == stamped);
    if is_stamped && let Ok(places) = places(&folder, peer) {
        return Ok(Installed {
            was: Was::Present,
            places,
        });
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    match &peer.source {
        Source::Node { .. } | Source::Npm { .. } | Source::Native { .. } => {
            npm(&folder, &peer.stamp(), lock.as_deref())?;
        }
        Source::Python { pins } => pip(&folder, pins, lock.as_deref())?,
        Source::Cargo {
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
            cargo(&folder, program, &files)?;
        }
        Source::Go { source } => go(&folder, source)?,
    }
    let places = places(&folder, peer)?;
    // Last, so that an installation cut short is not taken for a whole one.
    fs::write(&stamp, stamped).with_context(|| format!("write {}", stamp.display()))?;
    Ok(Installed {
        was: Was::Fetched,
        places,
    })
}

/// Where each thing of an installed peer is; an error names the first that is not there.
fn places(folder: &Path, peer: &Peer) -> Result<Vec<PathBuf>> {
    peer.places
        .iter()
        .map(|place| locate(folder, peer, place))
        .collect()
}

fn locate(folder: &Path, peer: &Peer, place: &Place) -> Result<PathBuf> {
    let package = || match &peer.source {
        Source::Node { .. } => Ok(folder.join("node_modules").join(node_package())),
        Source::Npm { package, .. } => Ok(folder.join("node_modules").join(package)),
        Source::Native { package, .. } => {
            let package = format!("{package}-{}", machine());
            Ok(folder.join("node_modules").join(package))
        }
        Source::Python { .. } => Err(anyhow!("an environment is no package")),
        Source::Cargo { .. } | Source::Go { .. } => Err(anyhow!("a program is no package")),
    };
    let path = match place.what {
        What::Folder => package()?,
        What::Bin => bin(&package()?)?,
        What::Path(inside) => folder.join(inside),
        What::Native(inside) => package()?.join(inside),
    };
    if !path.exists() {
        bail!("{} is not there after the installation", path.display());
    }
    Ok(path)
}

/// The program that a package's own description names.
fn bin(package: &Path) -> Result<PathBuf> {
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

/// Installs the packages that a stamp names, one on each line, and of what they need exactly what
/// the lock says.
fn npm(folder: &Path, stamp: &str, lock: Option<&str>) -> Result<()> {
    fs::write(folder.join("package.json"), lock::package_json(stamp))?;
    let mut npm = Command::new("npm");
    // Not `npm ci`: it refuses locks that leave out packages for other kinds of machine.
    npm.arg("install");
    match lock {
        Some(lock) => fs::write(folder.join("package-lock.json"), lock)?,
        None => drop(npm.arg("--no-package-lock")),
    }
    npm.args(["--no-audit", "--no-fund", "--no-update-notifier"])
        .args(["--ignore-scripts", "--loglevel=error"])
        .current_dir(folder);
    process::quiet(&mut npm)?;
    match lock {
        Some(lock) => lock::check_installed(folder, lock),
        None => Ok(()),
    }
}

fn pip(folder: &Path, pins: &[&str], lock: Option<&str>) -> Result<()> {
    let python = python()?;
    process::quiet(
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
    process::quiet(&mut pip).map(drop)
}

/// Builds a program with exactly what its lock says.
fn cargo(folder: &Path, program: &str, files: &[(&str, &str)]) -> Result<()> {
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
    process::quiet(&mut build)?;
    fs::rename(target.join("debug").join(program), folder.join(program))
        .with_context(|| format!("move {program} out of its build"))?;
    // Only the program is of use later.
    fs::remove_dir_all(&target).context("remove what the build left")
}

/// Builds a program of one file, without the network.
fn go(folder: &Path, source: &str) -> Result<()> {
    let is_there = || process::quiet(Command::new("go").arg("version")).is_ok();
    if !is_there() {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends", "golang-go"])
            .env("DEBIAN_FRONTEND", "noninteractive");
        process::quiet(&mut apt).context("no Go compiler is installed")?;
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
    process::quiet(&mut build)?;
    // Only the program is of use later.
    fs::remove_dir_all(folder.join("cache")).context("remove the cache of the compiler")
}

fn python() -> Result<&'static str> {
    let is_new_enough = |name: &&&str| {
        let question = format!("import sys; sys.exit(sys.version_info < (3, {PYTHON_MINOR_MIN}))");
        process::quiet(Command::new(**name).args(["-c", &question])).is_ok()
    };
    PYTHONS
        .iter()
        .find(is_new_enough)
        .copied()
        .with_context(|| format!("no Python 3.{PYTHON_MINOR_MIN} or newer is installed"))
}
