//! What was received is not lost, and does not run twice, whatever becomes of the gateway.

use serde_json::{Value, json};

use super::plain::{Plain, call_of};
use super::{counted, settled, token};
use crate::harness::{Gateway, eventually};

fn effects(ledger: &std::path::Path, key: &str) -> usize {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().filter(|line| *line == key).count()
}

fn up() -> (tempfile::TempDir, Gateway, String) {
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::up(&counted(&dir.path().join("ledger")));
    gateway.wait_for("one", "ready");
    let ann = token(&gateway, "ann", "writer");
    (dir, gateway, ann)
}

#[test]
fn a_request_with_a_receipt_is_answered_after_the_gateway_was_killed() {
    let (_dir, mut gateway, ann) = up();
    for round in 0..3 {
        let id = format!("m-{round}");
        let mut peer = Plain::join(gateway.address, "ann", &ann);
        peer.deliver(&id, &json!({"op": "manifest"}));
        gateway.restart_after_kill();
        let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
        let body = peer.reply(&id);
        assert!(body["manifest"].is_array(), "{body}");
    }
}

#[test]
fn a_reply_that_was_not_acknowledged_is_there_after_a_kill_and_nothing_ran_twice() {
    let (dir, mut gateway, ann) = up();
    let ledger = dir.path().join("ledger");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let effect = call_of("one__effect", &json!({"key": "once"}));
    peer.deliver("e-1", &effect);
    let first = peer.wait_for("message");
    gateway.restart_after_kill();
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let again = peer.reply("e-1");
    assert_eq!(again["result"], first["message"]["body"]["result"]);
    // Whoever lost the receipt asks again, by the same id, and has the same answer.
    settled(&gateway);
    peer.deliver("e-1", &effect);
    let third = peer.reply("e-1");
    assert_eq!(third["result"], first["message"]["body"]["result"]);
    assert_eq!(effects(&ledger, "once"), 1);
}

#[test]
fn a_write_that_was_cut_off_by_a_kill_is_not_run_again_and_says_that_nobody_knows() {
    let (dir, mut gateway, ann) = up();
    let ledger = dir.path().join("ledger");
    let mut peer = Plain::join(gateway.address, "ann", &ann);
    let slow = json!({"key": "cut", "ms": 600_000});
    peer.deliver("e-1", &call_of("one__effect", &slow));
    eventually("it began", || effects(&ledger, "cut") == 1);
    gateway.restart_after_kill();
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let body = peer.reply("e-1");
    assert!(body["result"].is_null(), "{body}");
    assert_eq!(body["failure"]["execution"], "unknown", "{body}");
    assert_eq!(effects(&ledger, "cut"), 1);
}

#[test]
fn a_gateway_that_stops_tells_its_peers_and_keeps_what_waits() {
    let (_dir, mut gateway, ann) = up();
    let mut gone = Plain::join(gateway.address, "ann", &ann);
    gone.deliver("m-1", &json!({"op": "manifest"}));
    let mut peer = Plain::join(gateway.address, "ann#other", &ann);
    assert!(gateway.stop());
    let (error, closed) = peer.ended();
    assert_eq!((&error["code"], closed), (&json!("shutting_down"), 1001));
    gateway.restart();
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let body: Value = peer.reply("m-1");
    assert!(body["manifest"].is_array(), "{body}");
}
