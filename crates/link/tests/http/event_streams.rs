//! Interrupted and resumed event streams.

use bowline_testkit::wait_bounded;

use super::*;
use crate::scripted_server::result_body;

#[tokio::test]
async fn broken_stream_resumes_after_last_event() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    let answer = result_body(&seen.id(), "5");
    seen.start_stream().await;
    seen.write_event("id: e-1\nretry: 1\ndata: ").await;
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    seen.write_event(&format!("id: e-2\ndata: {log}")).await;
    drop(seen);
    let mut more = scene.server.next_get().await;
    assert_eq!(more.header("last-event-id"), Some("e-2"));
    assert_eq!(more.header("mcp-session-id"), Some("one"));
    more.start_stream().await;
    more.write_event(&format!("id: e-3\ndata: {answer}")).await;
    assert_eq!(response_text(call.await.unwrap()), result_text("5"));
}

#[tokio::test]
async fn repeatedly_ended_stream_is_polled() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    let answer = result_body(&seen.id(), "6");
    seen.start_stream().await;
    seen.write_event("id: p-0\nretry: 5\ndata: ").await;
    seen.end_stream().await;
    for round in 0..3 {
        let mut poll = scene.server.next_get().await;
        let last = format!("p-{round}");
        assert_eq!(poll.header("last-event-id"), Some(last.as_str()));
        poll.start_stream().await;
        poll.write_event(&format!("id: p-{}\ndata: ", round + 1))
            .await;
        poll.end_stream().await;
    }
    let mut poll = scene.server.next_get().await;
    poll.start_stream().await;
    poll.write_event(&format!("data: {answer}")).await;
    assert_eq!(response_text(call.await.unwrap()), result_text("6"));
}

#[tokio::test]
async fn transient_poll_failures_are_retried() {
    let mut scene = HttpScene::new().await;
    for (status, want) in [(503, true), (405, false)] {
        let call = scene.start_call();
        let mut seen = scene.server.next_post().await;
        let answer = result_body(&seen.id(), "6");
        seen.start_stream().await;
        seen.write_event("id: p-0\nretry: 1\ndata: ").await;
        seen.end_stream().await;
        scene.server.next_get().await.respond_status(status).await;
        if want {
            let mut poll = scene.server.next_get().await;
            poll.start_stream().await;
            poll.write_event(&format!("data: {answer}")).await;
            assert_eq!(response_text(call.await.unwrap()), result_text("6"));
        } else {
            let error = call.await.unwrap().unwrap_err();
            assert!(matches!(error, LinkError::ConnectionLost(_)), "{error:?}");
        }
    }
}

#[tokio::test]
async fn stream_without_event_id_is_lost() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let mut seen = scene.server.next_post().await;
    seen.start_stream().await;
    seen.write_event("data: ").await;
    seen.end_stream().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::ConnectionLost(_)), "{error:?}");
    // The server may continue the request.
    let cancelled = scene.server.next_post().await;
    assert!(cancelled.body.contains("notifications/cancelled"));
}

#[tokio::test]
async fn get_stream_resumes_after_break() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.answer_initialize("one").await;
    server.next_post().await.respond_accepted().await;
    let (_link, mut events) = connecting.await.unwrap().unwrap();
    let mut stream = server.next_get().await;
    assert_eq!(stream.header("last-event-id"), None);
    stream.start_stream().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
    stream
        .write_event(&format!("id: g-1\nretry: 1\ndata: {changed}"))
        .await;
    let event = wait_bounded(events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::PromptsChanged);
    drop(stream);
    server.next_get().await.respond_status(502).await;
    let again = server.next_get().await;
    assert_eq!(again.header("last-event-id"), Some("g-1"));
}

/// Returns a link and the unanswered request for its GET stream.
async fn scene_with_open_get() -> (HttpScene, scripted_server::SeenRequest) {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.answer_initialize("one").await;
    server.next_post().await.respond_accepted().await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let get = server.next_get().await;
    let scene = HttpScene {
        server,
        link,
        events,
    };
    (scene, get)
}

#[tokio::test]
async fn call_waits_for_get_stream() {
    let (mut scene, mut stream) = scene_with_open_get().await;
    let (caller, mut ears) = test_client();
    let mut asking = test_request("tools/call");
    asking.message.client = Some(caller);
    let call = scene.start_request(asking);
    let early = tokio::time::timeout(Duration::from_millis(200), scene.server.next_post());
    assert!(early.await.is_err(), "a question would be lost");
    stream.start_stream().await;
    let seen = scene.server.next_post().await;
    let question = r#"{"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{}}"#;
    stream.write_event(&format!("data: {question}")).await;
    let asked = wait_bounded(ears.asked.recv()).await.unwrap();
    drop(asked);
    seen.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
}

#[tokio::test]
async fn unanswered_get_does_not_block_calls() {
    let (mut scene, _stream) = scene_with_open_get().await;
    let (caller, _ears) = test_client();
    let mut asking = test_request("tools/call");
    asking.message.client = Some(caller);
    let call = scene.start_request(asking);
    scene.server.next_post().await.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
}

#[tokio::test]
async fn refused_get_stream_is_not_retried() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    seen.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    let again = tokio::time::timeout(Duration::from_millis(1_500), scene.server.next_get());
    assert!(again.await.is_err(), "405 says that there is none");
}

#[tokio::test]
async fn renewed_session_reopens_get_stream() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.answer_initialize("one").await;
    server.next_post().await.respond_accepted().await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let mut stream = server.next_get().await;
    stream.start_stream().await;
    let call = spawn_task(async move { link.request(test_request("tools/call")).await });
    server.next_post().await.respond_status(404).await;
    server.answer_initialize("two").await;
    server.next_post().await.respond_accepted().await;
    server.next_post().await.respond_result("1").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    stream.wait_closed().await;
    let again = server.next_get().await;
    assert_eq!(again.header("mcp-session-id"), Some("two"));
}

#[tokio::test]
async fn coalesced_event_waits_for_room() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.limits.events_max = 1;
    let connecting = spawn_task(connect(spec));
    server.answer_initialize("one").await;
    server.next_post().await.respond_accepted().await;
    let (_link, mut events) = connecting.await.unwrap().unwrap();
    let mut stream = server.next_get().await;
    stream.start_stream().await;
    for list in ["tools", "prompts", "resources"] {
        let changed =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed"}}"#);
        stream.write_event(&format!("data: {changed}")).await;
    }
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(wait_bounded(events.recv()).await.unwrap());
    }
    assert!(heard.contains(&LinkEvent::ToolsChanged));
    assert!(heard.contains(&LinkEvent::PromptsChanged));
    assert!(heard.contains(&LinkEvent::ResourcesChanged));
}
