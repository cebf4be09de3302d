//! Servers that an executor starts: those of its own config, and no others.

use serde_json::json;

use super::ROLE;
use crate::harness::executor::Executor;
use crate::harness::{Gateway, eventually, fixture};

/// A gateway whose servers `files` and `odd` are to run on `office`.
const GATEWAY: &str = "[servers.files]\nvia = \"executor:office\"\nserver = \"tools\"\n\
                       [servers.odd]\nvia = \"executor:office\"\n";

fn joined() -> (Gateway, Executor) {
    let gateway = Gateway::up(&format!("{GATEWAY}{ROLE}"));
    let token = gateway.executor_token("office");
    let config = fixture("tools", &[]);
    let executor = Executor::join(&gateway, ("office", &token), &config, &[]);
    (gateway, executor)
}

#[test]
fn a_server_of_the_executors_own_config_is_started_there_and_no_other() {
    let (gateway, executor) = joined();
    assert_eq!(executor.ready["servers"], json!(["tools"]));
    let status = gateway.wait_for("files", "ready");
    assert_eq!(status["transport"], "stdio", "{status}");
    assert_eq!(status["command"], "tools on executor office", "{status}");
    let mut session = gateway.session("/servers/files/mcp");
    assert_eq!(session.text("echo", &json!({"message": "hi"})), "hi");
    assert_eq!(
        session.text("big", &json!({"bytes": 2_000_000})).len(),
        2_000_000
    );
    let mut odd = gateway.session("/servers/odd/mcp");
    odd.call("echo", &json!({"message": "hi"}));
    let error = gateway.status("odd")["last_error"].to_string();
    assert!(error.contains("no such server"), "{error}");
    assert_eq!(gateway.executor("office")["servers"], json!(["tools"]));
}

#[test]
fn a_server_that_dies_on_its_executor_is_started_again_by_the_gateway() {
    let (gateway, _executor) = joined();
    gateway.wait_for("files", "ready");
    let mut session = gateway.session("/servers/files/mcp");
    session.call("crash", &json!({"when": "before"}));
    eventually("it is called again", || {
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
    assert!(gateway.status("files")["generation"].as_u64().unwrap() > 1);
}

#[test]
fn a_killed_executor_takes_its_servers_along_and_its_next_start_has_them_again() {
    let (gateway, mut executor) = joined();
    gateway.wait_for("files", "ready");
    executor.kill();
    gateway.until_executor("office", false);
    executor.restart();
    eventually("it is called again", || {
        let mut session = gateway.session("/servers/files/mcp");
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
}
