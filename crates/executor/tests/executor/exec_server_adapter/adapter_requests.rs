//! Accepted and refused requests.

use std::sync::Arc;

use bowline_executor::{ExecutorSecrets, SecretError};
use bowline_testkit::{wait_closed, write_bytes};

use super::*;

#[tokio::test]
async fn whole_response_has_headers_and_body() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let more = json!({
        "method": "POST", "bodyBase64": STANDARD.encode(b"\x00\xffhey"),
        "headers": [{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}],
        "timeoutMs": null, "unknown": {"member": 1},
    });
    let url = format!("{}path?q=1#part", upstream.url);
    client.send_request(4, &url, more).await;
    let (mut stream, head) = upstream.accept_request().await;
    assert!(head.starts_with("POST /path?q=1 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-a: 1\r\nx-a: 2\r\n"), "{head}");
    let mut body = [0; 5];
    wait_bounded(stream.read_exact(&mut body)).await.unwrap();
    assert_eq!(&body, b"\x00\xffhey");
    let answer = b"HTTP/1.1 201 Created\r\nset-cookie: a\r\nset-cookie: b\r\nx-b: \xff\xfe\r\n\
        content-length: 2\r\n\r\nok";
    write_bytes(&mut stream, answer).await;
    let answer = client.read().await;
    let header = |name: &str, value: &str| json!({"name": name, "value": value});
    let headers = [
        header("set-cookie", "a"),
        header("set-cookie", "b"),
        header("x-b", "\u{ff}\u{fe}"),
        header("content-length", "2"),
    ];
    let result = json!({"status": 201, "headers": headers, "bodyBase64": STANDARD.encode("ok")});
    assert_eq!(answer, json!({"id": 4, "result": result}));
}

#[tokio::test]
async fn invalid_request_is_refused() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let url = &*upstream.url;
    let header = |name: &str, value: &str| json!({"headers": [{"name": name, "value": value}]});
    for (url, more) in [
        (url, json!({"method": "B AD"})),
        ("ftp://a.example/", json!({})),
        ("/relative", json!({})),
        ("http://user:word@a.example/", json!({})),
        (url, header("b ad", "1")),
        (url, header("a", "1\r\nb: 2")),
        (url, header("transfer-encoding", "chunked")),
        (url, json!({"bodyBase64": "!!"})),
        (url, json!({"redirectPolicy": "sometimes"})),
        (url, json!({"requestId": null})),
        (url, json!({"headers": [{"name": "a"}]})),
    ] {
        let refused = client.refused(url, more.clone()).await;
        assert_eq!(refused["code"], -32602, "{url} {more} {refused}");
    }
    upstream.assert_unused().await;
}

#[tokio::test]
async fn failed_request_reports_execution() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let gone = upstream.url.clone();
    client.send_request(9, &gone, json!({})).await;
    let (stream, _) = upstream.accept_request().await;
    drop(stream);
    let answer = client.read().await;
    assert_eq!(answer["error"]["code"], -32603);
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.starts_with("http/request failed: "), "{text}");
    assert_eq!(answer["error"]["data"]["execution"], "unknown");
    drop(upstream);
    let refused = client.refused(&gone, json!({})).await;
    assert_eq!(refused["code"], -32603);
    let data = &refused["data"];
    assert_eq!(
        (&data["code"], &data["execution"]),
        (&json!("unreachable"), &json!("not_started"))
    );
}

#[tokio::test]
async fn denied_destination_is_never_contacted() {
    let (_allowed, served) = served().await;
    let forbidden = RawUpstream::start().await;
    let mut client = served.client().await;
    for streamed in [false, true] {
        let more = json!({"streamResponse": streamed});
        let refused = client.refused(&forbidden.url, more).await;
        assert_eq!(refused["code"], -32602);
        assert_eq!(refused["data"]["code"], "denied");
    }
    forbidden.assert_unused().await;
}

#[derive(Debug)]
struct OneSecret;

impl ExecutorSecrets for OneSecret {
    fn names(&self) -> Vec<Arc<str>> {
        vec!["TRACKER".into()]
    }

    fn read(&self, name: &str, _: &HttpEndpoint) -> Result<String, SecretError> {
        match name {
            "TRACKER" => Ok("s3cret".to_owned()),
            _ => Err(SecretError::Unknown),
        }
    }
}

#[tokio::test]
async fn secret_header_ignores_environment() {
    let upstream = RawUpstream::start().await;
    let mut offer = offer_for(&upstream);
    offer.secrets = Arc::new(OneSecret);
    let served = AdapterServer::new(offer).await;
    let mut client = served.client().await;
    let filled = |name: &str| {
        let header = json!({"name": "authorization", "value": "Bearer ", "valueEnvVar": name});
        json!({"headers": [header]})
    };
    client
        .send_request(2, &upstream.url, filled("TRACKER"))
        .await;
    let head = upstream.serve_response(plain("ok")).await;
    assert!(head.contains("authorization: Bearer s3cret\r\n"), "{head}");
    assert_eq!(client.read().await["result"]["status"], 200);
    for name in ["PATH", "HOME", "AWS_SECRET_ACCESS_KEY", "NONE", ""] {
        let refused = client.refused(&upstream.url, filled(name)).await;
        assert_eq!(refused["code"], -32602, "{name}");
        assert!(!refused.to_string().contains("s3cret"));
    }
    upstream.assert_unused().await;
}

#[tokio::test]
async fn request_timeout_is_enforced() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client
        .send_request(2, &upstream.url, json!({"timeoutMs": 50}))
        .await;
    let (mut stream, _) = upstream.accept_request().await;
    let answer = client.read().await;
    assert_eq!(answer["error"]["code"], -32603);
    wait_closed(&mut stream).await;
    // The timeout covers the body too.
    let more = json!({"timeoutMs": 200, "streamResponse": true});
    client.send_request(3, &upstream.url, more).await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, format!("{CHUNKED}1\r\nx\r\n")).await;
    assert_eq!(client.read().await["id"], 3);
    assert_eq!(decoded(&client.delta("r", 1).await["deltaBase64"]), b"x");
    let last = client.delta("r", 2).await;
    assert_eq!(last["done"], true);
    assert!(last["error"].as_str().unwrap().contains("timed out"));
    wait_closed(&mut stream).await;
}

#[tokio::test]
async fn slow_request_blocks_no_other() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client.send_request(2, &upstream.url, json!({})).await;
    let (mut slow, _) = upstream.accept_request().await;
    for id in 3..20 {
        client.send_request(id, &upstream.url, json!({})).await;
        upstream.serve_response(plain("quick")).await;
        assert_eq!(client.read().await["id"], id);
    }
    write_bytes(&mut slow, plain("slow")).await;
    let answer = client.read().await;
    assert_eq!(answer["id"], 2);
    assert_eq!(decoded(&answer["result"]["bodyBase64"]), b"slow");
}
