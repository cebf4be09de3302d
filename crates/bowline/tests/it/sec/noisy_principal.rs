//! A noisy principal at a server or the broker, and the remaining capacity.

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use bowline_testkit::{resident_bytes, wait_until};
use serde_json::{Value, json};

use crate::broker::plain_peer::{PlainPeer, call_body};
use crate::broker::{broker_config, create_token, start_broker};

/// Calls of one principal: more than the server's permits and queue.
const CALLS: usize = 140;

#[test]
fn sec_86_busy_principal_leaves_capacity_to_others() {
    let few = "max_calls = 64\nqueue = 64\n[roles.all]\nallow = [\"*\"]\n";
    let gateway = Gateway::start(&(fixture_config("one", &[]) + few));
    gateway.wait_for_state("one", "ready");
    let busy = gateway.open_session_as(&gateway.create_role_token("busy", "all"), "/mcp");
    let headers = busy.request_headers();
    let mut headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    headers.push(("Content-Type", "application/json"));
    headers.push(("Accept", "application/json, text/event-stream"));
    let slow: Vec<_> = (0..CALLS)
        .map(|nth| {
            let mut http = HttpConnection::connect(gateway.address);
            let call = json!({
                "jsonrpc": "2.0", "id": 1_000 + nth, "method": "tools/call",
                "params": {"name": "one__slow", "arguments": {"ms": 600_000, "message": "m"}},
            });
            http.send_request("POST", "/mcp", &headers, call.to_string().as_bytes());
            http
        })
        .collect();
    wait_until("the queue is full", || {
        gateway.server_status("one")["queued"] == 64
    });
    let mut owner = gateway.open_session("/mcp");
    let mut other = gateway.open_session_as(&gateway.create_role_token("other", "all"), "/mcp");
    for nth in 0..10 {
        let message = json!({"message": format!("m{nth}")});
        assert_eq!(owner.call_text("one__echo", &message), format!("m{nth}"));
        assert_eq!(other.call_text("one__echo", &message), format!("m{nth}"));
    }
    drop(slow);
}

#[test]
fn sec_87_unnamed_principal_cannot_use_broker() {
    let gateway = start_broker("");
    let stranger = create_token(&gateway, "stranger", "writer");
    let mut peer = PlainPeer::connect(gateway.address);
    peer.send_frame(
        &json!({"kind": "hello", "agent": {"session_id": "stranger"}, "token": stranger}),
    );
    let refused = peer.wait_for_frame("error");
    assert_eq!(refused["code"], "not_allowed", "{refused}");
    let reason = refused["reason"].as_str().unwrap();
    assert!(
        reason.contains("[principals.stranger] broker = true"),
        "{reason}"
    );
    // With the suggested line the peer is accepted.
    gateway.reconfigure(&(broker_config() + "[principals.stranger]\nbroker = true\n"));
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "stranger", &stranger);
    assert!(!peer.list_tools("m").is_empty());
}

#[test]
fn sec_88_mailboxes_of_principal_are_bounded() {
    let gateway = start_broker("[broker]\nmailboxes = 3\n");
    let ann = create_token(&gateway, "ann", "reader");
    let hello = |part: &str| {
        let mut peer = PlainPeer::connect(gateway.address);
        let agent = json!({"session_id": format!("ann{part}")});
        peer.send_frame(&json!({"kind": "hello", "agent": agent, "token": ann}));
        let said = peer.next_frame();
        (peer, said)
    };
    let kept: Vec<_> = ["#1", "#2", "#3"].map(hello).into();
    assert!(kept.iter().all(|(_, said)| said["kind"] == "welcome"));
    let (_, said) = hello("#4");
    assert_eq!(said["code"], "too_many_mailboxes", "{said}");
    // The principal's mailbox and an existing mailbox are open.
    for part in ["", "#2"] {
        assert_eq!(hello(part).1["kind"], "welcome");
    }
}

#[test]
fn sec_106_large_broker_frames_count_for_their_principal() {
    let limits = "[limits]\nprincipal_bytes_per_s = \"16KiB\"\n\
                  principal_bytes_burst = \"1MiB\"\n";
    let gateway = start_broker(limits);
    let ann = create_token(&gateway, "ann", "reader");
    let session = gateway.open_session_as(&ann, "/mcp");
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    // An unknown frame; the error shows the read.
    peer.send_frame(&json!({"kind": "nothing", "text": "x".repeat(1_500_000)}));
    assert_eq!(peer.next_frame()["code"], "unknown_frame");
    let refused = session.clone_on_new_connection().post_raw(b"{}");
    assert_eq!(refused.status, 429, "{}", refused.text());
}

/// Sends messages until a refusal, and returns the refusal and the number of accepted messages.
fn deliver_until_refused(peer: &mut PlainPeer, body: &Value, most: usize) -> (Value, usize) {
    for nth in 0..most {
        let letter = peer.to_message(&format!("f-{nth}"), body);
        peer.send_frame(&json!({"kind": "deliver", "to": "bob", "message": letter}));
        loop {
            let said = peer.next_frame();
            match said["kind"].as_str() {
                Some("delivered") => break,
                Some("error") => return (said, nth),
                _ => {}
            }
        }
    }
    panic!("{most} were taken");
}

#[test]
fn sec_88_journal_bytes_of_principal_are_bounded() {
    let limits = "[limits]\nprincipal_journal_bytes = \"1MiB\"\n";
    let mut gateway = start_broker(limits);
    let (ann, bob) = (
        create_token(&gateway, "ann", "writer"),
        create_token(&gateway, "bob", "reader"),
    );
    let note = json!({"op": "call", "tool": "x", "arguments": "a".repeat(100_000)});
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let (said, taken) = deliver_until_refused(&mut peer, &note, 20);
    assert_eq!(said["code"], "storage_full", "{said}");
    assert!((5..=10).contains(&taken), "{taken}");
    // The limit also counts after a restart.
    drop(peer);
    gateway.kill();
    gateway.restart_same_address();
    let mut peer = PlainPeer::join_and_subscribe(gateway.address, "ann", &ann);
    let letter = peer.to_message("again", &note);
    peer.send_frame(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    assert_eq!(peer.wait_for_frame("error")["code"], "storage_full");
    // Another principal is unaffected.
    let mut other = PlainPeer::join_and_subscribe(gateway.address, "bob", &bob);
    assert!(!other.list_tools("m").is_empty());
}

/// Deliveries of each flooding connection.
const DELIVERIES: usize = 16;

#[test]
fn sec_89_large_deliveries_take_bounded_memory() {
    let gateway = start_broker("");
    let ann = create_token(&gateway, "ann", "reader");
    let pid = gateway.pid();
    let before = resident_bytes(pid);
    // The role does not cover the tool: each call is stored, refused and answered.
    let call = call_body("one__effect", &json!({"key": "k".repeat(2_000_000)}));
    let floods: Vec<_> = (0..4)
        .map(|nth| {
            let (address, ann, call) = (gateway.address, ann.clone(), call.clone());
            std::thread::spawn(move || {
                let mut peer = PlainPeer::join(address, &format!("ann#{nth}"), &ann);
                for at in 0..DELIVERIES {
                    let letter = peer.to_message(&format!("d-{at}"), &call);
                    peer.send_frame(&json!({"kind": "deliver", "to": "hub", "message": letter}));
                }
                for _ in 0..DELIVERIES {
                    while !matches!(
                        peer.next_frame()["kind"].as_str(),
                        Some("delivered" | "error")
                    ) {}
                }
            })
        })
        .collect();
    let mut peak = before;
    let mut owner = gateway.open_session("/mcp");
    while floods.iter().any(|flood| !flood.is_finished()) {
        assert_eq!(
            owner.call_text("one__echo", &json!({"message": "hi"})),
            "hi"
        );
        peak = peak.max(resident_bytes(pid));
    }
    for flood in floods {
        flood.join().unwrap();
    }
    let grown = peak.saturating_sub(before) / (1024 * 1024);
    assert!(grown <= 64, "{grown} MiB");
}
