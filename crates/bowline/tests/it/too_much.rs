//! What is too much, and how its caller hears of it: a call that is one too many, a body that is
//! too long while it is still being sent.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, PATIENCE, Response, Session, fixture};

fn up() -> Gateway {
    let roles = "[roles.caller]\nallow = [\"one.*\"]\n";
    let gateway = Gateway::up(&format!("{}{roles}", fixture("one", &[])));
    gateway.wait_for("one", "ready");
    gateway
}

fn session(gateway: &Gateway, principal: &str) -> Session {
    let wanted = json!({"principal": principal, "role": "caller"});
    gateway.session_as(&gateway.token_of(&wanted).1, "/mcp")
}

fn echo(id: u64, meta: &Value) -> Value {
    json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "one__echo", "arguments": {"message": "hi"}, "_meta": meta},
    })
}

fn run(id: &str, calls: u64) -> Value {
    json!({"dev.bowline/run": {"id": id, "calls": calls}})
}

fn is_spent(answer: &Response) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    // A run that is over is over: no wait helps.
    assert_eq!(answer.header("retry-after"), None);
    let error = answer.json()["error"].clone();
    assert_eq!(error["data"]["code"], "budget_exceeded", "{error}");
}

#[test]
fn a_run_makes_as_many_calls_as_its_caller_said_and_no_more() {
    let gateway = up();
    let mut ann = session(&gateway, "ann");
    for id in 1..=3 {
        assert_eq!(ann.post(&echo(id, &run("r", 3))).status, 200);
    }
    // A run cannot grant itself more, from whatever session of its principal.
    is_spent(&ann.post(&echo(4, &run("r", 9))));
    is_spent(&session(&gateway, "ann").post(&echo(1, &run("r", 3))));
    // Another run, no run, and another principal's run of that name are not this one.
    assert_eq!(ann.post(&echo(5, &run("s", 1))).status, 200);
    assert_eq!(ann.post(&echo(6, &json!({}))).status, 200);
    let mut bob = session(&gateway, "bob");
    assert_eq!(bob.post(&echo(1, &run("r", 1))).status, 200);
    is_spent(&bob.post(&echo(2, &run("r", 1))));
}

#[test]
fn a_run_is_named_in_a_header_where_the_call_does_not_name_one() {
    let gateway = up();
    let mut ann = session(&gateway, "ann");
    let mut post = |id: u64, meta: &Value, header: &str| {
        let mut headers = ann.headers();
        headers.push(("Bowline-Run".to_owned(), header.to_owned()));
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let body = echo(id, meta).to_string();
        ann.http.post("/mcp", &headers, body.as_bytes())
    };
    assert_eq!(post(1, &json!({}), "id=h; calls=1").status, 200);
    is_spent(&post(2, &json!({}), "id=h; calls=1"));
    assert_eq!(post(3, &run("m", 1), "id=h; calls=1").status, 200);
    // A limit that cannot be read is not ignored.
    for header in ["id=h", "7", "id=h; calls=many"] {
        let answer = post(4, &json!({}), header).json();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    assert_eq!(gateway.status("one")["calls"], 2);
}

#[test]
fn a_refusal_among_others_stays_inside_their_answer() {
    let gateway = up();
    let mut ann = session(&gateway, "ann");
    assert_eq!(ann.post(&echo(1, &run("r", 1))).status, 200);
    // A caller that takes no stream is told the same way.
    let headers = ann.headers();
    let mut headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    headers.push(("Accept", "application/json"));
    let body = echo(2, &run("r", 1)).to_string();
    is_spent(&ann.http.post("/mcp", &headers, body.as_bytes()));
    let batch = json!([echo(3, &run("r", 1)), echo(4, &json!({}))]);
    let answers = batch_of(&gateway, &batch);
    let refused = &answers[0]["error"]["data"]["code"];
    assert_eq!(refused, "budget_exceeded", "{answers}");
    assert_eq!(answers[1]["result"]["content"][0]["text"], "hi");
}

/// Sends a batch in a session of ann's, of the one revision that has them.
fn batch_of(gateway: &Gateway, batch: &Value) -> Value {
    let wanted = json!({"principal": "ann", "role": "caller"});
    let bearer = format!("Bearer {}", gateway.token_of(&wanted).1);
    let mut http = Http::connect(gateway.address);
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

/// Sends a head with these fields and then all of a body of so many bytes, and only then reads.
/// Returns all that came until the gateway closed.
fn send_then_read(gateway: &Gateway, token: &str, fields: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
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
fn oversized_body_still_sending_gets_its_413() {
    let gateway = Gateway::up("");
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
    // One that asks first is refused before it has sent anything.
    let asks = format!("Expect: 100-continue\r\n{length}");
    let reply = send_then_read(&gateway, &gateway.token, &asks, b"");
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    // A caller without a valid token hears of that as well.
    let reply = send_then_read(&gateway, "bwl_wrong", &length, &body[..4 * 1024 * 1024]);
    assert!(reply.starts_with("HTTP/1.1 401 "), "{reply}");
    gateway.session("/mcp").request("ping", &json!({}));
}
