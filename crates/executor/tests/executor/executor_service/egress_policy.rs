//! Allowed destinations, and secrets in headers.

use std::sync::{Arc, Mutex};

use bowline_core::egress::EgressRule;
use bowline_core::error::ExecutionStatus;
use bowline_executor::frames::{ExecutorFrame, RequestHead, SecretHeader, StreamFaultCode};
use bowline_executor::{ExecutorOffer, ExecutorSecrets, SecretError};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_testkit::{RawUpstream, read_head, write_bytes};

use super::service_rig::*;

#[tokio::test]
async fn denied_destinations_are_refused_uniformly() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(ExecutorOffer::new("office")).await;
    let port = upstream.listener.local_addr().unwrap().port();
    let mut reasons = Vec::new();
    let urls = [
        upstream.url.clone(),
        format!("http://localhost:{port}/"),
        format!("http://127.1:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://no-such-name.invalid/".to_owned(),
        // No listener there.
        "http://127.0.0.1:1/".to_owned(),
    ];
    for (number, url) in (1..).zip(&urls) {
        gateway.send_request(number, get(url)).await;
        let fault = gateway.next_fault(number).await;
        assert_eq!(fault.code, StreamFaultCode::Denied, "{url}");
        assert_eq!(fault.execution, ExecutionStatus::NotStarted, "{url}");
        reasons.push(fault.reason);
    }
    reasons.dedup();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    upstream.assert_unused().await;
}

#[tokio::test]
async fn egress_rules_and_connections_are_per_server() {
    let upstream = RawUpstream::start().await;
    let mut offer = offer_for(&upstream);
    let rules = std::mem::take(&mut offer.egress.all);
    offer.egress.servers = [("a", &rules), ("b", &rules)]
        .map(|(name, rules)| (name.into(), rules.clone()))
        .into();
    let mut gateway = ScriptedGateway::new(offer).await;
    let of = |server: &str| RequestHead {
        server: server.into(),
        ..get(&upstream.url)
    };
    gateway.send_request(1, of("c")).await;
    assert_eq!(gateway.next_fault(1).await.code, StreamFaultCode::Denied);
    gateway.send_request(2, of("a")).await;
    let (mut first, _) = upstream.accept_request().await;
    write_bytes(&mut first, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(2).await, 204);
    gateway.read_body(2).await;
    // One server's connection is reusable, and the other server does not use it.
    gateway.send_request(3, of("b")).await;
    let (mut second, _) = upstream.accept_request().await;
    write_bytes(&mut second, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(3).await, 204);
    gateway.read_body(3).await;
    gateway.send_request(4, of("a")).await;
    read_head(&mut first).await;
    write_bytes(&mut first, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(4).await, 204);
}

/// A changing secret, for one port.
#[derive(Debug)]
struct RotatingSecret {
    value: Mutex<String>,
    port: u16,
}

impl ExecutorSecrets for RotatingSecret {
    fn names(&self) -> Vec<Arc<str>> {
        vec!["token".into()]
    }

    fn read(&self, name: &str, to: &HttpEndpoint) -> Result<String, SecretError> {
        match (name, to.uri().port_u16()) {
            ("token", Some(port)) if port == self.port => Ok(self.value.lock().unwrap().clone()),
            ("token", _) => Err(SecretError::NotForAddress),
            _ => Err(SecretError::Unknown),
        }
    }
}

fn request_with_secret(url: &str, secret: &str) -> RequestHead {
    let fill = SecretHeader {
        header: "Authorization".into(),
        before: "Bearer ".into(),
        secret: secret.into(),
        after: "!".into(),
    };
    RequestHead {
        secret_headers: vec![fill],
        ..get(url)
    }
}

#[tokio::test]
async fn secret_is_read_for_every_request() {
    let upstream = RawUpstream::start().await;
    let elsewhere = RawUpstream::start().await;
    let secrets = Arc::new(RotatingSecret {
        value: Mutex::new("old".to_owned()),
        port: upstream.listener.local_addr().unwrap().port(),
    });
    let mut offer = offer_for(&upstream);
    offer
        .egress
        .all
        .push(EgressRule::parse("localhost:*").unwrap());
    offer.secrets = Arc::clone(&secrets) as Arc<dyn ExecutorSecrets>;
    let (servant, tasks) = new_service(offer.clone());
    let (mut gateway, hello, _) = ScriptedGateway::open(&servant, &tasks, &offer, "one").await;
    assert_eq!(hello.secrets, ["token".into()]);
    for (number, value) in [(1, "old"), (2, "new")] {
        value.clone_into(&mut secrets.value.lock().unwrap());
        gateway
            .send_request(number, request_with_secret(&upstream.url, "token"))
            .await;
        let (mut stream, head) = upstream.accept_request().await;
        let want = format!("authorization: Bearer {value}!\r\n");
        assert!(head.contains(&want), "{head}");
        let answer = "HTTP/1.1 204 No\r\nconnection: close\r\n\r\n";
        write_bytes(&mut stream, answer).await;
        assert_eq!(gateway.status(number).await, 204);
        gateway.read_body(number).await;
    }
    // Not for another port, not under another name, and not with an invalid header value.
    for (number, url, name) in [
        (3, &elsewhere.url, "token"),
        (4, &upstream.url, "other"),
        (5, &upstream.url, "token"),
    ] {
        "two\r\nlines".clone_into(&mut secrets.value.lock().unwrap());
        gateway
            .send_request(number, request_with_secret(url, name))
            .await;
        let fault = gateway.next_fault(number).await;
        assert_eq!(fault.code, StreamFaultCode::UnknownSecret, "{name}");
        assert_eq!(fault.execution, ExecutionStatus::NotStarted);
        assert!(!fault.reason.contains("lines"), "{fault:?}");
    }
    upstream.assert_unused().await;
    elsewhere.assert_unused().await;
    let head = request_with_secret(&upstream.url, "token");
    let shown = format!("{:?}", ExecutorFrame::Request { stream: 1, head });
    assert!(!shown.contains("lines\n"), "{shown}");
}
