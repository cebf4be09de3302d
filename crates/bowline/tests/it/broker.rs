//! The broker of a real gateway, seen from outside: peers, their mailboxes and what survives.

mod claims;
mod doors;
mod durable;
pub(crate) mod plain;
pub(crate) mod served;
mod shown;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use self::plain::{Plain, call_of};
use crate::harness::{Gateway, eventually, fixture};

/// Two servers, roles that see less than all, and peers that may do something beside.
pub(crate) fn config() -> String {
    let roles = r#"
[roles.reader]
allow = ["one.echo"]
[roles.writer]
allow = ["one.*"]
[principals.ann]
to = ["bob"]
kinds = ["mcp_request", "note"]
[principals.bob]
to = ["ann"]
"#;
    format!("{}{roles}", fixture("one", &[]))
}

/// A gateway that serves, with what else its config says.
pub(crate) fn up(more: &str) -> Gateway {
    let gateway = Gateway::up(&(config() + more));
    gateway.wait_for("one", "ready");
    gateway
}

/// A fixture whose effects are counted in a file.
pub(crate) fn counted(ledger: &Path) -> String {
    let roles = "[roles.writer]\nallow = [\"one.*\"]\n\
                 [principals.ann]\nbroker = true\n[principals.bob]\nbroker = true\n";
    let ledger = ledger.display().to_string();
    fixture("one", &["--ledger", &ledger]) + roles
}

/// Waits until every message was acknowledged: one that is under way is not asked for anew.
pub(crate) fn settled(gateway: &Gateway) {
    eventually("nothing waits", || {
        let broker = gateway.api("/api/v1/broker");
        let mailboxes = broker["mailboxes"].as_array().unwrap();
        mailboxes.iter().all(|mailbox| mailbox["waiting"] == 0)
    });
}

/// Makes a token of a principal.
pub(crate) fn token(gateway: &Gateway, principal: &str, role: &str) -> String {
    let wanted = json!({"principal": principal, "role": role});
    gateway.token_of(&wanted).1
}

#[test]
fn a_peer_that_speaks_only_the_first_frames_lists_and_calls_tools() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let tools = peer.tools("m-1");
    assert!(tools.iter().any(|name| name == "one__echo"), "{tools:?}");
    // What was asked for as text comes back exactly.
    let message = "näh \"quoted\" \\ \u{2028} 9007199254740993";
    let body = peer.call("c-1", "one__echo", &json!({"message": message}));
    assert_eq!(body["result"]["success"], true, "{body}");
    assert_eq!(body["result"]["result"], message);
    assert!(body["error"].is_null() && body["manifest"].is_null());
    // A tool that ran and failed is not a request that could not be served.
    let body = peer.call("c-2", "one__fail", &json!({"message": "no"}));
    assert_eq!(body["result"]["success"], false, "{body}");
    assert!(body["error"].is_null(), "{body}");
    let body = peer.call("c-3", "one__nothing", &json!({}));
    assert!(body["result"].is_null(), "{body}");
    assert!(body["error"].is_string(), "{body}");
    // What cannot be read is answered as well.
    let body = json!({"op": "call", "tool": "one__echo", "arguments": "{no"});
    peer.deliver("c-4", &body);
    let body = peer.reply("c-4");
    assert!(body["error"].is_string(), "{body}");
}

#[test]
fn eight_requests_of_one_peer_run_side_by_side_and_none_is_crossed() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    // The first waits for a very long time; those behind it do not wait for it.
    let slow = json!({"ms": 600_000, "message": "late"});
    peer.deliver("slow", &call_of("one__slow", &slow));
    for at in 0..8 {
        let echo = json!({"message": format!("m{at}")});
        let message = peer.letter(&format!("c-{at}"), &call_of("one__echo", &echo));
        peer.say(&json!({"kind": "deliver", "to": "hub", "message": message}));
    }
    let mut seen = Vec::new();
    while seen.len() < 8 {
        let frame = peer.wait_for("message");
        let message = &frame["message"];
        peer.say(&json!({"kind": "ack", "id": message["id"]}));
        let id = message["correlation_id"].as_str().unwrap().to_owned();
        let said = message["body"]["result"]["result"].as_str().unwrap();
        assert_eq!(said.strip_prefix('m'), id.strip_prefix("c-"), "{message}");
        seen.push(id);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 8);
}

#[test]
fn the_first_frame_is_hello_and_a_wrong_token_is_told_and_closed() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let hello =
        |token: &Value| json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": token});
    for (first, code) in [
        (json!({"kind": "subscribe"}), "bad_frame"),
        (json!({"kind": "nonsense"}), "bad_frame"),
        (hello(&json!("bwl_wrong_wrong")), "auth"),
        (hello(&json!("")), "auth"),
        (hello(&Value::Null), "auth"),
    ] {
        let mut peer = Plain::connect(gateway.address);
        peer.say(&first);
        let (error, closed) = peer.ended();
        assert_eq!(error["code"], code, "{first}: {error}");
        assert!(error["reason"].is_string(), "{error}");
        assert_eq!(closed, 4003, "{first}");
    }
    let mut peer = Plain::connect(gateway.address);
    peer.text("this is not JSON");
    assert_eq!(peer.ended().1, 4003);
    // Who it is was said once; what is said of it later is not heard.
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    peer.say(&json!({"kind": "hello", "agent": {"session_id": "bob"}, "token": "x"}));
    assert!(!peer.tools("m").is_empty());
}

#[test]
fn binary_is_skipped_and_unknown_frames_are_refused() {
    use tokio_tungstenite::tungstenite::Message;
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut peer = Plain::connect(gateway.address);
    peer.name = "ann".to_owned();
    peer.send(Message::binary(vec![0, 1, 2]));
    let hello = json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": ann});
    peer.say(&hello);
    assert_eq!(peer.frame()["kind"], "welcome");
    peer.send(Message::binary(vec![7; 1_000]));
    peer.say(&json!({"kind": "from_the_future", "x": {"y": [1, 2]}}));
    peer.say(&json!({"kind": "subscribe"}));
    let refused = loop {
        let frame = peer.frame();
        if frame["kind"] == "error" {
            break frame;
        }
    };
    assert_eq!(refused["code"], "unknown_frame", "{refused}");
    assert!(!peer.tools("m").is_empty(), "the connection goes on");
    // Its sender waits for a response and reads no error in its place.
    peer.say(&json!({"kind": "observe_host", "request_id": "r-1", "mailbox": "w", "role": "x"}));
    let (error, closed) = peer.ended();
    assert_eq!((&error["code"], closed), (&json!("unknown_frame"), 4004));
    assert_eq!(error["id"], "r-1");
}

#[test]
fn a_message_that_was_pushed_and_not_acknowledged_comes_again_on_the_next_subscription() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "writer");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    peer.deliver("m-1", &json!({"op": "manifest"}));
    let first = peer.wait_for("message");
    drop(peer);
    let mut again = Plain::subscribed(gateway.address, "ann", &ann);
    let second = again.wait_for("message");
    assert_eq!(first["message"]["id"], second["message"]["id"]);
    again.say(&json!({"kind": "ack", "id": second["message"]["id"]}));
    drop(again);
    let mut last = Plain::subscribed(gateway.address, "ann", &ann);
    last.deliver("m-2", &json!({"op": "manifest"}));
    let third = last.wait_for("message");
    assert_eq!(
        third["message"]["correlation_id"], "m-2",
        "the first is done"
    );
}

#[test]
fn peers_send_each_other_what_the_config_lets_them() {
    let gateway = up("");
    let (ann, bob) = (
        token(&gateway, "ann", "writer"),
        token(&gateway, "bob", "reader"),
    );
    let mut ann = Plain::subscribed(gateway.address, "ann", &ann);
    let mut bob = Plain::subscribed(gateway.address, "bob", &bob);
    let mut message = ann.letter("n-1", &json!({"text": "hello"}));
    message["kind"] = "note".into();
    ann.say(&json!({"kind": "deliver", "to": "bob", "message": message}));
    ann.receipt("n-1");
    let note = bob.wait_for("message");
    assert_eq!(note["message"]["body"], json!({"text": "hello"}));
    let from = &note["message"]["from"];
    assert_eq!(
        (&from["session_id"], &from["role"]),
        (&json!("ann"), &json!("writer"))
    );
    bob.say(&json!({"kind": "ack", "id": "n-1"}));
    // Bob may not send notes, and nobody may send to a third.
    let mut note = bob.letter("n-2", &json!({}));
    note["kind"] = "note".into();
    bob.say(&json!({"kind": "deliver", "to": "ann", "message": note}));
    let refused = bob.frame();
    assert_eq!(
        (&refused["id"], &refused["code"]),
        (&json!("n-2"), &json!("not_allowed"))
    );
    let letter = bob.letter("n-3", &json!({}));
    bob.say(&json!({"kind": "deliver", "to": "carl", "message": letter}));
    assert_eq!(bob.frame()["code"], "not_allowed");
    assert!(ann.is_silent(Duration::from_millis(300)));
}
