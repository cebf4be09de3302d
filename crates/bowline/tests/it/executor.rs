//! Executors end to end: servers that only another process can reach, called through a gateway.

mod dialled;
mod identity;

use serde_json::{Value, json};

use crate::harness::executor::{Executor, through};
use crate::harness::served::Served;
use crate::harness::{Gateway, eventually};

/// Rules of a gateway that say nothing.
const ROLE: &str = "[roles.none]\nallow = []\n";

/// Lets the executor reach a server.
fn allow(served: &Served) -> [String; 2] {
    ["--allow".to_owned(), served.address().to_string()]
}

/// A server, a gateway that reaches it through `office`, and that executor.
fn office() -> (Served, Gateway, Executor) {
    let served = Served::start(&[]);
    let gateway = Gateway::up(&(through("far", &served, "office") + ROLE));
    let token = gateway.token_for("office", "none");
    let [flag, place] = allow(&served);
    let executor = Executor::join(&gateway, ("office", &token), "", &[&flag, &place]);
    (served, gateway, executor)
}

fn code(answer: &Value) -> &Value {
    &answer["error"]["data"]["peer_code"]
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
