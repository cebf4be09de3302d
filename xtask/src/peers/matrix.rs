//! `cargo xtask peers matrix`: every client to every server through one gateway, written as a page.

mod compatibility_page;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::peer_pins::{PEERS, PeerSource};
use crate::process;

/// Description of clients and servers.
pub(crate) const MATRIX_FILE: &str = "crates/bowline/tests/peers/matrix/matrix.json";
/// The generated page.
pub(crate) const PAGE_FILE: &str = "docs/compatibility.md";
/// The test that runs all cells.
const MATRIX_TEST: &str = "peers::matrix::whole_matrix_passes_when_requested";

/// Clients, servers and plans of the matrix.
#[derive(Debug, Deserialize)]
pub(crate) struct CompatibilityMatrix {
    pub(crate) clients: Vec<MatrixParty>,
    pub(crate) servers: Vec<MatrixParty>,
    plans: BTreeMap<String, Map<String, Value>>,
}

/// A client or a server.
#[derive(Debug, Deserialize)]
pub(crate) struct MatrixParty {
    name: String,
    pub(crate) title: String,
    peer: String,
    package: String,
    /// Client: checks beyond tools.
    #[serde(default)]
    has: Vec<String>,
    /// Server: URL if not over stdio.
    url: Option<String>,
    /// Server: name of the plan.
    #[serde(default)]
    plan: String,
}

impl MatrixParty {
    /// Returns the pinned version of the package.
    pub(crate) fn pinned_version(&self) -> Result<String> {
        let peer = PEERS
            .iter()
            .find(|peer| peer.name == self.peer)
            .with_context(|| format!("no peer `{}` is pinned", self.peer))?;
        let pin = match &peer.source {
            PeerSource::Python { pins } => pins
                .iter()
                .find_map(|pin| pin.strip_prefix(&*self.package)?.strip_prefix("==")),
            PeerSource::Npm {
                package, version, ..
            } if *package == self.package => Some(*version),
            PeerSource::Npm { .. }
            | PeerSource::Node { .. }
            | PeerSource::Native { .. }
            | PeerSource::Cargo { .. }
            | PeerSource::Go { .. } => None,
        };
        let pin = pin.with_context(|| format!("`{}` pins no {}", self.peer, self.package))?;
        Ok(pin.to_owned())
    }
}

/// Result of one client with one server.
#[derive(Debug, Deserialize, Serialize)]
struct MatrixCell {
    client: String,
    server: String,
    green: bool,
    checks: Vec<MatrixCheck>,
    ms: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct MatrixCheck {
    check: String,
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Command-line options.
#[derive(Debug, Default, PartialEq, Eq)]
struct MatrixOptions {
    json: bool,
    only: Option<String>,
}

impl MatrixOptions {
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

/// Runs the matrix and writes the page; a red cell is a failure.
pub(super) fn run(root: &Path, words: &[String]) -> Result<ExitCode> {
    let options = MatrixOptions::parse(words)?;
    let matrix = parse_matrix(&fs::read_to_string(root.join(MATRIX_FILE)).context(MATRIX_FILE)?)?;
    let cells = run_matrix_test(root, options.only.as_deref())?;
    let red = cells.iter().filter(|cell| !cell.green).count();
    if options.only.is_none() {
        let page = compatibility_page::render_page(&matrix, &cells)?;
        fs::write(root.join(PAGE_FILE), page).with_context(|| format!("write {PAGE_FILE}"))?;
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

pub(crate) fn parse_matrix(text: &str) -> Result<CompatibilityMatrix> {
    serde_json::from_str(text).with_context(|| format!("read {MATRIX_FILE}"))
}

/// Runs the matrix test, with progress on standard error.
fn run_matrix_test(root: &Path, only: Option<&str>) -> Result<Vec<MatrixCell>> {
    let file = root.join("target/peers/matrix.json");
    // An old result must not be mistaken for a new one.
    if file.exists() {
        fs::remove_file(&file).context("remove the last result")?;
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--quiet", "--package", "bowline", "--test", "it"])
        .args(["--", "--nocapture", "--exact", MATRIX_TEST])
        .env("BOWLINE_PEERS", super::peers_file(root))
        .env("BOWLINE_MATRIX", &file)
        .envs(only.map(|only| ("BOWLINE_MATRIX_ONLY", only)))
        .current_dir(root)
        // Standard output is reserved for the result.
        .stdout(std::io::stderr());
    process::run_inherited(&mut cargo)?;
    let text = fs::read_to_string(&file).context("the walk left no result")?;
    serde_json::from_str(&text).context("read the result of the walk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_party_has_pinned_version() {
        let text = include_str!("../../../crates/bowline/tests/peers/matrix/matrix.json");
        let matrix = parse_matrix(text).unwrap();
        for party in matrix.clients.iter().chain(&matrix.servers) {
            party
                .pinned_version()
                .unwrap_or_else(|error| panic!("{}: {error:#}", party.title));
        }
    }

    #[test]
    fn options_parse_cell_and_json() {
        let words = ["--only", "a/b", "--json"].map(str::to_owned);
        let options = MatrixOptions::parse(&words).unwrap();
        let only = Some("a/b".to_owned());
        assert_eq!(options, MatrixOptions { json: true, only });
        assert!(MatrixOptions::parse(&["--all".to_owned()]).is_err());
        assert!(MatrixOptions::parse(&["--only".to_owned()]).is_err());
    }
}
