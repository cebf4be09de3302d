//! A received message is never lost and never runs twice, through any kill of the gateway.

use bowline_testkit::gateway::Gateway;
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::plain_peer::{PlainPeer, call_body};
use super::{counting_fixture, create_token, wait_until_acked};

fn count_effects(ledger: &std::path::Path, key: &str) -> usize {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().filter(|line| *line == key).count()
}

fn start_with_ledger() -> (tempfile::TempDir, Gateway, String) {
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&counting_fixture(&dir.path().join("ledger")));
    gateway.wait_for_state("one", "ready");
    let ann = create_token(&gateway, "ann", "writer");
    (dir, gateway, ann)
}

#[test]
fn receipted_request_is_answered_after_kill() {
    let (_dir, mut gateway, ann) = start_with_ledger();
    for round in 0..3 {
        let id = format!("m-{round}");
        let mut peer = PlainPeer::join(gateway.address, "ann", &ann);
        peer.send_request(&id, &json!({"op": "manifest"}));
        gateway.restart_after_kill();
        let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
        let body = peer.wait_for_reply(&id);
        assert!(body["manifest"].is_array(), "{body}");
    }
}

/// An unacknowledged reply survives a kill of the gateway, and the call does not run twice.
#[test]
fn unacked_reply_survives_kill_without_rerun() {
    let (dir, mut gateway, ann) = start_with_ledger();
    let ledger = dir.path().join("ledger");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let effect = call_body("one__effect", &json!({"key": "once"}));
    peer.send_request("e-1", &effect);
    let first = peer.wait_for_frame("message");
    gateway.restart_after_kill();
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let again = peer.wait_for_reply("e-1");
    assert_eq!(again["result"], first["message"]["body"]["result"]);
    // A client that lost the receipt repeats the request with the same id and gets the same reply.
    wait_until_acked(&gateway);
    peer.send_request("e-1", &effect);
    let third = peer.wait_for_reply("e-1");
    assert_eq!(third["result"], first["message"]["body"]["result"]);
    assert_eq!(count_effects(&ledger, "once"), 1);
}

/// A write interrupted by a kill does not run again; the outcome is reported as unknown.
#[test]
fn interrupted_write_is_unknown_after_kill() {
    let (dir, mut gateway, ann) = start_with_ledger();
    let ledger = dir.path().join("ledger");
    let mut peer = PlainPeer::join(gateway.address, "ann", &ann);
    let slow = json!({"key": "cut", "ms": 600_000});
    peer.send_request("e-1", &call_body("one__effect", &slow));
    wait_until("it began", || count_effects(&ledger, "cut") == 1);
    gateway.restart_after_kill();
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let body = peer.wait_for_reply("e-1");
    assert!(body["result"].is_null(), "{body}");
    assert_eq!(body["failure"]["execution"], "unknown", "{body}");
    assert_eq!(count_effects(&ledger, "cut"), 1);
}

#[test]
fn stop_notifies_peers_and_keeps_messages() {
    let (_dir, mut gateway, ann) = start_with_ledger();
    let mut gone = PlainPeer::join(gateway.address, "ann", &ann);
    gone.send_request("m-1", &json!({"op": "manifest"}));
    let mut peer = PlainPeer::join(gateway.address, "ann#other", &ann);
    assert!(gateway.stop());
    let (error, closed) = peer.read_closing_error();
    assert_eq!((&error["code"], closed), (&json!("shutting_down"), 1001));
    gateway.restart();
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let body: Value = peer.wait_for_reply("m-1");
    assert!(body["manifest"].is_array(), "{body}");
}
