//! The life of real servers: lists that outlive the gateway, starts that fail, crashes that do
//! not end.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, eventually, fixture, server};

fn names(list: &Value) -> Vec<String> {
    let tools = list["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

fn code(answer: &Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_default()
}

#[test]
fn a_lazy_server_is_listed_at_once_after_a_restart_and_started_by_its_first_call() {
    let mut gateway = Gateway::up(&(fixture("rare", &[]) + "lazy = true\n"));
    assert_eq!(gateway.status("rare")["state"], "idle");
    // Nobody has ever seen it: the first list starts it.
    let list = gateway.session("/mcp").request("tools/list", &json!({}));
    let before = names(&list);
    assert!(before.contains(&"rare__echo".to_owned()), "{list}");
    assert_eq!(gateway.status("rare")["state"], "ready");
    let file = gateway.state().join("manifests/rare.json");
    eventually("what it offers is kept", || file.exists());
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);

    gateway.restart_after_kill();
    let mut session = gateway.session("/mcp");
    let again = session.request("tools/list", &json!({}));
    assert_eq!(again["result"], list["result"], "byte for byte the same");
    let status = gateway.status("rare");
    assert_eq!(status["state"], "idle", "{status}");
    assert_eq!(status["pid"], Value::Null, "{status}");
    assert_eq!(status["tools"].as_u64().unwrap() as usize, before.len());
    let said = session.text("rare__echo", &json!({"message": "awake"}));
    assert_eq!(said, "awake");
    assert_eq!(gateway.status("rare")["generation"], 1);
}

#[test]
fn a_damaged_or_foreign_manifest_is_left_out_and_written_anew() {
    let mut gateway = Gateway::up(&(fixture("rare", &[]) + "lazy = true\n"));
    let file = gateway.state().join("manifests/rare.json");
    gateway.session("/mcp").request("tools/list", &json!({}));
    eventually("what it offers is kept", || file.exists());
    gateway.kill();
    std::fs::write(&file, b"{\"v\":1,\"server\":\"rare\",\"dig").unwrap();
    gateway.restart_after_kill();
    let api = gateway.api("/api/v1/servers");
    assert_eq!(api["servers"][0]["tools"], 0, "{api}");
    let list = gateway.session("/mcp").request("tools/list", &json!({}));
    assert!(names(&list).contains(&"rare__echo".to_owned()), "{list}");
    eventually("it is whole again", || {
        std::fs::read(&file).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
    });
}

#[test]
fn an_exit_before_the_handshake_is_named_with_its_last_words_and_retried() {
    let restart = "restart = { budget = 2, window = \"5m\", backoff = \"50ms..100ms\" }\n";
    let config = fixture("early", &["--fault", "exit-at-start=3"]) + restart;
    let gateway = Gateway::up(&config);
    eventually("the budget is spent", || {
        gateway.status("early")["retry_after_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 60_000)
    });
    let status = gateway.status("early");
    assert_eq!(status["state"], "backoff", "it is not given up: {status}");
    assert_eq!(status["generation"], 3, "one start and two restarts");
    assert_eq!(status["last_error"]["class"], "connect_failed");
    let message = status["last_error"]["message"].as_str().unwrap();
    for part in [
        "ended before the handshake",
        "exit code 3",
        "fixture: told to exit at start",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let answer = gateway.session("/mcp").call("early__echo", &json!({}));
    assert_eq!(code(&answer), "start_failed", "{answer}");
    let told = answer["error"]["message"].as_str().unwrap();
    assert_eq!(told.matches("`early`").count(), 1, "named once: {told}");
}

/// A server in the shell that notes each of its starts, and runs `script` after that.
fn counted(dir: &Path, name: &str, script: &str) -> String {
    let file = dir.join("server.sh");
    std::fs::write(&file, format!("echo start >>starts\n{script}\n")).unwrap();
    let open = format!("sandbox = \"off\"\ncwd = \"{}\"\n", dir.display());
    server(name, Path::new("sh"), &[file.to_str().unwrap()]) + &open
}

fn starts(dir: &Path) -> usize {
    let noted = std::fs::read_to_string(dir.join("starts")).unwrap_or_default();
    noted.lines().count()
}

/// Shakes hands and lists no tools; quiet to whatever else it is sent.
const QUIET: &str = r#"
while read -r line; do
  id="${line#*\"id\":}"; id="${id%%,*}"
  case "$line" in
    *'"initialize"'*) printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"q","version":"1"}}}' ;;
    *'"tools/list"'*) printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"result":{"tools":[]}}' ;;
    *'"tools/call"'*) exit 5 ;;
  esac
done"#;

#[test]
fn failing_starts_stay_within_restart_budget() {
    let dir = tempfile::tempdir().unwrap();
    let restart = "restart = { budget = 5, window = \"5m\", backoff = \"10ms..20ms\" }\n";
    let gateway = Gateway::up(&(counted(dir.path(), "early", "exit 3") + restart));
    eventually("the budget is spent", || {
        gateway.status("early")["retry_after_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 60_000)
    });
    assert_eq!(starts(dir.path()), 6, "the first start and five more");
    let dir = tempfile::tempdir().unwrap();
    // It serves once, and ends at each later start.
    let script = format!("[ $(wc -l <starts) -gt 1 ] && exit 3; (sleep 1; kill $$) & {QUIET}");
    let gateway = Gateway::up(&(counted(dir.path(), "late", &script) + restart));
    gateway.wait_for("late", "ejected");
    assert_eq!(starts(dir.path()), 6, "the first start and five more");
}

#[test]
fn quiet_legacy_server_starts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::up(&counted(dir.path(), "quiet", QUIET));
    for life in 1..=2 {
        let begun = Instant::now();
        let status = gateway.wait_for("quiet", "ready");
        eprintln!("life {life}: ready {:?} after the gateway", begun.elapsed());
        assert_eq!(status["era"], "legacy", "{status}");
        assert_eq!(starts(dir.path()), life, "one process for each start");
        // Nobody waits for a response to `server/discover`, which took three seconds.
        assert!(begun.elapsed() < Duration::from_millis(2_500));
        assert!(gateway.stop());
        gateway.restart();
    }
}

#[test]
fn missing_program_is_no_crash_and_costs_no_restart() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let restart = "restart = { budget = 1, window = \"5m\", backoff = \"10ms..20ms\" }\n";
    let gateway = Gateway::up(&(server("absent", &program, &["fixture"]) + restart));
    let status = gateway.wait_for("absent", "backoff");
    assert_eq!(
        status["last_error"]["code"], "program_not_found",
        "{status}"
    );
    let message = status["last_error"]["message"].as_str().unwrap();
    assert!(message.contains(program.to_str().unwrap()), "{message}");
    assert_eq!(status["generation"], 1, "{status}");
    assert_eq!(status["restart_count"], 0, "{status}");
    assert!(status["retry_after_ms"].as_u64() > Some(30_000), "{status}");
    let answer = gateway.session("/mcp").call("absent__echo", &json!({}));
    assert_eq!(code(&answer), "program_not_found", "{answer}");
    assert_eq!(answer["error"]["data"]["execution"], "not_started");

    // An order looks for the program at once, and as often as a person likes.
    for generation in 2..5 {
        gateway.order("absent", "restart");
        let status = gateway.wait_for("absent", "backoff");
        assert_eq!(status["generation"], generation, "{status}");
        assert_eq!(status["restart_count"], 0, "{status}");
    }
}

#[test]
fn a_server_that_serves_and_crashes_again_and_again_is_ejected_and_not_listed() {
    let restart = "restart = { budget = 1, window = \"5m\", backoff = \"10ms..20ms\" }\n";
    let config = fixture("frail", &["--fault", "crash-after=1"]) + restart;
    let gateway = Gateway::up(&(config + &fixture("good", &[])));
    gateway.wait_for("good", "ready");
    let mut session = gateway.session("/mcp");
    for _ in 0..2 {
        gateway.wait_for("frail", "ready");
        session.call("frail__echo", &json!({"message": "hi"}));
    }
    let status = gateway.wait_for("frail", "ejected");
    assert_eq!(status["last_error"]["class"], "connection_lost");
    let list = session.request("tools/list", &json!({}));
    let listed = names(&list);
    assert!(!listed.iter().any(|name| name.starts_with("frail__")));
    assert!(listed.contains(&"good__echo".to_owned()), "{listed:?}");
    let answer = session.call("frail__echo", &json!({}));
    assert_eq!(code(&answer), "server_ejected", "{answer}");
    gateway.order("frail", "restart");
    gateway.wait_for("frail", "ready");
}
