//! Workers: the tools of a hub on another machine as if local, and the reverse.

mod full_protocol;
mod offers;
mod reconnect;
mod shutdown;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use bowline_testkit::gateway::{
    Gateway, HttpConnection, Session, Worker, fixture_config, worker_command, write_private_file,
};
use serde_json::{Value, json};

use crate::streams::next_event;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// Roles of a hub: full view, and small view.
const ROLES: &str = "[roles.all]\nallow = [\"*\"]\n[roles.few]\nallow = [\"one.echo\"]\n";

/// Rights to join for workers.
const PEERS: &str = "[principals.w1]\nbroker = true\n[principals.w2]\nbroker = true\n";

/// A hub with a server and the given roles.
fn start_hub() -> Gateway {
    let hub = Gateway::start(&(fixture_config("one", &[]) + ROLES + PEERS));
    hub.wait_for_state("one", "ready");
    hub
}

/// Waits on a stream for a tools-changed notification.
fn wait_for_tools_changed(stream: &mut HttpConnection) {
    while next_event(stream).unwrap().data_json()["method"] != TOOLS_CHANGED {}
}

#[test]
fn hub_tools_and_changes_reach_worker_over_http() {
    let hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let worker = Worker::join(&hub, &token, "", &[]);
    assert_eq!(worker.ready["connected"], true, "{}", worker.ready);
    assert_eq!(worker.ready["mailbox"], "w1");
    assert_eq!(worker.ready["event"], "ready");
    let mut there = hub.open_session_as(&token, "/mcp");
    let mut here = worker.gateway.open_session("/mcp");
    assert!(there.list_tool_names().len() > 10);
    assert_eq!(here.list_tool_names(), there.list_tool_names());
    let definitions = |list: Value| list["result"]["tools"].clone();
    assert_eq!(
        definitions(here.request("tools/list", &json!({}))),
        definitions(there.request("tools/list", &json!({})))
    );
    assert_eq!(here.call_text("one__echo", &json!({"message": "hi"})), "hi");

    let mut stream = here.open_stream();
    next_event(&mut stream).unwrap();
    there.call("one__test_trigger_tool_change", &json!({}));
    wait_for_tools_changed(&mut stream);
    assert!(
        here.list_tool_names()
            .contains(&"one__test_dynamic_tool".to_owned())
    );
    let status = worker.gateway.server_status("one");
    assert_eq!(status["transport"], "peer");
    assert!(
        status["command"]
            .as_str()
            .unwrap()
            .starts_with("hub http://"),
        "{status}"
    );
    let shown = worker.gateway.run_cli(&["status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("one"), "{shown}");
}

#[test]
fn hub_tools_and_changes_reach_worker_over_stdio() {
    let hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    write_private_file(&dir.path().join("hub.token"), &token);
    let args = [format!("http://{}", hub.address), "--stdio".to_owned()];
    let mut child = worker_command(dir.path(), &args)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hear = |like: &dyn Fn(&Value) -> bool| loop {
        let line = lines.next().unwrap().unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        if like(&message) {
            return message;
        }
    };
    let mut say = |message: Value| writeln!(input, "{message}").unwrap();
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "it", "version": "1"}});
    say(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}));
    hear(&|message| message["id"] == 1);
    say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let call = |id: u64, name: &str| {
        let params = json!({"name": name, "arguments": {"message": "hi"}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    say(call(2, "one__echo"));
    let answer = hear(&|message| message["id"] == 2);
    assert_eq!(answer["result"]["content"][0]["text"], "hi");
    hub.open_session("/mcp")
        .call("one__test_trigger_tool_change", &json!({}));
    hear(&|message| message["method"] == TOOLS_CHANGED);
    say(json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}}));
    let list = hear(&|message| message["id"] == 3).to_string();
    assert!(list.contains("one__test_dynamic_tool"));
    // End of input ends the worker.
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn results_pass_through_worker_unchanged() {
    let hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let worker = Worker::join(&hub, &token, "", &[]);
    let mut there = hub.open_session_as(&token, "/mcp");
    let mut here = worker.gateway.open_session("/mcp");
    let raw = |session: &mut Session, name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let answer = session.post_raw(body.to_string().as_bytes());
        match answer.header("content-type") {
            Some("text/event-stream") => answer.json().to_string(),
            _ => answer.text(),
        }
    };
    for (tool, arguments) in [
        ("one__numbers", json!({})),
        ("one__test_image_content", json!({})),
        ("one__test_multiple_content_types", json!({})),
        ("one__fail", json!({"message": "no"})),
        (
            "one__rpc_error",
            json!({"code": -32_002, "message": "gone"}),
        ),
        ("one__big", json!({"bytes": 3_000_000})),
        ("one__received", json!({"x": 1.0})),
    ] {
        let (theirs, ours) = (
            raw(&mut there, tool, arguments.clone()),
            raw(&mut here, tool, arguments),
        );
        assert_eq!(ours, theirs, "{tool}");
    }
    let fails = here.call("one__fail", &json!({"message": "no"}));
    assert_eq!(fails["result"]["isError"], true, "{fails}");

    let progress = here.post(&json!({
        "jsonrpc": "2.0", "id": 9, "method": "tools/call",
        "params": {"name": "one__test_tool_with_progress", "arguments": {},
            "_meta": {"progressToken": "p"}},
    }));
    let events = progress.events();
    let told = |event: &&Value| event["params"]["progressToken"] == "p";
    assert_eq!(events.iter().filter(told).count(), 3, "{events:?}");
    assert_eq!(events.last().unwrap()["id"], 9);
}

#[test]
fn unknown_hub_tool_is_refused_locally() {
    let hub = start_hub();
    let worker = Worker::join(&hub, &hub.create_role_token("w1", "all"), "", &[]);
    let calls = hub.server_status("one")["calls"].clone();
    let mut session = worker.gateway.open_session("/mcp");
    for name in ["one__nothing", "two__echo", "nothing"] {
        let refused = session.call(name, &json!({}));
        assert_eq!(refused["error"]["code"], -32_602, "{refused}");
    }
    assert_eq!(hub.server_status("one")["calls"], calls);
}

/// The role of the worker's token narrows the view of the worker's agents, and the worker's rules
/// narrow the view further.
#[test]
fn worker_token_role_and_local_rules_narrow() {
    let hub = start_hub();
    let few = Worker::join(&hub, &hub.create_role_token("w1", "few"), "", &[]);
    let mut session = few.gateway.open_session("/mcp");
    assert_eq!(session.list_tool_names(), ["one__echo"]);
    let refused = session.call("one__add", &json!({"a": 1, "b": 2}));
    assert!(refused["error"].is_object(), "{refused}");

    // The worker's owner sees the hub's grant; an agent sees the intersection of both policies.
    let rules = "[roles.careful]\nallow = [\"one.echo\", \"one.add\", \"one.nothing\"]\n\
                 [roles.other]\nallow = [\"elsewhere.*\"]\n";
    let all = Worker::join(&hub, &hub.create_role_token("w2", "all"), rules, &[]);
    assert!(all.gateway.open_session("/mcp").list_tool_names().len() > 10);
    let careful = all.gateway.create_role_token("ann", "careful");
    let mut session = all.gateway.open_session_as(&careful, "/mcp");
    assert_eq!(session.list_tool_names(), ["one__echo", "one__add"]);
    assert_eq!(session.call_text("one__add", &json!({"a": 1, "b": 2})), "3");
    let refused = session.call("one__numbers", &json!({}));
    assert!(refused["error"].is_object(), "{refused}");
    let other = all.gateway.create_role_token("bob", "other");
    assert!(
        all.gateway
            .open_session_as(&other, "/mcp")
            .list_tool_names()
            .is_empty()
    );
}
