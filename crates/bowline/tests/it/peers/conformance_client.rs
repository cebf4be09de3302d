//! The gateway as a client, checked by the official conformance suite.

use std::process::{Command, Stdio};

use bowline_testkit::gateway::bowline_binary;
use serde_json::Value;
use tempfile::TempDir;

use super::PeerManifest;
use super::clients::wait_for_success;

/// Client scenarios of each revision, without authorization.
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
fn call_url_passes_client_suite_in_both_revisions() {
    let test = "call_url_passes_client_suite_in_both_revisions";
    let Some(peers) = PeerManifest::load(test, &["/conformance"]) else {
        return;
    };
    for (revision, scenarios) in SCENARIOS {
        for scenario in scenarios {
            let checks = run_scenario(&peers, revision, scenario);
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

/// Calls the server of a scenario and returns the suite's checks.
fn run_scenario(peers: &PeerManifest, revision: &str, scenario: &str) -> Vec<Value> {
    let out = TempDir::new().unwrap();
    let command = format!("{} __visit", bowline_binary().display());
    let child = Command::new(peers.peer_path("/node"))
        .arg(peers.peer_path("/conformance"))
        .args(["client", "--command", &command, "--scenario", scenario])
        .args(["--spec-version", revision, "--timeout", "120000"])
        .arg("--output-dir")
        .arg(out.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_success("conformance", child);
    let mut entries = std::fs::read_dir(out.path()).unwrap();
    let entry = entries.next().expect("one scenario was run").unwrap();
    let text = std::fs::read(entry.path().join("checks.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}
