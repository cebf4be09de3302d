//! A credential that changes in the middle of a session.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::{Guarded, comes, listening, outcome, set};
use crate::harness::{Gateway, eventually};

/// A directory outside the gateway's, and a file in it.
fn secret_file(value: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    fs::write(&path, value).unwrap();
    (directory, path)
}

/// Replaces a file in one step, as a tool that rotates secrets does.
fn rotate(path: &PathBuf, value: &str) {
    let draft = path.with_extension("new");
    fs::write(&draft, value).unwrap();
    fs::rename(&draft, path).unwrap();
}

#[test]
fn r5_a_rotated_file_counts_from_the_next_call_and_the_session_notices_nothing() {
    let server = Guarded::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let (_directory, path) = secret_file("first-key\n");
    let bearer = format!("${{file:{}}}", path.display());
    let gateway = Gateway::up(&server.entry("web", &bearer));
    gateway.wait_for("web", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    rotate(&path, "second-key\n");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    assert_eq!(
        server.proofs("tools/call"),
        ["Bearer first-key", "Bearer second-key"]
    );
    assert_eq!(gateway.status("web")["generation"], 1);
}

#[test]
fn r5_a_secret_that_is_set_again_counts_from_the_next_call_without_a_reload() {
    let server = Guarded::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let gateway = Gateway::up(&server.entry("web", "${secret:web}"));
    // Nothing is known of it yet, and only this server waits for it.
    let broken = gateway.api("/api/v1/status").to_string();
    assert!(broken.contains("bowline secret set web"), "{broken}");
    set(&gateway, "web", "first-key\n");
    comes(&gateway, "web", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    set(&gateway, "web", "second-key\n");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    assert_eq!(
        server.proofs("tools/call"),
        ["Bearer first-key", "Bearer second-key"]
    );
    assert_eq!(gateway.status("web")["generation"], 1);
}

#[test]
fn r5_what_is_refused_is_got_anew_from_its_command_once_and_sent_once_more() {
    let server = Guarded::start(&[("first-key", &["look"])]);
    let (directory, path) = secret_file("first-key\n");
    let runs = directory.path().join("runs");
    let script = format!("echo run >> {}; cat {}", runs.display(), path.display());
    let config = format!(
        "{}[secrets.web]\ncommand = [\"sh\", \"-c\", {}]\nevery = \"1h\"\n",
        server.entry("web", "${secret:web}"),
        json!(script),
    );
    let gateway = Gateway::up(&config);
    gateway.wait_for("web", "ready");
    let count = || fs::read_to_string(&runs).unwrap().lines().count();
    assert_eq!(count(), 1, "once at the start");
    let mut session = gateway.session("/mcp");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    // The server takes another one from now on; what was printed is not an hour old.
    server.only(&[("second-key", &["look"])]);
    rotate(&path, "second-key\n");
    let mut twins: Vec<_> = (0..8).map(|_| session.twin()).collect();
    for (id, twin) in (100..).zip(&mut twins) {
        twin.send_call(id, "web__look", &json!({}));
    }
    for twin in &mut twins {
        let answer = twin.http.read().json();
        assert_eq!(outcome(&answer), "done", "{answer}");
    }
    assert_eq!(count(), 2, "once for all of them");
    eventually("the list was asked for again", || {
        let lists = server.proofs("tools/list");
        lists.contains(&"Bearer second-key".to_owned())
    });
    // What is refused all the same is told, and the command is not run again for it.
    server.only(&[]);
    for _ in 0..3 {
        let answer = session.call("web__look", &json!({}));
        assert_eq!(answer["error"]["data"]["code"], "auth_required", "{answer}");
        assert_eq!(answer["error"]["data"]["execution"], "not_started");
    }
    assert_eq!(count(), 2);
    assert_eq!(gateway.status("web")["generation"], 1);
}

#[test]
fn r16_another_credential_that_shows_other_tools_is_told_once_and_one_that_does_not_is_not() {
    let tools: &[&str] = &["look"];
    let server = Guarded::start(&[
        ("first-key", tools),
        ("same-key", tools),
        ("other-key", &["look", "write"]),
    ]);
    let gateway = Gateway::up(&server.entry("web", "${secret:web}"));
    set(&gateway, "web", "first-key");
    comes(&gateway, "web", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.tools(), ["web__look"]);
    let mut stream = listening(&gateway, &session);
    let lists = || server.proofs("tools/list");
    set(&gateway, "web", "same-key");
    eventually("the list was asked for again", || {
        lists().contains(&"Bearer same-key".to_owned())
    });
    set(&gateway, "web", "other-key");
    eventually("the list was asked for again", || {
        lists().contains(&"Bearer other-key".to_owned())
    });
    let mut told = String::new();
    while !told.contains("list_changed") {
        let chunk = stream.read_chunk().unwrap();
        told.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert_eq!(session.tools(), ["web__look", "web__write"]);
    // The end of the session ends the stream.
    session.delete();
    while let Some(chunk) = stream.read_chunk() {
        told.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert_eq!(told.matches("list_changed").count(), 1, "{told}");
    assert_eq!(gateway.status("web")["generation"], 1, "the link stayed");
}

#[test]
fn r16_a_refused_credential_that_is_got_anew_brings_its_own_menu() {
    let server = Guarded::start(&[("first-key", &["look"])]);
    let (_directory, path) = secret_file("first-key");
    let config = format!(
        "{}[secrets.web]\ncommand = [\"cat\", {}]\nevery = \"1h\"\n",
        server.entry("web", "${secret:web}"),
        json!(path),
    );
    let gateway = Gateway::up(&config);
    gateway.wait_for("web", "ready");
    let mut session = gateway.session("/mcp");
    server.only(&[("second-key", &["look", "more"])]);
    rotate(&path, "second-key");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    eventually("the menu is another one", || {
        session.tools() == ["web__look", "web__more"]
    });
}

#[test]
fn a_server_that_refused_the_start_is_tried_again_at_once_with_another_credential() {
    let server = Guarded::start(&[("good-key", &["look"])]);
    let gateway = Gateway::up(&server.entry("web", "${secret:web}"));
    set(&gateway, "web", "wrong-key");
    comes(&gateway, "web", "backoff");
    set(&gateway, "web", "good-key");
    gateway.wait_for("web", "ready");
    let status = gateway.status("web").to_string();
    assert!(!status.contains("wrong-key"), "{status}");
}
