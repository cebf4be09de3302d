//! A call and its answer.

use bowline_core::error::Execution;
use bowline_link::KeyHeader;

use super::*;
use crate::server::result;

#[tokio::test]
async fn an_answer_as_json_reaches_its_caller_under_its_own_id() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    let want = format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"x"}}}}"#,
        seen.id()
    );
    assert_eq!(seen.body, want);
    assert_eq!(
        seen.header("accept"),
        Some("application/json, text/event-stream")
    );
    assert_eq!(seen.header("content-type"), Some("application/json"));
    seen.result(r#"{ "big": 1.0e400 }"#).await;
    let outcome = call.await.unwrap();
    assert_eq!(text(outcome), answered(r#"{ "big": 1.0e400 }"#));
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn session_id_and_revision_go_with_every_message_after_the_handshake() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    let init = server.post().await;
    assert_eq!(init.header("mcp-session-id"), None);
    let body = server::hello(&init.id());
    let head = "Content-Type: application/json\r\nMcp-Session-Id: s-1\r\n";
    init.answer(200, head, &body).await;
    let check = |seen: &server::Seen| {
        assert_eq!(seen.header("mcp-session-id"), Some("s-1"), "{seen:?}");
        assert_eq!(seen.header("mcp-protocol-version"), Some("2025-06-18"));
    };
    let initialized = server.post().await;
    check(&initialized);
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.accepted().await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let listening = server.get().await;
    check(&listening);
    assert_eq!(listening.header("accept"), Some("text/event-stream"));
    let call = {
        let link = link.clone();
        spawn(async move { link.request(request("tools/call")).await })
    };
    let seen = server.post().await;
    check(&seen);
    seen.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
    assert_eq!(&*link.server().name, "t");
    assert_eq!(link.pid(), None);
}

#[tokio::test]
async fn an_answer_as_an_event_stream_reaches_its_caller() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    let answer = result(&seen.id(), "2");
    seen.streams().await;
    seen.event(": still here").await;
    seen.event(&format!("event: message\ndata: {answer}")).await;
    assert_eq!(text(call.await.unwrap()), answered("2"));
}

#[tokio::test]
async fn calls_one_after_another_share_one_connection() {
    let mut scene = Scene::new().await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        let call = scene.call();
        let seen = scene.server.post().await;
        connections.push(seen.connection);
        seen.result("1").await;
        call.await.unwrap().unwrap();
    }
    assert_eq!(connections, [connections[0]; 3]);
}

#[tokio::test]
async fn a_connection_is_used_again_after_an_event_stream_that_ended() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    let connection = seen.connection;
    let answer = result(&seen.id(), "2");
    seen.streams().await;
    seen.event(&format!("data: {answer}")).await;
    call.await.unwrap().unwrap();
    seen.ends().await;
    // Nothing tells from outside when the end was read: the next calls may come before it. More
    // and more at once use every connection that waits.
    soon(async {
        for count in 1.. {
            let calls: Vec<_> = (0..count).map(|_| scene.call()).collect();
            let mut seen = Vec::new();
            for _ in 0..count {
                seen.push(scene.server.post().await);
            }
            let same = seen.iter().any(|seen| seen.connection == connection);
            for seen in seen {
                seen.result("1").await;
            }
            for call in calls {
                call.await.unwrap().unwrap();
            }
            if same {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_was_closed_while_it_waited_costs_no_call() {
    let mut scene = Scene::new().await;
    for _ in 0..3 {
        let call = scene.call();
        let mut seen = scene.server.post().await;
        let body = result(&seen.id(), "1");
        let length = body.len();
        let head = format!("Content-Type: application/json\r\nContent-Length: {length}");
        seen.writes(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"))
            .await;
        drop(seen);
        assert_eq!(text(call.await.unwrap()), answered("1"));
    }
}

#[tokio::test]
async fn rpc_error_is_the_answer_unless_status_decides() {
    let mut scene = Scene::new().await;
    for status in [200, 400, 422, 401, 403, 408, 429, 500, 502, 503, 504] {
        let call = scene.call();
        let seen = scene.server.post().await;
        let error = r#""error":{"code":-32000,"message":"no"}"#;
        let body = format!(r#"{{"jsonrpc":"2.0","id":{},{error}}}"#, seen.id());
        seen.answer(status, "Content-Type: application/json\r\n", &body)
            .await;
        let said = call.await.unwrap();
        let want = format!(r#"{{"jsonrpc":"2.0","id":"a",{error}}}"#);
        match status {
            200 | 400 | 422 => assert_eq!(text(said), want),
            401 | 403 => assert!(
                matches!(said, Err(LinkError::Unauthorized { status: it, .. }) if it == status),
                "{said:?}"
            ),
            429 => assert!(matches!(said, Err(LinkError::Throttled { .. })), "{said:?}"),
            _ => {
                let preview = "no".into();
                assert_eq!(said.unwrap_err(), LinkError::Http { status, preview });
            }
        }
    }
}

#[tokio::test]
async fn a_question_on_the_stream_of_a_call_is_answered_with_its_result_intact() {
    let mut scene = Scene::new().await;
    let (end, mut ears) = caller();
    let mut asking = request("tools/call");
    asking.caller = Some(end);
    let call = scene.begin(asking);
    let mut seen = scene.server.post().await;
    let answer = result(&seen.id(), "3");
    seen.streams().await;
    let question = r#"{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{}}"#;
    seen.event(&format!("data: {question}")).await;
    let asked = soon(ears.asked.recv()).await.unwrap();
    assert_eq!(asked.id(), br#""q-1""#);
    let said = r#"{"jsonrpc":"2.0","id":"q-1","result":{"action":"accept","content":{"n": 1.50}}}"#;
    asked.answer(Bytes::from_static(said.as_bytes()));
    let posted = scene.server.post().await;
    assert_eq!(posted.body, said);
    assert_eq!(posted.header("mcp-session-id"), Some("one"));
    posted.accepted().await;
    seen.event(&format!("data: {answer}")).await;
    assert_eq!(text(call.await.unwrap()), answered("3"));
}

#[tokio::test]
async fn the_time_of_a_call_rests_while_its_caller_is_asked() {
    let mut scene = Scene::new().await;
    let (end, mut ears) = caller();
    let mut asking = request("tools/call");
    asking.caller = Some(end);
    asking.deadline = after(Duration::from_millis(500));
    let mut call = scene.begin(asking);
    let mut seen = scene.server.post().await;
    let answer = result(&seen.id(), "3");
    seen.streams().await;
    let question = r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}"#;
    seen.event(&format!("data: {question}")).await;
    let asked = soon(ears.asked.recv()).await.unwrap();
    let past = tokio::time::timeout(Duration::from_millis(700), &mut call);
    assert!(past.await.is_err(), "the time of the caller counts");
    asked.answer(Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ));
    scene.server.post().await.accepted().await;
    seen.event(&format!("data: {answer}")).await;
    assert_eq!(text(call.await.unwrap()), answered("3"));
}

#[tokio::test]
async fn what_a_server_says_before_it_answers_reaches_the_caller() {
    let mut scene = Scene::new().await;
    let (end, mut ears) = caller();
    let mut asking = request("tools/call");
    let params = r#"{"_meta":{"progressToken":"tok"}}"#;
    asking.params = Some(Bytes::from_static(params.as_bytes()));
    let at = params.find(r#""tok""#).unwrap();
    asking.progress_at = Some(at..at + 5);
    asking.caller = Some(end);
    let call = scene.begin(asking);
    let mut seen = scene.server.post().await;
    let id = seen.id();
    assert!(seen.body.contains(&format!(r#""progressToken":{id}"#)));
    seen.streams().await;
    let progress = |token: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        )
    };
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"hi"}}"#;
    seen.event(&format!("data: {}", progress(&id))).await;
    seen.event(&format!("data: {log}")).await;
    assert_eq!(soon(ears.told.recv()).await.unwrap(), progress(r#""tok""#));
    assert_eq!(soon(ears.told.recv()).await.unwrap(), log);
    seen.event(&format!("data: {}", result(&id, "4"))).await;
    assert_eq!(text(call.await.unwrap()), answered("4"));
}

#[tokio::test]
async fn a_call_that_is_dropped_is_taken_back_and_its_stream_closed() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    seen.streams().await;
    call.abort();
    seen.is_left().await;
    let cancelled = scene.server.post().await;
    let want = format!(r#""params":{{"requestId":{},"#, seen.id());
    assert!(cancelled.body.contains("notifications/cancelled"));
    assert!(cancelled.body.contains(&want), "{}", cancelled.body);
    cancelled.accepted().await;
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn a_call_past_its_deadline_is_taken_back_and_may_have_run() {
    let mut scene = Scene::new().await;
    let mut late = request("tools/call");
    late.deadline = after(Duration::from_millis(200));
    let call = scene.begin(late);
    let seen = scene.server.post().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    assert_eq!(error.execution(), Execution::Unknown);
    let cancelled = scene.server.post().await;
    assert!(cancelled.body.contains("notifications/cancelled"));
    drop(seen);
}

#[tokio::test]
async fn a_notification_of_ours_is_posted_and_one_of_the_server_is_heard() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.initializes("one").await;
    server.post().await.accepted().await;
    let (link, mut events) = connecting.await.unwrap().unwrap();
    let mut stream = server.get().await;
    stream.streams().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    stream.event(&format!("data: {changed}")).await;
    let event = soon(events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::ToolsChanged);
    link.notify("notifications/roots/list_changed", None)
        .unwrap();
    let seen = server.post().await;
    let want = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(seen.body, want);
}

#[tokio::test]
async fn a_ping_of_the_server_is_answered_by_a_post() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.initializes("one").await;
    server.post().await.accepted().await;
    let (_link, _events) = connecting.await.unwrap().unwrap();
    let mut stream = server.get().await;
    stream.streams().await;
    stream
        .event(r#"data: {"jsonrpc":"2.0","id":7,"method":"ping"}"#)
        .await;
    let pong = server.post().await;
    assert_eq!(pong.body, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
}

#[tokio::test]
async fn a_key_travels_as_the_header_that_its_server_looks_at_and_never_as_one_of_ours() {
    let mut scene = Scene::new().await;
    for (name, value, seen_as) in [
        ("Idempotency-Key", "k-1", Some("k-1")),
        ("Idempotency-Key", "k\n", Some("6b0a")),
        ("Content-Type", "text/evil", None),
    ] {
        let link = scene.link.clone();
        let keyed = Request {
            key: Some(Box::new(KeyHeader {
                name: name.into(),
                value: value.into(),
            })),
            ..request("tools/call")
        };
        let call = spawn(async move { link.request(keyed).await });
        let seen = scene.server.post().await;
        assert_eq!(seen.header("idempotency-key"), seen_as);
        assert_eq!(seen.header("content-type"), Some("application/json"));
        seen.result("1").await;
        assert_eq!(text(call.await.unwrap()), answered("1"));
    }
}
