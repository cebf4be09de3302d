//! `cargo xtask peers`: fetches the pinned test peers into `target/peers`, once.

mod install;
mod lock;
pub(crate) mod matrix;
mod pins;

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
use install::{Installed, Was};
use pins::{PEERS, Peer};

/// npm and pip wait for the network more than they compute.
const WORKERS: usize = 3;

/// How one peer ended: there, or the reason why not.
type Ends = BTreeMap<&'static str, Result<Installed>>;

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    match rest
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => fetch(root),
        ["--json"] => {
            print!("{}", read(root)?);
            Ok(ExitCode::SUCCESS)
        }
        ["--list"] => list(root),
        ["lock"] => lock::run(root),
        ["matrix", ..] => matrix::run(root, rest.get(1..).unwrap_or_default()),
        other => bail!(
            "unknown options `{}`; known: --list, --json, lock, matrix",
            other.join(" ")
        ),
    }
}

/// Where `target/peers/peers.json` is, whether or not it has been written.
pub(crate) fn file(root: &Path) -> PathBuf {
    root.join("target/peers/peers.json")
}

fn fetch(root: &Path) -> Result<ExitCode> {
    let folder = root.join("target/peers");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    // Two runs at once would pull the folders away under each other.
    let lock = fs::File::create(folder.join("lock")).context("create the lock of the peers")?;
    lock.lock()
        .context("wait for another `cargo xtask peers`")?;

    let ends = fetch_all(&folder);
    let text = serde_json::to_string_pretty(&describe(&ends))? + "\n";
    fs::write(file(root), text).context("write peers.json")?;

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

fn fetch_all(folder: &Path) -> Ends {
    let queue: Mutex<VecDeque<&Peer>> = Mutex::new(PEERS.iter().collect());
    let ends = Mutex::new(Ends::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(peer) = take(&queue) {
                    let end = fetch_one(folder, peer);
                    ends.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(peer.name, end);
                }
            });
        }
    });
    ends.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn take<'a>(queue: &Mutex<VecDeque<&'a Peer>>) -> Option<&'a Peer> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

/// Fetches one peer and says so in one line.
fn fetch_one(folder: &Path, peer: &Peer) -> Result<Installed> {
    let start = process::now();
    let end = install::ensure(folder, peer).map_err(|error| anyhow!("{}: {error:#}", peer.name));
    match &end {
        Ok(Installed {
            was: Was::Present, ..
        }) => println!("{:<18} {} (present)", peer.name, peer.version()),
        Ok(Installed {
            was: Was::Fetched, ..
        }) => {
            let seconds = start.elapsed().as_secs_f32();
            println!(
                "{:<18} {} (fetched in {seconds:.1} s)",
                peer.name,
                peer.version()
            );
        }
        Err(error) if is_ci() && !peer.is_optional() => eprintln!("error: peer {error:#}"),
        Err(error) => println!("skipped: {} ({})", peer.name, why(error)),
    }
    end
}

/// The last line of an error: npm and pip say the reason there.
fn why(error: &anyhow::Error) -> String {
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

/// The content of `peers.json`.
fn describe(ends: &Ends) -> Value {
    let mut all = Map::new();
    all.insert("v".to_owned(), json!(1));
    let (mut versions, mut missing) = (Map::new(), Map::new());
    for peer in PEERS {
        match ends.get(peer.name) {
            Some(Ok(installed)) => {
                versions.insert(peer.name.to_owned(), json!(peer.version()));
                for (place, path) in peer.places.iter().zip(&installed.places) {
                    put(&mut all, place.key, json!(path));
                }
            }
            Some(Err(error)) => drop(missing.insert(peer.name.to_owned(), json!(why(error)))),
            None => drop(missing.insert(peer.name.to_owned(), json!("not tried"))),
        }
    }
    all.insert("versions".to_owned(), Value::Object(versions));
    all.insert("missing".to_owned(), Value::Object(missing));
    Value::Object(all)
}

/// Sets a member by its path of keys, making the groups on the way.
fn put(object: &mut Map<String, Value>, key: &[&str], value: Value) {
    match key {
        [] => {}
        [name] => drop(object.insert((*name).to_owned(), value)),
        [group, rest @ ..] => {
            let inner = object
                .entry(*group)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

fn list(root: &Path) -> Result<ExitCode> {
    let all: Value = serde_json::from_str(&read(root)?)?;
    for peer in PEERS {
        for place in peer.places {
            let found = place.key.iter().try_fold(&all, |value, key| value.get(key));
            match found.and_then(Value::as_str) {
                Some(path) => println!("{:<24} {path}", place.key.join(".")),
                None => println!("{:<24} missing", place.key.join(".")),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(root: &Path) -> Result<String> {
    fs::read_to_string(file(root)).context("no peers yet: run `cargo xtask peers`")
}

fn is_ci() -> bool {
    process::env("CI").is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_failure_is_one_line() {
        let npm = anyhow!(
            "sdk: `npm install` failed\nnpm error code E404\nnpm error 404 not found\n\
             npm error A complete log of this run can be found in: x.log"
        );
        assert_eq!(why(&npm), "npm error 404 not found");
        assert_eq!(
            why(&anyhow!("no Python 3.10 or newer is installed")),
            "no Python 3.10 or newer is installed"
        );
    }

    #[test]
    fn what_is_missing_is_recorded_with_its_reason() {
        let ends = PEERS
            .iter()
            .map(|peer| (peer.name, Err(anyhow!("offline"))))
            .collect();
        let all = describe(&ends);
        assert_eq!(all.pointer("/missing/node"), Some(&json!("offline")));
        assert_eq!(all.get("node"), None);
    }

    #[test]
    fn what_is_there_is_recorded_with_its_place() {
        let places = |peer: &Peer| peer.places.iter().map(|_| "x".into()).collect();
        let installed = |peer| {
            Ok(Installed {
                was: Was::Present,
                places: places(peer),
            })
        };
        let all = describe(
            &PEERS
                .iter()
                .map(|peer| (peer.name, installed(peer)))
                .collect(),
        );
        for place in PEERS.iter().flat_map(|peer| peer.places) {
            let path = format!("/{}", place.key.join("/"));
            assert_eq!(all.pointer(&path), Some(&json!("x")), "{path}");
        }
    }

    #[test]
    fn groups_are_made_on_the_way() {
        let mut all = Map::new();
        put(&mut all, &["servers", "a"], json!(1));
        put(&mut all, &["servers", "b"], json!(2));
        assert_eq!(Value::Object(all), json!({"servers": {"a": 1, "b": 2}}));
    }
}
