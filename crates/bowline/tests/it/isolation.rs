//! Isolation: two sessions with clients for server requests, and a server with requests during
//! calls of both.

use bowline_testkit::gateway::{FixtureServer, Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::streams::next_event;
use crate::test_servers::{fresh_mark, mark_config_line, marked_processes};

const ELICIT_TOOL: &str = "one__test_elicitation";

/// Two sessions with clients for server requests.
fn open_two_sessions(gateway: &Gateway) -> [Session; 2] {
    [(), ()].map(|()| gateway.open_session_with_capabilities(&json!({"elicitation": {}})))
}

/// A call that waits for the answer to an elicitation of the server.
struct ElicitingCall {
    caller: Session,
    /// The elicitation; null until read.
    elicitation: Value,
}

/// Makes the server send an elicitation to this session.
fn start_elicitation(session: &Session, message: &str) -> ElicitingCall {
    let mut caller = session.clone_on_new_connection();
    caller.send_call(7, ELICIT_TOOL, &json!({"message": message}));
    ElicitingCall {
        caller,
        elicitation: Value::Null,
    }
}

/// Reads the elicitation of a call.
fn read_elicitation(call: &mut ElicitingCall) -> String {
    let http = &mut call.caller.http;
    let head = http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    next_event(http).unwrap();
    call.elicitation = next_event(http).unwrap().data_json();
    let message = call.elicitation["params"]["message"].as_str();
    message.unwrap().to_owned()
}

/// Answers the elicitation and returns the server's result.
fn answer_elicitation(session: &mut Session, call: &mut ElicitingCall, name: &str) -> String {
    let content = json!({"username": name, "email": "e"});
    let answer = json!({
        "jsonrpc": "2.0", "id": call.elicitation["id"],
        "result": {"action": "accept", "content": content},
    });
    assert_eq!(session.post(&answer).status, 202);
    let http = &mut call.caller.http;
    let result = next_event(http).unwrap().data_json();
    assert_eq!(next_event(http), None);
    let text = result["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {result}"))
        .to_owned()
}

/// Both sessions get an elicitation at once; elicitations and answers are not mixed up.
fn assert_both_asked([a, b]: &mut [Session; 2]) {
    let (mut of_a, mut of_b) = (start_elicitation(a, "of a?"), start_elicitation(b, "of b?"));
    assert_eq!(read_elicitation(&mut of_b), "of b?");
    assert_eq!(read_elicitation(&mut of_a), "of a?");
    let text = answer_elicitation(b, &mut of_b, "bee");
    assert!(text.contains("\"bee\""), "{text}");
    let text = answer_elicitation(a, &mut of_a, "ay");
    assert!(text.contains("\"ay\""), "{text}");
}

/// While `busy` has a call in flight, a server request to the other session is refused.
fn assert_request_refused(gateway: &Gateway, asked: &mut Session, busy: &mut Session) {
    let mut waiting = busy.clone_on_new_connection();
    let before = gateway.server_status("one")["in_flight"].as_u64().unwrap();
    waiting.send_call(9, "one__slow", &json!({"ms": 600_000, "message": "late"}));
    wait_until("the call is in flight", || {
        gateway.server_status("one")["in_flight"] == before + 1
    });
    let refused = asked.call(ELICIT_TOOL, &json!({"message": "whose?"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    let text = refused["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("calls of several clients"), "{text}");
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9},
    });
    assert_eq!(busy.post(&cancel).status, 202);
    // The response is not a stream: no server request preceded it.
    let ended = waiting.http.read_response();
    assert_eq!(ended.header("content-type"), Some("application/json"));
    assert_eq!(ended.json()["error"]["data"]["code"], "cancelled");
}

fn wait_for_dedicated_links(gateway: &Gateway, count: usize) {
    wait_until(&format!("{count} own links"), || {
        gateway.server_status("one")["own_links"] == count
    });
}

#[test]
fn ambiguous_server_request_gives_sessions_own_links() {
    let mark = fresh_mark("isolation-auto");
    let gateway = Gateway::start(&format!(
        "{}{}",
        fixture_config("one", &[]),
        mark_config_line(&mark)
    ));
    let status = gateway.wait_for_state("one", "ready");
    let shared = marked_processes(&mark);
    let mut sessions = open_two_sessions(&gateway);
    let mut listening = sessions.each_ref().map(Session::open_stream);
    {
        let [a, b] = &mut sessions;
        assert_request_refused(&gateway, a, b);
    }
    let mut found = Value::Null;
    wait_until("the reason is known", || {
        found = gateway.server_status("one");
        found["isolated_because"].is_string()
    });
    assert_eq!(
        (&found["pid"], &found["own_links"]),
        (&status["pid"], &json!(0))
    );
    assert_eq!(marked_processes(&mark), shared, "one child serves both");

    assert_both_asked(&mut sessions);
    found = gateway.server_status("one");
    assert_eq!(
        (&found["pid"], &found["own_links"]),
        (&status["pid"], &json!(2))
    );
    assert_eq!(marked_processes(&mark).len(), 3 * shared.len());
    let why = found["isolated_because"].as_str().unwrap();
    let shown = String::from_utf8(gateway.run_cli(&["status"]).stdout).unwrap();
    assert!(
        shown.contains(&format!("2 own links · not shared: {why}")),
        "{shown}"
    );
    let shown: Value =
        serde_json::from_slice(&gateway.run_cli(&["status", "--json"]).stdout).unwrap();
    assert_eq!(shown["servers"][0]["own_links"], 2);
    assert_eq!(shown["servers"][0]["isolated_because"], why);

    let [a, b] = &mut sessions;
    a.end_session();
    wait_for_dedicated_links(&gateway, 1);
    wait_until("its child is gone", || {
        marked_processes(&mark).len() == 2 * shared.len()
    });
    assert_eq!(
        b.call_text("one__echo", &json!({"message": "still here"})),
        "still here"
    );
    b.end_session();
    wait_for_dedicated_links(&gateway, 0);
    wait_until("both children are gone", || {
        marked_processes(&mark) == shared
    });
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
fn session_isolation_relays_requests_from_start() {
    let config = format!("{}isolation = \"session\"\n", fixture_config("one", &[]));
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let mut sessions = open_two_sessions(&gateway);
    assert_both_asked(&mut sessions);
    let status = gateway.server_status("one");
    assert_eq!(status["own_links"], 2);
    assert_eq!(status["isolated_because"], Value::Null);
}

#[test]
fn shared_server_asks_only_sole_session() {
    let config = format!("{}isolation = \"shared\"\n", fixture_config("one", &[]));
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let [mut a, mut b] = open_two_sessions(&gateway);
    for _ in 0..3 {
        assert_request_refused(&gateway, &mut a, &mut b);
        assert_request_refused(&gateway, &mut b, &mut a);
        let mut alone = start_elicitation(&a, "only you?");
        assert_eq!(read_elicitation(&mut alone), "only you?");
        let text = answer_elicitation(&mut a, &mut alone, "ay");
        assert!(text.contains("\"ay\""), "{text}");
    }
    let status = gateway.server_status("one");
    assert_eq!(status["own_links"], 0);
    assert_eq!(status["isolated_because"], Value::Null);
}

/// The HTTP stream of a call tells which caller a server request is for, so HTTP servers stay
/// shared.
#[test]
fn http_call_stream_attributes_server_request() {
    let served = FixtureServer::start(&[]);
    let gateway = Gateway::start(&format!("[servers.one]\nurl = {}\n", json!(served.url)));
    gateway.wait_for_state("one", "ready");
    let mut sessions = open_two_sessions(&gateway);
    assert_both_asked(&mut sessions);
    assert_both_asked(&mut sessions);
    let status = gateway.server_status("one");
    assert_eq!(status["own_links"], 0);
    assert_eq!(status["isolated_because"], Value::Null);
}

#[test]
fn server_request_never_reaches_other_session() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let [a, mut b] = open_two_sessions(&gateway);
    let mut waiting = b.clone_on_new_connection();
    waiting.send_call(9, "one__slow", &json!({"ms": 600_000, "message": "late"}));
    wait_until("the call is in flight", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    // This caller accepts JSON only and cannot receive a server request; the request is still
    // attributed to this caller.
    let mut deaf = a.clone_on_new_connection();
    let mut headers = deaf.request_headers();
    for name in ["Accept", "Content-Type"] {
        headers.push((name.to_owned(), "application/json".to_owned()));
    }
    let headers: Vec<_> = headers
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": ELICIT_TOOL, "arguments": {"message": "whose?"}},
    });
    deaf.http
        .send_request("POST", "/mcp", &headers, call.to_string().as_bytes());
    let refused = deaf.http.read_response().json();
    let text = refused["result"]["content"][0]["text"].to_string();
    assert!(text.contains("calls of several clients"), "{refused}");
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9},
    });
    assert_eq!(b.post(&cancel).status, 202);
    let ended = waiting.http.read_response();
    assert_eq!(ended.header("content-type"), Some("application/json"));
}
