//! HTTP calls and responses.

use bowline_core::error::ExecutionStatus;
use bowline_link::IdempotencyHeader;
use bowline_testkit::wait_bounded;

use super::*;
use crate::scripted_server::result_body;

#[tokio::test]
async fn json_response_uses_caller_id() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
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
    seen.respond_result(r#"{ "big": 1.0e400 }"#).await;
    let outcome = call.await.unwrap();
    assert_eq!(response_text(outcome), result_text(r#"{ "big": 1.0e400 }"#));
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn session_headers_follow_handshake() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    let init = server.next_post().await;
    assert_eq!(init.header("mcp-session-id"), None);
    let body = scripted_server::initialize_result(&init.id());
    let head = "Content-Type: application/json\r\nMcp-Session-Id: s-1\r\n";
    init.respond(200, head, &body).await;
    let check = |seen: &scripted_server::SeenRequest| {
        assert_eq!(seen.header("mcp-session-id"), Some("s-1"), "{seen:?}");
        assert_eq!(seen.header("mcp-protocol-version"), Some("2025-06-18"));
    };
    let initialized = server.next_post().await;
    check(&initialized);
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.respond_accepted().await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let listening = server.next_get().await;
    check(&listening);
    assert_eq!(listening.header("accept"), Some("text/event-stream"));
    let call = {
        let link = link.clone();
        spawn_task(async move { link.request(test_request("tools/call")).await })
    };
    let seen = server.next_post().await;
    check(&seen);
    seen.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    assert_eq!(&*link.server_info().name, "t");
    assert_eq!(link.pid(), None);
}

#[tokio::test]
async fn sse_response_reaches_caller() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    let answer = result_body(&seen.id(), "2");
    seen.start_stream().await;
    seen.write_event(": still here").await;
    seen.write_event(&format!("event: message\ndata: {answer}"))
        .await;
    assert_eq!(response_text(call.await.unwrap()), result_text("2"));
}

#[tokio::test]
async fn sequential_calls_share_connection() {
    let mut scene = HttpScene::new().await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        connections.push(seen.connection);
        seen.respond_result("1").await;
        call.await.unwrap().unwrap();
    }
    assert_eq!(connections, [connections[0]; 3]);
}

#[tokio::test]
async fn connection_is_reused_after_ended_stream() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    let connection = seen.connection;
    let answer = result_body(&seen.id(), "2");
    seen.start_stream().await;
    seen.write_event(&format!("data: {answer}")).await;
    call.await.unwrap().unwrap();
    seen.end_stream().await;
    // The moment of reading the end is not observable, and the next calls may precede it. A growing
    // number of concurrent calls uses every idle connection.
    wait_bounded(async {
        for count in 1.. {
            let calls: Vec<_> = (0..count).map(|_| scene.start_call()).collect();
            let mut seen = Vec::new();
            for _ in 0..count {
                seen.push(scene.server.next_post().await);
            }
            let same = seen.iter().any(|seen| seen.connection == connection);
            for seen in seen {
                seen.respond_result("1").await;
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
async fn closed_idle_connection_costs_no_call() {
    let mut scene = HttpScene::new().await;
    for _ in 0..3 {
        let call = scene.start_call();
        let mut seen = scene.server.next_post().await;
        let body = result_body(&seen.id(), "1");
        let length = body.len();
        let head = format!("Content-Type: application/json\r\nContent-Length: {length}");
        seen.write_open(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"))
            .await;
        drop(seen);
        assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    }
}

#[tokio::test]
async fn rpc_error_is_response_unless_status_decides() {
    let mut scene = HttpScene::new().await;
    for status in [200, 400, 422, 401, 403, 408, 429, 500, 502, 503, 504] {
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        let error = r#""error":{"code":-32000,"message":"no"}"#;
        let body = format!(r#"{{"jsonrpc":"2.0","id":{},{error}}}"#, seen.id());
        seen.respond(status, "Content-Type: application/json\r\n", &body)
            .await;
        let said = call.await.unwrap();
        let want = format!(r#"{{"jsonrpc":"2.0","id":"a",{error}}}"#);
        match status {
            200 | 400 | 422 => assert_eq!(response_text(said), want),
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
async fn server_request_on_call_stream_is_answered() {
    let mut scene = HttpScene::new().await;
    let (end, mut ears) = test_client();
    let mut asking = test_request("tools/call");
    asking.message.client = Some(end);
    let call = scene.start_request(asking);
    let mut seen = scene.server.next_post().await;
    let answer = result_body(&seen.id(), "3");
    seen.start_stream().await;
    let question = r#"{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{}}"#;
    seen.write_event(&format!("data: {question}")).await;
    let asked = wait_bounded(ears.asked.recv()).await.unwrap();
    assert_eq!(asked.id(), br#""q-1""#);
    let said = r#"{"jsonrpc":"2.0","id":"q-1","result":{"action":"accept","content":{"n": 1.50}}}"#;
    asked.respond(Bytes::from_static(said.as_bytes()));
    let posted = scene.server.next_post().await;
    assert_eq!(posted.body, said);
    assert_eq!(posted.header("mcp-session-id"), Some("one"));
    posted.respond_accepted().await;
    seen.write_event(&format!("data: {answer}")).await;
    assert_eq!(response_text(call.await.unwrap()), result_text("3"));
}

#[tokio::test]
async fn deadline_pauses_during_client_wait() {
    let mut scene = HttpScene::new().await;
    let (end, mut ears) = test_client();
    let mut asking = test_request("tools/call");
    asking.message.client = Some(end);
    asking.deadline = deadline_after(Duration::from_millis(500));
    let mut call = scene.start_request(asking);
    let mut seen = scene.server.next_post().await;
    let answer = result_body(&seen.id(), "3");
    seen.start_stream().await;
    let question = r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}"#;
    seen.write_event(&format!("data: {question}")).await;
    let asked = wait_bounded(ears.asked.recv()).await.unwrap();
    let past = tokio::time::timeout(Duration::from_millis(700), &mut call);
    assert!(past.await.is_err(), "the time of the caller counts");
    asked.respond(Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ));
    scene.server.next_post().await.respond_accepted().await;
    seen.write_event(&format!("data: {answer}")).await;
    assert_eq!(response_text(call.await.unwrap()), result_text("3"));
}

#[tokio::test]
async fn notifications_before_response_reach_caller() {
    let mut scene = HttpScene::new().await;
    let (end, mut ears) = test_client();
    let mut asking = test_request("tools/call");
    let params = r#"{"_meta":{"progressToken":"tok"}}"#;
    asking.message.params = Bytes::from_static(params.as_bytes());
    let at = params.find(r#""tok""#).unwrap();
    asking.message.progress_at = Some(at..at + 5);
    asking.message.client = Some(end);
    let call = scene.start_request(asking);
    let mut seen = scene.server.next_post().await;
    let id = seen.id();
    assert!(seen.body.contains(&format!(r#""progressToken":{id}"#)));
    seen.start_stream().await;
    let progress = |token: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        )
    };
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"hi"}}"#;
    seen.write_event(&format!("data: {}", progress(&id))).await;
    seen.write_event(&format!("data: {log}")).await;
    assert_eq!(
        wait_bounded(ears.told.recv()).await.unwrap(),
        progress(r#""tok""#)
    );
    assert_eq!(wait_bounded(ears.told.recv()).await.unwrap(), log);
    seen.write_event(&format!("data: {}", result_body(&id, "4")))
        .await;
    assert_eq!(response_text(call.await.unwrap()), result_text("4"));
}

#[tokio::test]
async fn dropped_call_is_cancelled_and_stream_closed() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    seen.start_stream().await;
    call.abort();
    seen.wait_closed().await;
    let cancelled = scene.server.next_post().await;
    let want = format!(r#""params":{{"requestId":{},"#, seen.id());
    assert!(cancelled.body.contains("notifications/cancelled"));
    assert!(cancelled.body.contains(&want), "{}", cancelled.body);
    cancelled.respond_accepted().await;
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn timed_out_call_is_cancelled_with_unknown_execution() {
    let mut scene = HttpScene::new().await;
    let mut late = test_request("tools/call");
    late.deadline = deadline_after(Duration::from_millis(200));
    let call = scene.start_request(late);
    let seen = scene.server.next_post().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let cancelled = scene.server.next_post().await;
    assert!(cancelled.body.contains("notifications/cancelled"));
    drop(seen);
}

#[tokio::test]
async fn notifications_travel_in_both_directions() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.answer_initialize("one").await;
    server.next_post().await.respond_accepted().await;
    let (link, mut events) = connecting.await.unwrap().unwrap();
    let mut stream = server.next_get().await;
    stream.start_stream().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    stream.write_event(&format!("data: {changed}")).await;
    let event = wait_bounded(events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::ToolsChanged);
    link.notify("notifications/roots/list_changed", None)
        .unwrap();
    let seen = server.next_post().await;
    let want = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(seen.body, want);
}

#[tokio::test]
async fn server_ping_is_answered() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.answer_initialize("one").await;
    server.next_post().await.respond_accepted().await;
    let (_link, _events) = connecting.await.unwrap().unwrap();
    let mut stream = server.next_get().await;
    stream.start_stream().await;
    stream
        .write_event(r#"data: {"jsonrpc":"2.0","id":7,"method":"ping"}"#)
        .await;
    let pong = server.next_post().await;
    assert_eq!(pong.body, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
}

#[tokio::test]
async fn idempotency_key_uses_configured_header_only() {
    let mut scene = HttpScene::new().await;
    for (name, value, seen_as) in [
        ("Idempotency-Key", "k-1", Some("k-1")),
        ("Idempotency-Key", "k\n", Some("6b0a")),
        ("Content-Type", "text/evil", None),
    ] {
        let link = scene.link.clone();
        let keyed = LinkRequest {
            idempotency_header: Some(Box::new(IdempotencyHeader {
                name: name.into(),
                value: value.into(),
            })),
            ..test_request("tools/call")
        };
        let call = spawn_task(async move { link.request(keyed).await });
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("idempotency-key"), seen_as);
        assert_eq!(seen.header("content-type"), Some("application/json"));
        seen.respond_result("1").await;
        assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    }
}
