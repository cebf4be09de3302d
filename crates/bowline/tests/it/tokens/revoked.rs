//! What a revoked or expired token has opened ends with it, at once.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::up;
use crate::harness::{Gateway, Http, Session, eventually};

fn ann(gateway: &Gateway) -> (String, String) {
    gateway.token_of(&json!({"principal": "ann", "role": "writer"}))
}

fn revoke(gateway: &Gateway, which: &str) {
    let path = format!("/api/v1/tokens/{which}");
    let answer = gateway.ask_api("DELETE", &path, &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Opens a stream of 2024-11-05, after its first event.
fn old_stream(address: SocketAddr, token: &str) -> Http {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Accept", "text/event-stream"),
    ];
    let mut http = Http::connect(address);
    http.send("GET", "/sse", &headers, b"");
    assert_eq!(http.read_head().status, 200);
    http.read_chunk().unwrap();
    http
}

fn in_flight(gateway: &Gateway) -> Value {
    gateway.status("one")["in_flight"].clone()
}

/// Everything that one credential can have open.
struct Opened {
    idle: Session,
    listening: Http,
    old: Http,
    streaming: Session,
    waiting: Session,
}

impl Opened {
    fn with(gateway: &Gateway, token: &str) -> Self {
        let idle = gateway.session_as(token, "/mcp");
        let mut listening = idle.listen();
        listening.read_chunk().unwrap();
        let mut streaming = gateway.session_as(token, "/mcp");
        let slow = json!({"ms": 600_000, "message": "never"});
        streaming.send_call(1, "one__slow", &slow);
        // This one takes no stream: its answer is all that it waits for.
        let mut waiting = gateway.session_as(token, "/mcp");
        let call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "one__slow", "arguments": slow},
        });
        let mut headers = waiting.headers();
        headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
        headers.push(("Accept".to_owned(), "application/json".to_owned()));
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let body = call.to_string();
        waiting.http.send("POST", "/mcp", &headers, body.as_bytes());
        let old = old_stream(gateway.address, token);
        Self {
            idle,
            listening,
            old,
            streaming,
            waiting,
        }
    }

    fn all_end(mut self) {
        assert!(self.idle.http.is_closed(), "a connection that waits");
        // Read as chunks: a stream that lives on says so now and then.
        for stream in [&mut self.listening, &mut self.old] {
            assert_eq!(stream.read_chunk(), None, "a stream");
            assert!(stream.is_closed(), "the connection of a stream");
        }
        assert!(self.streaming.http.is_closed(), "a call");
        assert!(self.waiting.http.is_closed(), "a call without a stream");
    }
}

#[test]
fn a_revoked_token_ends_its_connections_streams_and_calls_and_no_others() {
    let gateway = up();
    let (id, token) = ann(&gateway);
    let (_, other) = ann(&gateway);
    let opened = Opened::with(&gateway, &token);
    let mut kept = gateway.session_as(&other, "/mcp");
    let mut kept_stream = kept.listen();
    kept_stream.read_chunk().unwrap();
    let mut owner = gateway.session("/mcp");
    eventually("both calls run", || in_flight(&gateway) == 2);
    let session = opened.idle.id.clone();
    revoke(&gateway, &id);
    opened.all_end();
    eventually("no call runs", || in_flight(&gateway) == 0);
    // Nothing lets it in again, and its session is not the other token's.
    let bearer = format!("Bearer {token}");
    let again = Http::connect(gateway.address).get("/mcp", &[("Authorization", &bearer)]);
    assert_eq!(again.status, 401);
    let mut stolen = kept.twin();
    stolen.id = session;
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    assert_eq!(stolen.post(&ping).status, 404);
    // The other token of the same principal does not notice.
    assert_eq!(kept.text("one__echo", &json!({"message": "hi"})), "hi");
    owner.call("one__test_trigger_tool_change", &json!({}));
    let told = String::from_utf8(kept_stream.read_chunk().unwrap()).unwrap();
    assert!(told.contains("tools/list_changed"), "{told}");
}

#[test]
fn a_connection_that_is_used_again_goes_on_with_the_token_it_used_last() {
    let gateway = up();
    let (id, token) = ann(&gateway);
    let mut session = gateway.session_as(&token, "/mcp");
    // A proxy may send requests of several callers over one connection.
    let owner = format!("Bearer {}", gateway.token);
    let answer = session
        .http
        .get("/api/v1/servers", &[("Authorization", &owner)]);
    assert_eq!(answer.status, 200);
    revoke(&gateway, &id);
    let answer = session
        .http
        .get("/api/v1/servers", &[("Authorization", &owner)]);
    assert_eq!(answer.status, 200, "it is the owner's connection now");
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(session.post(&ping).status, 401);
}

#[test]
fn all_tokens_of_a_principal_are_revoked_by_its_name() {
    let gateway = up();
    let (_, first) = ann(&gateway);
    let (_, second) = ann(&gateway);
    let bob = json!({"principal": "bob", "role": "writer"});
    let (_, third) = gateway.token_of(&bob);
    let mut sessions = [&first, &second].map(|token| gateway.session_as(token, "/mcp"));
    let mut bob = gateway.session_as(&third, "/mcp");
    revoke(&gateway, "ann");
    for session in &mut sessions {
        assert!(session.http.is_closed());
    }
    bob.request("ping", &json!({}));
    let gone = gateway.ask_api("DELETE", "/api/v1/tokens/ann", &json!({}));
    assert_eq!(gone.status, 404);
    assert_eq!(gone.json()["error"]["code"], "token_not_found");
}

#[test]
fn an_expired_token_ends_what_it_opened() {
    let gateway = up();
    let wanted = json!({"principal": "ann", "role": "writer", "expires_s": 2});
    let (_, token) = gateway.token_of(&wanted);
    let opened = Opened::with(&gateway, &token);
    opened.all_end();
    let bearer = format!("Bearer {token}");
    let answer = Http::connect(gateway.address).get("/mcp", &[("Authorization", &bearer)]);
    assert_eq!(answer.status, 401);
    eventually("no call runs", || in_flight(&gateway) == 0);
    let listed = gateway.api("/api/v1/tokens");
    assert_eq!(listed["tokens"][0]["state"], "expired");
}

#[test]
fn a_token_that_was_revoked_stays_so_after_a_restart() {
    let mut gateway = up();
    let (id, token) = ann(&gateway);
    let session = gateway.session_as(&token, "/mcp").id;
    revoke(&gateway, &id);
    gateway.restart_after_kill();
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Mcp-Session-Id", &session),
        ("Accept", "text/event-stream"),
    ];
    let answer = Http::connect(gateway.address).get("/mcp", &headers);
    assert_eq!(answer.status, 401);
}
