//! Where requests may go, and what is filled into them.

use std::sync::{Arc, Mutex};

use bowline_core::egress::Rule;
use bowline_core::error::Execution;
use bowline_host::executor::{NoSecret, Offer, Secrets};
use bowline_link::http::endpoint::Endpoint;
use bowline_wire::executor::{Asked, FaultCode, Fill, Frame};

use super::rig::*;

#[tokio::test]
async fn nothing_is_reached_that_was_not_allowed_and_all_is_refused_alike() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(Offer::new("office")).await;
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
        // Nobody listens there.
        "http://127.0.0.1:1/".to_owned(),
    ];
    for (number, url) in (1..).zip(&urls) {
        gateway.ask(number, get(url)).await;
        let fault = gateway.fault(number).await;
        assert_eq!(fault.code, FaultCode::Denied, "{url}");
        assert_eq!(fault.execution, Execution::NotStarted, "{url}");
        reasons.push(fault.reason);
    }
    reasons.dedup();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    upstream.was_left_alone().await;
}

#[tokio::test]
async fn what_is_allowed_for_one_server_is_not_for_another_nor_are_its_connections() {
    let upstream = Upstream::new().await;
    let mut offer = upstream.offer();
    let rules = std::mem::take(&mut offer.egress.all);
    offer.egress.servers = [("a", &rules), ("b", &rules)]
        .map(|(name, rules)| (name.into(), rules.clone()))
        .into();
    let mut gateway = Gateway::new(offer).await;
    let of = |server: &str| Asked {
        server: server.into(),
        ..get(&upstream.url)
    };
    gateway.ask(1, of("c")).await;
    assert_eq!(gateway.fault(1).await.code, FaultCode::Denied);
    gateway.ask(2, of("a")).await;
    let (mut first, _) = upstream.taken().await;
    write(&mut first, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(2).await, 204);
    gateway.body(2).await;
    // The connection of one is there to be used again, and the other does not.
    gateway.ask(3, of("b")).await;
    let (mut second, _) = upstream.taken().await;
    write(&mut second, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(3).await, 204);
    gateway.body(3).await;
    gateway.ask(4, of("a")).await;
    head(&mut first).await;
    write(&mut first, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(4).await, 204);
}

/// One secret that changes, for one port.
#[derive(Debug)]
struct Changing {
    value: Mutex<String>,
    port: u16,
}

impl Secrets for Changing {
    fn names(&self) -> Vec<Arc<str>> {
        vec!["token".into()]
    }

    fn read(&self, name: &str, to: &Endpoint) -> Result<String, NoSecret> {
        match (name, to.uri().port_u16()) {
            ("token", Some(port)) if port == self.port => Ok(self.value.lock().unwrap().clone()),
            ("token", _) => Err(NoSecret::NotThere),
            _ => Err(NoSecret::Unknown),
        }
    }
}

fn filled(url: &str, secret: &str) -> Asked {
    let fill = Fill {
        header: "Authorization".into(),
        before: "Bearer ".into(),
        secret: secret.into(),
        after: "!".into(),
    };
    Asked {
        fills: vec![fill],
        ..get(url)
    }
}

#[tokio::test]
async fn a_secret_is_filled_in_where_it_is_sent_and_read_for_every_request() {
    let upstream = Upstream::new().await;
    let elsewhere = Upstream::new().await;
    let secrets = Arc::new(Changing {
        value: Mutex::new("old".to_owned()),
        port: upstream.listener.local_addr().unwrap().port(),
    });
    let mut offer = upstream.offer();
    offer.egress.all.push(Rule::parse("localhost:*").unwrap());
    offer.secrets = Arc::clone(&secrets) as Arc<dyn Secrets>;
    let servant = servant(offer.clone());
    let (mut gateway, hello, _) = Gateway::open(&servant, &offer, "one").await;
    assert_eq!(hello.secrets, ["token".into()]);
    for (number, value) in [(1, "old"), (2, "new")] {
        value.clone_into(&mut secrets.value.lock().unwrap());
        gateway.ask(number, filled(&upstream.url, "token")).await;
        let (mut stream, head) = upstream.taken().await;
        let want = format!("authorization: Bearer {value}!\r\n");
        assert!(head.contains(&want), "{head}");
        let answer = "HTTP/1.1 204 No\r\nconnection: close\r\n\r\n";
        write(&mut stream, answer).await;
        assert_eq!(gateway.status(number).await, 204);
        gateway.body(number).await;
    }
    // Not for somebody else, not by another name, and not where it would break a header.
    for (number, url, name) in [
        (3, &elsewhere.url, "token"),
        (4, &upstream.url, "other"),
        (5, &upstream.url, "token"),
    ] {
        "two\r\nlines".clone_into(&mut secrets.value.lock().unwrap());
        gateway.ask(number, filled(url, name)).await;
        let fault = gateway.fault(number).await;
        assert_eq!(fault.code, FaultCode::UnknownSecret, "{name}");
        assert_eq!(fault.execution, Execution::NotStarted);
        assert!(!fault.reason.contains("lines"), "{fault:?}");
    }
    upstream.was_left_alone().await;
    elsewhere.was_left_alone().await;
    let asked = filled(&upstream.url, "token");
    let shown = format!("{:?}", Frame::Request { stream: 1, asked });
    assert!(!shown.contains("lines\n"), "{shown}");
}
