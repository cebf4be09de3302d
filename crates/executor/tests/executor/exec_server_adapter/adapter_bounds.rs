//! Memory limits per client.

use bowline_testkit::write_bytes;

use super::*;

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn oversized_whole_response_keeps_the_connection() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client.send_request(2, &upstream.url, json!({})).await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, CHUNKED).await;
    let chunk = format!("{MIB:x}\r\n{}\r\n", "x".repeat(MIB));
    for _ in 0..9 {
        // A refused response is not read to the end.
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = client.read().await;
    assert_eq!(answer["error"]["code"], -32603);
    client.send_request(3, &upstream.url, json!({})).await;
    upstream.serve_response(plain("ok")).await;
    assert_eq!(client.read().await["id"], 3);
}

#[tokio::test]
async fn oversized_request_body_is_refused() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let body = STANDARD.encode(vec![0; 8 * MIB + 1]);
    let refused = client.refused(&upstream.url, json!({"bodyBase64": body}));
    assert_eq!(refused.await["code"], -32602);
    upstream.assert_unused().await;
}

#[tokio::test]
async fn excess_requests_are_refused() {
    let upstream = RawUpstream::start().await;
    let mut offer = offer_for(&upstream);
    offer.limits.flow.streams_max = 2;
    let served = AdapterServer::new(offer).await;
    let mut client = served.client().await;
    let mut held = Vec::new();
    for id in 2..4 {
        client.send_request(id, &upstream.url, json!({})).await;
        held.push(upstream.accept_request().await);
    }
    let refused = client.refused(&upstream.url, json!({})).await;
    assert_eq!(refused["code"], -32603);
    assert_eq!(refused["data"]["code"], "busy");
    let (mut stream, _) = held.remove(0);
    write_bytes(&mut stream, plain("ok")).await;
    assert_eq!(client.read().await["id"], 2);
    client.send_request(5, &upstream.url, json!({})).await;
    drop(stream);
}

#[tokio::test]
async fn waiting_bodies_share_a_limit() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let body = STANDARD.encode(vec![0; 8 * MIB]);
    let mut held = Vec::new();
    for id in 2..6 {
        let more = json!({"method": "POST", "bodyBase64": body});
        client.send_request(id, &upstream.url, more).await;
        held.push(upstream.accept_request().await);
    }
    let more = json!({"method": "POST", "bodyBase64": "YQ=="});
    let refused = client.refused(&upstream.url, more).await;
    assert_eq!(refused["data"]["code"], "busy");
}

#[tokio::test]
async fn slow_reader_slows_the_server() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let more = json!({"streamResponse": true});
    client.send_request(2, &upstream.url, more).await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, "HTTP/1.1 200 OK\r\n\r\n").await;
    let piece = vec![b'x'; MIB];
    let mut written = 0;
    // Kernel buffers add to both directions.
    let quiet = Duration::from_millis(300);
    while let Ok(Ok(count)) = tokio::time::timeout(quiet, stream.write(&piece)).await {
        written += count;
        assert!(written < 64 * MIB, "it is read though nobody takes it");
    }
    // The transfer resumes when the client reads.
    assert_eq!(client.read().await["id"], 2);
    let mut read = 0;
    for seq in 1.. {
        read += decoded(&client.delta("r", seq).await["deltaBase64"]).len();
        if read >= written {
            break;
        }
    }
    assert_eq!(read, written);
}
