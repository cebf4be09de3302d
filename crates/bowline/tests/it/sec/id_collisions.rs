//! Many callers of a server with equal ids: responses are not mixed up.

use std::sync::{Arc, Barrier};

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

const CLIENTS: usize = 100;
const CALLS: usize = 100;

#[test]
fn sec_12_equal_ids_of_clients_never_cross() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let (address, token) = (gateway.address, gateway.token.clone());
    let together = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (token, together) = (token.clone(), Arc::clone(&together));
            std::thread::spawn(move || {
                let mut session = Session::open(address, "/mcp", Some(&token));
                together.wait();
                for call in 0..CALLS {
                    assert_echo(&mut session, client, call);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    assert_cancel_and_progress_private(&gateway);
    let status = gateway.wait_for_state("one", "ready");
    assert_eq!(status["generation"], 1, "one child served all: {status}");
    assert_eq!(status["in_flight"], 0);
}

/// A call under an id shared by all clients.
fn assert_echo(session: &mut Session, client: usize, call: usize) {
    let message = format!("client {client} call {call}");
    // Every third call requests progress under a shared token.
    let mut params = json!({"name": "one__echo", "arguments": {"message": message}});
    if call.is_multiple_of(3) {
        params["_meta"] = json!({"progressToken": call});
    }
    let response = session.post(&json!({
        "jsonrpc": "2.0", "id": call, "method": "tools/call", "params": params,
    }));
    assert_eq!(response.status, 200, "{}", response.text());
    let answer = response.json();
    assert_eq!(answer["id"], call);
    assert_eq!(answer["result"]["content"][0]["text"], message, "{answer}");
}

fn call_counter(gateway: &Gateway) -> Value {
    let answer = gateway
        .open_session("/mcp")
        .call("one__counter", &json!({}));
    answer["result"]["structuredContent"].clone()
}

fn assert_cancel_and_progress_private(gateway: &Gateway) {
    let mut mine = gateway.open_session("/mcp");
    let mut other = gateway.open_session("/mcp");
    let slow = |ms: u64| {
        json!({
            "jsonrpc": "2.0", "id": "same", "method": "tools/call",
            "params": {"name": "one__slow", "arguments": {"ms": ms, "message": "mine"},
                "_meta": {"progressToken": "same"}},
        })
    };
    let before = call_counter(gateway);
    let calling = std::thread::spawn(move || mine.post(&slow(4_000)));
    wait_until("the slow call runs", || {
        gateway.wait_for_state("one", "ready")["in_flight"] == 1
    });
    // The other session cancels the same id, and sends progress for the same token.
    for params in [
        json!({"method": "notifications/cancelled", "params": {"requestId": "same"}}),
        json!({"method": "notifications/progress",
            "params": {"progressToken": "same", "progress": 1, "message": "not yours"}}),
    ] {
        let mut message = params;
        message["jsonrpc"] = json!("2.0");
        assert_eq!(other.post(&message).status, 202);
    }
    // So does a response to a nonexistent request.
    let answer = json!({"jsonrpc": "2.0", "id": "same", "result": {"content": []}});
    assert_eq!(other.post(&answer).status, 202);
    let progress = other.post(&json!({
        "jsonrpc": "2.0", "id": "same", "method": "tools/call",
        "params": {"name": "one__test_tool_with_progress", "arguments": {},
            "_meta": {"progressToken": "same"}},
    }));
    assert_eq!(progress.events().len(), 4, "{}", progress.text());
    let response = calling.join().unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let answer = response.json();
    assert_eq!(answer["id"], "same");
    assert_eq!(answer["result"]["content"][0]["text"], "mine", "{answer}");
    let after = call_counter(gateway);
    assert_eq!(after["slow_cancelled"], before["slow_cancelled"], "{after}");
    assert_eq!(
        after["slow_finished"].as_u64(),
        before["slow_finished"].as_u64().map(|count| count + 1)
    );
    // The caller's own cancellation ends the call.
    let mut mine = gateway.open_session("/mcp");
    let (id, token) = (mine.id.clone(), gateway.token.clone());
    let address = gateway.address;
    let calling = std::thread::spawn(move || mine.post(&slow(600_000)));
    wait_until("the slow call runs", || {
        gateway.wait_for_state("one", "ready")["in_flight"] == 1
    });
    let cancel =
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"same"}}"#;
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Mcp-Session-Id", id.as_str()),
    ];
    let told = HttpConnection::connect(address).post("/mcp", &headers, cancel);
    assert_eq!(told.status, 202);
    let answer = calling.join().unwrap().json();
    assert_eq!(answer["error"]["data"]["code"], "cancelled", "{answer}");
}
