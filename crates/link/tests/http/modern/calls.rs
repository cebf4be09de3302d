//! Requests that stand alone.

use bowline_link::Rename;

use super::*;

#[tokio::test]
async fn a_call_says_in_its_headers_what_it_is() {
    let mut scene = scene().await;
    let params = r#""name":"files__read","arguments":{"path":"a"}"#;
    let mut request = modern("tools/call", params);
    let sent = String::from_utf8(request.params.clone().unwrap().to_vec()).unwrap();
    let at = sent.find(r#""files__read""#).unwrap();
    request.rename = Some(Rename {
        at: at..at + r#""files__read""#.len(),
        to: "read".into(),
    });
    let call = scene.begin(request);
    let seen = scene.server.post().await;
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
    seen.result(r#"{"resultType":"complete","content":[]}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.era, Era::Modern);
    assert_eq!(
        text(Ok(answer)),
        answered(r#"{"resultType":"complete","content":[]}"#)
    );
}

#[tokio::test]
async fn the_name_in_the_header_is_that_of_what_is_asked_for() {
    let mut scene = scene().await;
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
        // The last one counts, in the body as well.
        ("tools/call", r#""name":"x","name":"y""#, Some("y")),
    ] {
        let call = scene.begin(modern(method, params));
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-method"), Some(method));
        assert_eq!(seen.header("mcp-name"), want, "{method} {params}");
        seen.result("{}").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_request_of_the_old_era_is_written_for_the_new_one() {
    let mut scene = scene().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-name"), Some("x"));
    for part in [
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#,
        r#""io.modelcontextprotocol/clientCapabilities":{}"#,
        r#""name":"x""#,
    ] {
        assert!(seen.body.contains(part), "{part} in {}", seen.body);
    }
    seen.result(r#"{"resultType":"complete","content":[]}"#)
        .await;
    assert_eq!(call.await.unwrap().unwrap().era, Era::Modern);
}

#[tokio::test]
async fn a_request_of_the_new_era_is_written_for_the_old_one() {
    let mut scene = Scene::new().await;
    let call = scene.begin(modern("tools/call", r#""name":"x""#));
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    assert_eq!(seen.header("mcp-method"), None);
    assert!(!seen.body.contains("io.modelcontextprotocol"), "{seen:?}");
    seen.result("1").await;
    assert_eq!(call.await.unwrap().unwrap().era, Era::Legacy);
}

#[tokio::test]
async fn an_answer_may_come_on_a_stream_with_words_before_it() {
    let mut scene = scene().await;
    let (end, mut ears) = caller();
    // A further round, so that it is surely sent in this era.
    let mut asking = modern("tools/call", r#""name":"x","requestState":"s""#);
    asking.caller = Some(end);
    let call = scene.begin(asking);
    let mut seen = scene.server.post().await;
    let answer = result(&seen.id(), "7");
    seen.streams().await;
    seen.event(": keep").await;
    let word =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    seen.event(&format!("data: {word}")).await;
    assert_eq!(soon(ears.told.recv()).await.unwrap(), word);
    // Nothing may be asked this way, and nobody is.
    seen.event(r#"data: {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#)
        .await;
    seen.event(r#"data: {"jsonrpc":"2.0","id":2,"method":"ping"}"#)
        .await;
    seen.event(&format!("data: {answer}")).await;
    assert_eq!(text(call.await.unwrap()), answered("7"));
    assert!(ears.asked.try_recv().is_err());
    assert!(scene.server.is_quiet(), "it takes no answers");
}

#[tokio::test]
async fn who_takes_a_request_back_closes_its_stream_and_says_no_more() {
    let mut scene = scene().await;
    for streams in [false, true] {
        let call = scene.begin(modern("tools/call", r#""name":"x""#));
        let mut seen = scene.server.post().await;
        if streams {
            seen.streams().await;
        }
        call.abort();
        seen.is_left().await;
    }
    let mut late = modern("tools/call", r#""name":"x""#);
    late.deadline = after(Duration::from_millis(50));
    let call = scene.begin(late);
    let mut seen = scene.server.post().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    seen.is_left().await;
    scene
        .link
        .notify("notifications/roots/list_changed", None)
        .unwrap();
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_stream_that_breaks_is_lost_and_not_gone_on_with() {
    let mut scene = scene().await;
    let call = scene.begin(modern("tools/call", r#""name":"x""#));
    let mut seen = scene.server.post().await;
    seen.streams().await;
    seen.event("id: 7\nretry: 1\ndata: ").await;
    seen.ends().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Cut(_)), "{error:?}");
    assert!(scene.server.has_no_get() && scene.server.is_quiet());
}

#[tokio::test]
async fn an_error_of_the_server_reaches_its_caller_whatever_the_status() {
    let mut scene = scene().await;
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
            let call = scene.begin(modern("tools/call", r#""name":"x""#));
            let seen = scene.server.post().await;
            let id = if nameless { "null".into() } else { seen.id() };
            seen.answer(status, JSON, &error(&id, code)).await;
            let answer = text(call.await.unwrap());
            assert_eq!(answer, error("\"a\"", code), "{status} {nameless}");
        }
    }
    // Of a status that says something else, that counts.
    let call = scene.begin(modern("tools/call", r#""name":"x""#));
    let seen = scene.server.post().await;
    seen.answer(403, JSON, &error("null", -32600)).await;
    let refused = call.await.unwrap().unwrap_err();
    assert!(
        matches!(refused, LinkError::Unauthorized { status: 403, .. }),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_status_without_an_answer_is_none() {
    let mut scene = scene().await;
    for status in [202, 204, 404, 500] {
        let call = scene.begin(modern("tools/call", r#""name":"x""#));
        scene.server.post().await.status(status).await;
        let error = call.await.unwrap().unwrap_err();
        let LinkError::Http { status: said, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(said, status);
    }
    assert!(scene.server.is_quiet());
}
