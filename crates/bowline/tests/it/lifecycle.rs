//! Lifecycle of real servers: lists that outlive the gateway, failing starts, endless crashes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, fixture_config, server_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

fn tool_names(list: &Value) -> Vec<String> {
    let tools = list["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

fn error_code(answer: &Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_default()
}

#[test]
fn restarted_gateway_lists_lazy_server_unstarted() {
    let mut gateway = Gateway::start(&(fixture_config("rare", &[]) + "lazy = true\n"));
    assert_eq!(gateway.server_status("rare")["state"], "idle");
    // The server was never seen, so the first list starts it.
    let list = gateway
        .open_session("/mcp")
        .request("tools/list", &json!({}));
    let before = tool_names(&list);
    assert!(before.contains(&"rare__echo".to_owned()), "{list}");
    assert_eq!(gateway.server_status("rare")["state"], "ready");
    let file = gateway.state_dir().join("manifests/rare.json");
    wait_until("what it offers is kept", || file.exists());
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);

    gateway.restart_after_kill();
    let mut session = gateway.open_session("/mcp");
    let again = session.request("tools/list", &json!({}));
    assert_eq!(again["result"], list["result"], "byte for byte the same");
    let status = gateway.server_status("rare");
    assert_eq!(status["state"], "idle", "{status}");
    assert_eq!(status["pid"], Value::Null, "{status}");
    assert_eq!(status["tools"].as_u64().unwrap() as usize, before.len());
    let said = session.call_text("rare__echo", &json!({"message": "awake"}));
    assert_eq!(said, "awake");
    assert_eq!(gateway.server_status("rare")["generation"], 1);
}

/// A manifest that is damaged or of another server is ignored and written again.
#[test]
fn damaged_manifest_is_ignored_and_rewritten() {
    let mut gateway = Gateway::start(&(fixture_config("rare", &[]) + "lazy = true\n"));
    let file = gateway.state_dir().join("manifests/rare.json");
    gateway
        .open_session("/mcp")
        .request("tools/list", &json!({}));
    wait_until("what it offers is kept", || file.exists());
    gateway.kill();
    std::fs::write(&file, b"{\"v\":1,\"server\":\"rare\",\"dig").unwrap();
    gateway.restart_after_kill();
    let api = gateway.get_api("/api/v1/servers");
    assert_eq!(api["servers"][0]["tools"], 0, "{api}");
    let list = gateway
        .open_session("/mcp")
        .request("tools/list", &json!({}));
    assert!(
        tool_names(&list).contains(&"rare__echo".to_owned()),
        "{list}"
    );
    wait_until("it is whole again", || {
        std::fs::read(&file).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
    });
}

#[test]
fn exit_before_handshake_shows_stderr_and_retries() {
    let restart = "restart = { budget = 2, window = \"5m\", backoff = \"50ms..100ms\" }\n";
    let config = fixture_config("early", &["--fault", "exit-at-start=3"]) + restart;
    let gateway = Gateway::start(&config);
    wait_until("the budget is spent", || {
        gateway.server_status("early")["retry_after_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 60_000)
    });
    let status = gateway.server_status("early");
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
    let answer = gateway.open_session("/mcp").call("early__echo", &json!({}));
    assert_eq!(error_code(&answer), "start_failed", "{answer}");
    let told = answer["error"]["message"].as_str().unwrap();
    assert_eq!(told.matches("`early`").count(), 1, "named once: {told}");
}

/// A shell server that records each start, then runs `script`.
fn start_counting_server(dir: &Path, name: &str, script: &str) -> String {
    let file = dir.join("server.sh");
    std::fs::write(&file, format!("echo start >>starts\n{script}\n")).unwrap();
    let open = format!("sandbox = \"off\"\ncwd = \"{}\"\n", dir.display());
    server_config(name, Path::new("sh"), &[file.to_str().unwrap()]) + &open
}

fn count_starts(dir: &Path) -> usize {
    let noted = std::fs::read_to_string(dir.join("starts")).unwrap_or_default();
    noted.lines().count()
}

/// Completes the handshake and lists no tools; ignores every other message.
const QUIET_SERVER: &str = r#"
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
    let gateway = Gateway::start(&(start_counting_server(dir.path(), "early", "exit 3") + restart));
    wait_until("the budget is spent", || {
        gateway.server_status("early")["retry_after_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 60_000)
    });
    assert_eq!(count_starts(dir.path()), 6, "the first start and five more");
    let dir = tempfile::tempdir().unwrap();
    // The server serves once, and exits at each later start.
    let script =
        format!("[ $(wc -l <starts) -gt 1 ] && exit 3; (sleep 1; kill $$) & {QUIET_SERVER}");
    let gateway = Gateway::start(&(start_counting_server(dir.path(), "late", &script) + restart));
    gateway.wait_for_state("late", "ejected");
    assert_eq!(count_starts(dir.path()), 6, "the first start and five more");
}

#[test]
fn quiet_legacy_server_starts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::start(&start_counting_server(dir.path(), "quiet", QUIET_SERVER));
    for life in 1..=2 {
        let begun = Instant::now();
        let status = gateway.wait_for_state("quiet", "ready");
        eprintln!("life {life}: ready {:?} after the gateway", begun.elapsed());
        assert_eq!(status["era"], "legacy", "{status}");
        assert_eq!(count_starts(dir.path()), life, "one process for each start");
        // The start does not wait for a response to `server/discover`, which takes three seconds.
        assert!(begun.elapsed() < Duration::from_millis(2_500));
        assert!(gateway.stop());
        gateway.restart();
    }
}

#[test]
fn missing_program_costs_no_restart() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let restart = "restart = { budget = 1, window = \"5m\", backoff = \"10ms..20ms\" }\n";
    let gateway = Gateway::start(&(server_config("absent", &program, &[]) + restart));
    let status = gateway.wait_for_state("absent", "backoff");
    assert_eq!(
        status["last_error"]["code"], "program_not_found",
        "{status}"
    );
    let message = status["last_error"]["message"].as_str().unwrap();
    assert!(message.contains(program.to_str().unwrap()), "{message}");
    assert_eq!(status["generation"], 1, "{status}");
    assert_eq!(status["restart_count"], 0, "{status}");
    assert!(status["retry_after_ms"].as_u64() > Some(30_000), "{status}");
    let answer = gateway
        .open_session("/mcp")
        .call("absent__echo", &json!({}));
    assert_eq!(error_code(&answer), "program_not_found", "{answer}");
    assert_eq!(answer["error"]["data"]["execution"], "not_started");

    // A start command looks for the program at once, any number of times.
    for generation in 2..5 {
        gateway.control_server("absent", "restart");
        let status = gateway.wait_for_state("absent", "backoff");
        assert_eq!(status["generation"], generation, "{status}");
        assert_eq!(status["restart_count"], 0, "{status}");
    }
}

#[test]
fn crash_looping_server_is_ejected_and_unlisted() {
    let restart = "restart = { budget = 1, window = \"5m\", backoff = \"10ms..20ms\" }\n";
    let config = fixture_config("frail", &["--fault", "crash-after=1"]) + restart;
    let gateway = Gateway::start(&(config + &fixture_config("good", &[])));
    gateway.wait_for_state("good", "ready");
    let mut session = gateway.open_session("/mcp");
    for _ in 0..2 {
        gateway.wait_for_state("frail", "ready");
        session.call("frail__echo", &json!({"message": "hi"}));
    }
    let status = gateway.wait_for_state("frail", "ejected");
    assert_eq!(status["last_error"]["class"], "connection_lost");
    let list = session.request("tools/list", &json!({}));
    let listed = tool_names(&list);
    assert!(!listed.iter().any(|name| name.starts_with("frail__")));
    assert!(listed.contains(&"good__echo".to_owned()), "{listed:?}");
    let answer = session.call("frail__echo", &json!({}));
    assert_eq!(error_code(&answer), "server_ejected", "{answer}");
    gateway.control_server("frail", "restart");
    gateway.wait_for_state("frail", "ready");
}
