//! JSON-RPC batches; only sessions of 2025-03-26 may send a batch.

use bowline_testkit::gateway::{Gateway, HttpConnection, Response, fixture_config};
use serde_json::{Value, json};

struct BatchSession {
    http: HttpConnection,
    token: String,
    id: String,
}

impl BatchSession {
    fn open(gateway: &Gateway, revision: &str) -> Self {
        let mut this = Self {
            http: HttpConnection::connect(gateway.address),
            token: format!("Bearer {}", gateway.token),
            id: String::new(),
        };
        let response = this.post_batch(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {"protocolVersion": revision, "capabilities": {}},
        }));
        this.id = response.header("mcp-session-id").unwrap().to_owned();
        this
    }

    fn post_batch(&mut self, body: &Value) -> Response {
        let mut headers = vec![("Authorization", self.token.as_str())];
        if !self.id.is_empty() {
            headers.push(("Mcp-Session-Id", self.id.as_str()));
        }
        self.http
            .post("/mcp", &headers, body.to_string().as_bytes())
    }
}

fn call_message(id: u64, tool: &str, arguments: &Value) -> Value {
    json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    })
}

/// A session of 2025-03-26 may send a batch, and gets one batch response.
#[test]
fn batch_gets_one_batch_response() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut old = BatchSession::open(&gateway, "2025-03-26");
    let response = old.post_batch(&json!([
        call_message(1, "one__slow", &json!({"ms": 200, "message": "late"})),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "p", "method": "ping"},
        call_message(2, "one__echo", &json!({"message": "hi"})),
        {"jsonrpc": "2.0", "id": 3},
        call_message(2, "one__echo", &json!({"message": "twice"})),
    ]));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let answers = response.json();
    let ids: Vec<_> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|a| &a["id"])
        .collect();
    assert_eq!(
        ids,
        [&json!(1), &json!("p"), &json!(2), &json!(3), &json!(2)]
    );
    assert_eq!(answers[2]["result"]["content"][0]["text"], "hi");
    assert_eq!(answers[3]["error"]["code"], -32600, "{answers}");
    assert_eq!(answers[4]["error"]["code"], -32600, "one id, two calls");
    // Events come first, then the whole array.
    let mut progress = call_message(5, "one__test_tool_with_progress", &json!({}));
    progress["params"]["_meta"] = json!({"progressToken": "p"});
    let response =
        old.post_batch(&json!([progress, {"jsonrpc": "2.0", "id": 6, "method": "ping"}]));
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    let mut events = response.events();
    let answers = events.pop().unwrap();
    assert_eq!(answers[0]["id"], 5, "{answers}");
    assert_eq!(answers[1], json!({"jsonrpc": "2.0", "id": 6, "result": {}}));
    assert!(
        events
            .iter()
            .all(|event| event["params"]["progressToken"] == "p")
    );
    assert!(!events.is_empty());
}

/// A malformed batch and a batch of another revision are refused.
#[test]
fn invalid_or_wrong_revision_batch_is_refused() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut old = BatchSession::open(&gateway, "2025-03-26");
    let told = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    assert_eq!(old.post_batch(&told).status, 202);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let refused = |response: Response| {
        let answer = response.json();
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        assert_eq!(answer["id"], Value::Null, "{answer}");
    };
    refused(old.post_batch(&json!([])));
    refused(old.post_batch(&json!(vec![ping.clone(); 101])));
    refused(old.post_batch(&json!([
        ping,
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}},
    ])));
    for revision in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let mut other = BatchSession::open(&gateway, revision);
        refused(other.post_batch(&json!([ping])));
    }
}

#[test]
fn sec_60_batch_items_are_checked_separately() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut old = BatchSession::open(&gateway, "2025-03-26");
    let mut odd = call_message(1, "one__echo", &json!({"message": "odd"}));
    odd["params"]["Name"] = json!("one__add");
    let response = old.post_batch(&json!([
        odd,
        call_message(2, "one__echo", &json!({"message": "hi"}))
    ]));
    let answers = response.json();
    assert_eq!(answers[0]["error"]["code"], -32_602, "{answers}");
    assert_eq!(answers[0]["id"], 1, "{answers}");
    assert_eq!(
        answers[1]["result"]["content"][0]["text"], "hi",
        "{answers}"
    );
    assert_eq!(gateway.server_status("one")["calls"], 1);
}
