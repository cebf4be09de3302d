//! Lock files of the test peers: every package that a peer pulls in, with its hash.
//!
//! `cargo xtask peers lock` makes them anew in `xtask/locks`; an installation takes what they say
//! and nothing else. A peer that is another package on each kind of machine has a lock for the
//! kinds it was locked on, and is pinned by its version elsewhere.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::pins::{PEERS, Peer, Source, machine};
use crate::process;

/// The tool that resolves Python environments for every version of Python at once.
const UV: &str = "uv==0.13.8";

/// The oldest Python that peers run on.
const PYTHON_MIN: &str = "3.10";

/// Returns the lock file of a peer, be it there or not.
pub(super) fn path(peer: &Peer) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("locks");
    let name = peer.name;
    match &peer.source {
        Source::Npm { .. } => Some(folder.join(format!("{name}.package-lock.json"))),
        Source::Node { .. } | Source::Native { .. } => {
            Some(folder.join(format!("{name}.{}.package-lock.json", machine())))
        }
        Source::Python { .. } => Some(folder.join(format!("{name}.requirements.txt"))),
        // Built from a file of ours with the standard library alone.
        Source::Cargo { .. } | Source::Go { .. } => None,
    }
}

/// Returns the text of the lock file, where there is one.
pub(super) fn read(peer: &Peer) -> Option<String> {
    fs::read_to_string(path(peer)?).ok()
}

/// Returns the `package.json` that depends on exactly what a stamp names, one on each line.
pub(super) fn package_json(stamp: &str) -> String {
    let pins = stamp.lines().filter_map(|line| line.rsplit_once('@'));
    let pins: BTreeMap<&str, &str> = pins.collect();
    let about = json!({"name": "peer", "private": true, "dependencies": pins});
    format!("{about:#}\n")
}

/// Holds what npm installed against the lock: every package has the hash that the lock says.
pub(super) fn check_installed(folder: &Path, lock: &str) -> Result<()> {
    let lock: Value = serde_json::from_str(lock).context("the lock file")?;
    let installed = fs::read_to_string(folder.join("node_modules/.package-lock.json"))?;
    let installed: Value = serde_json::from_str(&installed)?;
    let packages = installed.get("packages").and_then(Value::as_object);
    for (path, package) in packages.context("npm says nothing of what it installed")? {
        let locked = lock.get("packages").and_then(|all| all.get(path));
        let hash = |package: &Value| Some(package.get("integrity")?.as_str()?.to_owned());
        let same = hash(package).is_some() && locked.and_then(hash) == hash(package);
        if !same {
            bail!("`{path}` is not what the lock says");
        }
    }
    Ok(())
}

/// Makes every lock file anew.
pub(super) fn run(root: &Path) -> Result<ExitCode> {
    let folder = root.join(format!("target/locks-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let made = PEERS.iter().try_for_each(|peer| {
        let Some(target) = path(peer) else {
            return Ok(());
        };
        println!("{}", peer.name);
        make(&folder, peer, &target).with_context(|| format!("lock {}", peer.name))
    });
    fs::remove_dir_all(&folder)?;
    made.map(|()| ExitCode::SUCCESS)
}

fn make(folder: &Path, peer: &Peer, target: &Path) -> Result<()> {
    let own = folder.join(peer.name);
    fs::create_dir_all(&own)?;
    let text = match &peer.source {
        Source::Python { pins } => {
            let uv = uv(folder)?;
            fs::write(own.join("requirements.in"), pins.join("\n"))?;
            let mut compile = Command::new(uv);
            compile
                .args([
                    "pip",
                    "compile",
                    "--universal",
                    "--generate-hashes",
                    "--quiet",
                ])
                .args([
                    "--no-header",
                    "--no-annotate",
                    "--python-version",
                    PYTHON_MIN,
                ])
                .arg("requirements.in")
                .current_dir(&own);
            process::quiet(&mut compile)?
        }
        Source::Node { .. }
        | Source::Npm { .. }
        | Source::Native { .. }
        | Source::Cargo { .. }
        | Source::Go { .. } => {
            fs::write(own.join("package.json"), package_json(&peer.stamp()))?;
            let mut npm = Command::new("npm");
            npm.args(["install", "--package-lock-only", "--ignore-scripts"])
                .args(["--no-audit", "--no-fund", "--loglevel=error"])
                // The hash says what a package is, wherever it is fetched from.
                .arg("--omit-lockfile-registry-resolved")
                .current_dir(&own);
            process::quiet(&mut npm)?;
            fs::read_to_string(own.join("package-lock.json"))?
        }
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(target, text).with_context(|| format!("write {}", target.display()))
}

/// Returns `uv`, installed once for all environments.
fn uv(folder: &Path) -> Result<PathBuf> {
    let own = folder.join("uv");
    let program = own.join("bin/uv");
    if !program.exists() {
        process::quiet(Command::new("python3").args(["-m", "venv"]).arg(&own))?;
        let mut pip = Command::new(own.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", UV]);
        process::quiet(&mut pip)?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_package_with_another_hash_is_refused() {
        let folder = std::env::temp_dir().join(format!("bowline-lock-{}", std::process::id()));
        fs::create_dir_all(folder.join("node_modules")).unwrap();
        let lock = |hash: &str| json!({"packages": {"node_modules/a": {"integrity": hash}}});
        let installed = lock("sha512-a").to_string();
        fs::write(folder.join("node_modules/.package-lock.json"), installed).unwrap();
        let same = check_installed(&folder, &lock("sha512-a").to_string());
        let other = check_installed(&folder, &lock("sha512-b").to_string());
        let missing = check_installed(&folder, "{\"packages\":{}}");
        fs::remove_dir_all(&folder).unwrap();
        assert!(same.is_ok());
        assert!(other.is_err() && missing.is_err());
    }

    #[test]
    fn every_npm_and_python_peer_is_locked_with_hashes() {
        for peer in PEERS {
            let needed = matches!(peer.source, Source::Npm { .. } | Source::Python { .. });
            let Some(lock) = read(peer) else {
                assert!(!needed, "{} has no lock: cargo xtask peers lock", peer.name);
                continue;
            };
            match &peer.source {
                Source::Python { pins } => {
                    for pin in *pins {
                        assert!(lock.contains(pin), "{} locks another {pin}", peer.name);
                    }
                    let entries = lock.lines().filter(|line| line.contains("==")).count();
                    let hashed = lock.matches("==").count();
                    assert!(entries > 0 && hashed >= entries && lock.contains("--hash=sha256:"));
                }
                _ => {
                    for (name, version) in peer.stamp().lines().filter_map(|l| l.rsplit_once('@')) {
                        let pin = format!("\"{name}\": \"{version}\"");
                        assert!(lock.contains(&pin), "{} locks another {pin}", peer.name);
                    }
                    assert!(lock.contains("\"integrity\": \"sha512-"), "{}", peer.name);
                    assert!(!lock.contains("\"resolved\""), "{}", peer.name);
                }
            }
        }
    }
}
