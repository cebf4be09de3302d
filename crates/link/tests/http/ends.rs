//! Servers that go away.

use bowline_core::error::Execution;
use bowline_link::Exit;

use super::*;

#[tokio::test]
async fn a_connection_that_is_lost_costs_its_call_alone() {
    let mut scene = Scene::new().await;
    let first = scene.call();
    let lost = scene.server.post().await;
    let second = scene.call();
    let kept = scene.server.post().await;
    drop(lost);
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Cut(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::Unknown);
    kept.result("1").await;
    assert_eq!(text(second.await.unwrap()), answered("1"));
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn after_a_connection_broke_none_that_waited_beside_it_is_used() {
    let mut scene = Scene::new().await;
    let calls = [scene.call(), scene.call()];
    let seen = [scene.server.post().await, scene.server.post().await];
    let waiting = seen.each_ref().map(|seen| seen.connection);
    for (call, seen) in calls.into_iter().zip(seen) {
        seen.result("1").await;
        call.await.unwrap().unwrap();
    }
    let lost = scene.call();
    let seen = scene.server.post().await;
    assert!(waiting.contains(&seen.connection));
    drop(seen);
    lost.await.unwrap().unwrap_err();
    let next = scene.call();
    // The server is told that nobody waits for the first any more.
    let seen = loop {
        let seen = scene.server.post().await;
        assert!(!waiting.contains(&seen.connection), "{waiting:?}");
        if seen.body.contains("tools/call") {
            break seen;
        }
        seen.accepted().await;
    };
    seen.result("2").await;
    assert_eq!(text(next.await.unwrap()), answered("2"));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_ends_the_link_but_not_the_calls_in_flight() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    server.shakes("one").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let call = |link: &Arc<dyn Link>| {
        let link = link.clone();
        spawn(async move { link.request(request("tools/call")).await })
    };
    let first = call(&link);
    let kept = server.post().await;
    server.stop().await;
    // Connections that still stand are used first; the server hangs up on each.
    let error = soon(async {
        loop {
            let mut next = call(&link);
            let error = loop {
                tokio::select! {
                    ended = &mut next => break ended.unwrap().unwrap_err(),
                    seen = server.post() => drop(seen),
                }
            };
            if !matches!(error, LinkError::Cut(_)) {
                break error;
            }
        }
    })
    .await;
    assert!(matches!(error, LinkError::Unreachable(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert!(!link.is_open());
    assert_eq!(soon(link.closed()).await, Exit::Gone);
    kept.result("1").await;
    assert_eq!(text(first.await.unwrap()), answered("1"));
    assert_eq!(soon(link.close()).await, Exit::Gone);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_when_it_is_dialed() {
    let mut server = Server::start().await;
    let spec = spec(&server);
    server.stop().await;
    let error = connect(spec).await.unwrap_err();
    let ConnectError::Refused { server, source } = error else {
        panic!("{error:?}");
    };
    assert_eq!(&*server, "tracker");
    assert!(matches!(source, LinkError::Unreachable(_)), "{source:?}");
}
