//! Servers that change their era.

use bowline_testkit::wait_bounded;

use super::*;

#[tokio::test]
async fn session_opened_by_discover_is_ended() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    let seen = server.next_post().await;
    let headers = format!("{JSON}Mcp-Session-Id: stray\r\n");
    let body =
        r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no session"}}"#;
    seen.respond(400, &headers, body).await;
    server.complete_handshake("one").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    assert_eq!(link.era(), Era::Legacy);
    let deleted = server.next_delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("stray"));
    deleted.respond_status(200).await;
    assert!(link.is_open());
}

#[tokio::test]
async fn server_turned_legacy_is_reconnected() {
    for (status, code) in [(404, None), (400, None), (200, Some(-32601))] {
        let mut scene = modern_scene().await;
        let ping = scene.start_request(LinkRequest::new_internal(
            "server/discover",
            Bytes::new(),
            test_deadline(),
        ));
        let seen = scene.server.next_post().await;
        match code {
            Some(code) => {
                let body = error_body(&seen.id(), code);
                seen.respond(status, JSON, &body).await;
            }
            None => seen.respond_status(status).await,
        }
        let _ = ping.await.unwrap();
        assert_eq!(
            wait_bounded(scene.link.wait_closed()).await,
            LinkExit::Gone,
            "{status}"
        );
    }
}

#[tokio::test]
async fn unchanged_or_failing_server_is_kept() {
    let mut scene = modern_scene().await;
    // Transient failures are retried.
    for (status, tries) in [(200, 1), (401, 1), (503, 3)] {
        let ping = scene.start_request(LinkRequest::new_internal(
            "server/discover",
            Bytes::new(),
            test_deadline(),
        ));
        for _ in 0..tries {
            let seen = scene.server.next_post().await;
            match status {
                200 => seen.respond_result(&discover_result("{}")).await,
                _ => seen.respond_status(status).await,
            }
        }
        let _ = ping.await.unwrap();
        assert!(scene.link.is_open(), "{status}");
    }
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn server_turned_modern_is_reconnected() {
    let mut scene = HttpScene::new().await;
    // A caller can provoke this error with its own parameters.
    let (end, _ears) = test_client();
    let mut asking = test_request("tools/call");
    asking.message.client = Some(end);
    let call = scene.start_request(asking);
    let seen = scene.server.next_post().await;
    let body = error_body(&seen.id(), -32020);
    seen.respond(400, JSON, &body).await;
    assert_eq!(
        response_text(call.await.unwrap()),
        error_body("\"a\"", -32020)
    );
    assert!(scene.link.is_open());
    // Requests of the gateway cannot provoke it.
    let ping = scene.start_request(LinkRequest::new_internal(
        "ping",
        Bytes::new(),
        test_deadline(),
    ));
    let seen = scene.server.next_post().await;
    let body = error_body(&seen.id(), -32020);
    seen.respond(400, JSON, &body).await;
    ping.await.unwrap().unwrap();
    assert_eq!(wait_bounded(scene.link.wait_closed()).await, LinkExit::Gone);
}

#[tokio::test]
async fn endless_list_is_not_read() {
    let mut scene = modern_scene().await;
    let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
    let seen = scene.server.next_post().await;
    let body = error_body(&seen.id(), -32020);
    seen.respond(400, JSON, &body).await;
    for _ in 0..64 {
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-method"), Some("tools/list"));
        seen.respond_result(r#"{"tools":[],"nextCursor":"c"}"#)
            .await;
    }
    assert_eq!(
        response_text(call.await.unwrap()),
        error_body("\"a\"", -32020)
    );
    assert!(scene.server.has_no_post());
}
