//! Servers started by an executor: only servers of the executor's config.

use bowline_testkit::gateway::{Executor, Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

use super::ROLE;

/// A gateway whose servers `files` and `odd` run on `office`.
const GATEWAY: &str = "[servers.files]\nvia = \"executor:office\"\nserver = \"tools\"\n\
                       [servers.odd]\nvia = \"executor:office\"\n";

fn start_joined() -> (Gateway, Executor) {
    let gateway = Gateway::start(&format!("{GATEWAY}{ROLE}"));
    let token = gateway.executor_token("office");
    let config = fixture_config("tools", &[]);
    let executor = Executor::join(&gateway, "office", &token, &config, &[]);
    (gateway, executor)
}

#[test]
fn executor_starts_only_configured_servers() {
    let (gateway, executor) = start_joined();
    assert_eq!(executor.ready["servers"], json!(["tools"]));
    let status = gateway.wait_for_state("files", "ready");
    assert_eq!(status["transport"], "stdio", "{status}");
    assert_eq!(status["command"], "tools on executor office", "{status}");
    let mut session = gateway.open_session("/servers/files/mcp");
    assert_eq!(session.call_text("echo", &json!({"message": "hi"})), "hi");
    assert_eq!(
        session.call_text("big", &json!({"bytes": 2_000_000})).len(),
        2_000_000
    );
    let mut odd = gateway.open_session("/servers/odd/mcp");
    odd.call("echo", &json!({"message": "hi"}));
    let error = gateway.server_status("odd")["last_error"].to_string();
    assert!(error.contains("no such server"), "{error}");
    assert_eq!(
        gateway.executor_status("office")["servers"],
        json!(["tools"])
    );
}

#[test]
fn dead_executor_server_is_restarted() {
    let (gateway, _executor) = start_joined();
    gateway.wait_for_state("files", "ready");
    let mut session = gateway.open_session("/servers/files/mcp");
    session.call("crash", &json!({"when": "before"}));
    wait_until("it is called again", || {
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
    assert!(
        gateway.server_status("files")["generation"]
            .as_u64()
            .unwrap()
            > 1
    );
}

/// A killed executor takes the servers along; the next start runs the servers again.
#[test]
fn restarted_executor_runs_its_servers_again() {
    let (gateway, mut executor) = start_joined();
    gateway.wait_for_state("files", "ready");
    executor.kill();
    gateway.wait_for_executor("office", false);
    executor.restart();
    wait_until("it is called again", || {
        let mut session = gateway.open_session("/servers/files/mcp");
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
}
