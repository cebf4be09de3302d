//! Era detection by the response to `server/discover`.

use bowline_testkit::wait_bounded;

use super::*;

/// Refuses the first request, and returns the next request.
async fn next_after_refusal(
    status: u16,
    headers: &str,
    body: &str,
) -> (ScriptedServer, SeenRequest) {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    let seen = server.next_post().await;
    assert_eq!(seen.header("mcp-method"), Some("server/discover"));
    let body = body.replace("ID", &seen.id());
    seen.respond(status, headers, &body).await;
    let next = server.next_post().await;
    drop(connecting);
    (server, next)
}

#[tokio::test]
async fn modern_server_is_detected_with_one_request() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    let seen = server.next_post().await;
    assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(
        seen.header("accept"),
        Some("application/json, text/event-stream")
    );
    assert_eq!(seen.header("mcp-session-id"), None);
    assert_eq!(seen.header("mcp-name"), None);
    for part in [
        r#""method":"server/discover""#,
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#,
        r#""io.modelcontextprotocol/clientCapabilities":{"#,
        r#""io.modelcontextprotocol/clientInfo":{"name":"probe","version":"9"}"#,
    ] {
        assert!(seen.body.contains(part), "{part} in {}", seen.body);
    }
    seen.respond_result(&discover_result("{}")).await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    assert_eq!(link.server_info().revision, Revision::V2026_07_28);
    assert_eq!(link.era(), Era::Modern);
    assert_eq!(
        (&*link.server_info().name, &*link.server_info().version),
        ("t", "1.2")
    );
    assert_eq!(wait_bounded(link.close()).await, LinkExit::Stopping);
    assert!(server.has_no_post() && server.has_no_get() && server.has_no_delete());
}

#[tokio::test]
async fn unknown_discover_leads_to_initialize() {
    for (status, headers, body) in [
        (400, "", ""),
        (404, "Content-Type: text/html\r\n", "no such page"),
        (405, "", ""),
        (406, "", ""),
        (500, "", ""),
        (202, "", ""),
        (200, "Content-Type: text/html\r\n", "hello"),
        (200, JSON, "{}"),
        (
            200,
            JSON,
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}"#,
        ),
        (
            400,
            JSON,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no session"}}"#,
        ),
        (
            404,
            JSON,
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}"#,
        ),
        // The server answers any request.
        (200, JSON, r#"{"jsonrpc":"2.0","id":ID,"result":{}}"#),
        // The server supports newer revisions only.
        (
            200,
            JSON,
            r#"{"jsonrpc":"2.0","id":ID,"result":{"supportedVersions":["2031-01-01"]}}"#,
        ),
        (
            400,
            JSON,
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"no","data":{"supported":["2025-11-25"],"requested":"2026-07-28"}}}"#,
        ),
    ] {
        let mut tries = if status == 500 { 3 } else { 1 };
        let mut server = ScriptedServer::start().await;
        let mut spec = http_spec(&server);
        spec.era_setting = EraSetting::Auto;
        let connecting = spawn_task(connect(spec));
        while tries > 0 {
            let seen = server.next_post().await;
            assert_eq!(seen.header("mcp-method"), Some("server/discover"));
            let body = body.replace("ID", &seen.id());
            seen.respond(status, headers, &body).await;
            tries -= 1;
        }
        server.complete_handshake("one").await;
        let (link, _events) = connecting.await.unwrap().unwrap();
        assert_eq!(link.era(), Era::Legacy, "{status} {body}");
    }
}

#[tokio::test]
async fn http_sse_server_is_detected_last() {
    let (mut server, greeting) = next_after_refusal(405, "", "").await;
    assert!(greeting.body.contains(r#""method":"initialize""#));
    assert_eq!(greeting.header("mcp-method"), Some("initialize"));
    greeting.respond_status(405).await;
    let stream = server.next_get().await;
    assert_eq!(stream.header("accept"), Some("text/event-stream"));
}

#[tokio::test]
async fn outage_does_not_decide_era() {
    // No listener.
    let mut server = ScriptedServer::start().await;
    let mut gone = http_spec(&server);
    gone.era_setting = EraSetting::Auto;
    server.stop().await;
    let error = connect(gone).await.unwrap_err();
    assert!(
        matches!(error, LinkConnectError::Refused { .. }),
        "{error:?}"
    );
    // A proxy reports the outage three times.
    for status in [502, 503, 504] {
        let mut server = ScriptedServer::start().await;
        let mut spec = http_spec(&server);
        spec.era_setting = EraSetting::Auto;
        let connecting = spawn_task(connect(spec));
        for _ in 0..3 {
            let seen = server.next_post().await;
            assert_eq!(seen.header("mcp-method"), Some("server/discover"));
            seen.respond_status(status).await;
        }
        let error = connecting.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkConnectError::Refused { .. }),
            "{error:?}"
        );
        assert!(server.has_no_post());
    }
    // No response.
    let mut server = ScriptedServer::start().await;
    let mut silent = http_spec(&server);
    silent.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect_within(silent, Duration::from_millis(300)));
    let seen = server.next_post().await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkConnectError::HandshakeTimeout { .. }),
        "{error:?}"
    );
    drop(seen);
    assert!(server.has_no_post());
}

#[tokio::test]
async fn unauthorized_discover_is_not_repeated() {
    for status in [401, 403] {
        let mut server = ScriptedServer::start().await;
        let mut spec = http_spec(&server);
        spec.era_setting = EraSetting::Auto;
        let connecting = spawn_task(connect(spec));
        server.next_post().await.respond_status(status).await;
        let error = connecting.await.unwrap().unwrap_err();
        let LinkConnectError::Refused { source, .. } = error else {
            panic!("{error:?}");
        };
        assert!(matches!(source, LinkError::Unauthorized { .. }), "{source}");
        assert!(server.has_no_post());
    }
}

#[tokio::test]
async fn modern_refusal_skips_initialize() {
    for (code, data) in [
        (-32020, "{}"),
        (-32021, "{}"),
        (-32022, r#"{"supported":["2026-07-28"]}"#),
    ] {
        let mut server = ScriptedServer::start().await;
        let mut spec = http_spec(&server);
        spec.era_setting = EraSetting::Auto;
        let connecting = spawn_task(connect(spec));
        let seen = server.next_post().await;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"no","data":{data}}}}}"#
        );
        seen.respond(400, JSON, &body).await;
        if code == -32022 {
            // The supported list contains our revision, so the request is repeated once.
            server.next_post().await.respond(400, JSON, &body).await;
        }
        let error = connecting.await.unwrap().unwrap_err();
        let LinkConnectError::HandshakeRefused { code: said, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(said, code);
        assert!(server.has_no_post());
    }
}

#[tokio::test]
async fn refusal_naming_our_revision_is_retried() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":"2026-07-28"}}}"#;
    server.next_post().await.respond(400, JSON, body).await;
    answer_discover(&mut server, "{}").await;
    let (link, _) = connecting.await.unwrap().unwrap();
    assert_eq!(link.server_info().revision, Revision::V2026_07_28);
}

#[tokio::test]
async fn configured_era_skips_discover() {
    let mut server = ScriptedServer::start().await;
    let mut legacy = http_spec(&server);
    legacy.era_setting = EraSetting::Only(Era::Legacy);
    let connecting = spawn_task(connect(legacy));
    server.complete_handshake("one").await;
    connecting.await.unwrap().unwrap();
    let mut server = ScriptedServer::start().await;
    let mut modern = http_spec(&server);
    modern.era_setting = EraSetting::Only(Era::Modern);
    let connecting = spawn_task(connect(modern));
    server.next_post().await.respond_status(404).await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkConnectError::BadHandshake { .. }),
        "{error:?}"
    );
    assert!(server.has_no_post() && server.has_no_get());
}
