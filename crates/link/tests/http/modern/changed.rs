//! Servers that speak another way than when they were met.

use super::*;

#[tokio::test]
async fn a_session_that_a_server_opened_for_the_question_is_ended() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    let seen = server.post().await;
    let headers = format!("{JSON}Mcp-Session-Id: stray\r\n");
    let body =
        r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no session"}}"#;
    seen.answer(400, &headers, body).await;
    server.shakes("one").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    assert_eq!(link.era(), Era::Legacy);
    let deleted = server.delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("stray"));
    deleted.status(200).await;
    assert!(link.is_open());
}

#[tokio::test]
async fn a_server_that_keeps_sessions_by_now_is_met_anew() {
    for (status, code) in [(404, None), (400, None), (200, Some(-32601))] {
        let mut scene = scene().await;
        let ping = scene.begin(Request::own("server/discover", None, after(server::SOON)));
        let seen = scene.server.post().await;
        match code {
            Some(code) => {
                let body = error(&seen.id(), code);
                seen.answer(status, JSON, &body).await;
            }
            None => seen.status(status).await,
        }
        let _ = ping.await.unwrap();
        assert_eq!(soon(scene.link.closed()).await, Exit::Gone, "{status}");
    }
}

#[tokio::test]
async fn a_server_that_is_as_it_was_or_in_trouble_is_kept() {
    let mut scene = scene().await;
    // What fails by chance is tried again.
    for (status, tries) in [(200, 1), (401, 1), (503, 3)] {
        let ping = scene.begin(Request::own("server/discover", None, after(server::SOON)));
        for _ in 0..tries {
            let seen = scene.server.post().await;
            match status {
                200 => seen.result(&discovered("{}")).await,
                _ => seen.status(status).await,
            }
        }
        let _ = ping.await.unwrap();
        assert!(scene.link.is_open(), "{status}");
    }
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_server_that_keeps_no_sessions_any_more_is_met_anew() {
    let mut scene = Scene::new().await;
    // A caller can bring this about by what it writes.
    let (end, _ears) = caller();
    let mut asking = request("tools/call");
    asking.caller = Some(end);
    let call = scene.begin(asking);
    let seen = scene.server.post().await;
    let body = error(&seen.id(), -32020);
    seen.answer(400, JSON, &body).await;
    assert_eq!(text(call.await.unwrap()), error("\"a\"", -32020));
    assert!(scene.link.is_open());
    // What we ask ourselves cannot.
    let ping = scene.begin(Request::own("ping", None, after(server::SOON)));
    let seen = scene.server.post().await;
    let body = error(&seen.id(), -32020);
    seen.answer(400, JSON, &body).await;
    ping.await.unwrap().unwrap();
    assert_eq!(soon(scene.link.closed()).await, Exit::Gone);
}

#[tokio::test]
async fn a_list_without_end_is_not_read_to_it() {
    let mut scene = scene().await;
    let call = scene.begin(modern("tools/call", r#""name":"x""#));
    let seen = scene.server.post().await;
    let body = error(&seen.id(), -32020);
    seen.answer(400, JSON, &body).await;
    for _ in 0..64 {
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-method"), Some("tools/list"));
        seen.result(r#"{"tools":[],"nextCursor":"c"}"#).await;
    }
    assert_eq!(text(call.await.unwrap()), error("\"a\"", -32020));
    assert!(scene.server.is_quiet());
}
