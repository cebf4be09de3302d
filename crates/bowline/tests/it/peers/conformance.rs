//! The official conformance suite, against any URL; here against the fixture itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::Peers;
use super::clients::finish;
use crate::harness::served::Served;

/// Longest run of one scenario: ample, as other tests use the machine too.
const SCENARIO_MS_MAX: &str = "120000";

/// The suite names a folder after the scenario and this many characters of time.
const TIME_CHARS: usize = "-2026-01-01T00-00-00-000Z".len();

/// What 2025-11-25 requires of servers.
const REQUIRED: [&str; 30] = [
    "server-initialize",
    "logging-set-level",
    "ping",
    "completion-complete",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-with-logging",
    "tools-call-error",
    "tools-call-with-progress",
    "tools-call-sampling",
    "tools-call-elicitation",
    "elicitation-sep1034-defaults",
    "server-sse-multiple-streams",
    "elicitation-sep1330-enums",
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "resources-subscribe",
    "resources-unsubscribe",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "dns-rebinding-protection",
];

/// What it runs besides, without counting it.
const NOT_SCORED: [&str; 3] = [
    "server-session-lifecycle",
    "json-schema-2020-12",
    "server-sse-polling",
];

/// Scenarios that came only with 2025-11-25.
const NEW_IN_2025_11_25: [&str; 4] = [
    "elicitation-sep1034-defaults",
    "server-sse-multiple-streams",
    "elicitation-sep1330-enums",
    "dns-rebinding-protection",
];

#[test]
fn the_fixture_passes_the_whole_suite() {
    let test = "the_fixture_passes_the_whole_suite";
    let Some(peers) = Peers::of(test, &["/conformance"]) else {
        return;
    };
    let mut fixture = Served::start(&["--era", "legacy"]);
    conforms(&peers, &fixture.url);
    assert!(fixture.stop(), "the fixture does not end well");
}

/// Runs both suites against this URL; everything must pass.
pub(super) fn conforms(peers: &Peers, url: &str) {
    let seen = run(peers, url, &["--requirements", "2025-11-25"]);
    judge(&seen, REQUIRED.iter().chain(&NOT_SCORED));
    let seen = run(
        peers,
        url,
        &["--suite", "all", "--spec-version", "2025-06-18"],
    );
    let older = REQUIRED
        .iter()
        .filter(|scenario| !NEW_IN_2025_11_25.contains(scenario));
    judge(&seen, older.chain(&["server-session-lifecycle"]));
}

/// The checks of a run, by scenario.
type Checks = BTreeMap<String, Vec<Value>>;

/// Runs a suite to its end and returns what it wrote down.
fn run(peers: &Peers, url: &str, selection: &[&str]) -> Checks {
    let out = TempDir::new().unwrap();
    let child = Command::new(peers.path("/node"))
        .arg(peers.path("/conformance"))
        .args(["server", "--url", url, "--timeout", SCENARIO_MS_MAX])
        .args(selection)
        .arg("--output-dir")
        .arg(out.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // An exit code other than 0 means a failed check.
    finish("conformance", child);
    read(out.path())
}

fn read(out: &Path) -> Checks {
    let mut checks = Checks::new();
    for entry in std::fs::read_dir(out).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let scenario = name.strip_prefix("server-").unwrap();
        let scenario = &scenario[..scenario.len() - TIME_CHARS];
        let text = std::fs::read(entry.path().join("checks.json")).unwrap();
        let found = serde_json::from_slice(&text).unwrap();
        let before = checks.insert(scenario.to_owned(), found);
        assert!(before.is_none(), "{scenario} was run twice");
    }
    checks
}

/// Every scenario was run, has checks, and all that can pass or fail have passed.
fn judge<'a>(seen: &Checks, scenarios: impl Iterator<Item = &'a &'a str>) {
    let mut expected: Vec<&str> = scenarios.copied().collect();
    expected.sort_unstable();
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(names, expected);
    for (scenario, checks) in seen {
        let is_bad = |check: &&Value| {
            let status = check["status"].as_str().unwrap();
            matches!(status, "FAILURE" | "WARNING" | "SKIPPED")
        };
        let bad: Vec<_> = checks.iter().filter(is_bad).collect();
        assert!(bad.is_empty(), "{scenario}: {bad:#?}");
        let passed = checks.iter().any(|check| check["status"] == "SUCCESS");
        assert!(passed, "{scenario} has no checks");
    }
}
