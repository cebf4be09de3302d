//! How this gateway speaks to servers, as the official conformance suite sees it.

use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::Peers;
use super::clients::finish;
use crate::harness::bowline;

/// What the suite asks of clients of each revision, authorization left out.
const SCENARIOS: [(&str, &[&str]); 2] = [
    (
        "2025-11-25",
        &[
            "initialize",
            "tools_call",
            "elicitation-sep1034-client-defaults",
            "sse-retry",
        ],
    ),
    (
        "2026-07-28",
        &[
            "request-metadata",
            "tools_call",
            "sep-2322-client-request-state",
            "http-standard-headers",
            "http-custom-headers",
            "http-invalid-tool-headers",
            "json-schema-ref-no-deref",
        ],
    ),
];

#[test]
fn servers_of_both_revisions_are_spoken_to_as_the_suite_wants_it() {
    let test = "servers_of_both_revisions_are_spoken_to_as_the_suite_wants_it";
    let Some(peers) = Peers::of(test, &["/conformance"]) else {
        return;
    };
    for (revision, scenarios) in SCENARIOS {
        for scenario in scenarios {
            let checks = visited(&peers, revision, scenario);
            let judged = checks
                .iter()
                .filter(|check| !matches!(check["status"].as_str(), Some("INFO" | "SKIPPED")));
            let mut passed = 0;
            for check in judged {
                assert_eq!(check["status"], "SUCCESS", "{revision} {scenario}: {check}");
                passed += 1;
            }
            assert!(passed > 0, "{revision} {scenario} checks nothing");
        }
    }
}

/// Visits the server of one scenario and returns what the suite says of it.
fn visited(peers: &Peers, revision: &str, scenario: &str) -> Vec<Value> {
    let out = TempDir::new().unwrap();
    let command = format!("{} __visit", bowline().display());
    let child = Command::new(peers.path("/node"))
        .arg(peers.path("/conformance"))
        .args(["client", "--command", &command, "--scenario", scenario])
        .args(["--spec-version", revision, "--timeout", "120000"])
        .arg("--output-dir")
        .arg(out.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    finish("conformance", child);
    let mut entries = std::fs::read_dir(out.path()).unwrap();
    let entry = entries.next().expect("one scenario was run").unwrap();
    let text = std::fs::read(entry.path().join("checks.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}
