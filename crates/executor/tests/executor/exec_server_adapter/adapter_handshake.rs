//! Start and end of a connection.

use bowline_executor::{
    ConnectionHandler as _, CredentialSource, ExecServerAdapter, ExecutorService,
    with_exec_server_limits,
};
use bowline_link::websocket::{MessageFormat, WebSocketLimits, WebSocketRole, open_websocket};
use bowline_runtime::SystemClock;
use bowline_testkit::{poll_for, write_bytes};
use std::sync::Arc;

use super::*;

#[tokio::test]
async fn requests_before_handshake_are_refused() {
    let (upstream, served) = served().await;
    let mut client = served.dial(None).await.unwrap();
    let refused = client.refused(&upstream.url, json!({})).await;
    assert_eq!(refused["code"], -32600);
    let answer = client.initialize(Value::Null).await;
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    let refused = client.refused(&upstream.url, json!({})).await;
    assert_eq!(refused["code"], -32600);
    let again = client.initialize(Value::Null).await;
    assert_eq!(again["error"]["code"], -32600);
    client.write(&json!({"method": "initialized"})).await;
    client.send_request(2, &upstream.url, json!({})).await;
    upstream.serve_response(plain("ok")).await;
    assert_eq!(client.read().await["result"]["status"], 200);
}

#[tokio::test]
async fn unreadable_message_keeps_the_connection() {
    let (_upstream, served) = served().await;
    let mut client = served.client().await;
    let many = "0,".repeat(256 * 1024);
    let many = format!(r#"{{"id":1,"method":"x","params":[{many}0]}}"#);
    for text in ["{bad", "[1]", "{}", r#"{"id":null,"method":"x"}"#, &*many] {
        client.send_text(text).await;
        let answer = client.read().await;
        assert_eq!(answer["id"], -1);
        assert_eq!(answer["error"]["code"], -32600);
    }
    let status = json!({"id": "a", "method": "environment/status", "params": {}});
    client.write(&status).await;
    let want = json!({"id": "a", "result": {"status": "ready"}});
    assert_eq!(client.read().await, want);
}

#[tokio::test]
async fn commands_and_files_are_not_offered() {
    let (_upstream, served) = served().await;
    let mut client = served.client().await;
    for method in ["process/start", "process/write", "fs/readFile", "no/such"] {
        let params = json!({"processId": "p", "argv": ["true"], "cwd": "file:///"});
        client
            .write(&json!({"id": 3, "method": method, "params": params}))
            .await;
        let answer = client.read().await;
        assert_eq!(answer["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn unsolicited_response_closes_the_connection() {
    let (_upstream, served) = served().await;
    for message in [
        json!({"method": "no/such", "params": {}}),
        json!({"method": "http/request", "params": {}}),
        json!({"id": 7, "result": {}}),
        json!({"id": 7, "error": {"code": 1, "message": "x"}}),
    ] {
        let mut client = served.client().await;
        client.write(&message).await;
        let ended = client.wait_closed().await;
        assert!(
            matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
            "{message}"
        );
    }
    let mut client = served.dial(None).await.unwrap();
    client.write(&json!({"method": "initialized"})).await;
    let ended = client.wait_closed().await;
    assert!(matches!(ended, DisconnectReason::Closed { code: 4004, .. }));
}

#[tokio::test]
async fn session_attaches_to_one_connection() {
    let (_upstream, served) = served().await;
    let mut first = served.dial(None).await.unwrap();
    let session = first.handshake().await;
    let mut second = served.dial(None).await.unwrap();
    let refused = second.initialize(json!(session)).await;
    assert_eq!(refused["error"]["code"], -32010);
    let refused = second.initialize(json!("unknown")).await;
    assert_eq!(refused["error"]["code"], -32600);
    drop(first);
    // The end of a connection is noticed with a delay.
    let resumed = poll_for("the session is free", async || {
        let answer = second.initialize(json!(session)).await;
        (answer["error"]["code"] != -32010).then_some(answer)
    });
    assert_eq!(resumed.await["result"]["sessionId"], json!(session));
}

#[tokio::test]
async fn binary_messages_are_read_as_text() {
    let (_upstream, served) = served().await;
    let limits = WebSocketLimits {
        format: MessageFormat::Binary,
        ..exec_server_limits()
    };
    let tasks = TaskTracker::default();
    let dialling = dial(&served.endpoint, None, test_deadline(), limits, &tasks);
    let socket = Box::pin(dialling).await.unwrap();
    let mut client = RawClient { socket };
    assert!(!client.handshake().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stalled_handshake_times_out() {
    let offer = with_exec_server_limits(ExecutorOffer::new("office"));
    let limits = offer.limits.socket;
    let tasks = TaskTracker::default();
    let clock = Arc::new(SystemClock::start());
    let servant = ExecutorService::new(offer, tasks.clone(), clock);
    let reference = ExecServerAdapter::new(&servant);
    let (near, far) = tokio::io::duplex(4_096);
    let near = open_websocket(near, WebSocketRole::Server, Bytes::new(), limits, &tasks);
    let socket = open_websocket(far, WebSocketRole::Client, Bytes::new(), limits, &tasks);
    let mut client = RawClient { socket };
    let attending = reference.serve_connection(near);
    let stalling = async {
        client.initialize(Value::Null).await;
        client.wait_closed().await
    };
    let ((), ended) = tokio::join!(attending, stalling);
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}

/// Sends a plain HTTP request; returns the status line.
async fn over_http(served: &AdapterServer, request: &str) -> String {
    let authority = served.endpoint.uri().authority().unwrap().as_str();
    let mut stream = TcpStream::connect(authority).await.unwrap();
    write_bytes(&mut stream, request).await;
    let mut answer = String::new();
    wait_bounded(stream.read_to_string(&mut answer))
        .await
        .unwrap();
    answer.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn browsers_are_refused_and_readyz_answers() {
    let (_upstream, served) = served().await;
    let ready = over_http(&served, "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(ready, "HTTP/1.1 200 OK");
    for origin in ["http://evil.example", ""] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\nconnection: upgrade\r\nupgrade: \
             websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
             dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let refused = over_http(&served, &request).await;
        assert_eq!(refused, "HTTP/1.1 403 Forbidden");
    }
}

#[tokio::test]
async fn missing_token_is_refused() {
    let door = ListenAuth::Token(CredentialSource::from_token("s3cret"));
    let served = AdapterServer::listen_with(door, ExecutorOffer::new("office")).await;
    for token in [None, Some("other")] {
        let refused = served.dial(token).await.err();
        assert_eq!(refused, Some(DialError::Refused { status: 401 }));
    }
    let mut client = served.dial(Some("s3cret")).await.unwrap();
    assert!(!client.handshake().await.is_empty());
}
