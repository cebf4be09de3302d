//! Redirect responses.

use super::*;

fn redirect_response(status: u16, to: &str) -> String {
    format!(
        "HTTP/1.1 {status} Moved\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: \
         close\r\n\r\n"
    )
}

#[tokio::test]
async fn redirect_is_returned_in_stop_mode() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let stop = json!({"redirectPolicy": "stop"});
    client.send_request(2, &upstream.url, stop).await;
    upstream
        .serve_response(redirect_response(302, "/there"))
        .await;
    let answer = client.read().await;
    assert_eq!(answer["result"]["status"], 302);
    upstream.assert_unused().await;
}

#[tokio::test]
async fn redirect_is_followed_on_request() {
    for (more, status, method) in [
        (json!({}), 302, "GET"),
        (
            json!({"redirectPolicy": "follow", "method": "POST"}),
            303,
            "GET",
        ),
        (json!({"method": "POST"}), 301, "GET"),
        (json!({"method": "POST"}), 307, "POST"),
        (json!({"method": "DELETE"}), 308, "DELETE"),
    ] {
        let (upstream, served) = served().await;
        let mut client = served.client().await;
        let mut more = more;
        more["headers"] = json!([{"name": "authorization", "value": "kept"}]);
        client.send_request(2, &upstream.url, more).await;
        upstream
            .serve_response(redirect_response(status, "/there"))
            .await;
        let head = upstream.serve_response(plain("there")).await;
        assert!(head.starts_with(&format!("{method} /there ")), "{head}");
        assert!(head.contains("authorization: kept\r\n"), "{head}");
        let answer = client.read().await;
        assert_eq!(decoded(&answer["result"]["bodyBase64"]), b"there");
    }
}

#[tokio::test]
async fn cross_origin_redirect_drops_credentials() {
    let (first, second) = (RawUpstream::start().await, RawUpstream::start().await);
    let mut offer = offer_for(&first);
    offer.egress.all.push(rule_for(&second));
    let served = AdapterServer::new(offer).await;
    let mut client = served.client().await;
    let headers = json!([
        {"name": "authorization", "value": "Bearer s3cret"},
        {"name": "cookie", "value": "s3cret"},
        {"name": "x-other", "value": "told"},
    ]);
    client
        .send_request(2, &first.url, json!({"headers": headers}))
        .await;
    first
        .serve_response(redirect_response(307, &second.url))
        .await;
    let head = second.serve_response(plain("there")).await;
    assert!(!head.contains("s3cret"), "{head}");
    assert!(head.contains("x-other: told\r\n"), "{head}");
    assert_eq!(client.read().await["result"]["status"], 200);
}

#[tokio::test]
async fn every_hop_obeys_the_allow_list() {
    let (upstream, served) = served().await;
    let forbidden = RawUpstream::start().await;
    let mut client = served.client().await;
    client.send_request(2, &upstream.url, json!({})).await;
    upstream
        .serve_response(redirect_response(307, &forbidden.url))
        .await;
    let refused = &client.read().await["error"];
    assert_eq!(refused["data"]["code"], "denied");
    forbidden.assert_unused().await;
}

#[tokio::test]
async fn redirect_loop_is_limited() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client.send_request(2, &upstream.url, json!({})).await;
    for _ in 0..11 {
        upstream
            .serve_response(redirect_response(302, "/again"))
            .await;
    }
    assert_eq!(client.read().await["error"]["code"], -32603);
    upstream.assert_unused().await;
}
