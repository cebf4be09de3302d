//! Requests to an exec-server, and mapped refusals.

use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_executor::frames::SecretHeader;
use bowline_link::http::http_client::RequestBody;
use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE};

use super::*;

#[tokio::test]
async fn request_is_sent_completely() {
    let (client, mut peer) = connect_pair().await;
    let to = test_endpoint();
    let mut request = Request::new(Method::POST, &to);
    let lines = request.shared_headers.to_mut();
    lines.push(&ACCEPT, &HeaderValue::from_static("a"));
    lines.push(&ACCEPT, &HeaderValue::from_static("b: c"));
    let json_type = HeaderValue::from_static("application/json");
    request.headers.push((CONTENT_TYPE, json_type));
    request.body = RequestBody::Whole(b"\x00\xffbody");
    let fills = [SecretHeader {
        header: "authorization".into(),
        before: "Bearer ".into(),
        secret: "TRACKER".into(),
        after: "".into(),
    }];
    let errand = ExecutorRequest {
        server: "tracker",
        request,
        secret_headers: &fills,
    };
    let scripting = async {
        let asked = peer.receive_request().await;
        let want = json!({
            "method": "POST", "url": "https://tracker.example/mcp?a=1",
            "headers": [
                {"name": "accept", "value": "a"},
                {"name": "accept", "value": "b: c"},
                {"name": "content-type", "value": "application/json"},
                {"name": "authorization", "value": "Bearer ", "valueEnvVar": "TRACKER"},
            ],
            "bodyBase64": STANDARD.encode(b"\x00\xffbody"),
            "redirectPolicy": "stop", "requestId": "http-1", "streamResponse": true,
        });
        assert_eq!(asked.params, want);
        peer.send_head(&asked).await;
    };
    let (response, ()) = tokio::join!(client.send_request(errand, send_options()), scripting);
    let response = response.unwrap();
    let lines = response.headers.lines();
    assert_eq!(lines, b"x-a: 1\r\nx-a: 2\r\n");
    assert_eq!(client.traffic().sent_bytes, 6);
}

/// Returns the mapped error of a refusal.
async fn refusal_error(error: Value) -> HttpError {
    let (client, mut peer) = connect_pair().await;
    let scripting = async {
        let asked = peer.receive_request().await;
        peer.write_message(&json!({"id": asked.id, "error": error}))
            .await;
    };
    let (response, ()) = tokio::join!(send_streamed(&client), scripting);
    assert_eq!(client.traffic().streams, 0);
    assert_stream_works(&client, &mut peer, "http-2").await;
    response.unwrap_err()
}

#[tokio::test]
async fn refusal_reports_sent_state_only_if_certain() {
    let told = refusal_error(json!({"code": -32602, "message": "no such variable"})).await;
    let HttpError::RemoteFailure(failure) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(failure.execution, ExecutionStatus::NotStarted);
    assert_eq!(&*failure.code, "executor_refused");
    // The same code means both an unsent and a lost request.
    let text = "http/request failed: error sending request";
    let told = refusal_error(json!({"code": -32603, "message": text})).await;
    assert_eq!(told.execution(), ExecutionStatus::Unknown);
    // Typed faults tell more.
    let fault = json!({"code": "unreachable", "execution": "not_started", "reason": "refused"});
    let told = refusal_error(json!({"code": -32603, "message": text, "data": fault})).await;
    assert_eq!(told, HttpError::Unreachable("refused".into()));
    let fault = json!({"code": "denied", "execution": "not_started", "reason": "not allowed"});
    let told = refusal_error(json!({"code": -32602, "message": text, "data": fault})).await;
    let HttpError::RemoteFailure(failure) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(failure.class, FailureClass::Denied);
    assert_eq!(&*failure.code, "egress_denied");
}

#[tokio::test]
async fn unsupported_request_is_refused_unsent() {
    let (client, mut peer) = connect_pair().await;
    let to = test_endpoint();
    let fills = [SecretHeader {
        header: "x".into(),
        before: "".into(),
        secret: "S".into(),
        after: "behind".into(),
    }];
    let with_fill = ExecutorRequest {
        secret_headers: &fills,
        ..executor_request(&to)
    };
    let mut with_bytes = executor_request(&to);
    let bytes = HeaderValue::from_bytes(b"\xff").unwrap();
    with_bytes.request.headers.push((ACCEPT, bytes));
    let large = vec![0; 8 * 1024 * 1024 + 1];
    let mut with_large = executor_request(&to);
    with_large.request.body = RequestBody::Whole(&large);
    for errand in [with_fill, with_bytes, with_large] {
        let refused = client
            .send_request(errand, send_options())
            .await
            .unwrap_err();
        assert!(matches!(refused, HttpError::Invalid(_)), "{refused:?}");
    }
    let carried = client.traffic().opened;
    assert_stream_works(&client, &mut peer, &format!("http-{}", carried + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn late_head_times_out_and_drops_stream() {
    let (near, far) = tokio::io::duplex(64 * 1_024);
    let limits = exec_server_limits();
    let join = |stream, side| {
        websocket::open_websocket(stream, side, Bytes::new(), limits, &DetachedSpawner)
    };
    let near = join(near, websocket::WebSocketRole::Client);
    let socket = join(far, websocket::WebSocketRole::Server);
    let mut peer = ScriptedExecServer { socket };
    let opening = ExecServerConnection::open(near, "bowline", None, &DetachedSpawner);
    let (client, ()) = tokio::join!(opening, peer.complete_handshake());
    let client = client.unwrap();
    let answered = send_streamed(&client).await.unwrap_err();
    assert_eq!(answered, HttpError::FirstByteTimeout);
    assert_eq!(client.traffic().streams, 0);
}

#[tokio::test]
async fn binary_messages_are_read_as_text() {
    let (listener, endpoint) = listen_on_free_port().await;
    let opening = async {
        let socket = dial_endpoint(&endpoint).await;
        ExecServerConnection::open(socket, "bowline", None, &DetachedSpawner)
            .await
            .unwrap()
    };
    let scripting = async {
        let (stream, _) = listener.accept().await.unwrap();
        let caller = accept_upgrade(stream, test_deadline()).await.unwrap();
        let limits = websocket::WebSocketLimits {
            format: websocket::MessageFormat::Binary,
            ..exec_server_limits()
        };
        let socket = caller.upgrade(limits, &DetachedSpawner).await.unwrap();
        let mut peer = ScriptedExecServer { socket };
        peer.complete_handshake().await;
        peer
    };
    let (client, mut peer) = wait_bounded(async { tokio::join!(opening, scripting) }).await;
    assert_stream_works(&client, &mut peer, "http-1").await;
}
