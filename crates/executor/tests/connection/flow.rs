//! Flow control: a slow reader slows down only the sender of the same stream.

use bowline_executor::connection::ExecutorConnection as _;
use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::ExecutorFrame;
use bowline_link::http::http_client::HttpError;
use bowline_testkit::{spawn_task, wait_bounded};
use bytes::Bytes;

use crate::fake_worker::{matches_body, serve_bodies};
use crate::scripted_executor::{
    read_chunks, read_text, start_get, test_hello, test_limits, tunnel_pair, tunnel_pair_with,
};

#[tokio::test]
async fn credit_is_sent_only_after_read() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let (stream, asked) = script.receive_request().await;
    script.next_frame().await;
    script.send_head(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    let half = usize::try_from(asked.credit / 2).unwrap();
    script.send_data(stream, 0, vec![1; half]).await;
    script
        .send_data(stream, asked.credit / 2, vec![2; half])
        .await;
    // Nothing is read, so the next frame concerns the second stream.
    let other = start_get(&tunnel);
    let next = script.receive_bodyless_request().await;
    assert_eq!(next, stream + 1);
    script.respond_whole(next, "not held up").await;
    assert_eq!(
        read_text(&mut other.await.unwrap().unwrap()).await,
        "not held up"
    );
    for _ in 0..2 {
        let piece = wait_bounded(response.body.next_chunk())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(piece.len(), half);
    }
    let mut more = 0;
    while more < asked.credit {
        let ExecutorFrame::Credit { stream: of, bytes } = script.next_frame().await else {
            panic!("no credit");
        };
        assert_eq!(of, stream);
        more += bytes;
    }
}

#[tokio::test]
async fn long_body_stays_within_credit() {
    let (tunnel, script) = tunnel_pair().await;
    spawn_task(serve_bodies(script));
    let length: u64 = 20 * 1024 * 1024;
    let path: &'static str = Box::leak(format!("/7/{length}").into_boxed_str());
    let mut response = crate::scripted_executor::send_get(&tunnel, path)
        .await
        .unwrap();
    let mut offset = 0;
    while let Some(piece) = wait_bounded(response.body.next_chunk()).await {
        let piece = piece.unwrap();
        assert!(matches_body(7, offset, &piece));
        offset += u64::try_from(piece.len()).unwrap();
    }
    assert_eq!(offset, length);
}

#[tokio::test]
async fn exceeding_credit_ends_only_that_stream() {
    let (tunnel, mut script) = tunnel_pair().await;
    let flooded = start_get(&tunnel);
    let (stream, asked) = script.receive_request().await;
    script.next_frame().await;
    script.send_head(stream).await;
    let mut response = flooded.await.unwrap().unwrap();
    let piece = Bytes::from(vec![b'x'; 1_000]);
    for number in 0..1_024 {
        script
            .send_data(stream, number * 1_000, piece.clone())
            .await;
    }
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    let (read, error) = read_chunks(&mut response).await;
    let count: usize = read.iter().map(Bytes::len).sum();
    let count = u64::try_from(count).unwrap();
    assert!(
        count <= asked.credit && count + 1_000 > asked.credit,
        "{count}"
    );
    assert!(read.len() < 1_024);
    let Some(HttpError::Lost(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("more than it may"), "{reason}");
    // The connection stays open.
    let next = start_get(&tunnel);
    let other = script.receive_bodyless_request().await;
    script.respond_whole(other, "up").await;
    assert_eq!(read_text(&mut next.await.unwrap().unwrap()).await, "up");
    assert_eq!(tunnel.disconnect_reason(), None);
}

#[tokio::test]
async fn small_pieces_within_credit_are_read() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    for offset in 0..1_024 {
        script.send_data(stream, offset, "x").await;
    }
    script.send_end(stream, 1_024).await;
    let mut response = asked_for.await.unwrap().unwrap();
    assert_eq!(read_text(&mut response).await.len(), 1_024);
}

#[tokio::test]
async fn excess_stream_waits_for_permit() {
    let few = bowline_executor::frames::ExecutorHello {
        streams_max: 2,
        ..test_hello()
    };
    let (tunnel, mut script) = tunnel_pair_with(few, FlowLimits::default(), test_limits()).await;
    let one = start_get(&tunnel);
    let first = script.receive_bodyless_request().await;
    let two = start_get(&tunnel);
    let second = script.receive_bodyless_request().await;
    let three = start_get(&tunnel);
    script.respond_whole(second, "second").await;
    assert_eq!(read_text(&mut two.await.unwrap().unwrap()).await, "second");
    // The third stream gets the permit of the second.
    let third = script.receive_bodyless_request().await;
    script.respond_whole(third, "third").await;
    assert_eq!(read_text(&mut three.await.unwrap().unwrap()).await, "third");
    script.respond_whole(first, "first").await;
    assert_eq!(read_text(&mut one.await.unwrap().unwrap()).await, "first");
}
