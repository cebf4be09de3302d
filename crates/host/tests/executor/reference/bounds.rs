//! What one client can make us hold.

use super::*;

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn a_whole_answer_that_is_too_long_is_refused_and_the_connection_goes_on() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    client.ask(2, &upstream.url, json!({})).await;
    let (mut stream, _) = upstream.taken().await;
    write(&mut stream, CHUNKED).await;
    let chunk = format!("{MIB:x}\r\n{}\r\n", "x".repeat(MIB));
    for _ in 0..9 {
        // Whoever is refused is not read to its end.
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = client.read().await;
    assert_eq!(answer["error"]["code"], -32603);
    client.ask(3, &upstream.url, json!({})).await;
    upstream.answers(plain("ok")).await;
    assert_eq!(client.read().await["id"], 3);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_and_does_not_leave() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let body = STANDARD.encode(vec![0; 8 * MIB + 1]);
    let refused = client.refused(&upstream.url, json!({"bodyBase64": body}));
    assert_eq!(refused.await["code"], -32602);
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn more_requests_at_once_than_there_may_be_are_refused() {
    let upstream = Upstream::new().await;
    let mut offer = upstream.offer();
    offer.limits.flow.streams_max = 2;
    let served = Served::new(offer).await;
    let mut client = served.client().await;
    let mut held = Vec::new();
    for id in 2..4 {
        client.ask(id, &upstream.url, json!({})).await;
        held.push(upstream.taken().await);
    }
    let refused = client.refused(&upstream.url, json!({})).await;
    assert_eq!(refused["code"], -32603);
    assert_eq!(refused["data"]["code"], "busy");
    let (mut stream, _) = held.remove(0);
    write(&mut stream, plain("ok")).await;
    assert_eq!(client.read().await["id"], 2);
    client.ask(5, &upstream.url, json!({})).await;
    drop(stream);
}

#[tokio::test]
async fn bodies_of_requests_that_wait_share_a_limit() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let body = STANDARD.encode(vec![0; 8 * MIB]);
    let mut held = Vec::new();
    for id in 2..6 {
        let more = json!({"method": "POST", "bodyBase64": body});
        client.ask(id, &upstream.url, more).await;
        held.push(upstream.taken().await);
    }
    let more = json!({"method": "POST", "bodyBase64": "YQ=="});
    let refused = client.refused(&upstream.url, more).await;
    assert_eq!(refused["data"]["code"], "busy");
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_the_server_down() {
    let (upstream, served) = served().await;
    let mut client = served.client().await;
    let more = json!({"streamResponse": true});
    client.ask(2, &upstream.url, more).await;
    let (mut stream, _) = upstream.taken().await;
    write(&mut stream, "HTTP/1.1 200 OK\r\n\r\n").await;
    let piece = vec![b'x'; MIB];
    let mut written = 0;
    // Kernels have buffers of their own on both ways.
    let quiet = Duration::from_millis(300);
    while let Ok(Ok(count)) = tokio::time::timeout(quiet, stream.write(&piece)).await {
        written += count;
        assert!(written < 64 * MIB, "it is read though nobody takes it");
    }
    // It goes on when the client reads.
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
