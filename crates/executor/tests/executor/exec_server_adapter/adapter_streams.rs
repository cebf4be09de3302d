//! Streamed responses.

use bowline_testkit::{wait_closed, write_bytes};

use super::*;

fn streaming_request(name: &str) -> Value {
    json!({"streamResponse": true, "requestId": name})
}

#[tokio::test]
async fn deltas_are_numbered_from_one() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client
        .send_request(2, &upstream.url, streaming_request("http-1"))
        .await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, CHUNKED).await;
    let head = client.read().await;
    assert_eq!(head["id"], 2);
    assert_eq!(head["result"]["bodyBase64"], "");
    for (seq, piece) in [(1, "one"), (2, "two"), (3, "three")] {
        write_bytes(&mut stream, format!("{:x}\r\n{piece}\r\n", piece.len())).await;
        let delta = client.delta("http-1", seq).await;
        assert_eq!(decoded(&delta["deltaBase64"]), piece.as_bytes());
        assert_eq!(
            (&delta["done"], &delta["error"]),
            (&json!(false), &Value::Null)
        );
    }
    write_bytes(&mut stream, "0\r\n\r\n").await;
    let last = client.delta("http-1", 4).await;
    let want = json!({
        "requestId": "http-1", "seq": 4, "deltaBase64": "", "done": true, "error": null,
    });
    assert_eq!(last, want);
}

#[tokio::test]
async fn truncated_body_ends_with_error_delta() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client
        .send_request(2, &upstream.url, streaming_request("s"))
        .await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(
        &mut stream,
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc",
    )
    .await;
    assert_eq!(client.read().await["result"]["status"], 200);
    assert_eq!(decoded(&client.delta("s", 1).await["deltaBase64"]), b"abc");
    drop(stream);
    let last = client.delta("s", 2).await;
    assert_eq!(last["done"], true);
    assert!(last["error"].is_string(), "{last}");
}

#[tokio::test]
async fn stream_name_is_exclusive_until_end() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client
        .send_request(2, &upstream.url, streaming_request("d"))
        .await;
    let (mut stream, _) = upstream.accept_request().await;
    let refused = client.refused(&upstream.url, streaming_request("d")).await;
    assert_eq!(refused["code"], -32602);
    let closing = CHUNKED.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    write_bytes(&mut stream, closing).await;
    assert_eq!(client.read().await["id"], 2);
    let refused = client.refused(&upstream.url, streaming_request("d")).await;
    assert_eq!(refused["code"], -32602);
    write_bytes(&mut stream, "0\r\n\r\n").await;
    assert_eq!(client.delta("d", 1).await["done"], true);
    drop(stream);
    for id in 10..30 {
        client
            .send_request(id, &upstream.url, streaming_request("d"))
            .await;
        upstream.serve_response(plain("again")).await;
        assert_eq!(client.read().await["id"], id);
        let delta = client.delta("d", 1).await;
        assert_eq!(decoded(&delta["deltaBase64"]), b"again");
        assert_eq!(client.delta("d", 2).await["done"], true);
    }
}

#[tokio::test]
async fn requests_end_with_the_connection() {
    let (upstream, served) = served().await;
    let client = served.client().await;
    client
        .send_request(2, &upstream.url, streaming_request("one"))
        .await;
    let (mut one, _) = upstream.accept_request().await;
    write_bytes(&mut one, format!("{CHUNKED}1\r\nx\r\n")).await;
    client
        .send_request(3, &upstream.url, streaming_request("two"))
        .await;
    let (mut two, _) = upstream.accept_request().await;
    drop(client);
    let began = now();
    wait_closed(&mut one).await;
    wait_closed(&mut two).await;
    let took = began.elapsed();
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test]
async fn closing_adapter_ends_its_requests() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client
        .send_request(2, &upstream.url, streaming_request("one"))
        .await;
    let (mut one, _) = upstream.accept_request().await;
    served.stop().await;
    wait_closed(&mut one).await;
    let ended = client.wait_closed().await;
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 1001, .. }),
        "{ended:?}"
    );
}

#[tokio::test]
async fn large_body_deltas_are_bounded() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client
        .send_request(2, &upstream.url, streaming_request("large"))
        .await;
    let (mut stream, _) = upstream.accept_request().await;
    let body: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let sending = async {
        write_bytes(&mut stream, head).await;
        write_bytes(&mut stream, &body).await;
    };
    let reading = async {
        assert_eq!(client.read().await["id"], 2);
        let mut read = Vec::new();
        for seq in 1.. {
            let delta = client.delta("large", seq).await;
            if delta["done"] == true {
                break;
            }
            let piece = decoded(&delta["deltaBase64"]);
            assert!(!piece.is_empty() && piece.len() <= 1024 * 1024);
            read.extend_from_slice(&piece);
        }
        read
    };
    let ((), read) = tokio::join!(sending, reading);
    assert!(read == body);
}
