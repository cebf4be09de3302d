//! The official conformance suite, against any URL; here against the fixture itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use bowline_testkit::gateway::FixtureServer;
use serde_json::Value;
use tempfile::TempDir;

use super::PeerManifest;
use super::clients::wait_for_success;

/// Time limit of a scenario: generous, because other tests use the machine too.
const SCENARIO_MS_MAX: &str = "120000";

/// The suite names a folder after the scenario and this many characters of time.
const TIME_CHARS: usize = "-2026-01-01T00-00-00-000Z".len();

/// Required server scenarios of 2025-11-25.
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

/// Scenarios without a score.
const NOT_SCORED: [&str; 3] = [
    "server-session-lifecycle",
    "json-schema-2020-12",
    "server-sse-polling",
];

/// Scenarios new in 2025-11-25.
const NEW_IN_2025_11_25: [&str; 4] = [
    "elicitation-sep1034-defaults",
    "server-sse-multiple-streams",
    "elicitation-sep1330-enums",
    "dns-rebinding-protection",
];

/// Required server scenarios of 2026-07-28.
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

/// Scenarios without a score.
pub(super) const NOT_SCORED_MODERN: [&str; 13] = [
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    UNWRITTEN_SCENARIO,
    "tasks-required-task-error",
    "tasks-mrtr-composition",
    "json-schema-2020-12",
    "http-header-validation",
    "http-custom-header-server-validation",
];

/// An unwritten scenario without checks.
const UNWRITTEN_SCENARIO: &str = "tasks-status-notifications";

/// A scenario with half-second limits: after a failure on a busy machine, the scenario is repeated
/// alone.
const TIME_LIMITED_SCENARIO: &str = "server-stateless";
const TIME_LIMITED_RETRIES_MAX: usize = 3;

/// The era of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolEra {
    Legacy,
    Modern,
}

impl ProtocolEra {
    pub(super) fn revision(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }

    pub(super) fn required_suites(self) -> &'static [&'static str] {
        match self {
            Self::Legacy => &REQUIRED,
            Self::Modern => &REQUIRED_MODERN,
        }
    }

    pub(super) fn unscored_scenarios(self) -> &'static [&'static str] {
        match self {
            Self::Legacy => &NOT_SCORED,
            Self::Modern => &NOT_SCORED_MODERN,
        }
    }
}

/// A scenario, or some checks, that cannot pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exemption {
    pub(super) scenario: &'static str,
    /// The checks; all if empty.
    pub(super) checks: &'static [&'static str],
}

#[test]
fn fixture_passes_whole_suite() {
    let test = "fixture_passes_whole_suite";
    let Some(peers) = PeerManifest::load(test, &["/conformance"]) else {
        return;
    };
    let mut fixture = FixtureServer::start(&["--era", "legacy"]);
    assert_conforms(&peers, &fixture.url);
    assert!(fixture.stop(), "the fixture does not end well");
}

#[test]
fn modern_fixture_passes_whole_suite() {
    let test = "modern_fixture_passes_whole_suite";
    let Some(peers) = PeerManifest::load(test, &["/conformance"]) else {
        return;
    };
    let mut fixture = FixtureServer::start(&["--era", "modern"]);
    assert_suite_passes(&peers, &fixture.url, ProtocolEra::Modern, &[], |_| false);
    assert!(fixture.stop(), "the fixture does not end well");
}

#[test]
fn dual_era_fixture_passes_both_suites() {
    let test = "dual_era_fixture_passes_both_suites";
    let Some(peers) = PeerManifest::load(test, &["/conformance"]) else {
        return;
    };
    let fixture = FixtureServer::start(&["--era", "both"]);
    for wire in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        assert_suite_passes(&peers, &fixture.url, wire, &[], |_| false);
    }
}

/// Runs both suites against this URL; everything must pass.
pub(super) fn assert_conforms(peers: &PeerManifest, url: &str) {
    assert_suite_passes(peers, url, ProtocolEra::Legacy, &[], |_| false);
    let seen = run_suite(
        peers,
        url,
        &["--suite", "all", "--spec-version", "2025-06-18"],
    );
    let older = REQUIRED
        .iter()
        .filter(|scenario| !NEW_IN_2025_11_25.contains(scenario));
    assert_scenarios(&seen, older.chain(&["server-session-lifecycle"]), &[]);
}

/// Runs the required and the unscored scenarios of a revision against this URL; exempt checks must
/// fail, skipped scenarios are ignored, all others must pass.
pub(super) fn assert_suite_passes(
    peers: &PeerManifest,
    url: &str,
    wire: ProtocolEra,
    cannot: &[Exemption],
    leaves_out: impl Fn(&str) -> bool,
) {
    let mut seen = run_suite(peers, url, &["--requirements", wire.revision()]);
    for _ in 0..TIME_LIMITED_RETRIES_MAX {
        let failed = seen
            .get(TIME_LIMITED_SCENARIO)
            .is_some_and(|checks| checks.iter().any(is_failed));
        if failed {
            let revision = wire.revision();
            seen.extend(run_suite(
                peers,
                url,
                &[
                    "--spec-version",
                    revision,
                    "--scenario",
                    TIME_LIMITED_SCENARIO,
                ],
            ));
        }
    }
    seen.retain(|scenario, _| !leaves_out(scenario));
    let wanted = wire
        .required_suites()
        .iter()
        .chain(wire.unscored_scenarios());
    assert_scenarios(
        &seen,
        wanted.filter(|scenario| !leaves_out(scenario)),
        cannot,
    );
}

/// The checks of a run, by scenario.
type ScenarioChecks = BTreeMap<String, Vec<Value>>;

/// Runs a suite to the end and returns the checks.
fn run_suite(peers: &PeerManifest, url: &str, selection: &[&str]) -> ScenarioChecks {
    let out = TempDir::new().unwrap();
    let child = Command::new(peers.peer_path("/node"))
        .arg(peers.peer_path("/conformance"))
        .args(["server", "--url", url, "--timeout", SCENARIO_MS_MAX])
        .args(selection)
        .arg("--output-dir")
        .arg(out.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A nonzero exit code means a failed check.
    wait_for_success("conformance", child);
    read_checks(out.path())
}

fn read_checks(out: &Path) -> ScenarioChecks {
    let mut checks = ScenarioChecks::new();
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

fn is_failed(check: &Value) -> bool {
    let status = check["status"].as_str().unwrap();
    matches!(status, "FAILURE" | "WARNING" | "SKIPPED")
}

/// Every scenario was run and has checks; all checks passed, except the exempt checks, which must
/// fail.
fn assert_scenarios<'a>(
    seen: &ScenarioChecks,
    scenarios: impl Iterator<Item = &'a &'a str>,
    cannot: &[Exemption],
) {
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
        let is_bad = |check: &Value| scenario != UNWRITTEN_SCENARIO && is_failed(check);
        let is_excused = |check: &Value| {
            let id = check["id"].as_str().unwrap();
            let named = |one: &&Exemption| one.checks.is_empty() || one.checks.contains(&id);
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
        if !passed && !whole && scenario != UNWRITTEN_SCENARIO {
            wrong.push(format!("{scenario} has no checks"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
