//! Attacks on the broker: roles that are claimed, frames that are replayed, names that are shared.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::broker::plain::{Came, Plain, call_of};
use crate::broker::{counted, settled, token, up};
use crate::harness::{Gateway, eventually};

/// How long a connection may go on after its credential.
const CUT_MAX: Duration = Duration::from_secs(10);

fn rows(gateway: &Gateway, kind: &str) -> Vec<Value> {
    let rows = gateway.api(&format!("/api/v1/audit?kind={kind}&limit=100"));
    rows["rows"].as_array().unwrap().clone()
}

#[test]
fn sec_46_a_tool_outside_the_role_is_denied_over_the_broker_and_leaves_a_row() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "reader");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    assert_eq!(peer.tools("m"), ["one__echo"]);
    // It asks for what no list showed it, as one does whose list is another.
    let effect = json!({"key": "never"});
    let body = peer.call("c-1", "one__effect", &effect);
    assert!(body["result"].is_null(), "{body}");
    assert_eq!(body["failure"]["execution"], "not_started", "{body}");
    // The same live, and by the server's own name.
    let live = json!({"op": "call", "server": "one", "tool": "effect", "arguments": effect});
    peer.say(&json!({"kind": "request", "id": "r-1", "body": live}));
    let answer = peer.wait_for("response");
    assert!(answer["body"]["result"].is_null(), "{answer}");
    eventually("both have a row", || {
        let denied = rows(&gateway, "denied");
        let ours = denied.iter().filter(|row| row["principal"] == "ann");
        ours.filter(|row| row.to_string().contains("effect"))
            .count()
            == 2
    });
}

#[test]
fn sec_46_a_list_of_before_does_not_open_what_the_role_may_no_longer() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let cached = peer.tools("m");
    assert!(cached.iter().any(|name| name == "one__add"));
    let less = crate::broker::config().replace(
        "[roles.writer]\nallow = [\"one.*\"]",
        "[roles.writer]\nallow = [\"one.echo\"]",
    );
    std::fs::write(gateway.dir.path().join("bowline.toml"), less).unwrap();
    let reloaded = gateway.ask_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(reloaded.status, 200);
    let body = peer.call("c", "one__add", &json!({"a": 1, "b": 2}));
    assert!(body["result"].is_null(), "{body}");
    assert!(body["error"].is_string(), "{body}");
}

#[test]
fn sec_46_a_frame_that_is_refused_leaves_a_row() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "reader");
    let mut peer = Plain::join(gateway.address, "ann", &ann);
    let mut forged = peer.letter("f-1", &json!({"op": "manifest"}));
    forged["from"]["role"] = "writer".into();
    peer.say(&json!({"kind": "deliver", "to": "hub", "message": forged}));
    assert_eq!(peer.frame()["code"], "not_allowed");
    let agent = json!({"session_id": "bob"});
    let mut other = Plain::connect(gateway.address);
    other.say(&json!({"kind": "hello", "agent": agent, "token": ann}));
    assert_eq!(other.ended().1, 4003);
    eventually("both have a row", || {
        let denied = rows(&gateway, "denied");
        let ours = denied.iter().filter(|row| row["principal"] == "ann");
        ours.filter(|row| row.to_string().contains("broker"))
            .count()
            == 2
    });
}

#[test]
fn sec_48_a_captured_frame_runs_nothing_again_and_is_worth_nothing_to_another() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let gateway = Gateway::up(&counted(&ledger));
    gateway.wait_for("one", "ready");
    let (ann, bob) = (
        token(&gateway, "ann", "writer"),
        token(&gateway, "bob", "writer"),
    );
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let captured = json!({
        "kind": "deliver", "to": "hub",
        "message": peer.letter("e-1", &call_of("one__effect", &json!({"key": "once"}))),
    });
    peer.say(&captured);
    let first = peer.reply("e-1");
    drop(peer);
    // On a new connection of the same peer it is the same message.
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    for _ in 0..3 {
        settled(&gateway);
        peer.say(&captured);
        assert_eq!(peer.reply("e-1")["result"], first["result"]);
    }
    // With another body it is refused.
    let mut changed = captured.clone();
    changed["message"]["body"] = call_of("one__effect", &json!({"key": "twice"}));
    peer.say(&changed);
    let error = loop {
        match peer.next() {
            Came::Frame(frame) if frame["kind"] == "error" => break frame,
            Came::Frame(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        (&error["code"], &error["id"]),
        (&json!("conflict"), &json!("e-1"))
    );
    // Of another principal it is a forgery.
    let mut other = Plain::subscribed(gateway.address, "bob", &bob);
    other.say(&captured);
    assert_eq!(other.frame()["code"], "not_allowed");
    let text = std::fs::read_to_string(&ledger).unwrap();
    assert_eq!(text.lines().filter(|line| *line == "once").count(), 1);
    assert!(!text.contains("twice"));
}

#[test]
fn sec_48_a_token_that_expires_or_is_revoked_cuts_the_open_connection_and_says_why() {
    let gateway = up("");
    let wanted = json!({"principal": "ann", "role": "writer", "expires_s": 2});
    let (_, short) = gateway.token_of(&wanted);
    let (id, long) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    let (_, kept) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    let mut expiring = Plain::subscribed(gateway.address, "ann", &short);
    let mut revoked = Plain::join(gateway.address, "ann#2", &long);
    let mut kept = Plain::subscribed(gateway.address, "ann#3", &kept);
    let began = Instant::now();
    let answer = gateway.ask_api("DELETE", &format!("/api/v1/tokens/{id}"), &json!({}));
    assert_eq!(answer.status, 200);
    for peer in [&mut revoked, &mut expiring] {
        let (error, closed) = peer.ended();
        assert_eq!(
            (&error["code"], closed),
            (&json!("expired"), 4002),
            "{error}"
        );
    }
    assert!(began.elapsed() < CUT_MAX, "{:?}", began.elapsed());
    assert!(!kept.tools("m").is_empty());
    // Neither opens anything again.
    for token in [&short, &long] {
        let mut peer = Plain::connect(gateway.address);
        let agent = json!({"session_id": "ann"});
        peer.say(&json!({"kind": "hello", "agent": agent, "token": token}));
        assert_eq!(peer.ended().0["code"], "auth");
    }
}

#[test]
fn sec_49_of_two_peers_with_one_identity_the_newer_stays_and_the_older_is_told_why() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut older = Plain::subscribed(gateway.address, "ann", &ann);
    assert!(!older.tools("m-1").is_empty());
    // One that only delivers disturbs nobody, nor does another part of the same peer.
    let mut aside = Plain::join(gateway.address, "ann", &ann);
    aside.deliver("m-2", &json!({"op": "manifest"}));
    let mut part = Plain::subscribed(gateway.address, "ann#part", &ann);
    assert!(!part.tools("m-3").is_empty());
    assert!(older.reply("m-2")["manifest"].is_array());
    let mut newer = Plain::subscribed(gateway.address, "ann", &ann);
    let (error, closed) = older.ended();
    assert_eq!((&error["code"], closed), (&json!("fenced"), 4001));
    assert!(!newer.tools("m-4").is_empty());
    // The end of the older one takes nothing from the newer.
    drop(older);
    aside.deliver("m-5", &json!({"op": "manifest"}));
    assert!(newer.reply("m-5")["manifest"].is_array());
}
