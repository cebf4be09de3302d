//! Streams that break, go on, and are opened again.

use super::*;
use crate::server::result;

#[tokio::test]
async fn a_broken_stream_goes_on_after_the_last_event() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    let answer = result(&seen.id(), "5");
    seen.streams().await;
    seen.event("id: e-1\nretry: 1\ndata: ").await;
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    seen.event(&format!("id: e-2\ndata: {log}")).await;
    drop(seen);
    let mut more = scene.server.get().await;
    assert_eq!(more.header("last-event-id"), Some("e-2"));
    assert_eq!(more.header("mcp-session-id"), Some("one"));
    more.streams().await;
    more.event(&format!("id: e-3\ndata: {answer}")).await;
    assert_eq!(text(call.await.unwrap()), answered("5"));
}

#[tokio::test]
async fn a_server_may_end_the_stream_again_and_again_and_be_polled() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    let answer = result(&seen.id(), "6");
    seen.streams().await;
    seen.event("id: p-0\nretry: 5\ndata: ").await;
    seen.ends().await;
    for round in 0..3 {
        let mut poll = scene.server.get().await;
        let last = format!("p-{round}");
        assert_eq!(poll.header("last-event-id"), Some(last.as_str()));
        poll.streams().await;
        poll.event(&format!("id: p-{}\ndata: ", round + 1)).await;
        poll.ends().await;
    }
    let mut poll = scene.server.get().await;
    poll.streams().await;
    poll.event(&format!("data: {answer}")).await;
    assert_eq!(text(call.await.unwrap()), answered("6"));
}

#[tokio::test]
async fn a_poll_that_fails_by_chance_is_made_again_and_one_that_is_refused_is_not() {
    let mut scene = Scene::new().await;
    for (status, want) in [(503, true), (405, false)] {
        let call = scene.call();
        let mut seen = scene.server.post().await;
        let answer = result(&seen.id(), "6");
        seen.streams().await;
        seen.event("id: p-0\nretry: 1\ndata: ").await;
        seen.ends().await;
        scene.server.get().await.status(status).await;
        if want {
            let mut poll = scene.server.get().await;
            poll.streams().await;
            poll.event(&format!("data: {answer}")).await;
            assert_eq!(text(call.await.unwrap()), answered("6"));
        } else {
            let error = call.await.unwrap().unwrap_err();
            assert!(matches!(error, LinkError::Cut(_)), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_an_answer_or_an_event_id_is_lost() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let mut seen = scene.server.post().await;
    seen.streams().await;
    seen.event("data: ").await;
    seen.ends().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Cut(_)), "{error:?}");
    // The server may go on with it.
    let cancelled = scene.server.post().await;
    assert!(cancelled.body.contains("notifications/cancelled"));
}

#[tokio::test]
async fn the_stream_outside_calls_is_opened_again_where_it_broke_off() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.initializes("one").await;
    server.post().await.accepted().await;
    let (_link, mut events) = connecting.await.unwrap().unwrap();
    let mut stream = server.get().await;
    assert_eq!(stream.header("last-event-id"), None);
    stream.streams().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
    stream
        .event(&format!("id: g-1\nretry: 1\ndata: {changed}"))
        .await;
    let event = soon(events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::PromptsChanged);
    drop(stream);
    server.get().await.status(502).await;
    let again = server.get().await;
    assert_eq!(again.header("last-event-id"), Some("g-1"));
}

/// A link and the request for its stream, which is not answered yet.
async fn unheard() -> (Scene, server::Seen) {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.initializes("one").await;
    server.post().await.accepted().await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let get = server.get().await;
    let scene = Scene {
        server,
        link,
        events,
    };
    (scene, get)
}

#[tokio::test]
async fn a_call_is_sent_when_the_server_can_ask_its_caller_outside_calls() {
    let (mut scene, mut stream) = unheard().await;
    let (caller, mut ears) = caller();
    let mut asking = request("tools/call");
    asking.caller = Some(caller);
    let call = scene.begin(asking);
    let early = tokio::time::timeout(Duration::from_millis(200), scene.server.post());
    assert!(early.await.is_err(), "a question would be lost");
    stream.streams().await;
    let seen = scene.server.post().await;
    let question = r#"{"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{}}"#;
    stream.event(&format!("data: {question}")).await;
    let asked = soon(ears.asked.recv()).await.unwrap();
    drop(asked);
    seen.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
}

#[tokio::test]
async fn a_server_that_leaves_open_whether_it_has_a_stream_is_called_all_the_same() {
    let (mut scene, _stream) = unheard().await;
    let (caller, _ears) = caller();
    let mut asking = request("tools/call");
    asking.caller = Some(caller);
    let call = scene.begin(asking);
    scene.server.post().await.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
}

#[tokio::test]
async fn a_server_without_a_stream_outside_calls_is_not_asked_again() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    seen.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
    let again = tokio::time::timeout(Duration::from_millis(1_500), scene.server.get());
    assert!(again.await.is_err(), "405 says that there is none");
}

#[tokio::test]
async fn the_stream_of_a_new_session_is_opened_when_the_old_one_is_forgotten() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.initializes("one").await;
    server.post().await.accepted().await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let mut stream = server.get().await;
    stream.streams().await;
    let call = spawn(async move { link.request(request("tools/call")).await });
    server.post().await.status(404).await;
    server.initializes("two").await;
    server.post().await.accepted().await;
    server.post().await.result("1").await;
    assert_eq!(text(call.await.unwrap()), answered("1"));
    stream.is_left().await;
    let again = server.get().await;
    assert_eq!(again.header("mcp-session-id"), Some("two"));
}

#[tokio::test]
async fn a_change_that_finds_no_room_waits_for_it() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.limits.events_max = 1;
    let connecting = spawn(connect(spec));
    server.initializes("one").await;
    server.post().await.accepted().await;
    let (_link, mut events) = connecting.await.unwrap().unwrap();
    let mut stream = server.get().await;
    stream.streams().await;
    for list in ["tools", "prompts", "resources"] {
        let changed =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed"}}"#);
        stream.event(&format!("data: {changed}")).await;
    }
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(soon(events.recv()).await.unwrap());
    }
    assert!(heard.contains(&LinkEvent::ToolsChanged));
    assert!(heard.contains(&LinkEvent::PromptsChanged));
    assert!(heard.contains(&LinkEvent::ResourcesChanged));
}
