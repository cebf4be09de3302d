//! Legacy sessions with servers of both eras.

use bowline_testkit::wait_bounded;

use super::*;

fn client_call() -> (LinkRequest, ClientInbox) {
    let (end, ears) = test_client();
    let mut call = test_request("tools/call");
    call.message.client = Some(end);
    (call, ears)
}

#[tokio::test]
async fn capable_client_uses_legacy_session() {
    let mut scene = modern_scene().await;
    let (first, mut ears) = client_call();
    let calling = scene.start_request(first);
    scene.server.complete_handshake("one").await;
    let mut seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    assert_eq!(seen.header("mcp-method"), None);
    assert!(!seen.body.contains("io.modelcontextprotocol"), "{seen:?}");
    assert_eq!(scene.link.in_flight(), 1);
    seen.start_stream().await;
    seen.write_event(r#"data: {"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#)
        .await;
    let question = wait_bounded(ears.asked.recv()).await.unwrap();
    question.respond(result_body("\"q\"", r#"{"action":"decline"}"#).into());
    let answer = scene.server.next_post().await;
    assert_eq!(answer.header("mcp-session-id"), Some("one"));
    assert!(answer.body.contains("decline"), "{}", answer.body);
    answer.respond_accepted().await;
    let body = result_body(&seen.id(), "7");
    seen.write_event(&format!("data: {body}")).await;
    let answer = calling.await.unwrap().unwrap();
    assert_eq!(answer.era, Era::Legacy);
    assert_eq!(response_text(Ok(answer)), result_text("7"));
    // The session stays open, and further calls bypass it.
    let (second, _ears) = client_call();
    let calling = scene.start_request(second);
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    seen.respond_result("8").await;
    assert_eq!(response_text(calling.await.unwrap()), result_text("8"));
    for alone in [
        test_request("tools/call"),
        modern_request("tools/call", r#""name":"x""#),
    ] {
        let calling = scene.start_request(alone);
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-session-id"), None);
        seen.respond_result("9").await;
        assert_eq!(calling.await.unwrap().unwrap().era, Era::Modern);
    }
    drop(scene.link);
    let deleted = scene.server.next_delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("one"));
}

#[tokio::test]
async fn modern_only_server_gets_one_handshake() {
    let mut scene = modern_scene().await;
    for greeted in [true, false] {
        let (asking, _ears) = client_call();
        let calling = scene.start_request(asking);
        if greeted {
            let seen = scene.server.next_post().await;
            assert!(seen.body.contains(r#""method":"initialize""#));
            let body = error_body(&seen.id(), -32601);
            seen.respond(404, JSON, &body).await;
        }
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-method"), Some("tools/call"));
        seen.respond_result("7").await;
        assert_eq!(response_text(calling.await.unwrap()), result_text("7"));
    }
    assert!(scene.link.is_open() && scene.server.has_no_get());
}

#[tokio::test]
async fn incapable_clients_and_tasks_skip_session() {
    let mut scene = modern_scene().await;
    let (mut task, _ears) = client_call();
    task.message.params = Bytes::from_static(br#"{"name":"x","task":{}}"#);
    let (mut list, _ears) = client_call();
    list.method = "tools/list".into();
    for asking in [test_request("tools/call"), task, list] {
        let calling = scene.start_request(asking);
        let seen = scene.server.next_post().await;
        assert!(seen.header("mcp-method").is_some(), "{seen:?}");
        seen.respond_result("7").await;
        assert_eq!(response_text(calling.await.unwrap()), result_text("7"));
    }
}

#[tokio::test]
async fn call_dropped_during_handshake_is_not_sent() {
    let mut scene = modern_scene().await;
    let (asking, _ears) = client_call();
    let calling = scene.start_request(asking);
    let greeting = scene.server.next_post().await;
    calling.abort();
    assert!(calling.await.is_err());
    let hello = scripted_server::initialize_result(&greeting.id());
    greeting.respond_json(&hello).await;
    let initialized = scene.server.next_post().await;
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.respond_accepted().await;
    scene.server.next_get().await.respond_status(405).await;
    assert!(scene.server.has_no_post());
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn calls_skip_recently_failed_session() {
    let mut scene = modern_scene().await;
    let (first, _ears) = client_call();
    let calling = scene.start_request(first);
    // A proxy rejects the unknown request on every attempt.
    let called = loop {
        let seen = scene.server.next_post().await;
        if seen.header("mcp-method") == Some("tools/call") {
            break seen;
        }
        assert!(seen.body.contains(r#""method":"initialize""#));
        seen.respond_status(502).await;
    };
    called.respond_result("7").await;
    assert_eq!(response_text(calling.await.unwrap()), result_text("7"));
    for _ in 0..2 {
        let (next, _ears) = client_call();
        let calling = scene.start_request(next);
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-method"), Some("tools/call"));
        seen.respond_result("8").await;
        assert_eq!(response_text(calling.await.unwrap()), result_text("8"));
    }
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn closed_link_ends_legacy_session() {
    let mut scene = modern_scene().await;
    let (asking, _ears) = client_call();
    let calling = scene.start_request(asking);
    scene.server.complete_handshake("one").await;
    scene.server.next_post().await.respond_result("7").await;
    calling.await.unwrap().unwrap();
    // All connections are busy, so the DELETE is delayed.
    let mut others = Vec::new();
    for _ in 0..4 {
        let calling = scene.start_request(test_request("tools/call"));
        others.push((calling, scene.server.next_post().await));
    }
    assert_eq!(wait_bounded(scene.link.close()).await, LinkExit::Stopping);
    let deleted = scene.server.next_delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("one"));
}

/// Opens session `one` with a server of these capabilities.
async fn open_session(server: &mut ScriptedServer, capabilities: &str) {
    let init = server.next_post().await;
    let hello = scripted_server::initialize_result(&init.id());
    let body = hello.replace(r#""capabilities":{}"#, capabilities);
    let headers = format!("{JSON}Mcp-Session-Id: one\r\n");
    init.respond(200, &headers, &body).await;
    server.next_post().await.respond_accepted().await;
    server.next_get().await.respond_status(405).await;
}

#[tokio::test]
async fn session_log_level_covers_callers() {
    for (capabilities, takes) in [
        (r#""capabilities":{"logging":{}}"#, true),
        (r#""capabilities":{}"#, false),
    ] {
        let mut scene = modern_scene().await;
        for (nth, level, told) in [
            (0, None, None),
            (1, Some(LogLevel::Warning), Some("warning")),
            (2, Some(LogLevel::Error), None),
            (3, Some(LogLevel::Debug), Some("debug")),
            (4, Some(LogLevel::Info), None),
        ] {
            let (end, _ears) = test_client_with_level(level);
            let mut call = test_request("tools/call");
            call.message.client = Some(end);
            let calling = scene.start_request(call);
            if nth == 0 {
                open_session(&mut scene.server, capabilities).await;
            }
            if let Some(told) = told.filter(|_| takes) {
                let seen = scene.server.next_post().await;
                assert_eq!(seen.header("mcp-session-id"), Some("one"));
                let words = format!(r#""method":"logging/setLevel","params":{{"level":"{told}"}}"#);
                assert!(seen.body.contains(&words), "{}", seen.body);
                seen.respond_result("{}").await;
            }
            let seen = scene.server.next_post().await;
            assert!(seen.body.contains("tools/call"), "{}", seen.body);
            seen.respond_result("7").await;
            assert_eq!(response_text(calling.await.unwrap()), result_text("7"));
        }
    }
}

#[tokio::test]
async fn modern_call_is_translated_for_session() {
    let mut scene = modern_scene().await;
    let (asked, _ears) = test_client();
    let mut first = modern_request("tools/call", r#""name":"x""#);
    first.message.client = Some(asked.clone());
    let calling = scene.start_request(first);
    scene.server.complete_handshake("one").await;
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    assert!(!seen.body.contains("io.modelcontextprotocol"), "{seen:?}");
    seen.respond_result("7").await;
    assert_eq!(calling.await.unwrap().unwrap().era, Era::Legacy);
    let takes_tasks = concat!(
        r#"{"name":"x","_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":"#,
        r#"{"io.modelcontextprotocol/tasks":{}}}}}"#,
    );
    let mut task = modern_request("tools/call", r#""name":"x""#);
    task.message.params = Bytes::from_static(takes_tasks.as_bytes());
    let further = modern_request("tools/call", r#""name":"x","requestState":"s""#);
    for mut stays in [task, further] {
        stays.message.client = Some(asked.clone());
        let calling = scene.start_request(stays);
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-session-id"), None, "{seen:?}");
        seen.respond_result("8").await;
        assert_eq!(calling.await.unwrap().unwrap().era, Era::Modern);
    }
}
