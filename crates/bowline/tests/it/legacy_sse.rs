//! Clients of 2024-11-05: a stream announces the POST endpoint and carries the responses.

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

struct SseClient {
    stream: HttpConnection,
    post_connection: HttpConnection,
    token: String,
    endpoint: String,
}

impl SseClient {
    fn open(gateway: &Gateway, path: &str) -> Self {
        let token = format!("Bearer {}", gateway.token);
        let mut stream = HttpConnection::connect(gateway.address);
        let headers = [
            ("Authorization", &token[..]),
            ("Accept", "text/event-stream"),
        ];
        stream.send_request("GET", path, &headers, b"");
        assert_eq!(stream.read_head().status, 200);
        let first = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
        let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap();
        Self {
            stream,
            post_connection: HttpConnection::connect(gateway.address),
            token,
            endpoint: endpoint.trim_end().to_owned(),
        }
    }

    fn post_message(&mut self, message: &Value) -> u16 {
        let headers = [("Authorization", &self.token[..])];
        let body = message.to_string();
        let response = self
            .post_connection
            .post(&self.endpoint, &headers, body.as_bytes());
        response.status
    }

    fn next_message(&mut self) -> Value {
        loop {
            let chunk = String::from_utf8(self.stream.read_chunk().unwrap()).unwrap();
            assert!(!chunk.contains("id: "), "no such thing then: {chunk}");
            if let Some(data) = chunk.lines().find_map(|line| line.strip_prefix("data: ")) {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    fn send_request(&mut self, id: u64, method: &str, params: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        assert_eq!(self.post_message(&message), 202);
        let answer = self.next_message();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }
}

#[test]
fn sse_client_is_served_on_one_stream() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    for (path, tool, prefix) in [
        ("/sse", "one__echo", "/messages?sessionId="),
        (
            "/servers/one/sse",
            "echo",
            "/servers/one/messages?sessionId=",
        ),
    ] {
        let mut old = SseClient::open(&gateway, path);
        assert!(old.endpoint.starts_with(prefix), "{}", old.endpoint);
        let hello = json!({
            "protocolVersion": "2024-11-05", "capabilities": {"roots": {}},
            "clientInfo": {"name": "it", "version": "1"},
        });
        let answer = old.send_request(1, "initialize", &hello);
        assert_eq!(answer["result"]["protocolVersion"], "2024-11-05");
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(old.post_message(&told), 202);
        let list = old.send_request(2, "tools/list", &json!({}));
        assert!(list["result"]["tools"].as_array().unwrap().len() > 1);
        let call = json!({"name": tool, "arguments": {"message": "hi"}});
        let answer = old.send_request(3, "tools/call", &call);
        assert_eq!(answer["result"]["content"][0]["text"], "hi");
    }
}

#[test]
fn sse_session_ends_with_its_stream() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut old = SseClient::open(&gateway, "/sse");
    let slow = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "one__slow", "arguments": {"ms": 600_000, "message": "never"}},
    });
    assert_eq!(old.post_message(&slow), 202);
    wait_until("the call is under way", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    // A request without the credential, at another endpoint, or without a session is refused.
    let endpoint = old.endpoint.clone();
    let post = |path: &str, headers: &[(&str, &str)]| {
        let mut http = HttpConnection::connect(gateway.address);
        http.post(path, headers, ping.to_string().as_bytes()).status
    };
    let token = old.token.clone();
    let right = [("Authorization", &token[..])];
    assert_eq!(post(&endpoint, &[]), 401);
    assert_eq!(
        post(&endpoint, &[right[0], ("Origin", "http://evil.example")]),
        403
    );
    let elsewhere = endpoint.replace("/messages", "/servers/one/messages");
    assert_eq!(post(&elsewhere, &right), 404);
    assert_eq!(post("/messages", &right), 400);
    assert_eq!(
        HttpConnection::connect(gateway.address)
            .get("/sse", &[])
            .status,
        401
    );
    let modern = gateway.open_session("/mcp");
    assert_eq!(
        post(&format!("/messages?sessionId={}", modern.id), &right),
        404
    );
    drop(old);
    wait_until("the call is taken back", || {
        gateway.server_status("one")["in_flight"] == 0
    });
    wait_until("the session is over", || post(&endpoint, &right) == 404);
}
