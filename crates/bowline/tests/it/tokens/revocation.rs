//! Connections of a revoked or expired token end with it, at once.

use std::net::SocketAddr;

use bowline_testkit::gateway::{Gateway, HttpConnection, Session};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::start_with_roles;

fn create_ann_token(gateway: &Gateway) -> (String, String) {
    gateway.create_token(&json!({"principal": "ann", "role": "writer"}))
}

fn revoke_token(gateway: &Gateway, which: &str) {
    let path = format!("/api/v1/tokens/{which}");
    let answer = gateway.send_api("DELETE", &path, &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Opens a stream of 2024-11-05 and skips the first event.
fn open_sse_stream(address: SocketAddr, token: &str) -> HttpConnection {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Accept", "text/event-stream"),
    ];
    let mut http = HttpConnection::connect(address);
    http.send_request("GET", "/sse", &headers, b"");
    assert_eq!(http.read_head().status, 200);
    http.read_chunk().unwrap();
    http
}

fn in_flight_calls(gateway: &Gateway) -> Value {
    gateway.server_status("one")["in_flight"].clone()
}

/// Every kind of connection of a credential.
struct OpenConnections {
    idle: Session,
    session_stream: HttpConnection,
    sse_stream: HttpConnection,
    streaming_call: Session,
    waiting_call: Session,
}

impl OpenConnections {
    fn open(gateway: &Gateway, token: &str) -> Self {
        let idle = gateway.open_session_as(token, "/mcp");
        let mut session_stream = idle.open_stream();
        session_stream.read_chunk().unwrap();
        let mut streaming_call = gateway.open_session_as(token, "/mcp");
        let slow = json!({"ms": 600_000, "message": "never"});
        streaming_call.send_call(1, "one__slow", &slow);
        // This caller accepts no stream, only the response.
        let mut waiting_call = gateway.open_session_as(token, "/mcp");
        let call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "one__slow", "arguments": slow},
        });
        let mut headers = waiting_call.request_headers();
        headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
        headers.push(("Accept".to_owned(), "application/json".to_owned()));
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let body = call.to_string();
        waiting_call
            .http
            .send_request("POST", "/mcp", &headers, body.as_bytes());
        let sse_stream = open_sse_stream(gateway.address, token);
        Self {
            idle,
            session_stream,
            sse_stream,
            streaming_call,
            waiting_call,
        }
    }

    fn assert_all_end(mut self) {
        assert!(self.idle.http.is_closed(), "a connection that waits");
        // Read as chunks: a live stream sends keepalives.
        for stream in [&mut self.session_stream, &mut self.sse_stream] {
            assert_eq!(stream.read_chunk(), None, "a stream");
            assert!(stream.is_closed(), "the connection of a stream");
        }
        assert!(self.streaming_call.http.is_closed(), "a call");
        assert!(
            self.waiting_call.http.is_closed(),
            "a call without a stream"
        );
    }
}

#[test]
fn revoked_token_ends_only_its_connections() {
    let gateway = start_with_roles();
    let (id, token) = create_ann_token(&gateway);
    let (_, other) = create_ann_token(&gateway);
    let opened = OpenConnections::open(&gateway, &token);
    let mut kept = gateway.open_session_as(&other, "/mcp");
    let mut kept_stream = kept.open_stream();
    kept_stream.read_chunk().unwrap();
    let mut owner = gateway.open_session("/mcp");
    wait_until("both calls run", || in_flight_calls(&gateway) == 2);
    let session = opened.idle.id.clone();
    revoke_token(&gateway, &id);
    opened.assert_all_end();
    wait_until("no call runs", || in_flight_calls(&gateway) == 0);
    // The token is refused, and the session is not usable with the second token.
    let bearer = format!("Bearer {token}");
    let again = HttpConnection::connect(gateway.address).get("/mcp", &[("Authorization", &bearer)]);
    assert_eq!(again.status, 401);
    let mut stolen = kept.clone_on_new_connection();
    stolen.id = session;
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    assert_eq!(stolen.post(&ping).status, 404);
    // The second token of the same principal is unaffected.
    assert_eq!(kept.call_text("one__echo", &json!({"message": "hi"})), "hi");
    owner.call("one__test_trigger_tool_change", &json!({}));
    let told = String::from_utf8(kept_stream.read_chunk().unwrap()).unwrap();
    assert!(told.contains("tools/list_changed"), "{told}");
}

#[test]
fn reused_connection_follows_its_last_token() {
    let gateway = start_with_roles();
    let (id, token) = create_ann_token(&gateway);
    let mut session = gateway.open_session_as(&token, "/mcp");
    // A proxy may send requests of several callers over one connection.
    let owner = format!("Bearer {}", gateway.token);
    let answer = session
        .http
        .get("/api/v1/servers", &[("Authorization", &owner)]);
    assert_eq!(answer.status, 200);
    revoke_token(&gateway, &id);
    let answer = session
        .http
        .get("/api/v1/servers", &[("Authorization", &owner)]);
    assert_eq!(answer.status, 200, "it is the owner's connection now");
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(session.post(&ping).status, 401);
}

#[test]
fn revoke_by_principal_ends_all_its_tokens() {
    let gateway = start_with_roles();
    let (_, first) = create_ann_token(&gateway);
    let (_, second) = create_ann_token(&gateway);
    let bob = json!({"principal": "bob", "role": "writer"});
    let (_, third) = gateway.create_token(&bob);
    let mut sessions = [&first, &second].map(|token| gateway.open_session_as(token, "/mcp"));
    let mut bob = gateway.open_session_as(&third, "/mcp");
    revoke_token(&gateway, "ann");
    for session in &mut sessions {
        assert!(session.http.is_closed());
    }
    bob.request("ping", &json!({}));
    let gone = gateway.send_api("DELETE", "/api/v1/tokens/ann", &json!({}));
    assert_eq!(gone.status, 404);
    assert_eq!(gone.json()["error"]["code"], "token_not_found");
}

#[test]
fn expired_token_ends_its_connections() {
    let gateway = start_with_roles();
    let wanted = json!({"principal": "ann", "role": "writer", "expires_s": 2});
    let (_, token) = gateway.create_token(&wanted);
    let opened = OpenConnections::open(&gateway, &token);
    opened.assert_all_end();
    let bearer = format!("Bearer {token}");
    let answer =
        HttpConnection::connect(gateway.address).get("/mcp", &[("Authorization", &bearer)]);
    assert_eq!(answer.status, 401);
    wait_until("no call runs", || in_flight_calls(&gateway) == 0);
    let listed = gateway.get_api("/api/v1/tokens");
    assert_eq!(listed["tokens"][0]["state"], "expired");
}

#[test]
fn revoked_token_stays_revoked_after_restart() {
    let mut gateway = start_with_roles();
    let (id, token) = create_ann_token(&gateway);
    let session = gateway.open_session_as(&token, "/mcp").id;
    revoke_token(&gateway, &id);
    gateway.restart_after_kill();
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Mcp-Session-Id", &session),
        ("Accept", "text/event-stream"),
    ];
    let answer = HttpConnection::connect(gateway.address).get("/mcp", &headers);
    assert_eq!(answer.status, 401);
}
