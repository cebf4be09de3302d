//! Lock files of the test peers: every transitive package with its hash.
//!
//! `cargo xtask peers lock` regenerates the files in `xtask/locks`; an installation uses exactly
//! the locked packages. A peer with a package per platform is locked for the platforms on which
//! the command ran, and pinned by version elsewhere.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::peer_pins::{PEERS, PeerSource, PinnedPeer, npm_platform};
use crate::process;

/// The tool that resolves Python environments for every Python version at once.
const UV: &str = "uv==0.13.8";

/// Oldest Python version that the peers support.
const PYTHON_MIN: &str = "3.10";

/// Returns the path of a peer's lock file, which may not exist.
pub(super) fn lock_path(peer: &PinnedPeer) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("locks");
    let name = peer.name;
    match &peer.source {
        PeerSource::Npm { .. } => Some(folder.join(format!("{name}.package-lock.json"))),
        PeerSource::Node { .. } | PeerSource::Native { .. } => {
            Some(folder.join(format!("{name}.{}.package-lock.json", npm_platform())))
        }
        PeerSource::Python { .. } => Some(folder.join(format!("{name}.requirements.txt"))),
        // The Go source uses the standard library only; the Cargo lock is part of the source.
        PeerSource::Cargo { .. } | PeerSource::Go { .. } => None,
    }
}

/// Returns the text of the lock file, if present.
pub(super) fn read_lock(peer: &PinnedPeer) -> Option<String> {
    fs::read_to_string(lock_path(peer)?).ok()
}

/// Returns a `package.json` with exactly the packages in a stamp, one per line.
pub(super) fn package_json(stamp: &str) -> String {
    let pins = stamp.lines().filter_map(|line| line.rsplit_once('@'));
    let pins: BTreeMap<&str, &str> = pins.collect();
    let about = json!({"name": "peer", "private": true, "dependencies": pins});
    format!("{about:#}\n")
}

/// Checks that every package npm installed has the hash in the lock.
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

/// Regenerates every lock file.
pub(super) fn write_locks(root: &Path) -> Result<ExitCode> {
    let folder = root.join(format!("target/locks-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let made = PEERS.iter().try_for_each(|peer| {
        let Some(target) = lock_path(peer) else {
            return Ok(());
        };
        println!("{}", peer.name);
        write_lock(&folder, peer, &target).with_context(|| format!("lock {}", peer.name))
    });
    fs::remove_dir_all(&folder)?;
    made.map(|()| ExitCode::SUCCESS)
}

fn write_lock(folder: &Path, peer: &PinnedPeer, target: &Path) -> Result<()> {
    let peer_folder = folder.join(peer.name);
    fs::create_dir_all(&peer_folder)?;
    let text = match &peer.source {
        PeerSource::Python { pins } => {
            let uv = install_uv(folder)?;
            fs::write(peer_folder.join("requirements.in"), pins.join("\n"))?;
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
                .current_dir(&peer_folder);
            process::run_captured(&mut compile)?
        }
        PeerSource::Node { .. }
        | PeerSource::Npm { .. }
        | PeerSource::Native { .. }
        | PeerSource::Cargo { .. }
        | PeerSource::Go { .. } => {
            fs::write(
                peer_folder.join("package.json"),
                package_json(&peer.stamp()),
            )?;
            let mut npm = Command::new("npm");
            npm.args(["install", "--package-lock-only", "--ignore-scripts"])
                .args(["--no-audit", "--no-fund", "--loglevel=error"])
                // The hash identifies a package independent of the registry.
                .arg("--omit-lockfile-registry-resolved")
                .current_dir(&peer_folder);
            process::run_captured(&mut npm)?;
            fs::read_to_string(peer_folder.join("package-lock.json"))?
        }
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(target, text).with_context(|| format!("write {}", target.display()))
}

/// Returns `uv`, installed once for all environments.
fn install_uv(folder: &Path) -> Result<PathBuf> {
    let own = folder.join("uv");
    let program = own.join("bin/uv");
    if !program.exists() {
        process::run_captured(Command::new("python3").args(["-m", "venv"]).arg(&own))?;
        let mut pip = Command::new(own.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", UV]);
        process::run_captured(&mut pip)?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_with_other_hash_is_rejected() {
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
    fn npm_and_python_peers_are_hash_locked() {
        for peer in PEERS {
            let needed = matches!(
                peer.source,
                PeerSource::Npm { .. } | PeerSource::Python { .. }
            );
            let Some(lock) = read_lock(peer) else {
                assert!(!needed, "{} has no lock: cargo xtask peers lock", peer.name);
                continue;
            };
            match &peer.source {
                PeerSource::Python { pins } => {
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
