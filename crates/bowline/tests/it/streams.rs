//! Streams of calls and sessions: when they open, and how a caller comes back to them.

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, Session, eventually, fixture};

/// One event of a stream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<String>,
    pub(crate) data: Option<String>,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.data.as_deref().unwrap()).unwrap()
    }
}

/// Reads the next event that is not a comment; `None` at the end.
pub(crate) fn next_event(http: &mut Http) -> Option<Event> {
    loop {
        let chunk = String::from_utf8(http.read_chunk()?).unwrap();
        let mut event = Event::default();
        for line in chunk.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => event.id = Some(id.to_owned()),
                Some(("retry", wait)) => event.retry = Some(wait.to_owned()),
                Some(("data", data)) => event.data = Some(data.to_owned()),
                _ => {}
            }
        }
        if event != Event::default() {
            return Some(event);
        }
    }
}

/// Opens the stream of a session after this event.
fn resume(session: &Session, after: &str) -> (u16, Http) {
    let mut http = Http::connect(session.http.stream.get_ref().peer_addr().unwrap());
    let headers = session.headers();
    let mut headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    headers.push(("Accept", "text/event-stream"));
    headers.push(("Last-Event-ID", after));
    http.send("GET", "/mcp", &headers, b"");
    let status = http.read_head().status;
    (status, http)
}

#[test]
fn an_answer_that_comes_first_is_json_and_one_that_takes_long_is_a_primed_stream() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
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
    assert_eq!(answer.json()["id"], 7);
    assert_eq!(next_event(&mut session.http), None);
}

#[test]
fn a_caller_that_lost_its_stream_comes_back_for_the_answer() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let session = gateway.session("/mcp");
    let mut stranger = gateway.session("/mcp");
    let mut caller = session.twin();
    caller.send_call(7, "one__slow", &json!({"ms": 8_000, "message": "late"}));
    caller.http.read_head();
    let first = next_event(&mut caller.http).unwrap();
    let place = first.id.unwrap();
    drop(caller);
    // The call goes on, and only its own session can fetch what comes of it.
    assert_eq!(gateway.status("one")["in_flight"], 1);
    assert_eq!(resume(&stranger, &place).0, 404);
    let (status, mut stream) = resume(&session, &place);
    assert_eq!(status, 200);
    let answer = next_event(&mut stream).unwrap();
    assert_eq!(answer.json()["id"], 7);
    assert_eq!(next_event(&mut stream), None);
    // The same once more: the answer may have been lost on the way.
    let (status, mut stream) = resume(&session, &place);
    assert_eq!(status, 200);
    assert_eq!(next_event(&mut stream), Some(answer.clone()));
    let (status, mut stream) = resume(&session, &answer.id.unwrap());
    assert_eq!(status, 200);
    assert_eq!(next_event(&mut stream), None, "it has seen all");
    assert_eq!(resume(&session, "1-1").0, 404);
    stranger.request("ping", &json!({}));
}

#[test]
fn a_cancellation_ends_a_call_whose_stream_was_lost() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    let mut caller = session.twin();
    caller.send_call(7, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    caller.http.read_head();
    let place = next_event(&mut caller.http).unwrap().id.unwrap();
    drop(caller);
    let busy = |count: u64| gateway.status("one")["in_flight"] == count;
    assert!(busy(1));
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7},
    });
    assert_eq!(session.post(&cancel).status, 202);
    eventually("the call is over", || busy(0));
    let (_, mut stream) = resume(&session, &place);
    let answer = next_event(&mut stream).unwrap().json();
    assert_eq!(answer["error"]["data"]["code"], "cancelled", "{answer}");
}

#[test]
fn the_end_of_a_session_ends_its_calls_and_streams() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    let mut listening = session.listen();
    listening.read_chunk().unwrap();
    let mut caller = session.twin();
    caller.send_call(7, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    caller.http.read_head();
    let place = next_event(&mut caller.http).unwrap().id.unwrap();
    session.delete();
    assert_eq!(listening.read_chunk(), None);
    assert_eq!(next_event(&mut caller.http), None);
    eventually("the call is over", || {
        gateway.status("one")["in_flight"] == 0
    });
    assert_eq!(resume(&session, &place).0, 404);
}

#[test]
fn a_listener_comes_back_to_what_it_missed_even_after_a_restart() {
    let mut gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    let mut stream = session.listen();
    let place = next_event(&mut stream).unwrap().id.unwrap();
    session.call("one__test_trigger_tool_change", &json!({}));
    let told = next_event(&mut stream).unwrap();
    assert_eq!(told.json()["method"], "notifications/tools/list_changed");
    drop(stream);
    let (status, mut stream) = resume(&session, &place);
    assert_eq!(status, 200);
    assert_eq!(next_event(&mut stream), Some(told.clone()));
    drop(stream);
    let id = session.id.clone();
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    session.id = id;
    // It knows nothing of what the session saw, so the list is news.
    let (status, mut stream) = resume(&session, &told.id.unwrap());
    assert_eq!(status, 200);
    eventually("it is told to list again", || {
        let event = next_event(&mut stream).unwrap();
        event
            .data
            .as_deref()
            .is_some_and(|data| data.contains("tools/list_changed"))
    });
}

#[test]
fn call_stream_after_restart_says_outcome_unknown() {
    let mut gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let (mine, other) = (gateway.session("/mcp"), gateway.session("/mcp"));
    let mut caller = mine.twin();
    caller.send_call(7, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    caller.http.read_head();
    let place = next_event(&mut caller.http).unwrap().id.unwrap();
    let ids = [mine.id, other.id];
    gateway.restart_after_kill();
    let [mine, other] = ids.map(|id| {
        let mut session = gateway.session("/mcp");
        session.id = id;
        session
    });
    assert_eq!(
        resume(&other, &place).0,
        404,
        "it is not a stream of this one"
    );
    let forged = place.replace('-', "1-");
    assert_eq!(resume(&mine, &forged).0, 404);
    let (status, mut stream) = resume(&mine, &place);
    assert_eq!(status, 200);
    let answer = next_event(&mut stream).unwrap().json();
    assert_eq!(answer["id"], 7, "{answer}");
    let data = &answer["error"]["data"];
    assert_eq!(data["code"], "outcome_unknown", "{answer}");
    assert_eq!(data["execution"], "unknown");
    assert_eq!(next_event(&mut stream), None);
    // The session itself goes on.
    let mut mine = mine;
    assert_eq!(mine.text("one__echo", &json!({"message": "on"})), "on");
}

#[test]
fn listener_after_restart_is_told_of_the_gap() {
    let mut gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let session = gateway.session("/mcp");
    let mut stream = session.listen();
    let place = next_event(&mut stream).unwrap().id.unwrap();
    let id = session.id;
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    session.id = id;
    let (status, mut stream) = resume(&session, &place);
    assert_eq!(status, 200);
    let opening = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(opening.contains("not kept"), "{opening}");
    let warning = next_event(&mut stream).unwrap().json();
    assert_eq!(warning["method"], "notifications/message", "{warning}");
    assert_eq!(warning["params"]["level"], "warning");
    let news = next_event(&mut stream).unwrap().json();
    assert_eq!(news["method"], "notifications/tools/list_changed");
    // It goes on: what happens from now on is told.
    session.call("one__test_trigger_tool_change", &json!({}));
    eventually("the change is told", || {
        let event = next_event(&mut stream).unwrap().json();
        event["method"] == "notifications/tools/list_changed"
    });
}
