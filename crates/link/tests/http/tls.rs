//! Servers behind TLS: a real handshake with a certificate that is trusted, and with one that is not.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::certificate::{acceptor, certificate, trusts};
use super::*;

/// Puts TLS in front of a server; returns how to reach it, and what trusts it.
async fn behind_tls(server: &Server) -> (HttpSpec, HyperClient) {
    let (shown, key) = certificate("localhost");
    let (acceptor, tls) = (acceptor(shown.clone(), key), trusts(shown));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = server.origin.trim_start_matches("http://").to_owned();
    spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, plain) = (acceptor.clone(), plain.clone());
            spawn(async move {
                let Ok(mut near) = acceptor.accept(stream).await else {
                    return;
                };
                let mut far = TcpStream::connect(plain).await.unwrap();
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let url = format!("https://localhost:{port}/mcp");
    let spec = HttpSpec {
        url: Endpoint::parse(&url).unwrap(),
        ..spec(server)
    };
    (spec, HyperClient::with_tls(ClientLimits::default(), tls))
}

fn info() -> ClientInfo {
    ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    }
}

#[tokio::test]
async fn a_server_whose_certificate_is_trusted_is_called_over_tls() {
    let mut server = Server::start().await;
    let (spec, client) = behind_tls(&server).await;
    let by = after(Duration::from_secs(20));
    let connecting =
        spawn(async move { http::connect(&spec, Arc::new(client), info(), by, &Tokio).await });
    server.shakes("one").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let calling = spawn(async move { link.request(request("tools/call")).await });
    server.post().await.result(r#"{"over":"tls"}"#).await;
    let answer = calling.await.unwrap().unwrap();
    assert_eq!(answer.body_bytes(), br#"{"over":"tls"}"#);
}

#[tokio::test]
async fn a_server_whose_certificate_is_not_trusted_is_not_spoken_to() {
    let mut server = Server::start().await;
    let (spec, _) = behind_tls(&server).await;
    let by = after(Duration::from_secs(20));
    let refused = http::connect(&spec, client(), info(), by, &Tokio).await;
    assert!(refused.is_err());
    assert!(server.is_quiet());
}
