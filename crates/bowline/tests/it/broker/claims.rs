//! What a peer says of itself counts for nothing: its credential decides who it is.

use serde_json::{Value, json};

use super::plain::Plain;
use super::{config, token, up};
use crate::harness::Gateway;

fn refused_hello(gateway: &Gateway, agent: &Value, token: &str) {
    let mut peer = Plain::connect(gateway.address);
    peer.say(&json!({"kind": "hello", "agent": agent, "token": token}));
    let (error, closed) = peer.ended();
    assert_eq!(error["code"], "not_allowed", "{agent}: {error}");
    assert_eq!(closed, 4003, "{agent}");
    // What was claimed is not repeated.
    let reason = error["reason"].as_str().unwrap();
    assert!(
        !reason.contains("bob") && !reason.contains("owner"),
        "{reason}"
    );
}

#[test]
fn a_mailbox_or_role_that_is_not_the_credentials_is_refused_in_the_same_words() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "reader");
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
        refused_hello(&gateway, &agent, &ann);
    }
    let mut peer = Plain::connect(gateway.address);
    let agent = json!({"session_id": "ann#mcp", "role": "reader"});
    peer.say(&json!({"kind": "hello", "agent": agent, "token": ann}));
    let welcome = peer.frame();
    assert_eq!(welcome["kind"], "welcome");
    assert_eq!(welcome["mailbox"], "ann#mcp");
    assert_eq!(welcome["role"], "reader");
}

#[test]
fn a_program_that_the_owner_runs_and_the_name_of_the_hub_are_no_peers() {
    let gateway = up("");
    let hub = token(&gateway, "hub", "reader");
    refused_hello(&gateway, &json!({"session_id": "hub"}), &hub);
    refused_hello(&gateway, &json!({"session_id": ""}), &hub);
}

#[test]
fn a_forged_sender_role_or_caller_is_refused_and_an_absent_one_is_stamped() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "reader");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let forged = [
        json!({"session_id": "bob"}),
        json!({"session_id": "ann", "role": "writer"}),
        json!({"session_id": "owner", "role": "owner"}),
        json!({"session_id": "ann", "principal": "owner"}),
    ];
    for (at, from) in forged.iter().enumerate() {
        let id = format!("f-{at}");
        let mut message = peer.letter(&id, &json!({"op": "manifest"}));
        message["from"] = from.clone();
        peer.say(&json!({"kind": "deliver", "to": "hub", "message": message}));
        let error = peer.frame();
        assert_eq!(
            (&error["kind"], &error["id"]),
            (&json!("error"), &json!(id)),
            "{from}"
        );
        assert_eq!(error["code"], "not_allowed", "{from}");
    }
    let mut message = peer.letter("absent", &json!({"op": "manifest"}));
    message.as_object_mut().unwrap().remove("from");
    peer.say(&json!({"kind": "deliver", "to": "hub", "message": message}));
    let names = peer.reply("absent");
    let items = names["manifest"].as_array().unwrap();
    assert_eq!(items.len(), 1, "what a reader sees: {names}");
}

#[test]
fn a_reply_that_nobody_asked_for_reaches_nobodys_request() {
    let gateway = up("");
    let (ann, bob) = (
        token(&gateway, "ann", "writer"),
        token(&gateway, "bob", "writer"),
    );
    let mut ann = Plain::subscribed(gateway.address, "ann", &ann);
    let mut bob = Plain::join(gateway.address, "bob", &bob);
    let slow = json!({"ms": 300, "message": "true"});
    ann.deliver("c-1", &super::call_of("one__slow", &slow));
    // Bob may write to Ann, but what he writes says that it is his.
    let mut reply = bob.letter(
        "r-1",
        &json!({"result": {"success": true, "result": "false"}}),
    );
    reply["kind"] = "mcp_reply".into();
    reply["correlation_id"] = "c-1".into();
    bob.say(&json!({"kind": "deliver", "to": "ann", "message": reply}));
    bob.receipt("r-1");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let frame = ann.wait_for("message");
        let message = &frame["message"];
        ann.say(&json!({"kind": "ack", "id": message["id"]}));
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
fn names_that_lead_elsewhere_are_refused_and_nothing_is_written() {
    let gateway = up("");
    let owner = gateway.token.clone();
    let mut peer = Plain::join(gateway.address, "owner", &owner);
    for to in ["../x", "/etc/passwd", "a/b", "", "A", "a#b#c", "hub#x/../y"] {
        let letter = peer.letter("n-1", &json!({}));
        peer.say(&json!({"kind": "deliver", "to": to, "message": letter}));
        let error = peer.frame();
        assert_eq!(error["kind"], "error", "{to}: {error}");
    }
    for id in ["../../x", "a b", "a/b", "\n", &"x".repeat(129)] {
        let letter = peer.letter(id, &json!({"op": "manifest"}));
        peer.say(&json!({"kind": "deliver", "to": "hub", "message": letter}));
        let error = peer.frame();
        assert_eq!(error["kind"], "error", "{id}: {error}");
        assert_eq!(error["code"], "bad_name", "{id}: {error}");
    }
    let broker = gateway.api("/api/v1/broker");
    let names = broker["mailboxes"].as_array().unwrap();
    assert!(names.iter().all(|one| one["waiting"] == 0), "{broker}");
}

#[test]
fn a_peer_whose_rights_change_is_told_and_comes_back_with_those_of_now() {
    let gateway = up("");
    let (ann, bob) = (
        token(&gateway, "ann", "writer"),
        token(&gateway, "bob", "writer"),
    );
    let mut peer = Plain::join(gateway.address, "ann", &ann);
    let mut other = Plain::subscribed(gateway.address, "bob", &bob);
    let letter = peer.letter("n-1", &json!({}));
    peer.say(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    peer.receipt("n-1");
    let less = config().replace("to = [\"bob\"]", "to = []");
    std::fs::write(gateway.dir.path().join("bowline.toml"), less).unwrap();
    let reloaded = gateway.ask_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let (error, closed) = peer.ended();
    assert_eq!((&error["code"], closed), (&json!("expired"), 4002));
    let mut peer = Plain::join(gateway.address, "ann", &ann);
    let letter = peer.letter("n-2", &json!({}));
    peer.say(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    assert_eq!(peer.frame()["code"], "not_allowed");
    // Whose rights are the same does not notice.
    assert!(!other.tools("m").is_empty());
}
