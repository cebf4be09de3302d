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

/// What 2026-07-28 requires of servers.
pub(super) const REQUIRED_MODERN: [&str; 37] = [
    "server-stateless",
    "completion-complete",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "server-sse-multiple-streams",
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "sep-2164-resource-not-found",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "dns-rebinding-protection",
    "caching",
    "input-required-result-basic-elicitation",
    "input-required-result-basic-sampling",
    "input-required-result-basic-list-roots",
    "input-required-result-request-state",
    "input-required-result-multiple-input-requests",
    "input-required-result-multi-round",
    "input-required-result-missing-input-response",
    "input-required-result-non-tool-request",
    "input-required-result-result-type",
    "input-required-result-unsupported-methods",
    "input-required-result-tampered-state",
    "input-required-result-capability-check",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
];

/// What it runs besides, without counting it.
pub(super) const NOT_SCORED_MODERN: [&str; 13] = [
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    SKIPPED_BY_ITSELF,
    "tasks-required-task-error",
    "tasks-mrtr-composition",
    "json-schema-2020-12",
    "http-header-validation",
    "http-custom-header-server-validation",
];

/// A scenario that is not written yet: it says so, and checks nothing.
const SKIPPED_BY_ITSELF: &str = "tasks-status-notifications";

/// A scenario that gives half a second to some answers, which a busy machine may not: it is run
/// again by itself when it fails.
const TIMED: &str = "server-stateless";
const TIMED_AGAIN_MAX: usize = 3;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Legacy,
    Modern,
}

impl Wire {
    pub(super) fn revision(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }

    pub(super) fn required(self) -> &'static [&'static str] {
        match self {
            Self::Legacy => &REQUIRED,
            Self::Modern => &REQUIRED_MODERN,
        }
    }

    pub(super) fn not_scored(self) -> &'static [&'static str] {
        match self {
            Self::Legacy => &NOT_SCORED,
            Self::Modern => &NOT_SCORED_MODERN,
        }
    }
}

/// A scenario, or some checks of it, that cannot pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cannot {
    pub(super) scenario: &'static str,
    /// The checks; all of them when none is named.
    pub(super) checks: &'static [&'static str],
}

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

#[test]
fn the_fixture_of_the_modern_era_passes_the_whole_suite() {
    let test = "the_fixture_of_the_modern_era_passes_the_whole_suite";
    let Some(peers) = Peers::of(test, &["/conformance"]) else {
        return;
    };
    let mut fixture = Served::start(&["--era", "modern"]);
    passes(&peers, &fixture.url, Wire::Modern, &[], |_| false);
    assert!(fixture.stop(), "the fixture does not end well");
}

#[test]
fn the_fixture_of_both_eras_passes_both_suites() {
    let test = "the_fixture_of_both_eras_passes_both_suites";
    let Some(peers) = Peers::of(test, &["/conformance"]) else {
        return;
    };
    let fixture = Served::start(&["--era", "both"]);
    for wire in [Wire::Legacy, Wire::Modern] {
        passes(&peers, &fixture.url, wire, &[], |_| false);
    }
}

/// Runs both suites against this URL; everything must pass.
pub(super) fn conforms(peers: &Peers, url: &str) {
    passes(peers, url, Wire::Legacy, &[], |_| false);
    let seen = run(
        peers,
        url,
        &["--suite", "all", "--spec-version", "2025-06-18"],
    );
    let older = REQUIRED
        .iter()
        .filter(|scenario| !NEW_IN_2025_11_25.contains(scenario));
    judge(&seen, older.chain(&["server-session-lifecycle"]), &[]);
}

/// Runs what a revision requires, and the rest, against this URL; all but what cannot must pass,
/// what cannot must not, and what is left out is not looked at.
pub(super) fn passes(
    peers: &Peers,
    url: &str,
    wire: Wire,
    cannot: &[Cannot],
    leaves_out: impl Fn(&str) -> bool,
) {
    let mut seen = run(peers, url, &["--requirements", wire.revision()]);
    for _ in 0..TIMED_AGAIN_MAX {
        let failed = seen
            .get(TIMED)
            .is_some_and(|checks| checks.iter().any(fails));
        if failed {
            let revision = wire.revision();
            seen.extend(run(
                peers,
                url,
                &["--spec-version", revision, "--scenario", TIMED],
            ));
        }
    }
    seen.retain(|scenario, _| !leaves_out(scenario));
    let wanted = wire.required().iter().chain(wire.not_scored());
    judge(
        &seen,
        wanted.filter(|scenario| !leaves_out(scenario)),
        cannot,
    );
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

fn fails(check: &Value) -> bool {
    let status = check["status"].as_str().unwrap();
    matches!(status, "FAILURE" | "WARNING" | "SKIPPED")
}

/// Every scenario was run, has checks, and all that can pass or fail have passed, except what
/// cannot: that has failed, or it would not stand there.
fn judge<'a>(seen: &Checks, scenarios: impl Iterator<Item = &'a &'a str>, cannot: &[Cannot]) {
    let mut expected: Vec<&str> = scenarios.copied().collect();
    expected.sort_unstable();
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(names, expected);
    let mut wrong = Vec::new();
    for (scenario, checks) in seen {
        let excused: Vec<_> = cannot
            .iter()
            .filter(|cannot| cannot.scenario == scenario)
            .collect();
        let is_bad = |check: &Value| scenario != SKIPPED_BY_ITSELF && fails(check);
        let is_excused = |check: &Value| {
            let id = check["id"].as_str().unwrap();
            let named = |one: &&Cannot| one.checks.is_empty() || one.checks.contains(&id);
            excused.iter().copied().any(|one| named(&one))
        };
        for check in checks.iter().filter(|check| is_bad(check)) {
            if !is_excused(check) {
                let (id, why) = (&check["id"], &check["errorMessage"]);
                wrong.push(format!("{scenario}: {id}: {why}"));
            }
        }
        for one in &excused {
            let failed = |check: &&Value| is_bad(check) && is_excused(check);
            if !checks.iter().any(|check| failed(&check)) {
                wrong.push(format!("{scenario} passes, and stands there as {one:?}"));
            }
        }
        let whole = excused.iter().any(|one| one.checks.is_empty());
        let passed = checks.iter().any(|check| check["status"] == "SUCCESS");
        if !passed && !whole && scenario != SKIPPED_BY_ITSELF {
            wrong.push(format!("{scenario} has no checks"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
