//! HTTP+SSE of the first revision, and how it is found.

use bowline_link::Exit;

use super::*;
use crate::server::{Seen, result};

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// Tells the client where to post.
async fn opens(server: &mut Server, endpoint: &str) -> Seen {
    let mut stream = server.get().await;
    assert_eq!(stream.header("accept"), Some("text/event-stream"));
    stream.streams().await;
    stream
        .event(&format!("event: endpoint\ndata: {endpoint}"))
        .await;
    stream
}

/// Answers the handshake on the stream.
async fn shakes(server: &mut Server, stream: &mut Seen) {
    let init = server.post().await;
    assert_eq!(init.path, "/messages?session=1");
    let hello = server::hello(&init.id());
    init.accepted().await;
    stream
        .event(&format!("event: message\ndata: {hello}"))
        .await;
    let initialized = server.post().await;
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.accepted().await;
}

async fn scene(transport: Transport) -> (Scene, Seen) {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.transport = transport;
    let connecting = spawn(connect(spec));
    if transport == Transport::Auto {
        server.post().await.status(405).await;
    }
    let mut stream = opens(&mut server, "/messages?session=1").await;
    shakes(&mut server, &mut stream).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let scene = Scene {
        server,
        link,
        events,
    };
    (scene, stream)
}

#[tokio::test]
async fn a_server_of_the_first_revision_is_found_and_answers_on_its_stream() {
    for transport in [Transport::Auto, Transport::Sse] {
        let (mut scene, mut stream) = scene(transport).await;
        let call = scene.call();
        let seen = scene.server.post().await;
        assert_eq!(seen.path, "/messages?session=1");
        let answer = result(&seen.id(), "7");
        seen.answer(200, "Content-Type: text/plain\r\n", "Accepted")
            .await;
        stream.event(&format!("data: {CHANGED}")).await;
        stream.event(&format!("data: {answer}")).await;
        assert_eq!(text(call.await.unwrap()), answered("7"));
        let event = soon(scene.events.recv()).await.unwrap();
        assert_eq!(event, LinkEvent::ToolsChanged);
    }
}

#[tokio::test]
async fn the_end_of_the_one_stream_is_the_end_of_the_link() {
    let (mut scene, stream) = scene(Transport::Sse).await;
    let call = scene.call();
    let seen = scene.server.post().await;
    seen.accepted().await;
    drop(stream);
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Lost(Exit::Closed));
    assert_eq!(soon(scene.link.closed()).await, Exit::Closed);
    assert!(!scene.link.is_open());
}

#[tokio::test]
async fn calls_in_flight_end_with_a_server_that_cannot_be_posted_to() {
    let (mut scene, stream) = scene(Transport::Sse).await;
    let call = scene.call();
    let seen = scene.server.post().await;
    let second = scene.call();
    // The connection of the first is busy, so the second needs a new one.
    scene.server.stop().await;
    let mut taken = Vec::new();
    let error = soon(async {
        let mut second = second;
        loop {
            tokio::select! {
                ended = &mut second => break ended.unwrap().unwrap_err(),
                seen = scene.server.post() => {
                    taken.push(seen);
                    second = scene.call();
                }
            }
        }
    })
    .await;
    assert!(matches!(error, LinkError::Unreachable(_)), "{error:?}");
    let error = soon(call).await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Lost(Exit::Gone));
    drop((seen, stream));
}

#[tokio::test]
async fn an_endpoint_on_another_origin_is_refused() {
    let mut other = Server::start().await;
    for endpoint in [format!("{}/m", other.origin), "//tracker.example/m".into()] {
        let mut server = Server::start().await;
        let mut spec = spec(&server);
        spec.transport = Transport::Sse;
        let connecting = spawn(connect(spec));
        let stream = opens(&mut server, &endpoint).await;
        let error = connecting.await.unwrap().unwrap_err();
        assert!(
            matches!(error, ConnectError::BadHandshake { .. }),
            "{error:?}"
        );
        drop(stream);
    }
    assert!(other.is_quiet());
}

#[tokio::test]
async fn only_a_status_that_says_not_here_leads_to_the_first_revision() {
    for status in [401, 403, 418] {
        let mut server = Server::start().await;
        let connecting = spawn(connect(spec(&server)));
        server.post().await.status(status).await;
        let error = connecting.await.unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert!(server.has_no_get());
    }
    // A refusal in the words of the protocol is an answer.
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    let seen = server.post().await;
    let error = r#""error":{"code":-32602,"message":"no"}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":{},{error}}}"#, seen.id());
    seen.answer(400, "Content-Type: application/json\r\n", &body)
        .await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::HandshakeRefused { code: -32602, .. }),
        "{error:?}"
    );
    assert!(server.has_no_get());
}

#[tokio::test]
async fn a_server_that_knows_neither_is_refused_with_what_it_said_first() {
    let mut server = Server::start().await;
    let connecting = spawn(connect(spec(&server)));
    let seen = server.post().await;
    seen.answer(404, "Content-Type: text/plain\r\n", "no such page")
        .await;
    server.get().await.status(405).await;
    let error = connecting.await.unwrap().unwrap_err();
    let ConnectError::Refused { source, .. } = error else {
        panic!("{error:?}");
    };
    assert!(source.to_string().contains("404: no such page"), "{source}");
}
