//! A queued write with a damaged row on disk.

use bowline_testkit::gateway::HttpConnection;
use bowline_testkit::wait_until;
use serde_json::json;

use super::outbox_setup::{OutboxSetup, expect_queued};

/// Flips a bit in each occurrence of `says` in a file.
fn flip_bit(path: &std::path::Path, says: &[u8]) -> usize {
    let mut bytes = std::fs::read(path).unwrap();
    let found = bytes.windows(says.len()).enumerate();
    let found: Vec<_> = found
        .filter(|(_, window)| *window == says)
        .map(|(at, _)| at)
        .collect();
    for at in &found {
        bytes[*at] ^= 1;
    }
    std::fs::write(path, bytes).unwrap();
    found.len()
}

#[test]
fn damaged_row_shows_stopped_lane_everywhere() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.http_server.kill();
    let first = expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    expect_queued(&session.call("web__write_once", &json!({"number": 2})));
    assert!(world.gateway.stop());
    let key = first["idempotencyKey"].as_str().unwrap();
    let dedupe = format!("write_once\n{key}");
    let state = world.gateway.state_dir().join("state.db");
    assert!(flip_bit(&state, dedupe.as_bytes()) > 0);
    world.gateway.restart();
    let mut status = json!(null);
    wait_until("the lane is known to be stopped", || {
        status = world.gateway.get_api("/api/v1/status");
        status["journal"]["stopped"] == 1
    });
    let lane = &status["journal"]["stopped_lanes"][0];
    assert!(lane["lane"].as_str().unwrap().contains("/web"), "{status}");
    let reason = lane["reason"].as_str().unwrap();
    assert!(reason.contains("is damaged on the disk"), "{status}");
    assert_eq!(
        status["journal"]["health"], "good",
        "other lanes are served"
    );
    let token = format!("Bearer {}", world.gateway.token);
    let headers = [("Authorization", &token[..])];
    let get = |path| HttpConnection::connect(world.gateway.address).get(path, &headers);
    let ready = get("/readyz").json();
    assert_eq!(
        (&ready["status"], &ready["journal"]),
        (&json!("degraded"), &json!("lane_stopped")),
        "{ready}"
    );
    let metrics = get("/metrics").text();
    assert!(
        metrics.contains("bowline_journal_lanes_stopped 1"),
        "{metrics}"
    );
    let shown = world.gateway.run_cli(&["status"]).stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(
        shown.contains("problem") && shown.contains(reason),
        "{shown}"
    );
    // The lane goes on without the damaged row.
    let id = first["id"].as_str().unwrap();
    let dropped = world.gateway.run_cli(&["outbox", "drop", id]);
    assert!(dropped.status.success(), "{dropped:?}");
    world.http_server.restart();
    wait_until("the other is written", || world.http_ledger().len() == 1);
    let status = world.gateway.get_api("/api/v1/status");
    assert_eq!(status["journal"]["stopped"], 0, "{status}");
}
