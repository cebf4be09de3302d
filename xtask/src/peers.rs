//! `cargo xtask peers`: fetches the pinned test peers into `target/peers`, once.

mod install;
pub(crate) mod matrix;
mod peer_locks;
mod peer_pins;

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value, json};

use crate::process;
use install::{InstallAction, InstalledPeer};
use peer_pins::{PEERS, PinnedPeer};

/// npm and pip mostly wait for the network.
const WORKERS: usize = 3;

/// Result of each peer: installed, or the error.
type PeerResults = BTreeMap<&'static str, Result<InstalledPeer>>;

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    match rest
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => fetch_peers(root),
        ["--json"] => {
            print!("{}", read_peers_file(root)?);
            Ok(ExitCode::SUCCESS)
        }
        ["--list"] => print_paths(root),
        ["lock"] => peer_locks::write_locks(root),
        ["matrix", ..] => matrix::run(root, rest.get(1..).unwrap_or_default()),
        other => bail!(
            "unknown options `{}`; known: --list, --json, lock, matrix",
            other.join(" ")
        ),
    }
}

/// Returns the path of `target/peers/peers.json`, which may not exist yet.
pub(crate) fn peers_file(root: &Path) -> PathBuf {
    root.join("target/peers/peers.json")
}

fn fetch_peers(root: &Path) -> Result<ExitCode> {
    let folder = root.join("target/peers");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    // Concurrent runs would delete each other's folders.
    let lock = fs::File::create(folder.join("lock")).context("create the lock of the peers")?;
    lock.lock()
        .context("wait for another `cargo xtask peers`")?;

    let ends = fetch_in_parallel(&folder);
    let text = serde_json::to_string_pretty(&peers_document(&ends))? + "\n";
    fs::write(peers_file(root), text).context("write peers.json")?;

    let missing = ends.values().filter(|end| end.is_err()).count();
    println!(
        "peers: {} of {} in target/peers",
        PEERS.len() - missing,
        PEERS.len()
    );
    let must = PEERS.iter().filter(|peer| !peer.is_optional());
    let must = must.filter(|peer| ends.get(peer.name).is_none_or(Result::is_err));
    let must = must.count();
    if must > 0 && is_ci() {
        bail!("{must} peers could not be had, and CI must not skip them");
    }
    Ok(ExitCode::SUCCESS)
}

fn fetch_in_parallel(folder: &Path) -> PeerResults {
    let queue: Mutex<VecDeque<&PinnedPeer>> = Mutex::new(PEERS.iter().collect());
    let ends = Mutex::new(PeerResults::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(peer) = next_peer(&queue) {
                    let end = fetch_peer(folder, peer);
                    ends.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(peer.name, end);
                }
            });
        }
    });
    ends.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn next_peer<'a>(queue: &Mutex<VecDeque<&'a PinnedPeer>>) -> Option<&'a PinnedPeer> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

/// Fetches one peer and prints one line about the result.
fn fetch_peer(folder: &Path, peer: &PinnedPeer) -> Result<InstalledPeer> {
    let start = process::now();
    let end = install::ensure_installed(folder, peer)
        .map_err(|error| anyhow!("{}: {error:#}", peer.name));
    match &end {
        Ok(InstalledPeer {
            action: InstallAction::AlreadyPresent,
            ..
        }) => println!("{:<18} {} (present)", peer.name, peer.version_text()),
        Ok(InstalledPeer {
            action: InstallAction::Fetched,
            ..
        }) => {
            let seconds = start.elapsed().as_secs_f32();
            println!(
                "{:<18} {} (fetched in {seconds:.1} s)",
                peer.name,
                peer.version_text()
            );
        }
        Err(error) if is_ci() && !peer.is_optional() => eprintln!("error: peer {error:#}"),
        Err(error) => println!("skipped: {} ({})", peer.name, failure_reason(error)),
    }
    end
}

/// Returns the line of an error with the reason; npm and pip print the reason last.
fn failure_reason(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_reason = |line: &&str| {
        let line = line.to_ascii_lowercase();
        line.contains("error") && !line.contains("complete log") && !line.contains("npm error code")
    };
    lines()
        .rfind(is_reason)
        .or_else(|| lines().next_back())
        .unwrap_or_default()
        .to_owned()
}

/// Returns the content of `peers.json`.
fn peers_document(ends: &PeerResults) -> Value {
    let mut all = Map::new();
    all.insert("v".to_owned(), json!(1));
    let (mut versions, mut missing) = (Map::new(), Map::new());
    for peer in PEERS {
        match ends.get(peer.name) {
            Some(Ok(installed)) => {
                versions.insert(peer.name.to_owned(), json!(peer.version_text()));
                for (place, path) in peer.paths.iter().zip(&installed.paths) {
                    insert_by_path(&mut all, place.key, json!(path));
                }
            }
            Some(Err(error)) => {
                drop(missing.insert(peer.name.to_owned(), json!(failure_reason(error))))
            }
            None => drop(missing.insert(peer.name.to_owned(), json!("not tried"))),
        }
    }
    all.insert("versions".to_owned(), Value::Object(versions));
    all.insert("missing".to_owned(), Value::Object(missing));
    Value::Object(all)
}

/// Sets a member by its path of keys and creates missing groups.
fn insert_by_path(object: &mut Map<String, Value>, key: &[&str], value: Value) {
    match key {
        [] => {}
        [name] => drop(object.insert((*name).to_owned(), value)),
        [group, rest @ ..] => {
            let inner = object
                .entry(*group)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert_by_path(inner, rest, value);
            }
        }
    }
}

fn print_paths(root: &Path) -> Result<ExitCode> {
    let all: Value = serde_json::from_str(&read_peers_file(root)?)?;
    for peer in PEERS {
        for place in peer.paths {
            let found = place.key.iter().try_fold(&all, |value, key| value.get(key));
            match found.and_then(Value::as_str) {
                Some(path) => println!("{:<24} {path}", place.key.join(".")),
                None => println!("{:<24} missing", place.key.join(".")),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_peers_file(root: &Path) -> Result<String> {
    fs::read_to_string(peers_file(root)).context("no peers yet: run `cargo xtask peers`")
}

fn is_ci() -> bool {
    process::env_var("CI").is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_reason_is_one_line() {
        let npm = anyhow!(
            "sdk: `npm install` failed\nnpm error code E404\nnpm error 404 not found\n\
             npm error A complete log of this run can be found in: x.log"
        );
        assert_eq!(failure_reason(&npm), "npm error 404 not found");
        assert_eq!(
            failure_reason(&anyhow!("no Python 3.10 or newer is installed")),
            "no Python 3.10 or newer is installed"
        );
    }

    #[test]
    fn missing_peer_is_recorded_with_reason() {
        let ends = PEERS
            .iter()
            .map(|peer| (peer.name, Err(anyhow!("offline"))))
            .collect();
        let all = peers_document(&ends);
        assert_eq!(all.pointer("/missing/node"), Some(&json!("offline")));
        assert_eq!(all.get("node"), None);
    }

    #[test]
    fn installed_peer_is_recorded_with_path() {
        let places = |peer: &PinnedPeer| peer.paths.iter().map(|_| "x".into()).collect();
        let installed = |peer| {
            Ok(InstalledPeer {
                action: InstallAction::AlreadyPresent,
                paths: places(peer),
            })
        };
        let all = peers_document(
            &PEERS
                .iter()
                .map(|peer| (peer.name, installed(peer)))
                .collect(),
        );
        for place in PEERS.iter().flat_map(|peer| peer.paths) {
            let path = format!("/{}", place.key.join("/"));
            assert_eq!(all.pointer(&path), Some(&json!("x")), "{path}");
        }
    }

    #[test]
    fn insert_by_path_creates_groups() {
        let mut all = Map::new();
        insert_by_path(&mut all, &["servers", "a"], json!(1));
        insert_by_path(&mut all, &["servers", "b"], json!(2));
        assert_eq!(Value::Object(all), json!({"servers": {"a": 1, "b": 2}}));
    }
}
