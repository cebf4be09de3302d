//! Executors end to end: servers that only another process can reach, called through a gateway.

mod codex;
mod hosted_servers;
mod identity;
mod limits;
mod listening_executors;
mod process_limits;

use bowline_testkit::gateway::{
    Executor, FixtureServer, Gateway, HttpConnection, Session, executor_server_config,
};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::events::EventWatcher;
use crate::streams::next_event;

/// An empty policy.
const ROLE: &str = "[roles.none]\nallow = []\n";

/// Arguments for executor access to a server.
fn allow_arguments(served: &FixtureServer) -> [String; 2] {
    ["--allow".to_owned(), served.address().to_string()]
}

/// A server, a gateway in front, and the executor `office` between.
pub(crate) fn start_office() -> (FixtureServer, Gateway, Executor) {
    let served = FixtureServer::start(&[]);
    let gateway = Gateway::start(&(executor_server_config("far", &served, "office") + ROLE));
    let token = gateway.executor_token("office");
    let [flag, place] = allow_arguments(&served);
    let executor = Executor::join(&gateway, "office", &token, "", &[&flag, &place]);
    (served, gateway, executor)
}

#[test]
fn joined_executor_reaches_server_in_its_network() {
    let (served, gateway, executor) = start_office();
    let ready = &executor.ready;
    assert_eq!(ready["event"], "ready", "{ready}");
    assert_eq!(ready["connected"], true, "{ready}");
    assert_eq!(ready["name"], "office", "{ready}");
    let status = gateway.wait_for_state("far", "ready");
    assert_eq!(status["transport"], "http", "{status}");
    let command = status["command"].as_str().unwrap();
    assert!(command.ends_with("via executor:office"), "{command}");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("far__echo", &json!({"message": "hi"})),
        "hi"
    );
    assert_eq!(session.call_text("far__add", &json!({"a": 1, "b": 2})), "3");
    let big = session.call_text("far__big", &json!({"bytes": 3_000_000}));
    assert_eq!(big.len(), 3_000_000);

    let shown = gateway.executor_status("office");
    assert_eq!(shown["via"], "joined", "{shown}");
    assert_eq!(shown["protocol"], "bowline", "{shown}");
    assert_eq!(shown["used_by"], json!(["far"]), "{shown}");
    assert!(shown["opened"].as_u64().unwrap() > 3, "{shown}");
    assert!(
        shown["received_bytes"].as_u64().unwrap() > 3_000_000,
        "{shown}"
    );
    let table = gateway.run_cli(&["executor", "ls"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("office") && table.contains("joined"),
        "{table}"
    );
    let status = gateway.get_api("/api/v1/status");
    assert_eq!(status["executors"], json!({"known": 1, "connected": 1}));
    drop(served);
}

/// A call without the server's executor names the cause; the server recovers when the executor
/// joins.
#[test]
fn server_of_absent_executor_recovers_on_join() {
    let served = FixtureServer::start(&[]);
    let gateway = Gateway::start(&(executor_server_config("far", &served, "office") + ROLE));
    let mut session = gateway.open_session("/servers/far/mcp");
    let away = session.call("echo", &json!({"message": "hi"}));
    let error = &away["error"];
    assert_eq!(error["data"]["execution"], "not_started", "{away}");
    assert!(
        error["message"].as_str().unwrap().contains("office"),
        "{away}"
    );
    let shown = gateway.executor_status("office");
    assert_eq!(shown["connected"], false, "{shown}");
    let status = String::from_utf8(gateway.run_cli(&["status"]).stdout).unwrap();
    assert!(status.contains("0 executors connected, 1 away"), "{status}");
    assert!(!status.contains("no valid answer"), "{status}");
    let listed = String::from_utf8(gateway.run_cli(&["executor", "ls"]).stdout).unwrap();
    let line = listed.lines().find(|line| line.starts_with("office"));
    let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words.get(1), Some(&"away"), "{listed}");

    let token = gateway.executor_token("office");
    let [flag, place] = allow_arguments(&served);
    let _executor = Executor::join(&gateway, "office", &token, "", &[&flag, &place]);
    gateway.wait_for_state("far", "ready");
    assert_eq!(session.call_text("echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn killed_executor_serves_again_after_restart() {
    let (_served, gateway, mut executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/servers/far/mcp");
    assert_eq!(session.call_text("echo", &json!({"message": "1"})), "1");
    executor.kill();
    gateway.wait_for_executor("office", false);
    let lost = gateway.executor_status("office");
    assert!(lost["lost"].is_string(), "{lost}");
    executor.restart();
    gateway.wait_for_executor("office", true);
    wait_until("it is called again", || {
        let answer = session.call("echo", &json!({"message": "2"}));
        answer["result"]["content"][0]["text"] == "2"
    });
}

#[test]
fn read_interrupted_by_executor_kill_is_retried() {
    let (_served, gateway, mut executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let (address, token) = (gateway.address, gateway.token.clone());
    let calling = std::thread::spawn(move || {
        let mut session = Session::open(address, "/servers/far/mcp", Some(&token));
        session.call("slow", &json!({"ms": 1_500, "message": "done"}))
    });
    wait_until("it runs", || gateway.server_status("far")["in_flight"] == 1);
    executor.kill();
    executor.restart();
    let answer = calling.join().unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
}

/// A write in flight when its executor is killed is reported as unknown and not sent again.
#[test]
fn write_interrupted_by_executor_kill_is_unknown() {
    let (_served, gateway, mut executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let (address, token) = (gateway.address, gateway.token.clone());
    let calling = std::thread::spawn(move || {
        let mut session = Session::open(address, "/servers/far/mcp", Some(&token));
        session.call("effect", &json!({"key": "once", "ms": 60_000}))
    });
    wait_until("it runs", || gateway.server_status("far")["in_flight"] == 1);
    executor.kill();
    let answer = calling.join().unwrap();
    assert_eq!(answer["error"]["data"]["execution"], "unknown", "{answer}");
}

#[test]
fn killed_gateway_regains_its_executor() {
    let (_served, mut gateway, _executor) = start_office();
    gateway.wait_for_state("far", "ready");
    gateway.kill();
    gateway.restart_same_address();
    gateway.wait_for_executor("office", true);
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/servers/far/mcp");
    assert_eq!(session.call_text("echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn stopped_executor_leaves_in_order() {
    let (_served, gateway, mut executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let mut watcher = EventWatcher::start(&gateway);
    assert!(executor.stop());
    let told = watcher.next_matching(|told| told.name == "executor");
    assert_eq!(told.data["name"], "office", "{told:?}");
    assert_eq!(told.data["state"], "left", "{told:?}");
    let answer = gateway
        .open_session("/servers/far/mcp")
        .call("echo", &json!({"message": "hi"}));
    assert_eq!(
        answer["error"]["data"]["execution"], "not_started",
        "{answer}"
    );
}

/// List changes and the notifications of a call pass through an executor.
#[test]
fn notifications_pass_through_executor() {
    let (_served, gateway, _executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/mcp");
    let mut stream = session.open_stream();
    next_event(&mut stream).unwrap();
    session.call("far__test_trigger_tool_change", &json!({}));
    while next_event(&mut stream).unwrap().data_json()["method"]
        != "notifications/tools/list_changed"
    {}
    let progress = session.post(&json!({
        "jsonrpc": "2.0", "id": 9, "method": "tools/call",
        "params": {"name": "far__test_tool_with_progress", "arguments": {},
            "_meta": {"progressToken": "p"}},
    }));
    let events = progress.events();
    let told = |event: &&Value| event["params"]["progressToken"] == "p";
    assert_eq!(events.iter().filter(told).count(), 3, "{events:?}");
}

#[test]
fn executor_traffic_has_metrics() {
    let (_served, gateway, _executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let bearer = format!("Bearer {}", gateway.token);
    let mut http = HttpConnection::connect(gateway.address);
    let text = http.get("/metrics", &[("Authorization", &bearer)]).text();
    for series in [
        "bowline_executors 1",
        "bowline_executor_streams ",
        "bowline_executor_opened_total ",
        "bowline_executor_bytes_total{way=\"received\"} ",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
}
