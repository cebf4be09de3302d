//! Stateless requests.

use bowline_link::ParamRename;
use bowline_testkit::wait_bounded;

use super::*;

#[tokio::test]
async fn call_has_routing_headers() {
    let mut scene = modern_scene().await;
    let params = r#""name":"files__read","arguments":{"path":"a"}"#;
    let mut request = modern_request("tools/call", params);
    let sent = String::from_utf8(request.message.params.to_vec()).unwrap();
    let at = sent.find(r#""files__read""#).unwrap();
    request.rename = Some(ParamRename {
        at: at..at + r#""files__read""#.len(),
        to: "read".into(),
    });
    let call = scene.start_request(request);
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(seen.header("mcp-method"), Some("tools/call"));
    assert_eq!(seen.header("mcp-name"), Some("read"));
    assert_eq!(seen.header("mcp-session-id"), None);
    let want = sent.replace("files__read", "read");
    let want = format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{want}}}"#,
        seen.id()
    );
    assert_eq!(seen.body, want, "every other byte is the caller's");
    seen.respond_result(r#"{"resultType":"complete","content":[]}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.era, Era::Modern);
    assert_eq!(
        response_text(Ok(answer)),
        result_text(r#"{"resultType":"complete","content":[]}"#)
    );
}

#[tokio::test]
async fn name_header_matches_params() {
    let mut scene = modern_scene().await;
    for (method, params, want) in [
        ("tools/call", r#""name":"x""#, Some("x")),
        ("prompts/get", r#""name":"p q""#, Some("p q")),
        (
            "resources/read",
            r#""uri":"file:///a b""#,
            Some("file:///a b"),
        ),
        ("tasks/get", r#""taskId":"t-1""#, Some("t-1")),
        ("tasks/update", r#""taskId":"t-1""#, Some("t-1")),
        ("tasks/cancel", r#""taskId":"t-1""#, Some("t-1")),
        ("tools/list", r#""name":"x""#, None),
        ("completion/complete", r#""uri":"x""#, None),
        ("tools/call", r#""name":7"#, None),
        // The last member wins, in the body as well.
        ("tools/call", r#""name":"x","name":"y""#, Some("y")),
    ] {
        let call = scene.start_request(modern_request(method, params));
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-method"), Some(method));
        assert_eq!(seen.header("mcp-name"), want, "{method} {params}");
        seen.respond_result("{}").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn legacy_request_is_translated_to_modern() {
    let mut scene = modern_scene().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-name"), Some("x"));
    for part in [
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#,
        r#""io.modelcontextprotocol/clientCapabilities":{}"#,
        r#""name":"x""#,
    ] {
        assert!(seen.body.contains(part), "{part} in {}", seen.body);
    }
    seen.respond_result(r#"{"resultType":"complete","content":[]}"#)
        .await;
    assert_eq!(call.await.unwrap().unwrap().era, Era::Modern);
}

#[tokio::test]
async fn modern_request_is_translated_to_legacy() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    assert_eq!(seen.header("mcp-method"), None);
    assert!(!seen.body.contains("io.modelcontextprotocol"), "{seen:?}");
    seen.respond_result("1").await;
    assert_eq!(call.await.unwrap().unwrap().era, Era::Legacy);
}

#[tokio::test]
async fn sse_response_after_notifications_arrives() {
    let mut scene = modern_scene().await;
    let (end, mut ears) = test_client();
    // A further round, which is always sent in the modern era.
    let mut asking = modern_request("tools/call", r#""name":"x","requestState":"s""#);
    asking.message.client = Some(end);
    let call = scene.start_request(asking);
    let mut seen = scene.server.next_post().await;
    let answer = result_body(&seen.id(), "7");
    seen.start_stream().await;
    seen.write_event(": keep").await;
    let word =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    seen.write_event(&format!("data: {word}")).await;
    assert_eq!(wait_bounded(ears.told.recv()).await.unwrap(), word);
    // Server requests are not allowed here, and are ignored.
    seen.write_event(r#"data: {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#)
        .await;
    seen.write_event(r#"data: {"jsonrpc":"2.0","id":2,"method":"ping"}"#)
        .await;
    seen.write_event(&format!("data: {answer}")).await;
    assert_eq!(response_text(call.await.unwrap()), result_text("7"));
    assert!(ears.asked.try_recv().is_err());
    assert!(scene.server.has_no_post(), "it takes no answers");
}

#[tokio::test]
async fn dropped_request_only_closes_stream() {
    let mut scene = modern_scene().await;
    for streams in [false, true] {
        let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
        let mut seen = scene.server.next_post().await;
        if streams {
            seen.start_stream().await;
        }
        call.abort();
        seen.wait_closed().await;
    }
    let mut late = modern_request("tools/call", r#""name":"x""#);
    late.deadline = deadline_after(Duration::from_millis(50));
    let call = scene.start_request(late);
    let mut seen = scene.server.next_post().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    seen.wait_closed().await;
    scene
        .link
        .notify("notifications/roots/list_changed", None)
        .unwrap();
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn broken_stream_is_not_resumed() {
    let mut scene = modern_scene().await;
    let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
    let mut seen = scene.server.next_post().await;
    seen.start_stream().await;
    seen.write_event("id: 7\nretry: 1\ndata: ").await;
    seen.end_stream().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::ConnectionLost(_)), "{error:?}");
    assert!(scene.server.has_no_get() && scene.server.has_no_post());
}

#[tokio::test]
async fn error_response_reaches_caller_with_any_status() {
    let mut scene = modern_scene().await;
    for (status, code) in [
        (200, -32603),
        (400, -32602),
        (400, -32021),
        (400, -32022),
        (404, -32601),
    ] {
        for nameless in [false, true] {
            if nameless && status == 200 {
                continue;
            }
            let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
            let seen = scene.server.next_post().await;
            let id = if nameless { "null".into() } else { seen.id() };
            seen.respond(status, JSON, &error_body(&id, code)).await;
            let answer = response_text(call.await.unwrap());
            assert_eq!(answer, error_body("\"a\"", code), "{status} {nameless}");
        }
    }
    // A decisive status wins.
    let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
    let seen = scene.server.next_post().await;
    seen.respond(403, JSON, &error_body("null", -32600)).await;
    let refused = call.await.unwrap().unwrap_err();
    assert!(
        matches!(refused, LinkError::Unauthorized { status: 403, .. }),
        "{refused:?}"
    );
}

#[tokio::test]
async fn status_without_response_is_an_error() {
    let mut scene = modern_scene().await;
    for status in [202, 204, 404, 500] {
        let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
        scene.server.next_post().await.respond_status(status).await;
        let error = call.await.unwrap().unwrap_err();
        let LinkError::Http { status: said, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(said, status);
    }
    assert!(scene.server.has_no_post());
}
