//! Dialling: the upgrade request, and every connect failure.

use bowline_testkit::deadline_after;

use super::*;

#[tokio::test]
async fn upgrade_sends_token_and_reports_status() {
    let (listener, endpoint) = listen_on_free_port().await;
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let (dialled, (head, _stream)) = tokio::join!(
        dial(
            &endpoint,
            Some("s3cret\n"),
            test_deadline(),
            limits,
            &spawner
        ),
        accept_client(&listener)
    );
    drop(dialled.unwrap());
    assert!(head.starts_with("GET /broker HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nAuthorization: Bearer s3cret\r\n"),
        "{head}"
    );
    for status in [401, 404, 200, 101] {
        let refuse = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let dialling = dial(&endpoint, None, test_deadline(), limits, &spawner);
        let (dialled, ()) = tokio::join!(dialling, refuse);
        assert_eq!(dialled.err(), Some(DialError::Refused { status }));
    }
}

#[tokio::test]
async fn wrong_accept_key_is_refused() {
    let (listener, endpoint) = listen_on_free_port().await;
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let other = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let good = upgrade_response(other);
    assert!(good.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{good}");
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(good.as_bytes()).await.unwrap();
    };
    let dialling = dial(&endpoint, None, test_deadline(), limits, &spawner);
    let (dialled, ()) = tokio::join!(dialling, answer);
    assert_eq!(dialled.err(), Some(DialError::Refused { status: 101 }));
}

#[tokio::test]
async fn invalid_token_is_not_sent() {
    let (_listener, endpoint) = listen_on_free_port().await;
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let evil = "a\r\nX-Role: owner";
    let dialled = dial(&endpoint, Some(evil), test_deadline(), limits, &spawner).await;
    assert_eq!(dialled.err(), Some(DialError::Token));
}

#[tokio::test]
async fn bytes_after_response_are_kept() {
    let (listener, endpoint) = listen_on_free_port().await;
    let spawner = JoiningSpawner::default();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut answer = upgrade_response(&read_head(&mut stream).await).into_bytes();
        answer.extend(encode_frame(TEXT, None, b"first"));
        answer.extend(encode_frame(TEXT, None, b"second"));
        stream.write_all(&answer).await.unwrap();
        stream
    };
    let limits = WebSocketLimits::default();
    let (dialled, _stream) = tokio::join!(
        dial(&endpoint, None, test_deadline(), limits, &spawner),
        answer
    );
    let mut socket = dialled.unwrap();
    assert_eq!(socket.receiver.next().await.unwrap(), "first");
    assert_eq!(socket.receiver.next().await.unwrap(), "second");
}

#[tokio::test]
async fn missing_or_endless_response_is_given_up() {
    let (listener, endpoint) = listen_on_free_port().await;
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let brief = deadline_after(Duration::from_millis(100));
    let dialled = dial(&endpoint, None, brief, limits, &spawner).await;
    assert_eq!(dialled.err(), Some(DialError::Timeout));
    let (first, _) = listener.accept().await.unwrap();
    drop(first);
    let endless = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 101 Yes\r\n").await;
        while stream.write_all(b"X-More: and more\r\n").await.is_ok() {}
    };
    let (dialled, ()) = tokio::join!(
        dial(&endpoint, None, test_deadline(), limits, &spawner),
        endless
    );
    assert!(matches!(dialled, Err(DialError::Unreachable(_))));
    let vanished = async { drop(listener.accept().await.unwrap()) };
    let (dialled, ()) = tokio::join!(
        dial(&endpoint, None, test_deadline(), limits, &spawner),
        vanished
    );
    assert!(matches!(dialled, Err(DialError::Unreachable(_))));
    drop(listener);
    let dialled = dial(&endpoint, None, test_deadline(), limits, &spawner).await;
    assert!(matches!(dialled, Err(DialError::Unreachable(_))));
}
