//! WebSocket over TLS, with trusted and untrusted certificates.

use bowline_link::websocket::dial_with_tls;

use super::certificate::{client_trusting, test_certificate, tls_acceptor};
use super::*;

#[tokio::test]
async fn trusted_certificate_connects_over_tls() {
    let (certificate, key) = test_certificate("localhost");
    let acceptor = tls_acceptor(certificate.clone(), key);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = HttpEndpoint::parse(&format!("https://localhost:{port}/broker")).unwrap();
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.contains("Authorization: Bearer s3cret"));
        let answer = upgrade_response(&head);
        stream.write_all(answer.as_bytes()).await.unwrap();
        open_websocket(
            stream,
            WebSocketRole::Server,
            Bytes::new(),
            limits,
            &spawner,
        )
    };
    let tls = client_trusting(certificate);
    let token = Some("s3cret");
    let dialling = dial_with_tls(tls, &endpoint, token, test_deadline(), limits, &spawner);
    let (dialled, mut server) = tokio::join!(dialling, serve);
    let mut client = dialled.unwrap();
    for size in [1, 20_000, 300_000] {
        let message = Bytes::from("x".repeat(size));
        client.sender.send(message.clone()).await.unwrap();
        assert_eq!(server.receiver.next().await.unwrap(), message);
        server.sender.send(message.clone()).await.unwrap();
        assert_eq!(client.receiver.next().await.unwrap(), message);
    }
    server.sender.close(1001, "shutting down");
    let want = DisconnectReason::Closed {
        code: 1001,
        reason: "shutting down".into(),
    };
    assert_eq!(wait_end(&mut client.receiver).await, want);
    drop((server, client));
    spawner.wait_idle().await;
}

#[tokio::test]
async fn untrusted_peer_gets_no_token() {
    let (shown, key) = test_certificate("localhost");
    let (trusted, _) = test_certificate("localhost");
    let (other, other_key) = test_certificate("other.example");
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits::default();
    for (acceptor, tls) in [
        (tls_acceptor(shown.clone(), key), client_trusting(trusted)),
        (
            tls_acceptor(other.clone(), other_key),
            client_trusting(other),
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = HttpEndpoint::parse(&format!("https://localhost:{port}/broker")).unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err());
        };
        let token = Some("s3cret");
        let dialling = dial_with_tls(tls, &endpoint, token, test_deadline(), limits, &spawner);
        let (dialled, ()) = tokio::join!(dialling, serve);
        assert!(matches!(dialled, Err(DialError::Tls(_))), "{dialled:?}");
    }
}

#[tokio::test]
async fn plain_peer_is_refused_over_tls() {
    let (listener, endpoint) = listen_on_free_port().await;
    let endpoint = endpoint.to_string().replace("http:", "https:");
    let endpoint = HttpEndpoint::parse(&endpoint).unwrap();
    let spawner = JoiningSpawner::default();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 What\r\n\r\n").await;
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
    };
    let limits = WebSocketLimits::default();
    let dialling = dial(&endpoint, Some("t"), test_deadline(), limits, &spawner);
    let (dialled, ()) = tokio::join!(dialling, serve);
    assert!(matches!(dialled, Err(DialError::Tls(_))), "{dialled:?}");
}
