//! Sessions that are forgotten, refused and ended.

use super::*;

const UNKNOWN: u16 = 404;

#[tokio::test]
async fn a_forgotten_session_is_made_again_once_for_ten_calls_and_each_is_sent_once_more() {
    let mut scene = Scene::new().await;
    let calls: Vec<_> = (0..10).map(|_| scene.call()).collect();
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.push(scene.server.post().await);
    }
    let mut ids: Vec<_> = seen.iter().map(server::Seen::id).collect();
    for seen in seen {
        assert_eq!(seen.header("mcp-session-id"), Some("one"));
        seen.status(UNKNOWN).await;
    }
    // Any other post than one handshake would come before its answer.
    scene.server.initializes("two").await;
    let initialized = scene.server.post().await;
    assert_eq!(initialized.header("mcp-session-id"), Some("two"));
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.accepted().await;
    let mut again = Vec::new();
    for _ in 0..10 {
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-session-id"), Some("two"));
        again.push(seen.id());
        seen.result("1").await;
    }
    for call in calls {
        assert_eq!(text(call.await.unwrap()), answered("1"));
    }
    ids.sort();
    again.sort();
    assert_eq!(ids, again, "each request once more");
    assert!(scene.server.is_quiet());
    let event = soon(scene.events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::Renewed, "it must be told again");
    let event = soon(scene.events.recv()).await.unwrap();
    assert_eq!(event, LinkEvent::ToolsChanged, "what it offers may differ");
}

#[tokio::test]
async fn a_second_unknown_session_surfaces() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    scene.server.post().await.status(UNKNOWN).await;
    scene.server.initializes("two").await;
    scene.server.post().await.accepted().await;
    scene.server.post().await.status(UNKNOWN).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 404, .. }),
        "{error:?}"
    );
    assert!(scene.server.is_quiet());
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn a_refused_credential_never_makes_a_new_session() {
    let mut scene = Scene::new().await;
    for status in [401, 403] {
        let call = scene.call();
        let challenge = r#"Bearer error="insufficient_scope", scope="write""#;
        let seen = scene.server.post().await;
        seen.answer(status, &format!("WWW-Authenticate: {challenge}\r\n"), "")
            .await;
        let error = call.await.unwrap().unwrap_err();
        let want = LinkError::Unauthorized {
            status,
            challenge: Some(challenge.into()),
        };
        assert_eq!(error, want);
        assert!(scene.server.is_quiet());
    }
}

#[tokio::test]
async fn a_link_whose_session_cannot_be_made_again_is_lost_and_the_call_did_not_run() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    scene.server.post().await.status(UNKNOWN).await;
    scene.server.post().await.status(418).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Unreachable(_)), "{error:?}");
    assert!(!scene.link.is_open());
    let refused = scene.link.request(request("tools/call")).await;
    assert!(matches!(refused, Err(LinkError::Closed(_))), "{refused:?}");
}

#[tokio::test]
async fn a_404_without_a_session_is_a_status_like_any_other() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.shakes("").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let call = spawn(async move { link.request(request("tools/call")).await });
    server.post().await.status(404).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 404, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn only_a_list_is_sent_again_after_what_may_be_chance() {
    let mut scene = Scene::new().await;
    let list = scene.begin(request("tools/list"));
    scene.server.post().await.status(503).await;
    drop(scene.server.post().await);
    scene.server.post().await.result("1").await;
    assert_eq!(text(list.await.unwrap()), answered("1"));
    let list = scene.begin(request("tools/list"));
    for _ in 0..3 {
        scene.server.post().await.status(502).await;
    }
    let error = list.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 502, .. }),
        "{error:?}"
    );
    let call = scene.call();
    scene.server.post().await.status(503).await;
    let error = call.await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Http { status: 503, .. }),
        "{error:?}"
    );
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn the_handshake_is_tried_again_after_what_may_be_chance() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.post().await.status(500).await;
    server.initializes("one").await;
    server.post().await.status(429).await;
    server.post().await.accepted().await;
    assert!(connecting.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_throttled_call_says_how_long_to_wait() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    let seen = scene.server.post().await;
    seen.answer(429, "Retry-After: 7\r\n", "").await;
    let want = LinkError::Throttled {
        status: 429,
        after: Some(Duration::from_secs(7)),
    };
    assert_eq!(call.await.unwrap().unwrap_err(), want);
}

#[tokio::test]
async fn a_secret_that_changes_takes_effect_with_the_next_call() {
    let mut server = Server::start().await;
    let secret = Arc::new(Secret::default());
    *secret.0.lock().unwrap() = Some("Bearer s3cret-one");
    let mut spec = spec(&server);
    spec.credentials = secret.clone();
    assert!(!format!("{spec:?}").contains("s3cret"));
    let connecting = spawn(connect(spec));
    server.shakes("sess1on").await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let mut scene = Scene {
        server,
        link,
        events,
    };
    for value in ["Bearer s3cret-one", "Bearer s3cret-two"] {
        *secret.0.lock().unwrap() = Some(value);
        let call = scene.call();
        let seen = scene.server.post().await;
        assert_eq!(seen.header("authorization"), Some(value));
        seen.result("1").await;
        call.await.unwrap().unwrap();
    }
    let shown = format!("{:?}", scene.link);
    assert!(
        !shown.contains("s3cret") && !shown.contains("sess1on"),
        "{shown}"
    );
    *secret.0.lock().unwrap() = None;
    let error = scene.call().await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Credentials(_)), "{error:?}");
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn credentials_are_not_sent_in_the_clear_to_another_machine() {
    let server = Server::start().await;
    let mut spec = spec(&server);
    let secret = Secret::default();
    *secret.0.lock().unwrap() = Some("Bearer s3cret");
    spec.credentials = Arc::new(secret);
    spec.url = Endpoint::parse("http://tracker.example/mcp").unwrap();
    let error = connect(spec).await.unwrap_err();
    let want = LinkError::NotSent(bowline_link::NotSent::Exposed);
    let ConnectError::Refused { source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(source, want);
}

#[tokio::test]
async fn a_closed_link_ends_its_session_and_a_server_may_refuse_that() {
    for status in [200, 405] {
        let mut scene = Scene::new().await;
        let link = scene.link.clone();
        let closing = spawn(async move { link.close().await });
        let deleted = scene.server.delete().await;
        assert_eq!(deleted.header("mcp-session-id"), Some("one"));
        deleted.status(status).await;
        let exit = soon(closing).await.unwrap();
        assert_eq!(exit, bowline_link::Exit::Stopping);
        assert_eq!(scene.link.close().await, exit, "again");
        let refused = scene.link.request(request("tools/call")).await;
        assert!(matches!(refused, Err(LinkError::Closed(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_link_that_is_dropped_ends_its_session() {
    let mut scene = Scene::new().await;
    drop(scene.link);
    let deleted = scene.server.delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("one"));
}
