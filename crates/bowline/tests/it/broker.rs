//! The broker of a real gateway: peers, mailboxes, and durability.

mod broker_admin;
mod broker_handshake;
mod durable;
pub(crate) mod library_tools;
mod peer_identity;
pub(crate) mod plain_peer;

use std::path::Path;
use std::time::Duration;

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use self::plain_peer::{PlainPeer, call_body};

/// Two servers, roles that see a part, and peers with extra rights.
pub(crate) fn broker_config() -> String {
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
    format!("{}{roles}", fixture_config("one", &[]))
}

/// Starts a gateway with the broker config and `more`.
pub(crate) fn start_broker(more: &str) -> Gateway {
    let gateway = Gateway::start(&(broker_config() + more));
    gateway.wait_for_state("one", "ready");
    gateway
}

/// A fixture that counts effects in a file.
pub(crate) fn counting_fixture(ledger: &Path) -> String {
    let roles = "[roles.writer]\nallow = [\"one.*\"]\n\
                 [principals.ann]\nbroker = true\n[principals.bob]\nbroker = true\n";
    let ledger = ledger.display().to_string();
    fixture_config("one", &["--ledger", &ledger]) + roles
}

/// Waits until every message is acknowledged: an in-flight message is not redelivered.
pub(crate) fn wait_until_acked(gateway: &Gateway) {
    wait_until("nothing waits", || {
        let broker = gateway.get_api("/api/v1/broker");
        let mailboxes = broker["mailboxes"].as_array().unwrap();
        mailboxes.iter().all(|mailbox| mailbox["waiting"] == 0)
    });
}

/// Creates a token of a principal.
pub(crate) fn create_token(gateway: &Gateway, principal: &str, role: &str) -> String {
    let wanted = json!({"principal": principal, "role": role});
    gateway.create_token(&wanted).1
}

#[test]
fn plain_peer_lists_and_calls_tools() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let tools = peer.list_tools("m-1");
    assert!(tools.iter().any(|name| name == "one__echo"), "{tools:?}");
    // Text arguments come back exactly.
    let message = "näh \"quoted\" \\ \u{2028} 9007199254740993";
    let body = peer.call_tool("c-1", "one__echo", &json!({"message": message}));
    assert_eq!(body["result"]["success"], true, "{body}");
    assert_eq!(body["result"]["result"], message);
    assert!(body["error"].is_null() && body["manifest"].is_null());
    // A failed tool differs from an unserved request.
    let body = peer.call_tool("c-2", "one__fail", &json!({"message": "no"}));
    assert_eq!(body["result"]["success"], false, "{body}");
    assert!(body["error"].is_null(), "{body}");
    let body = peer.call_tool("c-3", "one__nothing", &json!({}));
    assert!(body["result"].is_null(), "{body}");
    assert!(body["error"].is_string(), "{body}");
    // Unparsable arguments get a reply too.
    let body = json!({"op": "call", "tool": "one__echo", "arguments": "{no"});
    peer.send_request("c-4", &body);
    let body = peer.wait_for_reply("c-4");
    assert!(body["error"].is_string(), "{body}");
}

#[test]
fn eight_requests_of_one_peer_run_concurrently() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    // The first request waits for a very long time; later requests do not wait for it.
    let slow = json!({"ms": 600_000, "message": "late"});
    peer.send_request("slow", &call_body("one__slow", &slow));
    for at in 0..8 {
        let echo = json!({"message": format!("m{at}")});
        let message = peer.to_message(&format!("c-{at}"), &call_body("one__echo", &echo));
        peer.send_frame(&json!({"kind": "deliver", "to": "hub", "message": message}));
    }
    let mut seen = Vec::new();
    while seen.len() < 8 {
        let frame = peer.wait_for_frame("message");
        let message = &frame["message"];
        peer.send_frame(&json!({"kind": "ack", "id": message["id"]}));
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
fn missing_hello_or_wrong_token_closes_connection() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let hello =
        |token: &Value| json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": token});
    for (first, code) in [
        (json!({"kind": "subscribe"}), "bad_frame"),
        (json!({"kind": "nonsense"}), "bad_frame"),
        (hello(&json!("bwl_wrong_wrong")), "auth"),
        (hello(&json!("")), "auth"),
        (hello(&Value::Null), "auth"),
    ] {
        let mut peer = PlainPeer::connect(gateway.address);
        peer.send_frame(&first);
        let (error, closed) = peer.read_closing_error();
        assert_eq!(error["code"], code, "{first}: {error}");
        assert!(error["reason"].is_string(), "{error}");
        assert_eq!(closed, 4003, "{first}");
    }
    let mut peer = PlainPeer::connect(gateway.address);
    peer.send_text("this is not JSON");
    assert_eq!(peer.read_closing_error().1, 4003);
    // Identity is stated once, in `hello`; a second `hello` is ignored.
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    peer.send_frame(&json!({"kind": "hello", "agent": {"session_id": "bob"}, "token": "x"}));
    assert!(!peer.list_tools("m").is_empty());
}

#[test]
fn binary_is_skipped_and_unknown_frames_refused() {
    use tokio_tungstenite::tungstenite::Message;
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut peer = PlainPeer::connect(gateway.address);
    peer.name = "ann".to_owned();
    peer.send_message(Message::binary(vec![0, 1, 2]));
    let hello = json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": ann});
    peer.send_frame(&hello);
    assert_eq!(peer.next_frame()["kind"], "welcome");
    peer.send_message(Message::binary(vec![7; 1_000]));
    peer.send_frame(&json!({"kind": "from_the_future", "x": {"y": [1, 2]}}));
    peer.send_frame(&json!({"kind": "subscribe"}));
    let refused = loop {
        let frame = peer.next_frame();
        if frame["kind"] == "error" {
            break frame;
        }
    };
    assert_eq!(refused["code"], "unknown_frame", "{refused}");
    assert!(!peer.list_tools("m").is_empty(), "the connection goes on");
    // The sender waits for a response and does not read an error frame, so the connection closes.
    peer.send_frame(
        &json!({"kind": "observe_host", "request_id": "r-1", "mailbox": "w", "role": "x"}),
    );
    let (error, closed) = peer.read_closing_error();
    assert_eq!((&error["code"], closed), (&json!("unknown_frame"), 4004));
    assert_eq!(error["id"], "r-1");
}

#[test]
fn unacked_message_is_redelivered_on_resubscribe() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "writer");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    peer.send_request("m-1", &json!({"op": "manifest"}));
    let first = peer.wait_for_frame("message");
    drop(peer);
    let mut again = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let second = again.wait_for_frame("message");
    assert_eq!(first["message"]["id"], second["message"]["id"]);
    again.send_frame(&json!({"kind": "ack", "id": second["message"]["id"]}));
    drop(again);
    let mut last = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    last.send_request("m-2", &json!({"op": "manifest"}));
    let third = last.wait_for_frame("message");
    assert_eq!(
        third["message"]["correlation_id"], "m-2",
        "the first is done"
    );
}

#[test]
fn peers_exchange_only_configured_messages() {
    let gateway = start_broker("");
    let (ann, bob) = (
        create_token(&gateway, "ann", "writer"),
        create_token(&gateway, "bob", "reader"),
    );
    let mut ann = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let mut bob = PlainPeer::join_and_subscribe(gateway.address, "bob", &bob);
    let mut message = ann.to_message("n-1", &json!({"text": "hello"}));
    message["kind"] = "note".into();
    ann.send_frame(&json!({"kind": "deliver", "to": "bob", "message": message}));
    ann.wait_for_receipt("n-1");
    let note = bob.wait_for_frame("message");
    assert_eq!(note["message"]["body"], json!({"text": "hello"}));
    let from = &note["message"]["from"];
    assert_eq!(
        (&from["session_id"], &from["role"]),
        (&json!("ann"), &json!("writer"))
    );
    bob.send_frame(&json!({"kind": "ack", "id": "n-1"}));
    // Bob may not send notes, and no peer may send to a third mailbox.
    let mut note = bob.to_message("n-2", &json!({}));
    note["kind"] = "note".into();
    bob.send_frame(&json!({"kind": "deliver", "to": "ann", "message": note}));
    let refused = bob.next_frame();
    assert_eq!(
        (&refused["id"], &refused["code"]),
        (&json!("n-2"), &json!("not_allowed"))
    );
    let letter = bob.to_message("n-3", &json!({}));
    bob.send_frame(&json!({"kind": "deliver", "to": "carl", "message": letter}));
    assert_eq!(bob.next_frame()["code"], "not_allowed");
    assert!(ann.stays_silent_for(Duration::from_millis(300)));
}
