//! Over TLS: a real handshake with a certificate that is trusted, and with one that is not.

use bowline_link::websocket::dial_with;

use super::certificate::{acceptor, certificate, trusts};
use super::*;

#[tokio::test]
async fn a_peer_whose_certificate_is_trusted_is_spoken_to_over_tls() {
    let (certificate, key) = certificate("localhost");
    let acceptor = acceptor(certificate.clone(), key);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = Endpoint::parse(&format!("https://localhost:{port}/broker")).unwrap();
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let head = head(&mut stream).await;
        assert!(head.contains("Authorization: Bearer s3cret"));
        let answer = answer_to(&head);
        stream.write_all(answer.as_bytes()).await.unwrap();
        join(stream, Side::Server, Bytes::new(), limits, &spawner)
    };
    let tls = trusts(certificate);
    let token = Some("s3cret");
    let dialling = dial_with(tls, &endpoint, token, soon(), limits, &spawner);
    let (dialled, (server, mut from_client)) = tokio::join!(dialling, serve);
    let (client, mut from_server) = dialled.unwrap();
    for size in [1, 20_000, 300_000] {
        let message = Bytes::from("x".repeat(size));
        client.send(message.clone()).await.unwrap();
        assert_eq!(from_client.next().await.unwrap(), message);
        server.send(message.clone()).await.unwrap();
        assert_eq!(from_server.next().await.unwrap(), message);
    }
    server.close(1001, "shutting down");
    let want = Ended::Closed {
        code: 1001,
        reason: "shutting down".into(),
    };
    assert_eq!(end(&mut from_server).await, want);
    drop((server, from_client, client, from_server));
    spawner.idle().await;
}

#[tokio::test]
async fn a_peer_whose_certificate_is_not_trusted_hears_no_token() {
    let (shown, key) = certificate("localhost");
    let (trusted, _) = certificate("localhost");
    let (other, other_key) = certificate("other.example");
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    for (acceptor, tls) in [
        (acceptor(shown.clone(), key), trusts(trusted)),
        (acceptor(other.clone(), other_key), trusts(other)),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = Endpoint::parse(&format!("https://localhost:{port}/broker")).unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err());
        };
        let token = Some("s3cret");
        let dialling = dial_with(tls, &endpoint, token, soon(), limits, &spawner);
        let (dialled, ()) = tokio::join!(dialling, serve);
        assert!(matches!(dialled, Err(DialError::Tls(_))), "{dialled:?}");
    }
}

#[tokio::test]
async fn a_peer_that_speaks_no_tls_is_refused() {
    let (listener, endpoint) = listen().await;
    let endpoint = endpoint.to_string().replace("http:", "https:");
    let endpoint = Endpoint::parse(&endpoint).unwrap();
    let spawner = Tokio::default();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 What\r\n\r\n").await;
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
    };
    let limits = SocketLimits::default();
    let dialling = dial(&endpoint, Some("t"), soon(), limits, &spawner);
    let (dialled, ()) = tokio::join!(dialling, serve);
    assert!(matches!(dialled, Err(DialError::Tls(_))), "{dialled:?}");
}
