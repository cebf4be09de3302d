//! Executors end to end: servers that only another process can reach, called through a gateway.

mod codex;
mod dialled;
mod identity;
mod kept;
mod limits;
mod placed;

use serde_json::{Value, json};

use crate::events::Watcher;
use crate::harness::executor::{Executor, through};
use crate::harness::served::Served;
use crate::harness::{Gateway, Http, Session, eventually};
use crate::streams::next_event;

/// Rules of a gateway that say nothing.
const ROLE: &str = "[roles.none]\nallow = []\n";

/// Lets the executor reach a server.
fn allow(served: &Served) -> [String; 2] {
    ["--allow".to_owned(), served.address().to_string()]
}

/// A server, a gateway that reaches it through `office`, and that executor.
pub(crate) fn office() -> (Served, Gateway, Executor) {
    let served = Served::start(&[]);
    let gateway = Gateway::up(&(through("far", &served, "office") + ROLE));
    let token = gateway.executor_token("office");
    let [flag, place] = allow(&served);
    let executor = Executor::join(&gateway, ("office", &token), "", &[&flag, &place]);
    (served, gateway, executor)
}

#[test]
fn a_server_in_another_network_is_called_through_an_executor_that_joined() {
    let (served, gateway, executor) = office();
    let ready = &executor.ready;
    assert_eq!(ready["event"], "ready", "{ready}");
    assert_eq!(ready["connected"], true, "{ready}");
    assert_eq!(ready["name"], "office", "{ready}");
    let status = gateway.wait_for("far", "ready");
    assert_eq!(status["transport"], "http", "{status}");
    let command = status["command"].as_str().unwrap();
    assert!(command.ends_with("via executor:office"), "{command}");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("far__echo", &json!({"message": "hi"})), "hi");
    assert_eq!(session.text("far__add", &json!({"a": 1, "b": 2})), "3");
    let big = session.text("far__big", &json!({"bytes": 3_000_000}));
    assert_eq!(big.len(), 3_000_000);

    let shown = gateway.executor("office");
    assert_eq!(shown["via"], "joined", "{shown}");
    assert_eq!(shown["protocol"], "bowline", "{shown}");
    assert_eq!(shown["used_by"], json!(["far"]), "{shown}");
    assert!(shown["opened"].as_u64().unwrap() > 3, "{shown}");
    assert!(
        shown["received_bytes"].as_u64().unwrap() > 3_000_000,
        "{shown}"
    );
    let table = gateway.cli(&["executor", "ls"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("office") && table.contains("joined"),
        "{table}"
    );
    let status = gateway.api("/api/v1/status");
    assert_eq!(status["executors"], json!({"known": 1, "connected": 1}));
    drop(served);
}

#[test]
fn a_server_whose_executor_is_away_is_told_so_and_comes_by_itself_when_it_joins() {
    let served = Served::start(&[]);
    let gateway = Gateway::up(&(through("far", &served, "office") + ROLE));
    let mut session = gateway.session("/servers/far/mcp");
    let away = session.call("echo", &json!({"message": "hi"}));
    let error = &away["error"];
    assert_eq!(error["data"]["execution"], "not_started", "{away}");
    assert!(
        error["message"].as_str().unwrap().contains("office"),
        "{away}"
    );
    let shown = gateway.executor("office");
    assert_eq!(shown["connected"], false, "{shown}");
    let status = String::from_utf8(gateway.cli(&["status"]).stdout).unwrap();
    assert!(status.contains("0 executors connected, 1 away"), "{status}");
    assert!(!status.contains("no valid answer"), "{status}");
    let listed = String::from_utf8(gateway.cli(&["executor", "ls"]).stdout).unwrap();
    let line = listed.lines().find(|line| line.starts_with("office"));
    let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words.get(1), Some(&"away"), "{listed}");

    let token = gateway.executor_token("office");
    let [flag, place] = allow(&served);
    let _executor = Executor::join(&gateway, ("office", &token), "", &[&flag, &place]);
    gateway.wait_for("far", "ready");
    assert_eq!(session.text("echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn an_executor_that_is_killed_is_missed_and_its_next_start_serves_again() {
    let (_served, gateway, mut executor) = office();
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/servers/far/mcp");
    assert_eq!(session.text("echo", &json!({"message": "1"})), "1");
    executor.kill();
    gateway.until_executor("office", false);
    let lost = gateway.executor("office");
    assert!(lost["lost"].is_string(), "{lost}");
    executor.restart();
    gateway.until_executor("office", true);
    eventually("it is called again", || {
        let answer = session.call("echo", &json!({"message": "2"}));
        answer["result"]["content"][0]["text"] == "2"
    });
}

#[test]
fn a_read_in_flight_when_the_executor_is_killed_is_made_again_through_its_next_start() {
    let (_served, gateway, mut executor) = office();
    gateway.wait_for("far", "ready");
    let (address, token) = (gateway.address, gateway.token.clone());
    let calling = std::thread::spawn(move || {
        let mut session = Session::open(address, "/servers/far/mcp", Some(&token));
        session.call("slow", &json!({"ms": 1_500, "message": "done"}))
    });
    eventually("it runs", || gateway.status("far")["in_flight"] == 1);
    executor.kill();
    executor.restart();
    let answer = calling.join().unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
}

#[test]
fn a_write_in_flight_when_the_executor_is_killed_is_told_as_unknown_and_not_made_again() {
    let (_served, gateway, mut executor) = office();
    gateway.wait_for("far", "ready");
    let (address, token) = (gateway.address, gateway.token.clone());
    let calling = std::thread::spawn(move || {
        let mut session = Session::open(address, "/servers/far/mcp", Some(&token));
        session.call("effect", &json!({"key": "once", "ms": 60_000}))
    });
    eventually("it runs", || gateway.status("far")["in_flight"] == 1);
    executor.kill();
    let answer = calling.join().unwrap();
    assert_eq!(answer["error"]["data"]["execution"], "unknown", "{answer}");
}

#[test]
fn a_gateway_that_is_killed_finds_its_executor_again() {
    let (_served, mut gateway, _executor) = office();
    gateway.wait_for("far", "ready");
    gateway.kill();
    gateway.restart_there();
    gateway.until_executor("office", true);
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/servers/far/mcp");
    assert_eq!(session.text("echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn an_executor_that_is_told_to_stop_leaves_in_order() {
    let (_served, gateway, mut executor) = office();
    gateway.wait_for("far", "ready");
    let mut watcher = Watcher::start(&gateway);
    assert!(executor.stop());
    let told = watcher.until(|told| told.name == "executor");
    assert_eq!(told.data["name"], "office", "{told:?}");
    assert_eq!(told.data["state"], "left", "{told:?}");
    let answer = gateway
        .session("/servers/far/mcp")
        .call("echo", &json!({"message": "hi"}));
    assert_eq!(
        answer["error"]["data"]["execution"], "not_started",
        "{answer}"
    );
}

#[test]
fn news_of_a_server_and_what_calls_tell_on_the_way_come_through_an_executor() {
    let (_served, gateway, _executor) = office();
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/mcp");
    let mut stream = session.listen();
    next_event(&mut stream).unwrap();
    session.call("far__test_trigger_tool_change", &json!({}));
    while next_event(&mut stream).unwrap().json()["method"] != "notifications/tools/list_changed" {}
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
fn what_goes_through_executors_is_measured() {
    let (_served, gateway, _executor) = office();
    gateway.wait_for("far", "ready");
    let bearer = format!("Bearer {}", gateway.token);
    let mut http = Http::connect(gateway.address);
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
