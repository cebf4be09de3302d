//! Where a server points elsewhere.

use bowline_link::http::RedirectError;

use super::*;

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_with_the_same_message() {
    let mut scene = Scene::new().await;
    for status in [307, 308] {
        let call = scene.call();
        let seen = scene.server.post().await;
        let body = seen.body.clone();
        seen.answer(status, "Location: /other?x=1\r\n", "").await;
        let moved = scene.server.post().await;
        assert_eq!(moved.path, "/other?x=1");
        assert_eq!(moved.body, body);
        assert_eq!(moved.header("mcp-session-id"), Some("one"));
        moved.result("1").await;
        assert_eq!(text(call.await.unwrap()), answered("1"));
    }
}

#[tokio::test]
async fn a_post_that_is_redirected_by_301_to_303_becomes_a_get_without_a_body() {
    let mut scene = Scene::new().await;
    for status in [301, 302, 303] {
        let call = scene.call();
        let seen = scene.server.post().await;
        let id = seen.id();
        seen.answer(status, "Location: there\r\n", "").await;
        let moved = scene.server.get().await;
        assert_eq!(moved.path, "/there");
        assert_eq!(moved.body, "");
        assert_eq!(moved.header("content-type"), None);
        moved.json(&server::result(&id, "1")).await;
        assert_eq!(text(call.await.unwrap()), answered("1"));
    }
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_refused() {
    let mut scene = Scene::new().await;
    let mut other = Server::start().await;
    let there = other.origin.clone();
    let port = there.rsplit(':').next().unwrap();
    for target in [
        format!("{there}/mcp"),
        format!("//127.0.0.1:{port}/mcp"),
        scene.server.origin.replace("http:", "https:"),
        scene.server.origin.replace("127.0.0.1", "localhost"),
    ] {
        let call = scene.call();
        let seen = scene.server.post().await;
        seen.answer(307, &format!("Location: {target}\r\n"), "")
            .await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(
            error,
            LinkError::Redirect(RedirectError::Origin),
            "{target}"
        );
    }
    assert!(other.is_quiet());
}

#[tokio::test]
async fn redirects_without_end_are_given_up_after_ten() {
    let mut scene = Scene::new().await;
    let call = scene.call();
    for _ in 0..11 {
        let seen = scene.server.post().await;
        seen.answer(308, "Location: /mcp\r\n", "").await;
    }
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Redirect(RedirectError::TooMany));
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn all_hops_share_the_deadline_of_the_call() {
    let mut scene = Scene::new().await;
    let mut late = request("tools/call");
    late.deadline = after(Duration::from_millis(300));
    let call = scene.begin(late);
    let seen = scene.server.post().await;
    seen.answer(307, "Location: /slow\r\n", "").await;
    let held = scene.server.post().await;
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    drop(held);
}
