//! HTTP+SSE transport, and its detection.

use bowline_link::LinkExit;
use bowline_testkit::wait_bounded;

use super::*;
use crate::scripted_server::{SeenRequest, result_body};

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// Sends the `endpoint` event.
async fn send_endpoint_event(server: &mut ScriptedServer, endpoint: &str) -> SeenRequest {
    let mut stream = server.next_get().await;
    assert_eq!(stream.header("accept"), Some("text/event-stream"));
    stream.start_stream().await;
    stream
        .write_event(&format!("event: endpoint\ndata: {endpoint}"))
        .await;
    stream
}

/// Answers the handshake on the stream.
async fn complete_handshake(server: &mut ScriptedServer, stream: &mut SeenRequest) {
    let init = server.next_post().await;
    assert_eq!(init.path, "/messages?session=1");
    let hello = scripted_server::initialize_result(&init.id());
    init.respond_accepted().await;
    stream
        .write_event(&format!("event: message\ndata: {hello}"))
        .await;
    let initialized = server.next_post().await;
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.respond_accepted().await;
}

async fn sse_scene(transport: HttpTransport) -> (HttpScene, SeenRequest) {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.transport = transport;
    let connecting = spawn_task(connect(spec));
    if transport == HttpTransport::Auto {
        server.next_post().await.respond_status(405).await;
    }
    let mut stream = send_endpoint_event(&mut server, "/messages?session=1").await;
    complete_handshake(&mut server, &mut stream).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let scene = HttpScene {
        server,
        link,
        events,
    };
    (scene, stream)
}

#[tokio::test]
async fn http_sse_server_is_detected() {
    for transport in [HttpTransport::Auto, HttpTransport::Sse] {
        let (mut scene, mut stream) = sse_scene(transport).await;
        let call = scene.start_call();
        let seen = scene.server.next_post().await;
        assert_eq!(seen.path, "/messages?session=1");
        let answer = result_body(&seen.id(), "7");
        seen.respond(200, "Content-Type: text/plain\r\n", "Accepted")
            .await;
        stream.write_event(&format!("data: {CHANGED}")).await;
        stream.write_event(&format!("data: {answer}")).await;
        assert_eq!(response_text(call.await.unwrap()), result_text("7"));
        let event = wait_bounded(scene.events.recv()).await.unwrap();
        assert_eq!(event, LinkEvent::ToolsChanged);
    }
}

#[tokio::test]
async fn end_of_sse_stream_ends_link() {
    let (mut scene, stream) = sse_scene(HttpTransport::Sse).await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    seen.respond_accepted().await;
    drop(stream);
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Lost(LinkExit::Closed));
    assert_eq!(
        wait_bounded(scene.link.wait_closed()).await,
        LinkExit::Closed
    );
    assert!(!scene.link.is_open());
}

#[tokio::test]
async fn calls_end_when_posting_fails() {
    let (mut scene, stream) = sse_scene(HttpTransport::Sse).await;
    let call = scene.start_call();
    let seen = scene.server.next_post().await;
    let second = scene.start_call();
    // The first connection is busy, so the second call dials.
    scene.server.stop().await;
    let mut taken = Vec::new();
    let error = wait_bounded(async {
        let mut second = second;
        loop {
            tokio::select! {
                ended = &mut second => break ended.unwrap().unwrap_err(),
                seen = scene.server.next_post() => {
                    taken.push(seen);
                    second = scene.start_call();
                }
            }
        }
    })
    .await;
    assert!(matches!(error, LinkError::Unreachable(_)), "{error:?}");
    let error = wait_bounded(call).await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Lost(LinkExit::Gone));
    drop((seen, stream));
}

#[tokio::test]
async fn endpoint_on_foreign_origin_is_refused() {
    let mut other = ScriptedServer::start().await;
    for endpoint in [format!("{}/m", other.origin), "//tracker.example/m".into()] {
        let mut server = ScriptedServer::start().await;
        let mut spec = http_spec(&server);
        spec.transport = HttpTransport::Sse;
        let connecting = spawn_task(connect(spec));
        let stream = send_endpoint_event(&mut server, &endpoint).await;
        let error = connecting.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkConnectError::BadHandshake { .. }),
            "{error:?}"
        );
        drop(stream);
    }
    assert!(other.has_no_post());
}

#[tokio::test]
async fn only_missing_endpoint_falls_back_to_sse() {
    for status in [401, 403, 418] {
        let mut server = ScriptedServer::start().await;
        let connecting = spawn_task(connect(http_spec(&server)));
        server.next_post().await.respond_status(status).await;
        let error = connecting.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkConnectError::Refused { .. }),
            "{error:?}"
        );
        assert!(server.has_no_get());
    }
    // A JSON-RPC error is a response.
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    let seen = server.next_post().await;
    let error = r#""error":{"code":-32602,"message":"no"}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":{},{error}}}"#, seen.id());
    seen.respond(400, "Content-Type: application/json\r\n", &body)
        .await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            LinkConnectError::HandshakeRefused { code: -32602, .. }
        ),
        "{error:?}"
    );
    assert!(server.has_no_get());
}

#[tokio::test]
async fn unknown_transport_reports_first_error() {
    let mut server = ScriptedServer::start().await;
    let connecting = spawn_task(connect(http_spec(&server)));
    let seen = server.next_post().await;
    seen.respond(404, "Content-Type: text/plain\r\n", "no such page")
        .await;
    server.next_get().await.respond_status(405).await;
    let error = connecting.await.unwrap().unwrap_err();
    let LinkConnectError::Refused { source, .. } = error else {
        panic!("{error:?}");
    };
    assert!(source.to_string().contains("404: no such page"), "{source}");
}
