//! Cancellation of requests.

use std::time::Duration;

use bowline_executor::frames::{ExecutorFrame, RequestHead};
use bowline_testkit::{RawUpstream, wait_bounded, wait_closed, write_bytes};
use tokio::net::TcpStream;

use super::service_rig::*;

/// A generous limit: the test checks for the event, not for speed.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Progress of a request at the cancel.
#[derive(Clone, Copy, Debug)]
enum CancelPoint {
    /// The server has not responded.
    Asked,
    /// The upload is in progress.
    Sending,
    /// The server responds endlessly.
    Answering,
    /// The server responds, and the gateway grants no credit.
    Unread,
}

async fn start_request(
    gateway: &mut ScriptedGateway,
    upstream: &RawUpstream,
    number: u64,
    at: CancelPoint,
) -> TcpStream {
    let mut asked = get(&upstream.url);
    match at {
        CancelPoint::Sending => {
            asked.body_len = None;
            asked.method = "POST".into();
        }
        CancelPoint::Unread => asked.credit = 0,
        CancelPoint::Asked | CancelPoint::Answering => {}
    }
    gateway.send_request(number, asked).await;
    let (mut stream, _) = upstream.accept_request().await;
    if let CancelPoint::Answering | CancelPoint::Unread = at {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n";
        write_bytes(&mut stream, head).await;
        assert_eq!(gateway.status(number).await, 200);
    }
    if let CancelPoint::Answering = at {
        assert_eq!(gateway.next_data(number).await.1, ": hello\n\n");
    }
    stream
}

#[tokio::test]
async fn cancelled_stream_frees_the_upstream() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let mut number = 0;
    for at in [
        CancelPoint::Asked,
        CancelPoint::Sending,
        CancelPoint::Answering,
        CancelPoint::Unread,
    ] {
        for _ in 0..5 {
            number += 1;
            let mut stream = start_request(&mut gateway, &upstream, number, at).await;
            let began = now();
            gateway
                .send_frame(ExecutorFrame::Cancel { stream: number })
                .await;
            wait_closed(&mut stream).await;
            let took = began.elapsed();
            assert!(took < AT_ONCE, "{at:?}: {took:?}");
            tell(&format!("{at:?}: the server saw it after {took:?}"));
        }
    }
    // Late frames are ignored, and no further frame arrives.
    for number in 1..=number {
        gateway.send(number, 0, "late").await;
        gateway.credit(number, 10).await;
        gateway
            .send_frame(ExecutorFrame::Cancel { stream: number })
            .await;
    }
    number += 1;
    gateway.send_request(number, get(&upstream.url)).await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(number).await, 204);
    assert_eq!(gateway.read_body(number).await.0, b"");
}

#[tokio::test]
async fn lost_gateway_ends_its_requests() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let mut streams = Vec::new();
    for (number, at) in [
        CancelPoint::Asked,
        CancelPoint::Sending,
        CancelPoint::Answering,
        CancelPoint::Unread,
    ]
    .into_iter()
    .enumerate()
    {
        streams.push(start_request(&mut gateway, &upstream, number as u64 + 1, at).await);
    }
    let attending = gateway.disconnect();
    for stream in &mut streams {
        wait_closed(stream).await;
    }
    wait_bounded(attending).await.unwrap();
}

#[tokio::test]
async fn early_response_end_frees_both_sides() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let asked = RequestHead {
        method: "POST".into(),
        body_len: Some(1 << 30),
        ..get(&upstream.url)
    };
    gateway.send_request(1, asked).await;
    gateway.send(1, 0, vec![b'x'; 1_000]).await;
    let (mut stream, _) = upstream.accept_request().await;
    let answer = "HTTP/1.1 413 No\r\ncontent-length: 3\r\n\r\nbig";
    write_bytes(&mut stream, answer).await;
    assert_eq!(gateway.status(1).await, 413);
    assert_eq!(gateway.read_body(1).await.0, b"big");
    // A partial upload makes the connection unusable for another request.
    wait_closed(&mut stream).await;
    // The rest of the upload is ignored.
    gateway.send(1, 1_000, "more").await;
    gateway.end(1, 1_004, "").await;
    gateway.send_request(2, get(&upstream.url)).await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(2).await, 204);
}
