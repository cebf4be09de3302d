//! Request limits and errors: a call above the limit, and an oversized body during its transfer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bowline_testkit::WAIT_MAX;
use bowline_testkit::gateway::{Gateway, HttpConnection, Response, Session, fixture_config};
use serde_json::{Value, json};

fn start_limited() -> Gateway {
    let roles = "[roles.caller]\nallow = [\"one.*\"]\n";
    let gateway = Gateway::start(&format!("{}{roles}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    gateway
}

fn open_session_as(gateway: &Gateway, principal: &str) -> Session {
    let wanted = json!({"principal": principal, "role": "caller"});
    gateway.open_session_as(&gateway.create_token(&wanted).1, "/mcp")
}

fn echo_call(id: u64, meta: &Value) -> Value {
    json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "one__echo", "arguments": {"message": "hi"}, "_meta": meta},
    })
}

fn run_meta(id: &str, calls: u64) -> Value {
    json!({"dev.bowline/run": {"id": id, "calls": calls}})
}

fn assert_run_spent(answer: &Response) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    // A spent run stays spent, so no `Retry-After` is sent.
    assert_eq!(answer.header("retry-after"), None);
    let error = answer.json()["error"].clone();
    assert_eq!(error["data"]["code"], "budget_exceeded", "{error}");
}

#[test]
fn run_stops_at_its_call_limit() {
    let gateway = start_limited();
    let mut ann = open_session_as(&gateway, "ann");
    for id in 1..=3 {
        assert_eq!(ann.post(&echo_call(id, &run_meta("r", 3))).status, 200);
    }
    // A run cannot raise the limit, from any session of the principal.
    assert_run_spent(&ann.post(&echo_call(4, &run_meta("r", 9))));
    assert_run_spent(&open_session_as(&gateway, "ann").post(&echo_call(1, &run_meta("r", 3))));
    // Another run, no run, and another principal's run of that name are separate.
    assert_eq!(ann.post(&echo_call(5, &run_meta("s", 1))).status, 200);
    assert_eq!(ann.post(&echo_call(6, &json!({}))).status, 200);
    let mut bob = open_session_as(&gateway, "bob");
    assert_eq!(bob.post(&echo_call(1, &run_meta("r", 1))).status, 200);
    assert_run_spent(&bob.post(&echo_call(2, &run_meta("r", 1))));
}

/// A header names the run if the call does not.
#[test]
fn run_header_names_run_without_meta() {
    let gateway = start_limited();
    let mut ann = open_session_as(&gateway, "ann");
    let mut post = |id: u64, meta: &Value, header: &str| {
        let mut headers = ann.request_headers();
        headers.push(("Bowline-Run".to_owned(), header.to_owned()));
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let body = echo_call(id, meta).to_string();
        ann.http.post("/mcp", &headers, body.as_bytes())
    };
    assert_eq!(post(1, &json!({}), "id=h; calls=1").status, 200);
    assert_run_spent(&post(2, &json!({}), "id=h; calls=1"));
    assert_eq!(post(3, &run_meta("m", 1), "id=h; calls=1").status, 200);
    // An unreadable limit is refused, not ignored.
    for header in ["id=h", "7", "id=h; calls=many"] {
        let answer = post(4, &json!({}), header).json();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    assert_eq!(gateway.server_status("one")["calls"], 2);
}

#[test]
fn batch_refusal_stays_inside_batch_response() {
    let gateway = start_limited();
    let mut ann = open_session_as(&gateway, "ann");
    assert_eq!(ann.post(&echo_call(1, &run_meta("r", 1))).status, 200);
    // A caller that accepts no stream gets the same error.
    let headers = ann.request_headers();
    let mut headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    headers.push(("Accept", "application/json"));
    let body = echo_call(2, &run_meta("r", 1)).to_string();
    assert_run_spent(&ann.http.post("/mcp", &headers, body.as_bytes()));
    let batch = json!([echo_call(3, &run_meta("r", 1)), echo_call(4, &json!({}))]);
    let answers = post_batch(&gateway, &batch);
    let refused = &answers[0]["error"]["data"]["code"];
    assert_eq!(refused, "budget_exceeded", "{answers}");
    assert_eq!(answers[1]["result"]["content"][0]["text"], "hi");
}

/// Sends a batch in a session of ann, in the revision with batches.
fn post_batch(gateway: &Gateway, batch: &Value) -> Value {
    let wanted = json!({"principal": "ann", "role": "caller"});
    let bearer = format!("Bearer {}", gateway.create_token(&wanted).1);
    let mut http = HttpConnection::connect(gateway.address);
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {"protocolVersion": "2025-03-26", "capabilities": {}},
    });
    let headers = [("Authorization", &bearer[..])];
    let opened = http.post("/mcp", &headers, hello.to_string().as_bytes());
    let id = opened.header("mcp-session-id").unwrap();
    let headers = [headers[0], ("Mcp-Session-Id", id)];
    let answer = http.post("/mcp", &headers, batch.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Sends a head with these fields and a whole body, and reads only afterwards. Returns the reply
/// until the gateway closes.
fn send_then_read(gateway: &Gateway, token: &str, fields: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\n{fields}\r\n",
        gateway.address,
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn oversized_body_still_sending_gets_413() {
    let gateway = Gateway::start("");
    let body = vec![b' '; 32 * 1024 * 1024];
    let length = format!("Content-Length: {}\r\n", body.len());
    let mut chunked = format!("{:x}\r\n", body.len()).into_bytes();
    chunked.extend_from_slice(&body);
    let coding = "Transfer-Encoding: chunked\r\n";
    for (fields, body) in [(&length[..], &body), (coding, &chunked)] {
        let reply = send_then_read(&gateway, &gateway.token, fields, body);
        assert!(reply.starts_with("HTTP/1.1 413 "), "{fields}: {reply}");
        assert!(reply.contains("connection: close\r\n"), "{reply}");
        assert!(reply.contains("larger than 8 MiB"), "{reply}");
    }
    // A request with `Expect: 100-continue` is refused before the body.
    let asks = format!("Expect: 100-continue\r\n{length}");
    let reply = send_then_read(&gateway, &gateway.token, &asks, b"");
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    // A caller without a valid token gets its error too.
    let reply = send_then_read(&gateway, "bwl_wrong", &length, &body[..4 * 1024 * 1024]);
    assert!(reply.starts_with("HTTP/1.1 401 "), "{reply}");
    gateway.open_session("/mcp").request("ping", &json!({}));
}
