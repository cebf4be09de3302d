//! Streams of calls and sessions: opening and resuming.

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

/// An event of a stream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<String>,
    pub(crate) data: Option<String>,
}

impl SseEvent {
    pub(crate) fn data_json(&self) -> Value {
        serde_json::from_str(self.data.as_deref().unwrap()).unwrap()
    }
}

/// Reads the next event that is not a comment; `None` at the end.
pub(crate) fn next_event(http: &mut HttpConnection) -> Option<SseEvent> {
    loop {
        let chunk = String::from_utf8(http.read_chunk()?).unwrap();
        let mut event = SseEvent::default();
        for line in chunk.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => event.id = Some(id.to_owned()),
                Some(("retry", wait)) => event.retry = Some(wait.to_owned()),
                Some(("data", data)) => event.data = Some(data.to_owned()),
                _ => {}
            }
        }
        if event != SseEvent::default() {
            return Some(event);
        }
    }
}

/// Resumes the stream of a session after this event.
fn resume_stream(session: &Session, after: &str) -> (u16, HttpConnection) {
    let mut http = HttpConnection::connect(session.http.stream.get_ref().peer_addr().unwrap());
    let headers = session.request_headers();
    let mut headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    headers.push(("Accept", "text/event-stream"));
    headers.push(("Last-Event-ID", after));
    http.send_request("GET", "/mcp", &headers, b"");
    let status = http.read_head().status;
    (status, http)
}

/// A response without earlier messages is JSON; a slow response is an event stream that begins with
/// a priming event.
#[test]
fn slow_response_becomes_primed_stream() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let echo = json!({
        "jsonrpc": "2.0", "id": "e", "method": "tools/call",
        "params": {"name": "one__echo", "arguments": {"message": "hi"}},
    });
    let response = session.post(&echo);
    assert_eq!(response.header("content-type"), Some("application/json"));
    session.send_call(7, "one__slow", &json!({"ms": 6_000, "message": "late"}));
    let head = session.http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    let first = next_event(&mut session.http).unwrap();
    assert!(first.id.is_some() && first.retry.is_some(), "{first:?}");
    assert_eq!(first.data.as_deref(), Some(""), "a place to come back to");
    let answer = next_event(&mut session.http).unwrap();
    assert_ne!(answer.id, first.id);
    assert_eq!(answer.data_json()["id"], 7);
    assert_eq!(next_event(&mut session.http), None);
}

#[test]
fn lost_call_stream_is_resumed_for_response() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let session = gateway.open_session("/mcp");
    let mut stranger = gateway.open_session("/mcp");
    let mut caller = session.clone_on_new_connection();
    caller.send_call(7, "one__slow", &json!({"ms": 8_000, "message": "late"}));
    caller.http.read_head();
    let first = next_event(&mut caller.http).unwrap();
    let place = first.id.unwrap();
    drop(caller);
    // The call goes on, and only its own session can fetch the response.
    assert_eq!(gateway.server_status("one")["in_flight"], 1);
    assert_eq!(resume_stream(&stranger, &place).0, 404);
    let (status, mut stream) = resume_stream(&session, &place);
    assert_eq!(status, 200);
    let answer = next_event(&mut stream).unwrap();
    assert_eq!(answer.data_json()["id"], 7);
    assert_eq!(next_event(&mut stream), None);
    // A second resume works too: the response may have been lost in transit.
    let (status, mut stream) = resume_stream(&session, &place);
    assert_eq!(status, 200);
    assert_eq!(next_event(&mut stream), Some(answer.clone()));
    let (status, mut stream) = resume_stream(&session, &answer.id.unwrap());
    assert_eq!(status, 200);
    assert_eq!(next_event(&mut stream), None, "it has seen all");
    assert_eq!(resume_stream(&session, "1-1").0, 404);
    stranger.request("ping", &json!({}));
}

#[test]
fn cancellation_ends_call_with_lost_stream() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let mut caller = session.clone_on_new_connection();
    caller.send_call(7, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    caller.http.read_head();
    let place = next_event(&mut caller.http).unwrap().id.unwrap();
    drop(caller);
    let busy = |count: u64| gateway.server_status("one")["in_flight"] == count;
    assert!(busy(1));
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7},
    });
    assert_eq!(session.post(&cancel).status, 202);
    wait_until("the call is over", || busy(0));
    let (_, mut stream) = resume_stream(&session, &place);
    let answer = next_event(&mut stream).unwrap().data_json();
    assert_eq!(answer["error"]["data"]["code"], "cancelled", "{answer}");
}

#[test]
fn session_end_ends_calls_and_streams() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let mut listening = session.open_stream();
    listening.read_chunk().unwrap();
    let mut caller = session.clone_on_new_connection();
    caller.send_call(7, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    caller.http.read_head();
    let place = next_event(&mut caller.http).unwrap().id.unwrap();
    session.end_session();
    assert_eq!(listening.read_chunk(), None);
    assert_eq!(next_event(&mut caller.http), None);
    wait_until("the call is over", || {
        gateway.server_status("one")["in_flight"] == 0
    });
    assert_eq!(resume_stream(&session, &place).0, 404);
}

#[test]
fn listener_resumes_missed_events_after_restart() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let mut stream = session.open_stream();
    let place = next_event(&mut stream).unwrap().id.unwrap();
    session.call("one__test_trigger_tool_change", &json!({}));
    let told = next_event(&mut stream).unwrap();
    assert_eq!(
        told.data_json()["method"],
        "notifications/tools/list_changed"
    );
    drop(stream);
    let (status, mut stream) = resume_stream(&session, &place);
    assert_eq!(status, 200);
    assert_eq!(next_event(&mut stream), Some(told.clone()));
    drop(stream);
    let id = session.id.clone();
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    session.id = id;
    // The new gateway does not know the session's last list, so it announces a change.
    let (status, mut stream) = resume_stream(&session, &told.id.unwrap());
    assert_eq!(status, 200);
    wait_until("it is told to list again", || {
        let event = next_event(&mut stream).unwrap();
        event
            .data
            .as_deref()
            .is_some_and(|data| data.contains("tools/list_changed"))
    });
}

#[test]
fn call_stream_after_restart_says_outcome_unknown() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let (mine, other) = (gateway.open_session("/mcp"), gateway.open_session("/mcp"));
    let mut caller = mine.clone_on_new_connection();
    caller.send_call(7, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    caller.http.read_head();
    let place = next_event(&mut caller.http).unwrap().id.unwrap();
    let ids = [mine.id, other.id];
    gateway.restart_after_kill();
    let [mine, other] = ids.map(|id| {
        let mut session = gateway.open_session("/mcp");
        session.id = id;
        session
    });
    assert_eq!(
        resume_stream(&other, &place).0,
        404,
        "it is not a stream of this one"
    );
    let forged = place.replace('-', "1-");
    assert_eq!(resume_stream(&mine, &forged).0, 404);
    let (status, mut stream) = resume_stream(&mine, &place);
    assert_eq!(status, 200);
    let answer = next_event(&mut stream).unwrap().data_json();
    assert_eq!(answer["id"], 7, "{answer}");
    let data = &answer["error"]["data"];
    assert_eq!(data["code"], "outcome_unknown", "{answer}");
    assert_eq!(data["execution"], "unknown");
    assert_eq!(next_event(&mut stream), None);
    // The session goes on.
    let mut mine = mine;
    assert_eq!(mine.call_text("one__echo", &json!({"message": "on"})), "on");
}

#[test]
fn listener_after_restart_is_told_of_gap() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let session = gateway.open_session("/mcp");
    let mut stream = session.open_stream();
    let place = next_event(&mut stream).unwrap().id.unwrap();
    let id = session.id;
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    session.id = id;
    let (status, mut stream) = resume_stream(&session, &place);
    assert_eq!(status, 200);
    let opening = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(opening.contains("not kept"), "{opening}");
    let warning = next_event(&mut stream).unwrap().data_json();
    assert_eq!(warning["method"], "notifications/message", "{warning}");
    assert_eq!(warning["params"]["level"], "warning");
    let news = next_event(&mut stream).unwrap().data_json();
    assert_eq!(news["method"], "notifications/tools/list_changed");
    // The stream goes on with new events.
    session.call("one__test_trigger_tool_change", &json!({}));
    wait_until("the change is told", || {
        let event = next_event(&mut stream).unwrap().data_json();
        event["method"] == "notifications/tools/list_changed"
    });
}
