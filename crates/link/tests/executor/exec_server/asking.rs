//! What is asked for, and what is made of a refusal.

use bowline_core::error::{Class, Execution};
use bowline_link::http::client::Upload;
use bowline_wire::executor::Fill;
use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE};

use super::*;

#[tokio::test]
async fn a_request_is_asked_for_with_all_that_it_has() {
    let (client, mut peer) = connected().await;
    let to = there();
    let mut request = Request::new(Method::POST, &to);
    let lines = request.lines.to_mut();
    lines.push(&ACCEPT, &HeaderValue::from_static("a"));
    lines.push(&ACCEPT, &HeaderValue::from_static("b: c"));
    let json_type = HeaderValue::from_static("application/json");
    request.headers.push((CONTENT_TYPE, json_type));
    request.body = Upload::Whole(b"\x00\xffbody");
    let fills = [Fill {
        header: "authorization".into(),
        before: "Bearer ".into(),
        secret: "TRACKER".into(),
        after: "".into(),
    }];
    let errand = Errand {
        server: "tracker",
        request,
        fills: &fills,
    };
    let scripting = async {
        let asked = peer.asked().await;
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
        peer.head(&asked).await;
    };
    let (response, ()) = tokio::join!(client.carry(errand, wait()), scripting);
    let response = response.unwrap();
    let lines = response.headers.lines();
    assert_eq!(lines, b"x-a: 1\r\nx-a: 2\r\n");
    assert_eq!(client.carried().sent_bytes, 6);
}

/// What is made of a refusal.
async fn refused(error: Value) -> HttpError {
    let (client, mut peer) = connected().await;
    let scripting = async {
        let asked = peer.asked().await;
        peer.write(&json!({"id": asked.id, "error": error})).await;
    };
    let (response, ()) = tokio::join!(carry(&client), scripting);
    assert_eq!(client.carried().streams, 0);
    works(&client, &mut peer, "http-2").await;
    response.unwrap_err()
}

#[tokio::test]
async fn a_refusal_tells_whether_the_request_left_only_where_that_is_certain() {
    let told = refused(json!({"code": -32602, "message": "no such variable"})).await;
    let HttpError::Elsewhere(failure) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(failure.execution, Execution::NotStarted);
    assert_eq!(&*failure.code, "executor_refused");
    // The same code for a request that did not leave and for one that was lost.
    let text = "http/request failed: error sending request";
    let told = refused(json!({"code": -32603, "message": text})).await;
    assert_eq!(told.execution(), Execution::Unknown);
    // Ours say more.
    let fault = json!({"code": "unreachable", "execution": "not_started", "reason": "refused"});
    let told = refused(json!({"code": -32603, "message": text, "data": fault})).await;
    assert_eq!(told, HttpError::Unreachable("refused".into()));
    let fault = json!({"code": "denied", "execution": "not_started", "reason": "not allowed"});
    let told = refused(json!({"code": -32602, "message": text, "data": fault})).await;
    let HttpError::Elsewhere(failure) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(failure.class, Class::Denied);
    assert_eq!(&*failure.code, "egress_denied");
}

#[tokio::test]
async fn what_this_wire_cannot_carry_is_refused_unsent() {
    let (client, mut peer) = connected().await;
    let to = there();
    let fills = [Fill {
        header: "x".into(),
        before: "".into(),
        secret: "S".into(),
        after: "behind".into(),
    }];
    let with_fill = Errand {
        fills: &fills,
        ..errand(&to)
    };
    let mut with_bytes = errand(&to);
    let bytes = HeaderValue::from_bytes(b"\xff").unwrap();
    with_bytes.request.headers.push((ACCEPT, bytes));
    let large = vec![0; 8 * 1024 * 1024 + 1];
    let mut with_large = errand(&to);
    with_large.request.body = Upload::Whole(&large);
    for errand in [with_fill, with_bytes, with_large] {
        let refused = client.carry(errand, wait()).await.unwrap_err();
        assert!(matches!(refused, HttpError::Invalid(_)), "{refused:?}");
    }
    let carried = client.carried().opened;
    works(&client, &mut peer, &format!("http-{}", carried + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_in_time_is_told_and_its_stream_forgotten() {
    let (near, far) = tokio::io::duplex(64 * 1_024);
    let limits = exec_server_limits();
    let join = |stream, side| websocket::join(stream, side, Bytes::new(), limits, &Tokio);
    let io = join(near, websocket::Side::Client);
    let (outgoing, incoming) = join(far, websocket::Side::Server);
    let mut peer = Peer { outgoing, incoming };
    let opening = ExecServer::open(io, "bowline", None, &Tokio);
    let (client, ()) = tokio::join!(opening, peer.shake());
    let client = client.unwrap();
    let answered = carry(&client).await.unwrap_err();
    assert_eq!(answered, HttpError::FirstByteTimeout);
    assert_eq!(client.carried().streams, 0);
}

#[tokio::test]
async fn messages_that_are_bytes_are_read_as_text() {
    let (listener, endpoint) = listening().await;
    let opening = async {
        let io = dialled(&endpoint).await;
        ExecServer::open(io, "bowline", None, &Tokio).await.unwrap()
    };
    let scripting = async {
        let (stream, _) = listener.accept().await.unwrap();
        let caller = accept(stream, soon()).await.unwrap();
        let limits = websocket::SocketLimits {
            form: websocket::Form::Binary,
            ..exec_server_limits()
        };
        let (outgoing, incoming) = caller.upgrade(limits, &Tokio).await.unwrap();
        let mut peer = Peer { outgoing, incoming };
        peer.shake().await;
        peer
    };
    let (client, mut peer) = in_time(async { tokio::join!(opening, scripting) }).await;
    works(&client, &mut peer, "http-1").await;
}
