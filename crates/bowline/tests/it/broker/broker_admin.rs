//! Status and commands for peers and mailboxes.

use std::time::Duration;

use bowline_testkit::gateway::{Gateway, HttpConnection};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::plain_peer::PlainPeer;
use super::{create_token, start_broker};

fn run_json(gateway: &Gateway, args: &[&str]) -> Value {
    let output = gateway.run_cli(args);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn run_text(gateway: &Gateway, args: &[&str]) -> String {
    let output = gateway.run_cli(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn scrape_metrics(gateway: &Gateway) -> String {
    let bearer = format!("Bearer {}", gateway.token);
    let mut http = HttpConnection::connect(gateway.address);
    http.get("/metrics", &[("Authorization", &bearer)]).text()
}

/// The value of a series.
fn series_value(gateway: &Gateway, name: &str) -> f64 {
    let text = scrape_metrics(gateway);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.trim().parse().unwrap()
}

#[test]
fn live_peers_and_mailboxes_are_listed() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let bob = create_token(&gateway, "bob", "reader");
    assert_eq!(
        run_json(&gateway, &["worker", "ls", "--json"])["peers"],
        json!([])
    );
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    assert!(!peer.list_tools("m").is_empty());
    let letter = peer.to_message("n-1", &json!({"text": "wait"}));
    peer.send_frame(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    peer.wait_for_receipt("n-1");
    let listed = run_json(&gateway, &["worker", "ls", "--json"]);
    assert_eq!(listed["v"], 1);
    let one = &listed["peers"][0];
    assert_eq!(one["mailbox"], "ann");
    assert_eq!(one["role"], "writer");
    assert_eq!(one["subscribed"], true);
    assert_eq!(one["offers"], json!([]));
    assert!(one["since_ms"].as_u64().unwrap() > 0, "{one}");
    let mailboxes = listed["mailboxes"].as_array().unwrap();
    let waiting = mailboxes
        .iter()
        .find(|one| one["mailbox"] == "bob")
        .unwrap();
    assert_eq!(
        (&waiting["waiting"], &waiting["dead"]),
        (&json!(1), &json!(0))
    );
    let text = run_text(&gateway, &["worker", "ls"]);
    assert!(text.contains("ann") && text.contains("bob"), "{text}");
    assert!(run_text(&gateway, &["status"]).contains("1 worker"));
    assert_eq!(series_value(&gateway, "bowline_broker_peers "), 1.0);
    assert_eq!(series_value(&gateway, "bowline_broker_waiting "), 1.0);
    drop(peer);
    wait_until("it is gone", || {
        gateway.get_api("/api/v1/broker")["peers"] == json!([])
    });
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "bob", &bob);
    let frame = peer.wait_for_frame("message");
    assert_eq!(frame["message"]["id"], "n-1");
}

/// A dead letter can be listed, shown, delivered again and dropped.
#[test]
fn dead_letter_is_listed_requeued_and_dropped() {
    let gateway = start_broker("");
    let (ann, bob) = (
        create_token(&gateway, "ann", "writer"),
        create_token(&gateway, "bob", "reader"),
    );
    let mut ann = PlainPeer::join(gateway.address, "ann", &ann);
    let mut bob = PlainPeer::join_and_subscribe(gateway.address, "bob", &bob);
    let mut letter = ann.to_message("n-1", &json!({"text": "poison"}));
    letter["kind"] = "note".into();
    ann.send_frame(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    bob.wait_for_frame("message");
    bob.send_frame(&json!({"kind": "nak", "id": "n-1", "dead": true, "reason": "cannot read it"}));
    let dead = |gateway: &Gateway| {
        let listed = run_json(gateway, &["worker", "mail", "ls", "--json"]);
        listed["letters"].as_array().unwrap().clone()
    };
    wait_until("it is dead", || dead(&gateway).len() == 1);
    let letter = dead(&gateway).remove(0);
    assert_eq!(letter["mailbox"], "bob");
    assert_eq!(letter["from"], "ann");
    assert_eq!(letter["kind"], "note");
    assert_eq!(letter["message"], "n-1");
    assert_eq!(letter["reason"], "cannot read it");
    let id = letter["id"].as_str().unwrap();
    let shown = run_text(&gateway, &["worker", "mail", "show", id]);
    assert!(
        shown.contains("poison") && shown.contains("cannot read it"),
        "{shown}"
    );
    run_text(&gateway, &["worker", "mail", "retry", id]);
    let again = bob.wait_for_frame("message");
    assert_eq!(again["message"]["id"], "n-1");
    assert_eq!(again["message"]["body"], json!({"text": "poison"}));
    bob.send_frame(&json!({"kind": "nak", "id": "n-1", "dead": true, "reason": "still"}));
    wait_until("it is dead again", || dead(&gateway).len() == 1);
    let id = dead(&gateway)[0]["id"].as_str().unwrap().to_owned();
    let dropped = run_text(&gateway, &["worker", "mail", "drop", &id]);
    assert!(dropped.contains("poison"), "{dropped}");
    assert_eq!(dead(&gateway).len(), 0);
    let gone = gateway.run_cli(&["worker", "mail", "show", &id]);
    assert!(!gone.status.success());
    assert!(bob.stays_silent_for(Duration::from_millis(200)));
}

#[test]
fn peer_changes_are_events() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let bearer = format!("Bearer {}", gateway.token);
    let mut events = HttpConnection::connect(gateway.address);
    events.send_request("GET", "/api/v1/events", &[("Authorization", &bearer)], b"");
    assert_eq!(events.read_head().status, 200);
    let mut heard = |state: &str| loop {
        let chunk = String::from_utf8(events.read_chunk().unwrap()).unwrap();
        if chunk.contains("peer") && chunk.contains(&format!("\"{state}\"")) {
            assert!(chunk.contains("\"ann\""), "{chunk}");
            return;
        }
    };
    let older = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    heard("joined");
    let mut newer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    heard("fenced");
    let letter = newer.to_message("x", &json!({}));
    newer.send_frame(&json!({"kind": "deliver", "to": "carl", "message": letter}));
    heard("refused");
    drop(older);
    drop(newer);
    heard("left");
}
