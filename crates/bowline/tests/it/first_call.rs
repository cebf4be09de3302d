//! The first call: an agent reaches a stdio server, and sees what it may see.

use serde_json::json;

use crate::harness::{Gateway, eventually, fixture};

#[test]
fn a_call_reaches_its_server_and_comes_back_under_its_own_id() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let mut session = gateway.session("/mcp");
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
fn a_list_change_is_told_once_to_those_whose_view_changed() {
    let config = [fixture("one", &[]), fixture("two", &[])].concat();
    let gateway = Gateway::up(&config);
    for server in ["one", "two"] {
        gateway.wait_for(server, "ready");
    }
    let mut all = gateway.session("/mcp");
    let mut one = gateway.session("/servers/one/mcp");
    let mut two = gateway.session("/servers/two/mcp");
    for session in [&mut all, &mut one, &mut two] {
        session.request("tools/list", &json!({}));
    }
    let mut streams = [all.listen(), one.listen(), two.listen()];
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
    // The other server changes too; its session hears of that and of nothing before.
    two.call("test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(streams[2].read_chunk().unwrap()).unwrap();
    assert_eq!(event.matches("list_changed").count(), 1, "{event:?}");
    let listed = two.request("tools/list", &json!({}));
    assert!(listed.to_string().contains("test_dynamic_tool"), "{listed}");
}

#[test]
fn progress_streams_before_the_answer_under_the_callers_token() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let mut session = gateway.session("/mcp");
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
        fixture("quick", &[]),
        fixture("slow", &["--fault", "slow-start=6000"]),
    ];
    let mut gateway = Gateway::up(&config.concat());
    let is_starting = |gateway: &Gateway| gateway.status("slow")["state"] == "starting";
    // Nothing is known of the slow server, but this endpoint is not its own.
    gateway.session("/servers/quick/mcp");
    assert!(is_starting(&gateway));
    gateway.wait_for("slow", "ready");
    for server in ["quick", "slow"] {
        let file = gateway.state().join(format!("manifests/{server}.json"));
        eventually("what it offers is kept", || file.exists());
    }
    gateway.restart_after_kill();
    let mut session = gateway.session("/mcp");
    assert!(is_starting(&gateway), "initialize did not wait for it");
    // A list does wait, so that no definition in it is marked as stale.
    let tools = session.tools();
    assert!(tools.contains(&"slow__echo".to_owned()), "{tools:?}");
    assert!(!is_starting(&gateway));
}
