//! Lost connections and unreachable servers.

use bowline_core::error::ExecutionStatus;
use bowline_link::LinkExit;
use bowline_testkit::wait_bounded;

use super::*;

#[tokio::test]
async fn lost_connection_fails_only_its_call() {
    let mut scene = HttpScene::new().await;
    let first = scene.start_call();
    let lost = scene.server.next_post().await;
    let second = scene.start_call();
    let kept = scene.server.next_post().await;
    drop(lost);
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::ConnectionLost(_)), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    kept.respond_result("1").await;
    assert_eq!(response_text(second.await.unwrap()), result_text("1"));
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn broken_connection_evicts_idle_connections() {
    let mut scene = HttpScene::new().await;
    let calls = [scene.start_call(), scene.start_call()];
    let seen = [
        scene.server.next_post().await,
        scene.server.next_post().await,
    ];
    let waiting = seen.each_ref().map(|seen| seen.connection);
    for (call, seen) in calls.into_iter().zip(seen) {
        seen.respond_result("1").await;
        call.await.unwrap().unwrap();
    }
    let lost = scene.start_call();
    let seen = scene.server.next_post().await;
    assert!(waiting.contains(&seen.connection));
    drop(seen);
    lost.await.unwrap().unwrap_err();
    let next = scene.start_call();
    // The server gets a cancel for the first call.
    let seen = loop {
        let seen = scene.server.next_post().await;
        assert!(!waiting.contains(&seen.connection), "{waiting:?}");
        if seen.body.contains("tools/call") {
            break seen;
        }
        seen.respond_accepted().await;
    };
    seen.respond_result("2").await;
    assert_eq!(response_text(next.await.unwrap()), result_text("2"));
}

#[tokio::test]
async fn unreachable_server_ends_link_not_calls() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    server.complete_handshake("one").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let call = |link: &Arc<dyn Link>| {
        let link = link.clone();
        spawn_task(async move { link.request(test_request("tools/call")).await })
    };
    let first = call(&link);
    let kept = server.next_post().await;
    server.stop().await;
    // Open connections are used first; the server closes each.
    let error = wait_bounded(async {
        loop {
            let mut next = call(&link);
            let error = loop {
                tokio::select! {
                    ended = &mut next => break ended.unwrap().unwrap_err(),
                    seen = server.next_post() => drop(seen),
                }
            };
            if !matches!(error, LinkError::ConnectionLost(_)) {
                break error;
            }
        }
    })
    .await;
    assert!(matches!(error, LinkError::Unreachable(_)), "{error:?}");
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    assert!(!link.is_open());
    assert_eq!(wait_bounded(link.wait_closed()).await, LinkExit::Gone);
    kept.respond_result("1").await;
    assert_eq!(response_text(first.await.unwrap()), result_text("1"));
    assert_eq!(wait_bounded(link.close()).await, LinkExit::Gone);
}

#[tokio::test]
async fn unreachable_server_is_named_on_connect() {
    let mut server = ScriptedServer::start().await;
    let spec = http_spec(&server);
    server.stop().await;
    let error = connect(spec).await.unwrap_err();
    let LinkConnectError::Refused { server, source } = error else {
        panic!("{error:?}");
    };
    assert_eq!(&*server, "tracker");
    assert!(matches!(source, LinkError::Unreachable(_)), "{source:?}");
}
