//! What survives a hub or a worker that goes away, and what is said meanwhile.

use std::io::Read as _;
use std::process::Stdio;

use serde_json::json;

use super::{PEERS, ROLES, hub};
use crate::harness::worker::{Worker, command, write_private};
use crate::harness::{Gateway, eventually, fixture};

#[test]
fn a_hub_that_is_killed_and_started_again_is_served_again_without_a_restart() {
    let mut hub = hub();
    let worker = Worker::join(&hub, &hub.token_for("w1", "all"), "", &[]);
    let mut session = worker.gateway.session("/mcp");
    let tools = session.tools();
    hub.kill();
    eventually("what the hub has is marked as last known", || {
        worker.gateway.status("one")["stale"] == true
    });
    let listed = session.request("tools/list", &json!({}));
    let first = &listed["result"]["tools"][0];
    assert_eq!(first["_meta"]["dev.bowline/stale"], true, "{first}");
    hub.restart_there();
    hub.wait_for("one", "ready");
    worker.gateway.wait_for("one", "ready");
    assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
    assert_eq!(session.tools(), tools);
    let listed = session.request("tools/list", &json!({}));
    assert!(!listed.to_string().contains("dev.bowline/stale"));
}

#[test]
fn a_call_that_is_stored_survives_the_death_of_its_hub_and_runs_once() {
    let dir = tempfile::TempDir::new().unwrap();
    let ledger = dir.path().join("ledger");
    let ledger = ledger.to_str().unwrap();
    let served = ["--ledger", ledger];
    let mut hub = Gateway::up(&(fixture("one", &served) + ROLES + PEERS));
    hub.wait_for("one", "ready");
    let worker = Worker::join(&hub, &hub.token_for("w1", "all"), "", &[]);
    let mut session = worker.gateway.session("/mcp");
    hub.kill();
    // It waits within its deadline for the connection, then for its answer.
    session.send_call(5, "one__effect", &json!({"key": "k"}));
    hub.restart_there();
    let answer = session.http.read().json();
    assert_eq!(answer["id"], 5, "{answer}");
    assert!(answer["error"].is_null(), "{answer}");
    let mut there = hub.session("/mcp");
    let ran = there.call("one__executions", &json!({"key": "k"}));
    assert_eq!(ran["result"]["structuredContent"]["count"], 1, "{ran}");
}

#[test]
fn a_worker_whose_hub_is_away_serves_says_so_and_joins_when_it_is_there() {
    let mut hub = hub();
    let token = hub.token_for("w1", "all");
    hub.kill();
    let worker = Worker::join(&hub, &token, &fixture("own", &[]), &[]);
    assert_eq!(worker.ready["connected"], false, "{}", worker.ready);
    assert!(worker.ready["mailbox"].is_null());
    worker.gateway.wait_for("own", "ready");
    let mut session = worker.gateway.session("/mcp");
    assert_eq!(session.text("own__echo", &json!({"message": "hi"})), "hi");
    hub.restart_there();
    worker.until_tool("one__echo", true);
    assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn a_token_that_is_no_good_ends_the_worker_with_the_code_for_it() {
    let hub = hub();
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    let run = |token: &str, url: String| {
        write_private(&dir.path().join("hub.token"), token);
        let mut child = command(dir.path(), &[url])
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
    // One that others can read is refused before it is sent anywhere.
    let token = dir.path().join("hub.token");
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let refused = command(dir.path(), &[url])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
}

#[test]
fn of_two_workers_with_one_token_the_newer_serves_and_the_older_ends_and_says_why() {
    let hub = hub();
    let token = hub.token_for("w1", "all");
    let mut first = Worker::join(&hub, &token, "", &[]);
    let second = Worker::join(&hub, &token, "", &[]);
    assert_eq!(first.gateway.exit_code(), Some(1));
    let mut session = second.gateway.session("/mcp");
    assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn a_changed_configuration_of_either_side_leaves_what_comes_from_the_other() {
    let hub = hub();
    let worker = Worker::join(&hub, &hub.token_for("w1", "all"), &fixture("own", &[]), &[]);
    worker.gateway.wait_for("own", "ready");
    let generation = worker.gateway.status("one")["generation"].clone();
    worker.gateway.reconfigure(&fixture("another", &[]));
    worker.gateway.wait_for("another", "ready");
    let status = worker.gateway.status("one");
    assert_eq!(
        (&status["state"], &status["generation"]),
        (&json!("ready"), &generation)
    );
    worker.until_tool("own__echo", false);

    hub.reconfigure(&(fixture("one", &[]) + &fixture("two", &[]) + ROLES + PEERS));
    worker.until_tool("two__echo", true);
    assert_eq!(worker.gateway.status("one")["generation"], generation);
    hub.reconfigure(&(fixture("two", &[]) + ROLES + PEERS));
    worker.until_tool("one__echo", false);
    let mut session = worker.gateway.session("/mcp");
    assert_eq!(session.text("two__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn a_token_that_is_changed_in_its_file_is_used_for_the_next_connection() {
    let hub = hub();
    let (id, first) = hub.token_of(&json!({"principal": "w1", "role": "all"}));
    let worker = Worker::join(&hub, &first, "", &[]);
    let next = hub.token_for("w1", "few");
    write_private(&worker.token_file(), &next);
    let revoked = hub.cli(&["token", "revoke", &id]);
    assert!(revoked.status.success(), "{revoked:?}");
    worker.until_tool("one__add", false);
    worker.until_tool("one__echo", true);
}
