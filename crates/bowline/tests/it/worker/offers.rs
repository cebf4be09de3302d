//! Servers of a worker in the catalog of its hub.

use serde_json::json;

use super::ROLES;
use crate::harness::worker::Worker;
use crate::harness::{Gateway, eventually, fixture};

/// A hub that takes `build-*` from the worker `w1`.
fn hub() -> Gateway {
    let principals = "[principals.w1]\noffers = [\"build-*\"]\n[principals.w2]\nbroker = true\n";
    let roles = "[roles.builder]\nallow = [\"build-*.*\"]\n";
    let hub = Gateway::up(&(fixture("one", &[]) + ROLES + roles + principals));
    hub.wait_for("one", "ready");
    hub
}

fn has(gateway: &Gateway, server: &str) -> bool {
    let servers = gateway.api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap();
    servers.iter().any(|status| status["name"] == server)
}

#[test]
fn what_a_worker_offers_is_in_the_catalog_of_the_hub_and_nothing_else_of_it() {
    let hub = hub();
    let own = fixture("build-a", &[]) + &fixture("private", &[]) + &fixture("other", &[]);
    let token = hub.token_for("w1", "all");
    // It may bring no `other`, and is told so.
    let worker = Worker::join(
        &hub,
        &token,
        &own,
        &["--offer", "build-*", "--offer", "other"],
    );
    eventually("the server is in the hub", || has(&hub, "build-a"));
    let status = hub.wait_for("build-a", "ready");
    assert_eq!(
        (&status["transport"], &status["command"]),
        (&json!("peer"), &json!("worker w1"))
    );
    assert!(!has(&hub, "private") && !has(&hub, "other"));
    let mut session = hub.session("/mcp");
    assert_eq!(
        session.text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    let big = session.call("build-a__test_image_content", &json!({}));
    assert_eq!(big["result"]["content"][0]["type"], "image", "{big}");
    let effect = session.call("build-a__effect", &json!({"key": "k"}));
    assert!(effect["error"].is_null(), "{effect}");
    // It does not come back to the worker as something new.
    assert_eq!(worker.gateway.status("build-a")["transport"], "stdio");
    assert_eq!(
        worker
            .gateway
            .session("/mcp")
            .text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    // News of it travel to the hub.
    let changes = worker
        .gateway
        .session("/mcp")
        .call("build-a__test_trigger_tool_change", &json!({}));
    assert!(changes["error"].is_null(), "{changes}");
    eventually("the hub lists the new tool", || {
        hub.session("/mcp")
            .tools()
            .contains(&"build-a__test_dynamic_tool".to_owned())
    });
}

#[test]
fn worker_tools_are_listed_after_hub_restart() {
    let mut hub = hub();
    let token = hub.token_for("w1", "all");
    let own = fixture("build-a", &[]);
    let mut worker = Worker::join(&hub, &token, &own, &["--offer", "build-*"]);
    eventually("the server is in the hub", || has(&hub, "build-a"));
    hub.wait_for("build-a", "ready");
    let tools = hub.session("/mcp").tools();
    assert!(tools.contains(&"build-a__echo".to_owned()), "{tools:?}");
    worker.gateway.kill();
    hub.kill();
    hub.restart_there();
    // At once, while the worker is away.
    assert!(has(&hub, "build-a"));
    hub.wait_for("one", "ready");
    let mut session = hub.session("/mcp");
    assert_eq!(session.tools(), tools);
    // A call waits for the worker.
    session.send_call(5, "build-a__echo", &json!({"message": "hi"}));
    worker.restart();
    let answer = session.http.read().json();
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    hub.wait_for("build-a", "ready");
    // What the config no longer lets the worker bring does not come back.
    worker.gateway.kill();
    hub.kill();
    let config = fixture("one", &[]) + ROLES + "[principals.w1]\nbroker = true\n";
    std::fs::write(hub.dir.path().join("bowline.toml"), config).unwrap();
    hub.restart_there();
    assert!(!has(&hub, "build-a"));
}

#[test]
fn another_worker_uses_what_one_offers_by_way_of_the_hub() {
    let hub = hub();
    let token = hub.token_for("w1", "all");
    let _one = Worker::join(&hub, &token, &fixture("build-a", &[]), &["--offer", "*"]);
    eventually("the server is in the hub", || has(&hub, "build-a"));
    let two = Worker::join(&hub, &hub.token_for("w2", "builder"), "", &[]);
    two.until_tool("build-a__echo", true);
    let mut session = two.gateway.session("/mcp");
    assert_eq!(
        session.text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    let tools = session.tools();
    assert!(
        tools.iter().all(|tool| tool.starts_with("build-a__")),
        "{tools:?}"
    );
}

#[test]
fn a_worker_refuses_callers_of_the_hub_whose_role_it_does_not_define_or_allow() {
    let hub = hub();
    let own = fixture("build-a", &[]) + "[roles.builder]\nallow = [\"build-a.echo\"]\n";
    let worker = Worker::join(
        &hub,
        &hub.token_for("w1", "all"),
        &own,
        &["--offer", "build-*"],
    );
    eventually("the server is in the hub", || has(&hub, "build-a"));
    hub.wait_for("build-a", "ready");
    let mut builder = hub.session_as(&hub.token_for("bea", "builder"), "/mcp");
    assert_eq!(
        builder.text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    // The hub would let them; the worker does not.
    let denied = |answer: &serde_json::Value| answer["error"].is_object();
    assert!(denied(
        &builder.call("build-a__add", &json!({"a": 1, "b": 2}))
    ));
    let mut all = hub.session_as(&hub.token_for("al", "all"), "/mcp");
    assert!(denied(
        &all.call("build-a__echo", &json!({"message": "hi"}))
    ));
    let mut owner = hub.session("/mcp");
    assert!(denied(
        &owner.call("build-a__echo", &json!({"message": "hi"}))
    ));
    let counted = worker
        .gateway
        .session("/mcp")
        .call("build-a__counter", &json!({}));
    let counts = &counted["result"]["structuredContent"]["by_tool"];
    assert_eq!(counts["echo"], 1, "{counted}");
    assert!(counts["add"].is_null(), "{counted}");
}

#[test]
fn a_name_that_the_hub_has_is_refused_to_a_worker_and_given_when_it_is_free() {
    let hub = hub();
    hub.reconfigure(
        &(fixture("build-a", &["--toolset", "demo"])
            + ROLES
            + "[principals.w1]\noffers = [\"build-*\"]\n"),
    );
    let token = hub.token_for("w1", "all");
    let own = fixture("build-a", &[]) + &fixture("build-b", &[]);
    let _worker = Worker::join(&hub, &token, &own, &["--offer", "build-*"]);
    eventually("the other server is in the hub", || has(&hub, "build-b"));
    assert_eq!(hub.status("build-a")["transport"], "stdio");
    hub.reconfigure(&(ROLES.to_owned() + "[principals.w1]\noffers = [\"build-*\"]\n"));
    eventually("the name is the worker's", || {
        has(&hub, "build-a") && hub.status("build-a")["transport"] == "peer"
    });
    assert_eq!(hub.wait_for("build-b", "ready")["transport"], "peer");
}

#[test]
fn servers_of_a_worker_that_is_killed_are_marked_and_served_again_when_it_is_back() {
    let hub = hub();
    let token = hub.token_for("w1", "all");
    let mut worker = Worker::join(&hub, &token, &fixture("build-a", &[]), &["--offer", "*"]);
    eventually("the server is in the hub", || has(&hub, "build-a"));
    hub.wait_for("build-a", "ready");
    worker.gateway.kill();
    eventually("it is marked", || hub.status("build-a")["stale"] == true);
    assert!(hub.status("build-a")["tools"].as_u64().unwrap() > 0);
    worker.restart();
    hub.wait_for("build-a", "ready");
    let mut session = hub.session("/mcp");
    assert_eq!(
        session.text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
}
