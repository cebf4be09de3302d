//! Session renewal, refusal and end.

use bowline_testkit::wait_bounded;

use super::*;

const UNKNOWN: u16 = 404;

#[tokio::test]
async fn forgotten_session_is_renewed_once() {
    let mut scene = HttpScene::new().await;
    let calls: Vec<_> = (0..10).map(|_| scene.start_call()).collect();
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.push(scene.server.next_post().await);
    }
    let mut ids: Vec<_> = seen.iter().map(scripted_server::SeenRequest::id).collect();
    for seen in seen {
        assert_eq!(seen.header("mcp-session-id"), Some("one"));
        seen.respond_status(UNKNOWN).await;
    }
    // Any POST besides the single handshake would arrive before its response.
    scene.server.answer_initialize("two").await;
    let initialized = scene.server.next_post().await;
    assert_eq!(initialized.header("mcp-session-id"), Some("two"));
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.respond_accepted().await;
    let mut again = Vec::new();
    for _ in 0..10 {
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-session-id"), Some("two"));
        again.push(seen.id());
        seen.respond_result("1").await;
    }
    for call in calls {
        assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    }
    ids.sort();
    again.sort();
    assert_eq!(ids, again, "each request once more");
    assert!(scene.server.has_no_post());
    let event = wait_bounded(scene.events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::SessionReset, "it must be told again");
    let event = wait_bounded(scene.events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::ToolsChanged, "what it offers may differ");
}

#[tokio::test]
async fn second_unknown_session_is_reported() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    scene.server.next_post().await.respond_status(UNKNOWN).await;
    scene.server.answer_initialize("two").await;
    scene.server.next_post().await.respond_accepted().await;
    scene.server.next_post().await.respond_status(UNKNOWN).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 404, .. }),
        "{error:?}"
    );
    assert!(scene.server.has_no_post());
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn refused_credential_does_not_renew_session() {
    let mut scene = HttpScene::new().await;
    for status in [401, 403] {
        let call = scene.start_call();
        let challenge = r#"Bearer error="insufficient_scope", scope="write""#;
        let seen = scene.server.next_post().await;
        seen.respond(status, &format!("WWW-Authenticate: {challenge}\r\n"), "")
            .await;
        let error = call.await.unwrap().unwrap_err();
        let want = LinkError::Unauthorized {
            status,
            challenge: Some(challenge.into()),
        };
        assert_eq!(error, want);
        assert!(scene.server.has_no_post());
    }
}

#[tokio::test]
async fn failed_session_renewal_loses_link() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    scene.server.next_post().await.respond_status(UNKNOWN).await;
    scene.server.next_post().await.respond_status(418).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Unreachable(_)), "{error:?}");
    assert!(!scene.link.is_open());
    let refused = scene.link.request(test_request("tools/call")).await;
    assert!(matches!(refused, Err(LinkError::Closed(_))), "{refused:?}");
}

#[tokio::test]
async fn not_found_without_session_is_status_error() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.complete_handshake("").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let call = spawn_task(async move { link.request(test_request("tools/call")).await });
    server.next_post().await.respond_status(404).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 404, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn only_lists_are_retried() {
    let mut scene = HttpScene::new().await;
    let list = scene.start_request(test_request("tools/list"));
    scene.server.next_post().await.respond_status(503).await;
    drop(scene.server.next_post().await);
    scene.server.next_post().await.respond_result("1").await;
    assert_eq!(response_text(list.await.unwrap()), result_text("1"));
    let list = scene.start_request(test_request("tools/list"));
    for _ in 0..3 {
        scene.server.next_post().await.respond_status(502).await;
    }
    let error = list.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 502, .. }),
        "{error:?}"
    );
    let call = scene.start_call();
    scene.server.next_post().await.respond_status(503).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 503, .. }),
        "{error:?}"
    );
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn handshake_retries_transient_failures() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.next_post().await.respond_status(500).await;
    server.answer_initialize("one").await;
    server.next_post().await.respond_status(429).await;
    server.next_post().await.respond_accepted().await;
    assert!(connecting.await.unwrap().is_ok());
}

#[tokio::test]
async fn throttled_call_reports_delay() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    seen.respond(429, "Retry-After: 7\r\n", "").await;
    let want = LinkError::Throttled {
        status: 429,
        after: Some(Duration::from_secs(7)),
    };
    assert_eq!(call.await.unwrap().unwrap_err(), want);
}

#[tokio::test]
async fn changed_secret_applies_to_next_call() {
    let mut server = ScriptedServer::start().await;
    let secret = Arc::new(MutableSecret::default());
    *secret.0.lock().unwrap() = Some("Bearer s3cret-one");
    let mut spec = http_spec(&server);
    spec.credentials = secret.clone();
    assert!(!format!("{spec:?}").contains("s3cret"));
    let connecting = spawn_task(connect(spec));
    server.complete_handshake("sess1on").await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let mut scene = HttpScene {
        server,
        link,
        events,
    };
    for value in ["Bearer s3cret-one", "Bearer s3cret-two"] {
        *secret.0.lock().unwrap() = Some(value);
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("authorization"), Some(value));
        seen.respond_result("1").await;
        call.await.unwrap().unwrap();
    }
    let shown = format!("{:?}", scene.link);
    assert!(
        !shown.contains("s3cret") && !shown.contains("sess1on"),
        "{shown}"
    );
    *secret.0.lock().unwrap() = None;
    let error = scene.start_call().await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Credentials(_)), "{error:?}");
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn credentials_are_not_sent_unencrypted() {
    let server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    let secret = MutableSecret::default();
    *secret.0.lock().unwrap() = Some("Bearer s3cret");
    spec.credentials = Arc::new(secret);
    spec.url = HttpEndpoint::parse("http://tracker.example/mcp").unwrap();
    let error = connect(spec).await.unwrap_err();
    let want = LinkError::NotSent(bowline_link::NotSentReason::Exposed);
    let LinkConnectError::Refused { source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(source, want);
}

#[tokio::test]
async fn closed_link_ends_session() {
    for status in [200, 405] {
        let mut scene = HttpScene::new().await;
        let link = scene.link.clone();
        let closing = spawn_task(async move { link.close().await });
        let deleted = scene.server.next_delete().await;
        assert_eq!(deleted.header("mcp-session-id"), Some("one"));
        deleted.respond_status(status).await;
        let exit = wait_bounded(closing).await.unwrap();
        assert_eq!(exit, bowline_link::LinkExit::Stopping);
        assert_eq!(scene.link.close().await, exit, "again");
        let refused = scene.link.request(test_request("tools/call")).await;
        assert!(matches!(refused, Err(LinkError::Closed(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn dropped_link_ends_session() {
    let mut scene = HttpScene::new().await;
    drop(scene.link);
    let deleted = scene.server.next_delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("one"));
}
