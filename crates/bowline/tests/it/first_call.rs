//! The first call of an agent to a stdio server, and the tools it may see.

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

#[test]
fn call_returns_under_its_own_id() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    for id in [
        "1",
        "\"1\"",
        "123456789012345678901234567890",
        "\"ä\\u0000\"",
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"one__echo","arguments":{{"message":"hi"}}}}}}"#
        );
        let response = session.post_raw(body.as_bytes());
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert!(
            response.text().contains(&format!("\"id\":{id}")),
            "{}",
            response.text()
        );
        assert!(response.text().contains("hi"), "{}", response.text());
    }
}

#[test]
fn list_change_notifies_changed_views_once() {
    let config = [fixture_config("one", &[]), fixture_config("two", &[])].concat();
    let gateway = Gateway::start(&config);
    for server in ["one", "two"] {
        gateway.wait_for_state(server, "ready");
    }
    let mut all = gateway.open_session("/mcp");
    let mut one = gateway.open_session("/servers/one/mcp");
    let mut two = gateway.open_session("/servers/two/mcp");
    for session in [&mut all, &mut one, &mut two] {
        session.request("tools/list", &json!({}));
    }
    let mut streams = [all.open_stream(), one.open_stream(), two.open_stream()];
    for stream in &mut streams {
        let comment = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
        assert!(comment.starts_with(": "), "{comment:?}");
    }
    one.call("test_trigger_tool_change", &json!({}));
    for stream in &mut streams[..2] {
        let event = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
        assert!(
            event.contains("notifications/tools/list_changed"),
            "{event:?}"
        );
    }
    // The second server changes too; the second session receives only this notification.
    two.call("test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(streams[2].read_chunk().unwrap()).unwrap();
    assert_eq!(event.matches("list_changed").count(), 1, "{event:?}");
    let listed = two.request("tools/list", &json!({}));
    assert!(listed.to_string().contains("test_dynamic_tool"), "{listed}");
}

#[test]
fn progress_precedes_response_with_caller_token() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    let response = session.post(&json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {
            "name": "one__test_tool_with_progress",
            "arguments": {},
            "_meta": {"progressToken": "mine"},
        },
    }));
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    let events = response.events();
    let (answer, progress) = events.split_last().unwrap();
    assert_eq!(answer["id"], 7);
    assert!(!progress.is_empty());
    for event in progress {
        assert_eq!(event["method"], "notifications/progress");
        assert_eq!(event["params"]["progressToken"], "mine");
    }
}

#[test]
fn initialize_with_manifests_waits_for_no_server() {
    let config = [
        "[limits]\nfirst_list_wait = \"60s\"\n".to_owned(),
        fixture_config("quick", &[]),
        fixture_config("slow", &["--fault", "slow-start=6000"]),
    ];
    let mut gateway = Gateway::start(&config.concat());
    let is_starting = |gateway: &Gateway| gateway.server_status("slow")["state"] == "starting";
    // The slow server has no manifest, but this endpoint does not show it.
    gateway.open_session("/servers/quick/mcp");
    assert!(is_starting(&gateway));
    gateway.wait_for_state("slow", "ready");
    for server in ["quick", "slow"] {
        let file = gateway.state_dir().join(format!("manifests/{server}.json"));
        wait_until("what it offers is kept", || file.exists());
    }
    gateway.restart_after_kill();
    let mut session = gateway.open_session("/mcp");
    assert!(is_starting(&gateway), "initialize did not wait for it");
    // A list waits for the server, so no definition is marked as stale.
    let tools = session.list_tool_names();
    assert!(tools.contains(&"slow__echo".to_owned()), "{tools:?}");
    assert!(!is_starting(&gateway));
}
