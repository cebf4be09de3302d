//! Who shares a server with whom: two sessions, each with a client that can be asked, and a server
//! that asks while both have calls in flight.

use serde_json::{Value, json};

use crate::harness::served::Served;
use crate::harness::{Gateway, Session, eventually, fixture};
use crate::props::{fresh_mark, mark_line, marked};
use crate::streams::next_event;

const ASK: &str = "one__test_elicitation";

/// Two sessions whose clients can be asked.
fn two(gateway: &Gateway) -> [Session; 2] {
    [(), ()].map(|()| gateway.able(&json!({"elicitation": {}})))
}

/// Has the server ask this session's client, and returns where the call waits and the question.
fn ask(session: &Session, message: &str) -> (Session, Value) {
    let mut caller = session.twin();
    caller.send_call(7, ASK, &json!({"message": message}));
    (caller, Value::Null)
}

/// Reads the question that a call brought its caller.
fn question(asked: &mut (Session, Value)) -> String {
    let (caller, question) = asked;
    let head = caller.http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    next_event(&mut caller.http).unwrap();
    *question = next_event(&mut caller.http).unwrap().json();
    question["params"]["message"].as_str().unwrap().to_owned()
}

/// Answers the question and returns what the server made of the answer.
fn answer(session: &mut Session, asked: &mut (Session, Value), name: &str) -> String {
    let (caller, question) = asked;
    let content = json!({"username": name, "email": "e"});
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"],
        "result": {"action": "accept", "content": content},
    });
    assert_eq!(session.post(&answer).status, 202);
    let result = next_event(&mut caller.http).unwrap().json();
    assert_eq!(next_event(&mut caller.http), None);
    let text = result["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {result}"))
        .to_owned()
}

/// Both sessions are asked at once; each sees its own question, and its answer comes to its call.
fn both_are_asked([a, b]: &mut [Session; 2]) {
    let (mut of_a, mut of_b) = (ask(a, "of a?"), ask(b, "of b?"));
    assert_eq!(question(&mut of_b), "of b?");
    assert_eq!(question(&mut of_a), "of a?");
    let text = answer(b, &mut of_b, "bee");
    assert!(text.contains("\"bee\""), "{text}");
    let text = answer(a, &mut of_a, "ay");
    assert!(text.contains("\"ay\""), "{text}");
}

/// While `busy` has a call in flight, the server asks the other session, which is refused.
fn nobody_is_asked(gateway: &Gateway, asked: &mut Session, busy: &mut Session) {
    let mut waiting = busy.twin();
    let before = gateway.status("one")["in_flight"].as_u64().unwrap();
    waiting.send_call(9, "one__slow", &json!({"ms": 600_000, "message": "late"}));
    eventually("the call is in flight", || {
        gateway.status("one")["in_flight"] == before + 1
    });
    let refused = asked.call(ASK, &json!({"message": "whose?"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    let text = refused["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("calls of several clients"), "{text}");
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9},
    });
    assert_eq!(busy.post(&cancel).status, 202);
    // An answer that is not a stream: nothing was said to this caller before.
    let ended = waiting.http.read();
    assert_eq!(ended.header("content-type"), Some("application/json"));
    assert_eq!(ended.json()["error"]["data"]["code"], "cancelled");
}

fn own_links(gateway: &Gateway, count: usize) {
    eventually(&format!("{count} own links"), || {
        gateway.status("one")["own_links"] == count
    });
}

#[test]
fn a_server_that_asks_amid_two_sessions_is_refused_and_then_each_has_its_own() {
    let mark = fresh_mark("isolation-auto");
    let gateway = Gateway::up(&format!("{}{}", fixture("one", &[]), mark_line(&mark)));
    let status = gateway.wait_for("one", "ready");
    let shared = marked(&mark);
    let mut sessions = two(&gateway);
    let mut listening = sessions.each_ref().map(Session::listen);
    {
        let [a, b] = &mut sessions;
        nobody_is_asked(&gateway, a, b);
    }
    let mut found = Value::Null;
    eventually("the reason is known", || {
        found = gateway.status("one");
        found["isolated_because"].is_string()
    });
    assert_eq!(
        (&found["pid"], &found["own_links"]),
        (&status["pid"], &json!(0))
    );
    assert_eq!(marked(&mark), shared, "one child serves both");

    both_are_asked(&mut sessions);
    found = gateway.status("one");
    assert_eq!(
        (&found["pid"], &found["own_links"]),
        (&status["pid"], &json!(2))
    );
    assert_eq!(marked(&mark).len(), 3 * shared.len());
    let why = found["isolated_because"].as_str().unwrap();
    let shown = String::from_utf8(gateway.cli(&["status"]).stdout).unwrap();
    assert!(
        shown.contains(&format!("2 own links · not shared: {why}")),
        "{shown}"
    );
    let shown: Value = serde_json::from_slice(&gateway.cli(&["status", "--json"]).stdout).unwrap();
    assert_eq!(shown["servers"][0]["own_links"], 2);
    assert_eq!(shown["servers"][0]["isolated_because"], why);

    let [a, b] = &mut sessions;
    a.delete();
    own_links(&gateway, 1);
    eventually("its child is gone", || {
        marked(&mark).len() == 2 * shared.len()
    });
    assert_eq!(
        b.text("one__echo", &json!({"message": "still here"})),
        "still here"
    );
    b.delete();
    own_links(&gateway, 0);
    eventually("both children are gone", || marked(&mark) == shared);
    for stream in &mut listening {
        assert_eq!(next_event(stream).unwrap().data.as_deref(), Some(""));
        assert_eq!(
            next_event(stream),
            None,
            "nothing was said outside the calls"
        );
    }
}

#[test]
fn a_server_isolated_by_session_asks_each_from_the_start() {
    let config = format!("{}isolation = \"session\"\n", fixture("one", &[]));
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let mut sessions = two(&gateway);
    both_are_asked(&mut sessions);
    let status = gateway.status("one");
    assert_eq!(status["own_links"], 2);
    assert_eq!(status["isolated_because"], Value::Null);
}

#[test]
fn a_server_that_stays_shared_asks_only_who_is_alone() {
    let config = format!("{}isolation = \"shared\"\n", fixture("one", &[]));
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let [mut a, mut b] = two(&gateway);
    for _ in 0..3 {
        nobody_is_asked(&gateway, &mut a, &mut b);
        nobody_is_asked(&gateway, &mut b, &mut a);
        let mut alone = ask(&a, "only you?");
        assert_eq!(question(&mut alone), "only you?");
        let text = answer(&mut a, &mut alone, "ay");
        assert!(text.contains("\"ay\""), "{text}");
    }
    let status = gateway.status("one");
    assert_eq!(status["own_links"], 0);
    assert_eq!(status["isolated_because"], Value::Null);
}

#[test]
fn a_stream_of_a_call_names_whom_the_server_asks_so_http_servers_stay_shared() {
    let served = Served::start(&[]);
    let gateway = Gateway::up(&format!("[servers.one]\nurl = {}\n", json!(served.url)));
    gateway.wait_for("one", "ready");
    let mut sessions = two(&gateway);
    both_are_asked(&mut sessions);
    both_are_asked(&mut sessions);
    let status = gateway.status("one");
    assert_eq!(status["own_links"], 0);
    assert_eq!(status["isolated_because"], Value::Null);
}

#[test]
fn a_question_to_a_caller_without_a_stream_is_never_put_to_another() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let [a, mut b] = two(&gateway);
    let mut waiting = b.twin();
    waiting.send_call(9, "one__slow", &json!({"ms": 600_000, "message": "late"}));
    eventually("the call is in flight", || {
        gateway.status("one")["in_flight"] == 1
    });
    // It takes JSON only, so it cannot be asked; but the question is its own all the same.
    let mut deaf = a.twin();
    let mut headers = deaf.headers();
    for name in ["Accept", "Content-Type"] {
        headers.push((name.to_owned(), "application/json".to_owned()));
    }
    let headers: Vec<_> = headers
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": ASK, "arguments": {"message": "whose?"}},
    });
    deaf.http
        .send("POST", "/mcp", &headers, call.to_string().as_bytes());
    let refused = deaf.http.read().json();
    let text = refused["result"]["content"][0]["text"].to_string();
    assert!(text.contains("calls of several clients"), "{refused}");
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9},
    });
    assert_eq!(b.post(&cancel).status, 202);
    let ended = waiting.http.read();
    assert_eq!(ended.header("content-type"), Some("application/json"));
}
