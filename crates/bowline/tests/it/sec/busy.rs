//! One principal that keeps a server or the broker busy, and what is left for the others.

use serde_json::{Value, json};

use crate::broker::plain::{Plain, call_of};
use crate::broker::{config, token, up};
use crate::harness::{Gateway, Http, eventually, fixture, memory};

/// Calls of one principal: more than the server has places and room to wait.
const CALLS: usize = 140;

#[test]
fn sec_86_busy_principal_leaves_places_to_others() {
    let few = "max_calls = 64\nqueue = 64\n[roles.all]\nallow = [\"*\"]\n";
    let gateway = Gateway::up(&(fixture("one", &[]) + few));
    gateway.wait_for("one", "ready");
    let busy = gateway.session_as(&gateway.token_for("busy", "all"), "/mcp");
    let headers = busy.headers();
    let mut headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    headers.push(("Content-Type", "application/json"));
    headers.push(("Accept", "application/json, text/event-stream"));
    let slow: Vec<_> = (0..CALLS)
        .map(|nth| {
            let mut http = Http::connect(gateway.address);
            let call = json!({
                "jsonrpc": "2.0", "id": 1_000 + nth, "method": "tools/call",
                "params": {"name": "one__slow", "arguments": {"ms": 600_000, "message": "m"}},
            });
            http.send("POST", "/mcp", &headers, call.to_string().as_bytes());
            http
        })
        .collect();
    eventually("the queue is full", || {
        gateway.status("one")["queued"] == 64
    });
    let mut owner = gateway.session("/mcp");
    let mut other = gateway.session_as(&gateway.token_for("other", "all"), "/mcp");
    for nth in 0..10 {
        let message = json!({"message": format!("m{nth}")});
        assert_eq!(owner.text("one__echo", &message), format!("m{nth}"));
        assert_eq!(other.text("one__echo", &message), format!("m{nth}"));
    }
    drop(slow);
}

#[test]
fn sec_87_unnamed_principal_cannot_use_broker() {
    let gateway = up("");
    let stranger = token(&gateway, "stranger", "writer");
    let mut peer = Plain::connect(gateway.address);
    peer.say(&json!({"kind": "hello", "agent": {"session_id": "stranger"}, "token": stranger}));
    let refused = peer.wait_for("error");
    assert_eq!(refused["code"], "not_allowed", "{refused}");
    let reason = refused["reason"].as_str().unwrap();
    assert!(
        reason.contains("[principals.stranger] broker = true"),
        "{reason}"
    );
    // With that line it comes in.
    gateway.reconfigure(&(config() + "[principals.stranger]\nbroker = true\n"));
    let mut peer = Plain::subscribed(gateway.address, "stranger", &stranger);
    assert!(!peer.tools("m").is_empty());
}

#[test]
fn sec_88_mailboxes_of_principal_are_bounded() {
    let gateway = up("[broker]\nmailboxes = 3\n");
    let ann = token(&gateway, "ann", "reader");
    let hello = |part: &str| {
        let mut peer = Plain::connect(gateway.address);
        let agent = json!({"session_id": format!("ann{part}")});
        peer.say(&json!({"kind": "hello", "agent": agent, "token": ann}));
        let said = peer.frame();
        (peer, said)
    };
    let kept: Vec<_> = ["#1", "#2", "#3"].map(hello).into();
    assert!(kept.iter().all(|(_, said)| said["kind"] == "welcome"));
    let (_, said) = hello("#4");
    assert_eq!(said["code"], "too_many_mailboxes", "{said}");
    // Its own, and one that it has, are open.
    for part in ["", "#2"] {
        assert_eq!(hello(part).1["kind"], "welcome");
    }
}

#[test]
fn sec_106_large_broker_frames_count_for_their_principal() {
    let limits = "[limits]\nprincipal_bytes_per_s = \"16KiB\"\n\
                  principal_bytes_burst = \"1MiB\"\n";
    let gateway = up(limits);
    let ann = token(&gateway, "ann", "reader");
    let session = gateway.session_as(&ann, "/mcp");
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    // A frame that asks for nothing; the error shows that it was read.
    peer.say(&json!({"kind": "nothing", "text": "x".repeat(1_500_000)}));
    assert_eq!(peer.frame()["code"], "unknown_frame");
    let refused = session.twin().post_raw(b"{}");
    assert_eq!(refused.status, 429, "{}", refused.text());
}

/// Delivers until something is refused, and returns what is said then, and how many were taken.
fn fill(peer: &mut Plain, body: &Value, most: usize) -> (Value, usize) {
    for nth in 0..most {
        let letter = peer.letter(&format!("f-{nth}"), body);
        peer.say(&json!({"kind": "deliver", "to": "bob", "message": letter}));
        loop {
            let said = peer.frame();
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
    let mut gateway = up(limits);
    let (ann, bob) = (
        token(&gateway, "ann", "writer"),
        token(&gateway, "bob", "reader"),
    );
    let note = json!({"op": "call", "tool": "x", "arguments": "a".repeat(100_000)});
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let (said, taken) = fill(&mut peer, &note, 20);
    assert_eq!(said["code"], "storage_full", "{said}");
    assert!((5..=10).contains(&taken), "{taken}");
    // The journal knows it after a restart as well.
    drop(peer);
    gateway.kill();
    gateway.restart_there();
    let mut peer = Plain::subscribed(gateway.address, "ann", &ann);
    let letter = peer.letter("again", &note);
    peer.say(&json!({"kind": "deliver", "to": "bob", "message": letter}));
    assert_eq!(peer.wait_for("error")["code"], "storage_full");
    // Another principal is not concerned.
    let mut other = Plain::subscribed(gateway.address, "bob", &bob);
    assert!(!other.tools("m").is_empty());
}

/// Deliveries of each flooding connection.
const DELIVERIES: usize = 16;

#[test]
fn sec_89_large_deliveries_take_bounded_memory() {
    let gateway = up("");
    let ann = token(&gateway, "ann", "reader");
    let pid = gateway.pid();
    let before = memory(pid);
    // The role does not cover the tool: each is stored, refused and answered.
    let call = call_of("one__effect", &json!({"key": "k".repeat(2_000_000)}));
    let floods: Vec<_> = (0..4)
        .map(|nth| {
            let (address, ann, call) = (gateway.address, ann.clone(), call.clone());
            std::thread::spawn(move || {
                let mut peer = Plain::join(address, &format!("ann#{nth}"), &ann);
                for at in 0..DELIVERIES {
                    let letter = peer.letter(&format!("d-{at}"), &call);
                    peer.say(&json!({"kind": "deliver", "to": "hub", "message": letter}));
                }
                for _ in 0..DELIVERIES {
                    while !matches!(peer.frame()["kind"].as_str(), Some("delivered" | "error")) {}
                }
            })
        })
        .collect();
    let mut peak = before;
    let mut owner = gateway.session("/mcp");
    while floods.iter().any(|flood| !flood.is_finished()) {
        assert_eq!(owner.text("one__echo", &json!({"message": "hi"})), "hi");
        peak = peak.max(memory(pid));
    }
    for flood in floods {
        flood.join().unwrap();
    }
    let grown = peak.saturating_sub(before) / (1024 * 1024);
    assert!(grown <= 64, "{grown} MiB");
}
