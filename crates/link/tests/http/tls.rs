//! HTTP over TLS, with trusted and untrusted certificates.

use ::http::Method;
use ::http::header::AUTHORIZATION;
use bowline_core::error::ExecutionStatus;
use bowline_link::http::http_client::{HttpError, HttpRequest, SendOptions};
use bowline_testkit::wait_bounded;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::certificate::{
    certificate_valid_between, client_trusting, test_certificate, tls_acceptor,
};
use super::*;

/// Puts TLS in front of a server; returns the configuration and a trusting client.
async fn serve_behind_tls(server: &ScriptedServer) -> (HttpSpec, Http1Client) {
    let (shown, key) = test_certificate("localhost");
    let (acceptor, tls) = (tls_acceptor(shown.clone(), key), client_trusting(shown));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = server.origin.trim_start_matches("http://").to_owned();
    spawn_task(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, plain) = (acceptor.clone(), plain.clone());
            spawn_task(async move {
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
        url: HttpEndpoint::parse(&url).unwrap(),
        ..http_spec(server)
    };
    (
        spec,
        Http1Client::with_tls(HttpClientLimits::default(), tls),
    )
}

fn client_info() -> ClientInfo {
    ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    }
}

#[tokio::test]
async fn trusted_certificate_is_called_over_tls() {
    let mut server = ScriptedServer::start().await;
    let (spec, client) = serve_behind_tls(&server).await;
    let by = test_deadline();
    let connecting = spawn_task(async move {
        http::connect(&spec, Arc::new(client), client_info(), by, &DetachedSpawner).await
    });
    server.complete_handshake("one").await;
    let (link, _events) = connecting.await.unwrap().unwrap();
    let calling = spawn_task(async move { link.request(test_request("tools/call")).await });
    server
        .next_post()
        .await
        .respond_result(r#"{"over":"tls"}"#)
        .await;
    let answer = calling.await.unwrap().unwrap();
    assert_eq!(answer.body_bytes(), br#"{"over":"tls"}"#);
}

#[tokio::test]
async fn untrusted_certificate_is_refused() {
    let mut server = ScriptedServer::start().await;
    let (spec, _) = serve_behind_tls(&server).await;
    let by = test_deadline();
    let refused = http::connect(&spec, http_client(), client_info(), by, &DetachedSpawner).await;
    assert!(refused.is_err());
    assert!(server.has_no_post());
}

/// A certificate and its key.
struct TestCertificate(CertificateDer<'static>, PrivateKeyDer<'static>);

impl TestCertificate {
    fn new(name: &str) -> Self {
        let (shown, key) = test_certificate(name);
        Self(shown, key)
    }

    fn valid_between(name: &str, from: i32, to: i32) -> Self {
        let (shown, key) = certificate_valid_between(name, from, to);
        Self(shown, key)
    }

    fn client_trusting(&self) -> ClientConfig {
        client_trusting(self.0.clone())
    }
}

/// Returns a configuration with unrelated trust roots.
fn web_roots_only() -> ClientConfig {
    TestCertificate::new("root.example").client_trusting()
}

/// Connects to a server with this certificate and the given trust; returns the refusal reason.
async fn refusal_reason(shown: &TestCertificate, trusted: ClientConfig) -> Arc<str> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = tls_acceptor(shown.0.clone(), shown.1.clone_key());
    let serving = spawn_task(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        if let Ok(mut tls) = acceptor.accept(stream).await {
            let _ = tls.read_to_end(&mut heard).await;
        }
        heard
    });
    let client = Http1Client::with_tls(HttpClientLimits::default(), trusted);
    let to = HttpEndpoint::parse(&format!("https://localhost:{port}/mcp")).unwrap();
    let mut request = HttpRequest::new(Method::POST, &to);
    request
        .headers
        .push((AUTHORIZATION, HeaderValue::from_static("Bearer s3cret")));
    let wait = SendOptions {
        connect_by: None,
        first_byte_by: None,
        on_send: &|| panic!("nothing may leave"),
    };
    let error = wait_bounded(client.send(request, wait)).await.unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    let HttpError::Unreachable(reason) = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        wait_bounded(serving).await.unwrap(),
        b"",
        "it heard something"
    );
    reason
}

#[tokio::test]
async fn sec_24_invalid_certificate_sends_no_byte() {
    let good = TestCertificate::new("localhost");
    let nobody = web_roots_only();
    // Self-signed, and issued by a stranger under the same name.
    refusal_reason(&good, nobody).await;
    refusal_reason(&TestCertificate::new("localhost"), good.client_trusting()).await;
    // A different name, also with a common prefix.
    for name in [
        "other.example",
        "localhost.example",
        "*.localhost",
        "127.0.0.1",
    ] {
        let other = TestCertificate::new(name);
        let reason = refusal_reason(&other, other.client_trusting()).await;
        assert!(reason.contains("not valid for name"), "{name}: {reason}");
    }
    // Outside the validity period.
    for (from, to, word) in [(2000, 2001, "expired"), (4000, 4001, "not valid yet")] {
        let other = TestCertificate::valid_between("localhost", from, to);
        let reason = refusal_reason(&other, other.client_trusting()).await;
        assert!(reason.contains(word), "{reason}");
    }
}
