//! Loss and return of a hub or a worker: surviving calls, and the status meanwhile.

use std::io::Read as _;
use std::process::Stdio;

use bowline_testkit::gateway::{
    Gateway, Worker, fixture_config, worker_command, write_private_file,
};
use bowline_testkit::wait_until;
use serde_json::json;

use super::{PEERS, ROLES, start_hub};

#[test]
fn worker_rejoins_restarted_hub() {
    let mut hub = start_hub();
    let worker = Worker::join(&hub, &hub.create_role_token("w1", "all"), "", &[]);
    let mut session = worker.gateway.open_session("/mcp");
    let tools = session.list_tool_names();
    hub.kill();
    wait_until("what the hub has is marked as last known", || {
        worker.gateway.server_status("one")["stale"] == true
    });
    let listed = session.request("tools/list", &json!({}));
    let first = &listed["result"]["tools"][0];
    assert_eq!(first["_meta"]["dev.bowline/stale"], true, "{first}");
    hub.restart_same_address();
    hub.wait_for_state("one", "ready");
    worker.gateway.wait_for_state("one", "ready");
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
    assert_eq!(session.list_tool_names(), tools);
    let listed = session.request("tools/list", &json!({}));
    assert!(!listed.to_string().contains("dev.bowline/stale"));
}

#[test]
fn stored_call_survives_hub_kill_and_runs_once() {
    let dir = tempfile::TempDir::new().unwrap();
    let ledger = dir.path().join("ledger");
    let ledger = ledger.to_str().unwrap();
    let served = ["--ledger", ledger];
    let mut hub = Gateway::start(&(fixture_config("one", &served) + ROLES + PEERS));
    hub.wait_for_state("one", "ready");
    let worker = Worker::join(&hub, &hub.create_role_token("w1", "all"), "", &[]);
    let mut session = worker.gateway.open_session("/mcp");
    hub.kill();
    // The call waits within the deadline for the connection, then for the response.
    session.send_call(5, "one__effect", &json!({"key": "k"}));
    hub.restart_same_address();
    let answer = session.http.read_response().json();
    assert_eq!(answer["id"], 5, "{answer}");
    assert!(answer["error"].is_null(), "{answer}");
    let mut there = hub.open_session("/mcp");
    let ran = there.call("one__executions", &json!({"key": "k"}));
    assert_eq!(ran["result"]["structuredContent"]["count"], 1, "{ran}");
}

/// A worker without a hub serves local servers, reports the missing hub, and joins later.
#[test]
fn worker_without_hub_serves_and_joins_later() {
    let mut hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    hub.kill();
    let worker = Worker::join(&hub, &token, &fixture_config("own", &[]), &[]);
    assert_eq!(worker.ready["connected"], false, "{}", worker.ready);
    assert!(worker.ready["mailbox"].is_null());
    worker.gateway.wait_for_state("own", "ready");
    let mut session = worker.gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("own__echo", &json!({"message": "hi"})),
        "hi"
    );
    hub.restart_same_address();
    worker.wait_for_tool("one__echo", true);
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
}

#[test]
fn invalid_token_ends_worker_with_exit_code() {
    let hub = start_hub();
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    let run = |token: &str, url: String| {
        write_private_file(&dir.path().join("hub.token"), token);
        let mut child = worker_command(dir.path(), &[url])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (child.wait().unwrap().code(), said)
    };
    let url = format!("http://{}", hub.address);
    let (code, said) = run("bwl_nobody_at_all", url.clone());
    assert_eq!(code, Some(3), "{said}");
    let (code, said) = run("bwl_nobody_at_all", "nowhere".to_owned());
    assert_eq!(code, Some(2), "{said}");
    // A token file readable by others is refused before the token is sent.
    let token = dir.path().join("hub.token");
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let refused = worker_command(dir.path(), &[url])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
}

#[test]
fn newer_worker_replaces_older_with_reason() {
    let hub = start_hub();
    let token = hub.create_role_token("w1", "all");
    let mut first = Worker::join(&hub, &token, "", &[]);
    let second = Worker::join(&hub, &token, "", &[]);
    assert_eq!(first.gateway.wait_for_exit_code(), Some(1));
    let mut session = second.gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
}

/// A config change on the hub or on the worker leaves the tools of the other side in place.
#[test]
fn config_change_keeps_tools_of_other_side() {
    let hub = start_hub();
    let worker = Worker::join(
        &hub,
        &hub.create_role_token("w1", "all"),
        &fixture_config("own", &[]),
        &[],
    );
    worker.gateway.wait_for_state("own", "ready");
    let generation = worker.gateway.server_status("one")["generation"].clone();
    worker.gateway.reconfigure(&fixture_config("another", &[]));
    worker.gateway.wait_for_state("another", "ready");
    let status = worker.gateway.server_status("one");
    assert_eq!(
        (&status["state"], &status["generation"]),
        (&json!("ready"), &generation)
    );
    worker.wait_for_tool("own__echo", false);

    hub.reconfigure(&(fixture_config("one", &[]) + &fixture_config("two", &[]) + ROLES + PEERS));
    worker.wait_for_tool("two__echo", true);
    assert_eq!(
        worker.gateway.server_status("one")["generation"],
        generation
    );
    hub.reconfigure(&(fixture_config("two", &[]) + ROLES + PEERS));
    worker.wait_for_tool("one__echo", false);
    let mut session = worker.gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("two__echo", &json!({"message": "hi"})),
        "hi"
    );
}

#[test]
fn changed_token_file_is_used_on_reconnect() {
    let hub = start_hub();
    let (id, first) = hub.create_token(&json!({"principal": "w1", "role": "all"}));
    let worker = Worker::join(&hub, &first, "", &[]);
    let next = hub.create_role_token("w1", "few");
    write_private_file(&worker.token_file(), &next);
    let revoked = hub.run_cli(&["token", "revoke", &id]);
    assert!(revoked.status.success(), "{revoked:?}");
    worker.wait_for_tool("one__add", false);
    worker.wait_for_tool("one__echo", true);
}
