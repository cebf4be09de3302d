//! What a server is taken for by what it says to the first request.

use super::*;

/// Has a server refuse the first request, and returns what it is asked next.
async fn after_refusal(status: u16, headers: &str, body: &str) -> (Server, Seen) {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    let seen = server.post().await;
    assert_eq!(seen.header("mcp-method"), Some("server/discover"));
    let body = body.replace("ID", &seen.id());
    seen.answer(status, headers, &body).await;
    let next = server.post().await;
    drop(connecting);
    (server, next)
}

#[tokio::test]
async fn a_server_without_sessions_is_found_with_one_request_and_not_greeted() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    let seen = server.post().await;
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
    seen.result(&discovered("{}")).await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    assert_eq!(link.server().revision, Revision::V2026_07_28);
    assert_eq!(link.era(), Era::Modern);
    assert_eq!(
        (&*link.server().name, &*link.server().version),
        ("t", "1.2")
    );
    assert_eq!(soon(link.close()).await, Exit::Stopping);
    assert!(server.is_quiet() && server.has_no_get() && server.has_no_delete());
}

#[tokio::test]
async fn a_server_that_does_not_know_the_question_is_greeted() {
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
        // It answers anything.
        (200, JSON, r#"{"jsonrpc":"2.0","id":ID,"result":{}}"#),
        // It has left those behind that we know.
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
        let mut server = Server::start().await;
        let mut spec = spec(&server);
        spec.speaks = Speaks::Auto;
        let connecting = spawn(connect(spec));
        while tries > 0 {
            let seen = server.post().await;
            assert_eq!(seen.header("mcp-method"), Some("server/discover"));
            let body = body.replace("ID", &seen.id());
            seen.answer(status, headers, &body).await;
            tries -= 1;
        }
        server.shakes("one").await;
        let (link, _events) = connecting.await.unwrap().unwrap();
        assert_eq!(link.era(), Era::Legacy, "{status} {body}");
    }
}

#[tokio::test]
async fn a_server_of_the_first_revision_is_found_after_both() {
    let (mut server, greeting) = after_refusal(405, "", "").await;
    assert!(greeting.body.contains(r#""method":"initialize""#));
    assert_eq!(greeting.header("mcp-method"), Some("initialize"));
    greeting.status(405).await;
    let stream = server.get().await;
    assert_eq!(stream.header("accept"), Some("text/event-stream"));
}

#[tokio::test]
async fn an_outage_says_nothing_of_how_a_server_speaks() {
    // Nobody there.
    let mut server = Server::start().await;
    let mut gone = spec(&server);
    gone.speaks = Speaks::Auto;
    server.stop().await;
    let error = connect(gone).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    // Somebody in between knows that nobody is there, and said so three times.
    for status in [502, 503, 504] {
        let mut server = Server::start().await;
        let mut spec = spec(&server);
        spec.speaks = Speaks::Auto;
        let connecting = spawn(connect(spec));
        for _ in 0..3 {
            let seen = server.post().await;
            assert_eq!(seen.header("mcp-method"), Some("server/discover"));
            seen.status(status).await;
        }
        let error = connecting.await.unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert!(server.is_quiet());
    }
    // Silence.
    let mut server = Server::start().await;
    let mut silent = spec(&server);
    silent.speaks = Speaks::Auto;
    let connecting = spawn(connect_within(silent, Duration::from_millis(300)));
    let seen = server.post().await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::HandshakeTimeout { .. }),
        "{error:?}"
    );
    drop(seen);
    assert!(server.is_quiet());
}

#[tokio::test]
async fn a_server_that_wants_to_know_who_we_are_is_not_asked_twice() {
    for status in [401, 403] {
        let mut server = Server::start().await;
        let mut spec = spec(&server);
        spec.speaks = Speaks::Auto;
        let connecting = spawn(connect(spec));
        server.post().await.status(status).await;
        let error = connecting.await.unwrap().unwrap_err();
        let ConnectError::Refused { source, .. } = error else {
            panic!("{error:?}");
        };
        assert!(matches!(source, LinkError::Unauthorized { .. }), "{source}");
        assert!(server.is_quiet());
    }
}

#[tokio::test]
async fn a_server_that_refuses_in_the_words_of_the_new_era_is_not_greeted() {
    for (code, data) in [
        (-32020, "{}"),
        (-32021, "{}"),
        (-32022, r#"{"supported":["2026-07-28"]}"#),
    ] {
        let mut server = Server::start().await;
        let mut spec = spec(&server);
        spec.speaks = Speaks::Auto;
        let connecting = spawn(connect(spec));
        let seen = server.post().await;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"no","data":{data}}}}}"#
        );
        seen.answer(400, JSON, &body).await;
        if code == -32022 {
            // It names what it was asked in, so it is asked once more.
            server.post().await.answer(400, JSON, &body).await;
        }
        let error = connecting.await.unwrap().unwrap_err();
        let ConnectError::HandshakeRefused { code: said, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(said, code);
        assert!(server.is_quiet());
    }
}

#[tokio::test]
async fn a_server_that_names_our_revision_in_its_refusal_is_asked_once_more() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":"2026-07-28"}}}"#;
    server.post().await.answer(400, JSON, body).await;
    discovers(&mut server, "{}").await;
    let (link, _) = connecting.await.unwrap().unwrap();
    assert_eq!(link.server().revision, Revision::V2026_07_28);
}

#[tokio::test]
async fn what_is_known_of_a_server_is_not_asked() {
    let mut server = Server::start().await;
    let mut legacy = spec(&server);
    legacy.speaks = Speaks::Only(Era::Legacy);
    let connecting = spawn(connect(legacy));
    server.shakes("one").await;
    connecting.await.unwrap().unwrap();
    let mut server = Server::start().await;
    let mut modern = spec(&server);
    modern.speaks = Speaks::Only(Era::Modern);
    let connecting = spawn(connect(modern));
    server.post().await.status(404).await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::BadHandshake { .. }),
        "{error:?}"
    );
    assert!(server.is_quiet() && server.has_no_get());
}
