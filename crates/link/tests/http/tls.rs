//! Servers behind TLS: a real handshake with a certificate that is trusted, and with one that is not.

use ::http::Method;
use ::http::header::AUTHORIZATION;
use bowline_core::error::Execution;
use bowline_link::http::client::{HttpError, Outgoing, Wait};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::certificate::{acceptor, certificate, certificate_between, trusts};
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

/// A certificate and its key.
struct Made(CertificateDer<'static>, PrivateKeyDer<'static>);

impl Made {
    fn new(name: &str) -> Self {
        let (shown, key) = certificate(name);
        Self(shown, key)
    }

    fn between(name: &str, from: i32, to: i32) -> Self {
        let (shown, key) = certificate_between(name, from, to);
        Self(shown, key)
    }

    fn shown(&self) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        (self.0.clone(), self.1.clone_key())
    }

    fn trusts(&self) -> ClientConfig {
        trusts(self.0.clone())
    }
}

/// Trusts what has nothing to do with this test.
fn web_only() -> ClientConfig {
    Made::new("root.example").trusts()
}

/// Tries to speak to a server that shows this certificate, as one that trusts these; returns the
/// reason why not.
async fn refused(
    (shown, key): (CertificateDer<'static>, PrivateKeyDer<'static>),
    trusted: ClientConfig,
) -> Arc<str> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = acceptor(shown, key);
    let serving = spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        if let Ok(mut tls) = acceptor.accept(stream).await {
            let _ = tls.read_to_end(&mut heard).await;
        }
        heard
    });
    let client = HyperClient::with_tls(ClientLimits::default(), trusted);
    let to = Endpoint::parse(&format!("https://localhost:{port}/mcp")).unwrap();
    let mut request = Outgoing::new(Method::POST, &to);
    request
        .headers
        .push((AUTHORIZATION, HeaderValue::from_static("Bearer s3cret")));
    let wait = Wait {
        connect: None,
        first_byte: None,
        leaving: &|| panic!("nothing may leave"),
    };
    let error = soon(client.send(request, wait)).await.unwrap_err();
    assert_eq!(error.execution(), Execution::NotStarted);
    let HttpError::Unreachable(reason) = error else {
        panic!("{error:?}");
    };
    assert_eq!(soon(serving).await.unwrap(), b"", "it heard something");
    reason
}

#[tokio::test]
async fn sec_24_a_certificate_that_is_not_right_ends_it_before_a_byte_is_said() {
    let good = Made::new("localhost");
    let nobody = web_only();
    // Made by itself, and by somebody else under the same name.
    refused(good.shown(), nobody).await;
    refused(Made::new("localhost").shown(), good.trusts()).await;
    // Another name, also one that only begins alike.
    for name in [
        "other.example",
        "localhost.example",
        "*.localhost",
        "127.0.0.1",
    ] {
        let other = Made::new(name);
        let reason = refused(other.shown(), other.trusts()).await;
        assert!(reason.contains("not valid for name"), "{name}: {reason}");
    }
    // At another time.
    for (from, to, word) in [(2000, 2001, "expired"), (4000, 4001, "not valid yet")] {
        let other = Made::between("localhost", from, to);
        let reason = refused(other.shown(), other.trusts()).await;
        assert!(reason.contains(word), "{reason}");
    }
}
