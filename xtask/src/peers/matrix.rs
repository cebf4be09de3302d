//! `cargo xtask peers matrix`: every client to every server through one gateway, as a page.

mod page;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::pins::{PEERS, Source};
use crate::process;

/// Where the clients and servers are described.
pub(crate) const MATRIX: &str = "crates/bowline/tests/peers/matrix/matrix.json";
/// The page that is written.
pub(crate) const PAGE: &str = "docs/compatibility.md";
/// The test that walks the cells.
const TEST: &str = "peers::matrix::the_whole_matrix_is_walked_when_asked_for";

/// What the page is about.
#[derive(Debug, Deserialize)]
pub(crate) struct Matrix {
    pub(crate) clients: Vec<Party>,
    pub(crate) servers: Vec<Party>,
    plans: BTreeMap<String, Map<String, Value>>,
}

/// A client or a server.
#[derive(Debug, Deserialize)]
pub(crate) struct Party {
    name: String,
    pub(crate) title: String,
    peer: String,
    package: String,
    /// Of a client: what it checks beyond tools.
    #[serde(default)]
    has: Vec<String>,
    /// Of a server: where it serves, if not over its pipes.
    url: Option<String>,
    /// Of a server: what is asked of it.
    #[serde(default)]
    plan: String,
}

impl Party {
    /// The pinned version of its package.
    pub(crate) fn version(&self) -> Result<String> {
        let peer = PEERS
            .iter()
            .find(|peer| peer.name == self.peer)
            .with_context(|| format!("no peer `{}` is pinned", self.peer))?;
        let pin = match &peer.source {
            Source::Python { pins } => pins
                .iter()
                .find_map(|pin| pin.strip_prefix(&*self.package)?.strip_prefix("==")),
            Source::Npm {
                package, version, ..
            } if *package == self.package => Some(*version),
            Source::Npm { .. }
            | Source::Node { .. }
            | Source::Native { .. }
            | Source::Cargo { .. }
            | Source::Go { .. } => None,
        };
        let pin = pin.with_context(|| format!("`{}` pins no {}", self.peer, self.package))?;
        Ok(pin.to_owned())
    }
}

/// How one client fared with one server.
#[derive(Debug, Deserialize, Serialize)]
struct Cell {
    client: String,
    server: String,
    green: bool,
    checks: Vec<Check>,
    ms: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Check {
    check: String,
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// What was asked for on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    json: bool,
    only: Option<String>,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--json" => options.json = true,
                "--only" => {
                    let cell = words.next().context("--only wants CLIENT/SERVER")?;
                    options.only = Some(cell.to_owned());
                }
                other => bail!("unknown option `{other}`; known: --json, --only CLIENT/SERVER"),
            }
        }
        Ok(options)
    }
}

/// Walks the matrix and writes the page; one red cell makes it a failure.
pub(super) fn run(root: &Path, words: &[String]) -> Result<ExitCode> {
    let options = Options::parse(words)?;
    let matrix = read(&fs::read_to_string(root.join(MATRIX)).context(MATRIX)?)?;
    let cells = walk(root, options.only.as_deref())?;
    let red = cells.iter().filter(|cell| !cell.green).count();
    if options.only.is_none() {
        let page = page::write(&matrix, &cells)?;
        fs::write(root.join(PAGE), page).with_context(|| format!("write {PAGE}"))?;
    }
    if options.json {
        let all = json!({"v": 1, "cells": cells});
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("matrix: {} green, {red} red", cells.len() - red);
    }
    Ok(if red == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

pub(crate) fn read(text: &str) -> Result<Matrix> {
    serde_json::from_str(text).with_context(|| format!("read {MATRIX}"))
}

/// Runs the test that walks, with its progress on standard error.
fn walk(root: &Path, only: Option<&str>) -> Result<Vec<Cell>> {
    let file = root.join("target/peers/matrix.json");
    // A result of another day is none.
    if file.exists() {
        fs::remove_file(&file).context("remove the last result")?;
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--quiet", "--package", "bowline", "--test", "it"])
        .args(["--", "--nocapture", "--exact", TEST])
        .env("BOWLINE_PEERS", super::file(root))
        .env("BOWLINE_MATRIX", &file)
        .envs(only.map(|only| ("BOWLINE_MATRIX_ONLY", only)))
        .current_dir(root)
        // Standard output is for the result.
        .stdout(std::io::stderr());
    process::show(&mut cargo)?;
    let text = fs::read_to_string(&file).context("the walk left no result")?;
    serde_json::from_str(&text).context("read the result of the walk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_party_has_a_pinned_version() {
        let text = include_str!("../../../crates/bowline/tests/peers/matrix/matrix.json");
        let matrix = read(text).unwrap();
        for party in matrix.clients.iter().chain(&matrix.servers) {
            party
                .version()
                .unwrap_or_else(|error| panic!("{}: {error:#}", party.title));
        }
    }

    #[test]
    fn options_are_a_cell_and_json() {
        let words = ["--only", "a/b", "--json"].map(str::to_owned);
        let options = Options::parse(&words).unwrap();
        let only = Some("a/b".to_owned());
        assert_eq!(options, Options { json: true, only });
        assert!(Options::parse(&["--all".to_owned()]).is_err());
        assert!(Options::parse(&["--only".to_owned()]).is_err());
    }
}
