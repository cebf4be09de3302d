//! A state directory deleted while the gateway runs.

use bowline_testkit::gateway::HttpConnection;
use serde_json::json;

use super::outbox_setup::{OutboxSetup, expect_queued};

#[test]
fn write_after_state_deletion_is_refused() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.http_server.kill();
    expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    std::fs::remove_dir_all(world.gateway.state_dir()).unwrap();
    for number in 2..7 {
        let refused = session.call("web__write_once", &json!({"number": number}));
        let data = &refused["error"]["data"];
        assert_eq!(data["code"], "not_stored", "{refused}");
        assert_eq!(data["execution"], "not_started", "{refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("deleted, moved or replaced"), "{refused}");
    }
    // A server that is up gets no write either, because a crash could not be recovered.
    let refused = session.call("pipe__write_once", &json!({"number": 1}));
    assert_eq!(refused["error"]["data"]["code"], "not_stored", "{refused}");
    assert_eq!(world.ledger_of("pipe").len(), 0);
    let token = format!("Bearer {}", world.gateway.token);
    let headers = [("Authorization", &token[..])];
    let ready = HttpConnection::connect(world.gateway.address).get("/readyz", &headers);
    let ready = ready.json();
    assert_eq!(
        (&ready["status"], &ready["journal"]),
        (&json!("degraded"), &json!("replaced")),
        "{ready}"
    );
    let status = world.gateway.get_api("/api/v1/status");
    assert_eq!(status["journal"]["health"], "replaced", "{status}");
    assert_ne!(status["journal"]["reason"], json!(null), "{status}");
}

#[test]
fn readyz_reports_deleted_state_before_writes() {
    let world = OutboxSetup::new("meta");
    let token = format!("Bearer {}", world.gateway.token);
    let headers = [("Authorization", &token[..])];
    let ready = || {
        let ready = HttpConnection::connect(world.gateway.address).get("/readyz", &headers);
        ready.json()
    };
    let before = ready();
    assert_eq!(before["status"], "ok", "{before}");
    std::fs::remove_dir_all(world.gateway.state_dir()).unwrap();
    let after = ready();
    assert_eq!(
        (&after["status"], &after["journal"], &after["audit"]),
        (&json!("degraded"), &json!("replaced"), &json!("degraded")),
        "{after}"
    );
}
