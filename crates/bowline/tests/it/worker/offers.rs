//! Servers of a worker in the catalog of its hub.

use bowline_testkit::gateway::{Gateway, Worker, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

use super::ROLES;

/// A hub that accepts `build-*` from the worker `w1`.
fn start_hub() -> Gateway {
    let principals = "[principals.w1]\noffers = [\"build-*\"]\n[principals.w2]\nbroker = true\n";
    let roles = "[roles.builder]\nallow = [\"build-*.*\"]\n";
    let hub = Gateway::start(&(fixture_config("one", &[]) + ROLES + roles + principals));
    hub.wait_for_state("one", "ready");
    hub
}

fn has_server(gateway: &Gateway, server: &str) -> bool {
    let servers = gateway.get_api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap();
    servers.iter().any(|status| status["name"] == server)
}

#[test]
fn hub_catalog_has_only_offered_servers() {
    let hub = start_hub();
    let own = fixture_config("build-a", &[])
        + &fixture_config("private", &[])
        + &fixture_config("other", &[]);
    let token = hub.create_role_token("w1", "all");
    // The worker may not offer `other`, and is told so.
    let worker = Worker::join(
        &hub,
        &token,
        &own,
        &["--offer", "build-*", "--offer", "other"],
    );
    wait_until("the server is in the hub", || has_server(&hub, "build-a"));
    let status = hub.wait_for_state("build-a", "ready");
    assert_eq!(
        (&status["transport"], &status["command"]),
        (&json!("peer"), &json!("worker w1"))
    );
    assert!(!has_server(&hub, "private") && !has_server(&hub, "other"));
    let mut session = hub.open_session("/mcp");
    assert_eq!(
        session.call_text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    let big = session.call("build-a__test_image_content", &json!({}));
    assert_eq!(big["result"]["content"][0]["type"], "image", "{big}");
    let effect = session.call("build-a__effect", &json!({"key": "k"}));
    assert!(effect["error"].is_null(), "{effect}");
    // The hub does not offer the server back to its own worker.
    assert_eq!(
        worker.gateway.server_status("build-a")["transport"],
        "stdio"
    );
    assert_eq!(
        worker
            .gateway
            .open_session("/mcp")
            .call_text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    // List changes reach the hub.
    let changes = worker
        .gateway
        .open_session("/mcp")
        .call("build-a__test_trigger_tool_change", &json!({}));
    assert!(changes["error"].is_null(), "{changes}");
    wait_until("the hub lists the new tool", || {
        hub.open_session("/mcp")
            .list_tool_names()
            .contains(&"build-a__test_dynamic_tool".to_owned())
    });
}

#[test]
fn worker_tools_are_listed_after_hub_restart() {
    let mut hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let own = fixture_config("build-a", &[]);
    let mut worker = Worker::join(&hub, &token, &own, &["--offer", "build-*"]);
    wait_until("the server is in the hub", || has_server(&hub, "build-a"));
    hub.wait_for_state("build-a", "ready");
    let tools = hub.open_session("/mcp").list_tool_names();
    assert!(tools.contains(&"build-a__echo".to_owned()), "{tools:?}");
    worker.gateway.kill();
    hub.kill();
    hub.restart_same_address();
    // At once, while the worker is away.
    assert!(has_server(&hub, "build-a"));
    hub.wait_for_state("one", "ready");
    let mut session = hub.open_session("/mcp");
    assert_eq!(session.list_tool_names(), tools);
    // A call waits for the worker.
    session.send_call(5, "build-a__echo", &json!({"message": "hi"}));
    worker.restart();
    let answer = session.http.read_response().json();
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    hub.wait_for_state("build-a", "ready");
    // A server that the config no longer allows does not come back.
    worker.gateway.kill();
    hub.kill();
    let config = fixture_config("one", &[]) + ROLES + "[principals.w1]\nbroker = true\n";
    std::fs::write(hub.dir.path().join("bowline.toml"), config).unwrap();
    hub.restart_same_address();
    assert!(!has_server(&hub, "build-a"));
}

#[test]
fn worker_uses_server_of_other_worker() {
    let hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let _one = Worker::join(
        &hub,
        &token,
        &fixture_config("build-a", &[]),
        &["--offer", "*"],
    );
    wait_until("the server is in the hub", || has_server(&hub, "build-a"));
    let two = Worker::join(&hub, &hub.create_role_token("w2", "builder"), "", &[]);
    two.wait_for_tool("build-a__echo", true);
    let mut session = two.gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    let tools = session.list_tool_names();
    assert!(
        tools.iter().all(|tool| tool.starts_with("build-a__")),
        "{tools:?}"
    );
}

/// A worker refuses callers of the hub whose role the worker does not define or allow.
#[test]
fn worker_refuses_hub_callers_by_role() {
    let hub = start_hub();
    let own = fixture_config("build-a", &[]) + "[roles.builder]\nallow = [\"build-a.echo\"]\n";
    let worker = Worker::join(
        &hub,
        &hub.create_role_token("w1", "all"),
        &own,
        &["--offer", "build-*"],
    );
    wait_until("the server is in the hub", || has_server(&hub, "build-a"));
    hub.wait_for_state("build-a", "ready");
    let mut builder = hub.open_session_as(&hub.create_role_token("bea", "builder"), "/mcp");
    assert_eq!(
        builder.call_text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
    // The hub would allow the calls; the worker does not.
    let denied = |answer: &serde_json::Value| answer["error"].is_object();
    assert!(denied(
        &builder.call("build-a__add", &json!({"a": 1, "b": 2}))
    ));
    let mut all = hub.open_session_as(&hub.create_role_token("al", "all"), "/mcp");
    assert!(denied(
        &all.call("build-a__echo", &json!({"message": "hi"}))
    ));
    let mut owner = hub.open_session("/mcp");
    assert!(denied(
        &owner.call("build-a__echo", &json!({"message": "hi"}))
    ));
    let counted = worker
        .gateway
        .open_session("/mcp")
        .call("build-a__counter", &json!({}));
    let counts = &counted["result"]["structuredContent"]["by_tool"];
    assert_eq!(counts["echo"], 1, "{counted}");
    assert!(counts["add"].is_null(), "{counted}");
}

/// A taken server name is refused to a worker, and granted when free.
#[test]
fn taken_server_name_is_offered_when_free() {
    let hub = start_hub();
    hub.reconfigure(
        &(fixture_config("build-a", &["--toolset", "demo"])
            + ROLES
            + "[principals.w1]\noffers = [\"build-*\"]\n"),
    );
    let token = hub.create_role_token("w1", "all");
    let own = fixture_config("build-a", &[]) + &fixture_config("build-b", &[]);
    let _worker = Worker::join(&hub, &token, &own, &["--offer", "build-*"]);
    wait_until("the other server is in the hub", || {
        has_server(&hub, "build-b")
    });
    assert_eq!(hub.server_status("build-a")["transport"], "stdio");
    hub.reconfigure(&(ROLES.to_owned() + "[principals.w1]\noffers = [\"build-*\"]\n"));
    wait_until("the name is the worker's", || {
        has_server(&hub, "build-a") && hub.server_status("build-a")["transport"] == "peer"
    });
    assert_eq!(hub.wait_for_state("build-b", "ready")["transport"], "peer");
}

/// Servers of a killed worker are marked in the catalog and work again when the worker is back.
#[test]
fn servers_of_killed_worker_are_marked_and_return() {
    let hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let mut worker = Worker::join(
        &hub,
        &token,
        &fixture_config("build-a", &[]),
        &["--offer", "*"],
    );
    wait_until("the server is in the hub", || has_server(&hub, "build-a"));
    hub.wait_for_state("build-a", "ready");
    worker.gateway.kill();
    wait_until("it is marked", || {
        hub.server_status("build-a")["stale"] == true
    });
    assert!(hub.server_status("build-a")["tools"].as_u64().unwrap() > 0);
    worker.restart();
    hub.wait_for_state("build-a", "ready");
    let mut session = hub.open_session("/mcp");
    assert_eq!(
        session.call_text("build-a__echo", &json!({"message": "hi"})),
        "hi"
    );
}
