//! What is said arrives, in order and whole.

use super::*;

#[tokio::test]
async fn messages_arrive_in_order_and_whole_both_ways() {
    let spawner = Tokio::default();
    let limits = SocketLimits::default();
    let ((client, mut from_server), (server, mut from_client)) =
        pair(limits, limits, &spawner).await;
    let sizes = [0, 1, 125, 126, 4_000, 65_535, 65_536, 300_000, 3];
    let messages: Vec<Bytes> = sizes
        .iter()
        .map(|size| Bytes::from("x".repeat(*size)))
        .collect();
    for message in &messages {
        client.send(message.clone()).await.unwrap();
        server.send(message.clone()).await.unwrap();
    }
    for message in &messages {
        assert_eq!(from_client.next().await.as_ref(), Ok(message));
        assert_eq!(from_server.next().await.as_ref(), Ok(message));
    }
    server.close(4001, "fenced");
    let want = Ended::Closed {
        code: 4001,
        reason: "fenced".into(),
    };
    assert_eq!(end(&mut from_server).await, want);
    assert_eq!(client.over().await, want);
    assert_eq!(server.over().await, Ended::Local);
    assert_eq!(end(&mut from_client).await, Ended::Local);
    assert_eq!(client.send(Bytes::new()).await, Err(want));
    drop((from_server, from_client));
    spawner.idle().await;
}
