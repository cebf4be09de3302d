//! Workers: the tools of a hub on another machine as if they were local, and the other way round.

mod again;
mod leaving;
mod offers;
mod whole;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::worker::{Worker, command};
use crate::harness::{Gateway, Http, fixture};
use crate::streams::next_event;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// Roles of a hub: one that sees all, and one that sees little.
const ROLES: &str = "[roles.all]\nallow = [\"*\"]\n[roles.few]\nallow = [\"one.echo\"]\n";

/// Workers that may join.
const PEERS: &str = "[principals.w1]\nbroker = true\n[principals.w2]\nbroker = true\n";

/// A hub with one server and these roles.
fn hub() -> Gateway {
    let hub = Gateway::up(&(fixture("one", &[]) + ROLES + PEERS));
    hub.wait_for("one", "ready");
    hub
}

/// Waits on a stream until tools changed.
fn hear_of_tools(stream: &mut Http) {
    while next_event(stream).unwrap().json()["method"] != TOOLS_CHANGED {}
}

#[test]
fn the_tools_of_a_hub_are_there_by_the_same_names_and_news_of_them_is_heard_over_http() {
    let hub = hub();
    let token = hub.token_for("w1", "all");
    let worker = Worker::join(&hub, &token, "", &[]);
    assert_eq!(worker.ready["connected"], true, "{}", worker.ready);
    assert_eq!(worker.ready["mailbox"], "w1");
    assert_eq!(worker.ready["event"], "ready");
    let mut there = hub.session_as(&token, "/mcp");
    let mut here = worker.gateway.session("/mcp");
    assert!(there.tools().len() > 10);
    assert_eq!(here.tools(), there.tools());
    let definitions = |list: Value| list["result"]["tools"].clone();
    assert_eq!(
        definitions(here.request("tools/list", &json!({}))),
        definitions(there.request("tools/list", &json!({})))
    );
    assert_eq!(here.text("one__echo", &json!({"message": "hi"})), "hi");

    let mut stream = here.listen();
    next_event(&mut stream).unwrap();
    there.call("one__test_trigger_tool_change", &json!({}));
    hear_of_tools(&mut stream);
    assert!(here.tools().contains(&"one__test_dynamic_tool".to_owned()));
    let status = worker.gateway.status("one");
    assert_eq!(status["transport"], "peer");
    assert!(
        status["command"]
            .as_str()
            .unwrap()
            .starts_with("hub http://"),
        "{status}"
    );
    let shown = worker.gateway.cli(&["status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("one"), "{shown}");
}

#[test]
fn the_tools_of_a_hub_are_there_over_stdio_and_news_of_them_is_heard() {
    let hub = hub();
    let token = hub.token_for("w1", "all");
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    crate::harness::worker::write_private(&dir.path().join("hub.token"), &token);
    let args = [format!("http://{}", hub.address), "--stdio".to_owned()];
    let mut child = command(dir.path(), &args)
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
    hub.session("/mcp")
        .call("one__test_trigger_tool_change", &json!({}));
    hear(&|message| message["method"] == TOOLS_CHANGED);
    say(json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {}}));
    let list = hear(&|message| message["id"] == 3).to_string();
    assert!(list.contains("one__test_dynamic_tool"));
    // The client has said all: so the worker ends.
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_a_tool_answers_comes_through_a_worker_as_it_is() {
    let hub = hub();
    let token = hub.token_for("w1", "all");
    let worker = Worker::join(&hub, &token, "", &[]);
    let mut there = hub.session_as(&token, "/mcp");
    let mut here = worker.gateway.session("/mcp");
    let raw = |session: &mut crate::harness::Session, name: &str, arguments: Value| {
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
fn a_tool_that_the_hub_does_not_have_is_refused_without_asking_it() {
    let hub = hub();
    let worker = Worker::join(&hub, &hub.token_for("w1", "all"), "", &[]);
    let calls = hub.status("one")["calls"].clone();
    let mut session = worker.gateway.session("/mcp");
    for name in ["one__nothing", "two__echo", "nothing"] {
        let refused = session.call(name, &json!({}));
        assert_eq!(refused["error"]["code"], -32_602, "{refused}");
    }
    assert_eq!(hub.status("one")["calls"], calls);
}

#[test]
fn the_role_of_the_workers_token_narrows_what_its_agents_see_and_rules_here_narrow_it_further() {
    let hub = hub();
    let few = Worker::join(&hub, &hub.token_for("w1", "few"), "", &[]);
    let mut session = few.gateway.session("/mcp");
    assert_eq!(session.tools(), ["one__echo"]);
    let refused = session.call("one__add", &json!({"a": 1, "b": 2}));
    assert!(refused["error"].is_object(), "{refused}");

    // The owner of the worker sees what the hub grants; an agent what both do.
    let rules = "[roles.careful]\nallow = [\"one.echo\", \"one.add\", \"one.nothing\"]\n\
                 [roles.other]\nallow = [\"elsewhere.*\"]\n";
    let all = Worker::join(&hub, &hub.token_for("w2", "all"), rules, &[]);
    assert!(all.gateway.session("/mcp").tools().len() > 10);
    let careful = all.gateway.token_for("ann", "careful");
    let mut session = all.gateway.session_as(&careful, "/mcp");
    assert_eq!(session.tools(), ["one__echo", "one__add"]);
    assert_eq!(session.text("one__add", &json!({"a": 1, "b": 2})), "3");
    let refused = session.call("one__numbers", &json!({}));
    assert!(refused["error"].is_object(), "{refused}");
    let other = all.gateway.token_for("bob", "other");
    assert!(all.gateway.session_as(&other, "/mcp").tools().is_empty());
}
