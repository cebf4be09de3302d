//! Attacks on the broker: claimed roles, replayed frames, shared names.

use std::time::{Duration, Instant};

use bowline_testkit::gateway::Gateway;
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::broker::plain_peer::{PlainPeer, SocketEvent, call_body};
use crate::broker::{counting_fixture, create_token, start_broker, wait_until_acked};

/// How long a connection may outlive the credential.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);

fn audit_rows(gateway: &Gateway, kind: &str) -> Vec<Value> {
    let rows = gateway.get_api(&format!("/api/v1/audit?kind={kind}&limit=100"));
    rows["rows"].as_array().unwrap().clone()
}

#[test]
fn sec_46_broker_denial_of_tool_leaves_row() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "reader");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    assert_eq!(peer.list_tools("m"), ["one__echo"]);
    // The call names an unlisted tool, like a peer with another list.
    let effect = json!({"key": "never"});
    let body = peer.call_tool("c-1", "one__effect", &effect);
    assert!(body["result"].is_null(), "{body}");
    assert_eq!(body["failure"]["execution"], "not_started", "{body}");
    // The same as a live call, and by the server's own tool name.
    let live = json!({"op": "call", "server": "one", "tool": "effect", "arguments": effect});
    peer.send_frame(&json!({"kind": "request", "id": "r-1", "body": live}));
    let answer = peer.wait_for_frame("response");
    assert!(answer["body"]["result"].is_null(), "{answer}");
    wait_until("both have a row", || {
        let denied = audit_rows(&gateway, "denied");
        let ours = denied.iter().filter(|row| row["principal"] == "ann");
        ours.filter(|row| row.to_string().contains("effect"))
            .count()
            == 2
    });
}

#[test]
fn sec_46_cached_broker_list_grants_nothing() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let cached = peer.list_tools("m");
    assert!(cached.iter().any(|name| name == "one__add"));
    let less = crate::broker::broker_config().replace(
        "[roles.writer]\nallow = [\"one.*\"]",
        "[roles.writer]\nallow = [\"one.echo\"]",
    );
    std::fs::write(gateway.dir.path().join("bowline.toml"), less).unwrap();
    let reloaded = gateway.send_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(reloaded.status, 200);
    let body = peer.call_tool("c", "one__add", &json!({"a": 1, "b": 2}));
    assert!(body["result"].is_null(), "{body}");
    assert!(body["error"].is_string(), "{body}");
}

#[test]
fn sec_46_refused_frame_leaves_row() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "reader");
    let mut peer = PlainPeer::join(gateway.address, "ann", &ann);
    let mut forged = peer.to_message("f-1", &json!({"op": "manifest"}));
    forged["from"]["role"] = "writer".into();
    peer.send_frame(&json!({"kind": "deliver", "to": "hub", "message": forged}));
    assert_eq!(peer.next_frame()["code"], "not_allowed");
    let agent = json!({"session_id": "bob"});
    let mut other = PlainPeer::connect(gateway.address);
    other.send_frame(&json!({"kind": "hello", "agent": agent, "token": ann}));
    assert_eq!(other.read_closing_error().1, 4003);
    wait_until("both have a row", || {
        let denied = audit_rows(&gateway, "denied");
        let ours = denied.iter().filter(|row| row["principal"] == "ann");
        ours.filter(|row| row.to_string().contains("broker"))
            .count()
            == 2
    });
}

#[test]
fn sec_48_captured_frame_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let gateway = Gateway::start(&counting_fixture(&ledger));
    gateway.wait_for_state("one", "ready");
    let (ann, bob) = (
        create_token(&gateway, "ann", "writer"),
        create_token(&gateway, "bob", "writer"),
    );
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let captured = json!({
        "kind": "deliver", "to": "hub",
        "message": peer.to_message("e-1", &call_body("one__effect", &json!({"key": "once"}))),
    });
    peer.send_frame(&captured);
    let first = peer.wait_for_reply("e-1");
    drop(peer);
    // On a new connection of the same peer it is the same message.
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    for _ in 0..3 {
        wait_until_acked(&gateway);
        peer.send_frame(&captured);
        assert_eq!(peer.wait_for_reply("e-1")["result"], first["result"]);
    }
    // With another body the message is refused.
    let mut changed = captured.clone();
    changed["message"]["body"] = call_body("one__effect", &json!({"key": "twice"}));
    peer.send_frame(&changed);
    let error = loop {
        match peer.next_event() {
            SocketEvent::Frame(frame) if frame["kind"] == "error" => break frame,
            SocketEvent::Frame(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        (&error["code"], &error["id"]),
        (&json!("conflict"), &json!("e-1"))
    );
    // From another principal the message is a forgery.
    let mut other = PlainPeer::join_and_subscribe(gateway.address, "bob", &bob);
    other.send_frame(&captured);
    assert_eq!(other.next_frame()["code"], "not_allowed");
    let text = std::fs::read_to_string(&ledger).unwrap();
    assert_eq!(text.lines().filter(|line| *line == "once").count(), 1);
    assert!(!text.contains("twice"));
}

#[test]
fn sec_48_ended_token_closes_connection_with_reason() {
    let gateway = start_broker("");
    let wanted = json!({"principal": "ann", "role": "writer", "expires_s": 2});
    let (_, short) = gateway.create_token(&wanted);
    let (id, long) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let (_, kept) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let mut expiring = PlainPeer::join_and_subscribe(gateway.address, "ann", &short);
    let mut revoked = PlainPeer::join(gateway.address, "ann#2", &long);
    let mut kept = PlainPeer::join_and_subscribe(gateway.address, "ann#3", &kept);
    let began = Instant::now();
    let answer = gateway.send_api("DELETE", &format!("/api/v1/tokens/{id}"), &json!({}));
    assert_eq!(answer.status, 200);
    for peer in [&mut revoked, &mut expiring] {
        let (error, closed) = peer.read_closing_error();
        assert_eq!(
            (&error["code"], closed),
            (&json!("expired"), 4002),
            "{error}"
        );
    }
    assert!(began.elapsed() < CLOSE_TIME_MAX, "{:?}", began.elapsed());
    assert!(!kept.list_tools("m").is_empty());
    // Neither token works again.
    for token in [&short, &long] {
        let mut peer = PlainPeer::connect(gateway.address);
        let agent = json!({"session_id": "ann"});
        peer.send_frame(&json!({"kind": "hello", "agent": agent, "token": token}));
        assert_eq!(peer.read_closing_error().0["code"], "auth");
    }
}

#[test]
fn sec_49_newer_peer_replaces_older_with_reason() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut older = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    assert!(!older.list_tools("m-1").is_empty());
    // A connection that only sends, or another part of the same peer, displaces no subscriber.
    let mut aside = PlainPeer::join(gateway.address, "ann", &ann);
    aside.send_request("m-2", &json!({"op": "manifest"}));
    let mut part = PlainPeer::join_and_subscribe(gateway.address, "ann#part", &ann);
    assert!(!part.list_tools("m-3").is_empty());
    assert!(older.wait_for_reply("m-2")["manifest"].is_array());
    let mut newer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let (error, closed) = older.read_closing_error();
    assert_eq!((&error["code"], closed), (&json!("fenced"), 4001));
    assert!(!newer.list_tools("m-4").is_empty());
    // The end of the older connection does not affect the newer.
    drop(older);
    aside.send_request("m-5", &json!({"op": "manifest"}));
    assert!(newer.wait_for_reply("m-5")["manifest"].is_array());
}
