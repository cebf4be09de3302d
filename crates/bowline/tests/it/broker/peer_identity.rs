//! The credential decides the identity of a peer, not its claims.

use bowline_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::plain_peer::PlainPeer;
use super::{broker_config, create_token, start_broker};

fn assert_hello_refused(gateway: &Gateway, agent: &Value, token: &str) {
    let mut peer = PlainPeer::connect(gateway.address);
    peer.send_frame(&json!({"kind": "hello", "agent": agent, "token": token}));
    let (error, closed) = peer.read_closing_error();
    assert_eq!(error["code"], "not_allowed", "{agent}: {error}");
    assert_eq!(closed, 4003, "{agent}");
    // The error does not repeat the claim.
    let reason = error["reason"].as_str().unwrap();
    assert!(
        !reason.contains("bob") && !reason.contains("owner"),
        "{reason}"
    );
}

#[test]
fn claimed_mailbox_or_role_is_refused_alike() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "reader");
    for agent in [
        json!({"session_id": "bob"}),
        json!({"session_id": "hub"}),
        json!({"session_id": "owner"}),
        json!({"session_id": "ann2"}),
        json!({"session_id": "bob#mcp"}),
        json!({"session_id": "ann", "role": "writer"}),
        json!({"session_id": "ann", "role": "owner"}),
        json!({"session_id": "../ann"}),
        json!({"session_id": "ann/../bob"}),
        json!({"session_id": "ann#../bob"}),
    ] {
        assert_hello_refused(&gateway, &agent, &ann);
    }
    let mut peer = PlainPeer::connect(gateway.address);
    let agent = json!({"session_id": "ann#mcp", "role": "reader"});
    peer.send_frame(&json!({"kind": "hello", "agent": agent, "token": ann}));
    let welcome = peer.next_frame();
    assert_eq!(welcome["kind"], "welcome");
    assert_eq!(welcome["mailbox"], "ann#mcp");
    assert_eq!(welcome["role"], "reader");
}

/// A program that the owner runs uses MCP, and the mailbox of the hub belongs to no principal; the
/// config cannot make a peer of the hub's name either.
#[test]
fn owners_program_and_hub_are_no_peers() {
    let gateway = start_broker("[principals.hub]\nbroker = true\n");
    let (_, program) = gateway.create_token(&json!({"run": "shell"}));
    for claimed in ["", "owner:shell", "shell", "owner"] {
        assert_hello_refused(&gateway, &json!({"session_id": claimed}), &program);
    }
    let hub = create_token(&gateway, "hub", "reader");
    for claimed in ["", "hub", "hub#mcp"] {
        assert_hello_refused(&gateway, &json!({"session_id": claimed}), &hub);
    }
}

#[test]
fn forged_sender_is_refused_and_absent_filled() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "reader");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let forged = [
        json!({"session_id": "bob"}),
        json!({"session_id": "ann", "role": "writer"}),
        json!({"session_id": "owner", "role": "owner"}),
        json!({"session_id": "ann", "principal": "owner"}),
    ];
    for (at, from) in forged.iter().enumerate() {
        let id = format!("f-{at}");
        let mut message = peer.to_message(&id, &json!({"op": "manifest"}));
        message["from"] = from.clone();
        peer.send_frame(&json!({"kind": "deliver", "to": "hub", "message": message}));
        let error = peer.next_frame();
        assert_eq!(
            (&error["kind"], &error["id"]),
            (&json!("error"), &json!(id)),
            "{from}"
        );
        assert_eq!(error["code"], "not_allowed", "{from}");
    }
    let mut message = peer.to_message("absent", &json!({"op": "manifest"}));
    message.as_object_mut().unwrap().remove("from");
    peer.send_frame(&json!({"kind": "deliver", "to": "hub", "message": message}));
    let names = peer.wait_for_reply("absent");
    let items = names["manifest"].as_array().unwrap();
    assert_eq!(items.len(), 1, "what a reader sees: {names}");
}

#[test]
fn unsolicited_reply_completes_no_request() {
    let gateway = start_broker("");
    let (ann, bob) = (
        create_token(&gateway, "ann", "writer"),
        create_token(&gateway, "bob", "writer"),
    );
    let mut ann = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let mut bob = PlainPeer::join(gateway.address, "bob", &bob);
    let slow = json!({"ms": 300, "message": "true"});
    ann.send_request("c-1", &super::call_body("one__slow", &slow));
    // Bob may write to Ann, but the message names Bob as the sender.
    let mut reply = bob.to_message(
        "r-1",
        &json!({"result": {"success": true, "result": "false"}}),
    );
    reply["kind"] = "mcp_reply".into();
    reply["correlation_id"] = "c-1".into();
    bob.send_frame(&json!({"kind": "deliver", "to": "ann", "message": reply}));
    bob.wait_for_receipt("r-1");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let frame = ann.wait_for_frame("message");
        let message = &frame["message"];
        ann.send_frame(&json!({"kind": "ack", "id": message["id"]}));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        seen.push((
            text(&message["from"]["session_id"]),
            text(&message["body"]["result"]["result"]),
        ));
    }
    seen.sort();
    let pair = |from: &str, said: &str| (from.to_owned(), said.to_owned());
    assert_eq!(seen, [pair("bob", "false"), pair("hub", "true")]);
}

#[test]
fn path_like_names_are_refused_without_writes() {
    let gateway = start_broker("");
    let owner = gateway.token.clone();
    let mut peer = PlainPeer::join(gateway.address, "owner", &owner);
    for to in ["../x", "/etc/passwd", "a/b", "", "A", "a#b#c", "hub#x/../y"] {
        let letter = peer.to_message("n-1", &json!({}));
        peer.send_frame(&json!({"kind": "deliver", "to": to, "message": letter}));
        let error = peer.next_frame();
        assert_eq!(error["kind"], "error", "{to}: {error}");
    }
    for id in ["../../x", "a b", "a/b", "\n", &"x".repeat(129)] {
        let letter = peer.to_message(id, &json!({"op": "manifest"}));
        peer.send_frame(&json!({"kind": "deliver", "to": "hub", "message": letter}));
        let error = peer.next_frame();
        assert_eq!(error["kind"], "error", "{id}: {error}");
        assert_eq!(error["code"], "bad_name", "{id}: {error}");
    }
    let broker = gateway.get_api("/api/v1/broker");
    let names = broker["mailboxes"].as_array().unwrap();
    assert!(names.iter().all(|one| one["waiting"] == 0), "{broker}");
}

#[test]
fn changed_rights_close_peer_and_apply_on_reconnect() {
    let gateway = start_broker("");
    let (ann, bob) = (
        create_token(&gateway, "ann", "writer"),
        create_token(&gateway, "bob", "writer"),
    );
    let mut peer = PlainPeer::join(gateway.address, "ann", &ann);
    let mut other = PlainPeer::join_and_subscribe(gateway.address, "bob", &bob);
    let letter = peer.to_message("n-1", &json!({}));
    peer.send_frame(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    peer.wait_for_receipt("n-1");
    let less = broker_config().replace("to = [\"bob\"]", "to = []");
    std::fs::write(gateway.dir.path().join("bowline.toml"), less).unwrap();
    let reloaded = gateway.send_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let (error, closed) = peer.read_closing_error();
    assert_eq!((&error["code"], closed), (&json!("expired"), 4002));
    let mut peer = PlainPeer::join(gateway.address, "ann", &ann);
    let letter = peer.to_message("n-2", &json!({}));
    peer.send_frame(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    assert_eq!(peer.next_frame()["code"], "not_allowed");
    // A peer with unchanged rights is not disconnected.
    assert!(!other.list_tools("m").is_empty());
}
