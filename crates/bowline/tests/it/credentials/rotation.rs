//! A credential that changes during a session.

use std::fs;
use std::path::PathBuf;

use bowline_testkit::gateway::Gateway;
use bowline_testkit::wait_until;
use serde_json::json;

use super::{GuardedServer, call_outcome, open_stream, set_secret, wait_for_listed_server};

/// A secret file in a directory outside the gateway's.
fn create_secret_file(value: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    fs::write(&path, value).unwrap();
    (directory, path)
}

/// Replaces a file atomically, as a rotation tool does.
fn replace_file(path: &PathBuf, value: &str) {
    let draft = path.with_extension("new");
    fs::write(&draft, value).unwrap();
    fs::rename(&draft, path).unwrap();
}

#[test]
fn rotated_secret_file_is_used_by_next_call() {
    let server = GuardedServer::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let (_directory, path) = create_secret_file("first-key\n");
    let bearer = format!("${{file:{}}}", path.display());
    let gateway = Gateway::start(&server.config_entry("web", &bearer));
    gateway.wait_for_state("web", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    replace_file(&path, "second-key\n");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    assert_eq!(
        server.authorization_headers("tools/call"),
        ["Bearer first-key", "Bearer second-key"]
    );
    assert_eq!(gateway.server_status("web")["generation"], 1);
}

#[test]
fn replaced_secret_is_used_without_reload() {
    let server = GuardedServer::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let gateway = Gateway::start(&server.config_entry("web", "${secret:web}"));
    // The secret does not exist yet, and only this server waits for it.
    let broken = gateway.get_api("/api/v1/status").to_string();
    assert!(broken.contains("bowline secret set web"), "{broken}");
    set_secret(&gateway, "web", "first-key\n");
    wait_for_listed_server(&gateway, "web", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    set_secret(&gateway, "web", "second-key\n");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    assert_eq!(
        server.authorization_headers("tools/call"),
        ["Bearer first-key", "Bearer second-key"]
    );
    assert_eq!(gateway.server_status("web")["generation"], 1);
}

#[test]
fn refused_credential_is_fetched_and_retried_once() {
    let server = GuardedServer::start(&[("first-key", &["look"])]);
    let (directory, path) = create_secret_file("first-key\n");
    let runs = directory.path().join("runs");
    let script = format!("echo run >> {}; cat {}", runs.display(), path.display());
    let config = format!(
        "{}[secrets.web]\ncommand = [\"sh\", \"-c\", {}]\nevery = \"1h\"\n",
        server.config_entry("web", "${secret:web}"),
        json!(script),
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("web", "ready");
    let count = || fs::read_to_string(&runs).unwrap().lines().count();
    assert_eq!(count(), 1, "once at the start");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    // The server now accepts another credential; the printed one is less than an hour old.
    server.set_accepted(&[("second-key", &["look"])]);
    replace_file(&path, "second-key\n");
    let mut twins: Vec<_> = (0..8).map(|_| session.clone_on_new_connection()).collect();
    for (id, twin) in (100..).zip(&mut twins) {
        twin.send_call(id, "web__look", &json!({}));
    }
    for twin in &mut twins {
        let answer = twin.http.read_response().json();
        assert_eq!(call_outcome(&answer), "done", "{answer}");
    }
    assert_eq!(count(), 2, "once for all of them");
    wait_until("the list was asked for again", || {
        let lists = server.authorization_headers("tools/list");
        lists.contains(&"Bearer second-key".to_owned())
    });
    // A second refusal is reported, and the command does not run again.
    server.set_accepted(&[]);
    for _ in 0..3 {
        let answer = session.call("web__look", &json!({}));
        assert_eq!(answer["error"]["data"]["code"], "auth_required", "{answer}");
        assert_eq!(answer["error"]["data"]["execution"], "not_started");
    }
    assert_eq!(count(), 2);
    assert_eq!(gateway.server_status("web")["generation"], 1);
}

#[test]
fn credential_change_notifies_only_changed_views() {
    let tools: &[&str] = &["look"];
    let server = GuardedServer::start(&[
        ("first-key", tools),
        ("same-key", tools),
        ("other-key", &["look", "write"]),
    ]);
    let gateway = Gateway::start(&server.config_entry("web", "${secret:web}"));
    set_secret(&gateway, "web", "first-key");
    wait_for_listed_server(&gateway, "web", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(session.list_tool_names(), ["web__look"]);
    let mut stream = open_stream(&gateway, &session);
    let lists = || server.authorization_headers("tools/list");
    set_secret(&gateway, "web", "same-key");
    wait_until("the list was asked for again", || {
        lists().contains(&"Bearer same-key".to_owned())
    });
    set_secret(&gateway, "web", "other-key");
    wait_until("the list was asked for again", || {
        lists().contains(&"Bearer other-key".to_owned())
    });
    let mut told = String::new();
    while !told.contains("list_changed") {
        let chunk = stream.read_chunk().unwrap();
        told.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert_eq!(session.list_tool_names(), ["web__look", "web__write"]);
    // Ending the session ends the stream.
    session.end_session();
    while let Some(chunk) = stream.read_chunk() {
        told.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert_eq!(told.matches("list_changed").count(), 1, "{told}");
    assert_eq!(
        gateway.server_status("web")["generation"],
        1,
        "the link stayed"
    );
}

#[test]
fn refetched_credential_brings_its_own_tools() {
    let server = GuardedServer::start(&[("first-key", &["look"])]);
    let (_directory, path) = create_secret_file("first-key");
    let config = format!(
        "{}[secrets.web]\ncommand = [\"cat\", {}]\nevery = \"1h\"\n",
        server.config_entry("web", "${secret:web}"),
        json!(path),
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("web", "ready");
    let mut session = gateway.open_session("/mcp");
    server.set_accepted(&[("second-key", &["look", "more"])]);
    replace_file(&path, "second-key");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    wait_until("the menu is another one", || {
        session.list_tool_names() == ["web__look", "web__more"]
    });
}

#[test]
fn new_credential_retries_refused_start_at_once() {
    let server = GuardedServer::start(&[("good-key", &["look"])]);
    let gateway = Gateway::start(&server.config_entry("web", "${secret:web}"));
    set_secret(&gateway, "web", "wrong-key");
    wait_for_listed_server(&gateway, "web", "backoff");
    set_secret(&gateway, "web", "good-key");
    gateway.wait_for_state("web", "ready");
    let status = gateway.server_status("web").to_string();
    assert!(!status.contains("wrong-key"), "{status}");
}
