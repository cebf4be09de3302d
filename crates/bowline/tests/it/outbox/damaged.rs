//! A queued write whose row is damaged on the disk.

use serde_json::json;

use super::world::{World, queued};
use crate::harness::{Http, eventually};

/// Turns one bit over wherever a file says this.
fn flip(path: &std::path::Path, says: &[u8]) -> usize {
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
    let mut world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    world.web.kill();
    let first = queued(&session.call("web__write_once", &json!({"number": 1})));
    queued(&session.call("web__write_once", &json!({"number": 2})));
    assert!(world.gateway.stop());
    let key = first["idempotencyKey"].as_str().unwrap();
    let dedupe = format!("write_once\n{key}");
    let state = world.gateway.state().join("state.db");
    assert!(flip(&state, dedupe.as_bytes()) > 0);
    world.gateway.restart();
    let mut status = json!(null);
    eventually("the lane is known to be stopped", || {
        status = world.gateway.api("/api/v1/status");
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
    let get = |path| Http::connect(world.gateway.address).get(path, &headers);
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
    let shown = world.gateway.cli(&["status"]).stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(
        shown.contains("problem") && shown.contains(reason),
        "{shown}"
    );
    // Without the damaged one the lane goes on.
    let id = first["id"].as_str().unwrap();
    let dropped = world.gateway.cli(&["outbox", "drop", id]);
    assert!(dropped.status.success(), "{dropped:?}");
    world.web.restart();
    eventually("the other is written", || world.ledger().len() == 1);
    let status = world.gateway.api("/api/v1/status");
    assert_eq!(status["journal"]["stopped"], 0, "{status}");
}
