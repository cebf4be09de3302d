//! Redirects.

use bowline_link::http::RedirectError;

use super::*;

#[tokio::test]
async fn same_origin_redirect_repeats_message() {
    let mut scene = HttpScene::new().await;
    for status in [307, 308] {
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        let body = seen.body.clone();
        seen.respond(status, "Location: /other?x=1\r\n", "").await;
        let moved = scene.server.next_post().await;
        assert_eq!(moved.path, "/other?x=1");
        assert_eq!(moved.body, body);
        assert_eq!(moved.header("mcp-session-id"), Some("one"));
        moved.respond_result("1").await;
        assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    }
}

#[tokio::test]
async fn redirected_post_becomes_get() {
    let mut scene = HttpScene::new().await;
    for status in [301, 302, 303] {
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        let id = seen.id();
        seen.respond(status, "Location: there\r\n", "").await;
        let moved = scene.server.next_get().await;
        assert_eq!(moved.path, "/there");
        assert_eq!(moved.body, "");
        assert_eq!(moved.header("content-type"), None);
        moved
            .respond_json(&scripted_server::result_body(&id, "1"))
            .await;
        assert_eq!(response_text(call.await.unwrap()), result_text("1"));
    }
}

#[tokio::test]
async fn foreign_origin_redirect_is_refused() {
    let mut scene = HttpScene::new().await;
    let mut other = ScriptedServer::start().await;
    let there = other.origin.clone();
    let port = there.rsplit(':').next().unwrap();
    for target in [
        format!("{there}/mcp"),
        format!("//127.0.0.1:{port}/mcp"),
        scene.server.origin.replace("http:", "https:"),
        scene.server.origin.replace("127.0.0.1", "localhost"),
    ] {
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        seen.respond(307, &format!("Location: {target}\r\n"), "")
            .await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(
            error,
            LinkError::Redirect(RedirectError::Origin),
            "{target}"
        );
    }
    assert!(other.has_no_post());
}

#[tokio::test]
async fn endless_redirects_stop_after_ten() {
    let mut scene = HttpScene::new().await;
    let call = scene.start_call();
    for _ in 0..11 {
        let seen = scene.server.next_post().await;
        seen.respond(308, "Location: /mcp\r\n", "").await;
    }
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Redirect(RedirectError::TooMany));
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn redirect_hops_share_deadline() {
    let mut scene = HttpScene::new().await;
    let mut late = test_request("tools/call");
    late.deadline = deadline_after(Duration::from_millis(300));
    let call = scene.start_request(late);
    let seen = scene.server.next_post().await;
    seen.respond(307, "Location: /slow\r\n", "").await;
    let held = scene.server.next_post().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    drop(held);
}
