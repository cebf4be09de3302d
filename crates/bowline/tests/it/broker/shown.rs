//! What people and programs are shown of peers and mailboxes, and what they can do about them.

use std::time::Duration;

use serde_json::{Value, json};

use super::plain::Plain;
use super::{token, up};
use crate::harness::{Gateway, Http, eventually};

fn json_of(gateway: &Gateway, args: &[&str]) -> Value {
    let output = gateway.cli(args);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text_of(gateway: &Gateway, args: &[&str]) -> String {
    let output = gateway.cli(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn metrics(gateway: &Gateway) -> String {
    let bearer = format!("Bearer {}", gateway.token);
    let mut http = Http::connect(gateway.address);
    http.get("/metrics", &[("Authorization", &bearer)]).text()
}

/// The value of a series.
fn series(gateway: &Gateway, name: &str) -> f64 {
    let text = metrics(gateway);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.trim().parse().unwrap()
}

#[test]
fn peers_and_mailboxes_are_listed_while_they_are_there() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let bob = token(&gateway, "bob", "reader");
    assert_eq!(
        json_of(&gateway, &["worker", "ls", "--json"])["peers"],
        json!([])
    );
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    assert!(!peer.tools("m").is_empty());
    let letter = peer.letter("n-1", &json!({"text": "wait"}));
    peer.say(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    peer.receipt("n-1");
    let listed = json_of(&gateway, &["worker", "ls", "--json"]);
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
    let text = text_of(&gateway, &["worker", "ls"]);
    assert!(text.contains("ann") && text.contains("bob"), "{text}");
    assert!(text_of(&gateway, &["status"]).contains("1 worker"));
    assert_eq!(series(&gateway, "bowline_broker_peers "), 1.0);
    assert_eq!(series(&gateway, "bowline_broker_waiting "), 1.0);
    drop(peer);
    eventually("it is gone", || {
        gateway.api("/api/v1/broker")["peers"] == json!([])
    });
    let mut peer = Plain::subscribed(gateway.address, "bob", &bob);
    let frame = peer.wait_for("message");
    assert_eq!(frame["message"]["id"], "n-1");
}

#[test]
fn a_dead_letter_is_listed_shown_delivered_anew_and_dropped() {
    let gateway = up("");
    let (ann, bob) = (
        token(&gateway, "ann", "writer"),
        token(&gateway, "bob", "reader"),
    );
    let mut ann = Plain::join(gateway.address, "ann", &ann);
    let mut bob = Plain::subscribed(gateway.address, "bob", &bob);
    let mut letter = ann.letter("n-1", &json!({"text": "poison"}));
    letter["kind"] = "note".into();
    ann.say(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    bob.wait_for("message");
    bob.say(&json!({"kind": "nak", "id": "n-1", "dead": true, "reason": "cannot read it"}));
    let dead = |gateway: &Gateway| {
        let listed = json_of(gateway, &["worker", "mail", "ls", "--json"]);
        listed["letters"].as_array().unwrap().clone()
    };
    eventually("it is dead", || dead(&gateway).len() == 1);
    let letter = dead(&gateway).remove(0);
    assert_eq!(letter["mailbox"], "bob");
    assert_eq!(letter["from"], "ann");
    assert_eq!(letter["kind"], "note");
    assert_eq!(letter["message"], "n-1");
    assert_eq!(letter["reason"], "cannot read it");
    let id = letter["id"].as_str().unwrap();
    let shown = text_of(&gateway, &["worker", "mail", "show", id]);
    assert!(
        shown.contains("poison") && shown.contains("cannot read it"),
        "{shown}"
    );
    text_of(&gateway, &["worker", "mail", "retry", id]);
    let again = bob.wait_for("message");
    assert_eq!(again["message"]["id"], "n-1");
    assert_eq!(again["message"]["body"], json!({"text": "poison"}));
    bob.say(&json!({"kind": "nak", "id": "n-1", "dead": true, "reason": "still"}));
    eventually("it is dead again", || dead(&gateway).len() == 1);
    let id = dead(&gateway)[0]["id"].as_str().unwrap().to_owned();
    let dropped = text_of(&gateway, &["worker", "mail", "drop", &id]);
    assert!(dropped.contains("poison"), "{dropped}");
    assert_eq!(dead(&gateway).len(), 0);
    let gone = gateway.cli(&["worker", "mail", "show", &id]);
    assert!(!gone.status.success());
    assert!(bob.is_silent(Duration::from_millis(200)));
}

#[test]
fn what_happens_to_peers_is_told_as_it_happens() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let bearer = format!("Bearer {}", gateway.token);
    let mut events = Http::connect(gateway.address);
    events.send("GET", "/api/v1/events", &[("Authorization", &bearer)], b"");
    assert_eq!(events.read_head().status, 200);
    let mut heard = |state: &str| loop {
        let chunk = String::from_utf8(events.read_chunk().unwrap()).unwrap();
        if chunk.contains("peer") && chunk.contains(&format!("\"{state}\"")) {
            assert!(chunk.contains("\"ann\""), "{chunk}");
            return;
        }
    };
    let older = Plain::subscribed(gateway.address, "ann", &ann);
    heard("joined");
    let mut newer = Plain::subscribed(gateway.address, "ann", &ann);
    heard("fenced");
    let letter = newer.letter("x", &json!({}));
    newer.say(&json!({"kind": "deliver", "to": "carl", "message": letter}));
    heard("refused");
    drop(older);
    drop(newer);
    heard("left");
}
