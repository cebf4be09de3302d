//! Nothing grows without a bound.

use bowline_core::flow::FlowLimits;
use bowline_link::websocket::Ended;
use bowline_wire::executor::{DATA_BYTES_MAX, FRAME_BYTES_MAX, FaultCode, Frame};

use super::rig::*;

#[tokio::test]
async fn one_request_more_than_there_may_be_is_refused_until_another_ends() {
    let upstream = Upstream::new().await;
    let mut offer = upstream.offer();
    offer.limits.flow.streams_max = 2;
    let mut gateway = Gateway::new(offer).await;
    let mut streams = Vec::new();
    for number in 1..=2 {
        gateway.ask(number, get(&upstream.url)).await;
        streams.push(upstream.taken().await.0);
    }
    gateway.ask(3, get(&upstream.url)).await;
    assert_eq!(gateway.fault(3).await.code, FaultCode::Busy);
    write(&mut streams[0], "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(1).await, 204);
    gateway.body(1).await;
    // Who was told of the end may ask at once, and so may who takes one back.
    gateway.ask(4, get(&upstream.url)).await;
    head(&mut streams[0]).await;
    gateway.say(Frame::Cancel { stream: 4 }).await;
    gateway.ask(5, get(&upstream.url)).await;
    let (mut stream, _) = upstream.taken().await;
    write(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(5).await, 204);
}

#[tokio::test]
async fn a_long_answer_comes_in_small_frames_and_never_beyond_the_credit() {
    const LENGTH: usize = 4 << 20;
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    let mut allowed = FlowLimits::default().first_bytes;
    gateway.ask(1, get(&upstream.url)).await;
    let writing = spawn(async move {
        let (mut stream, _) = upstream.taken().await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        write(&mut stream, head).await;
        let body: Vec<u8> = (0..LENGTH).map(|at| (at % 253) as u8).collect();
        write(&mut stream, &body).await;
        stream
    });
    assert_eq!(gateway.status(1).await, 200);
    let mut came = 0;
    while came < LENGTH {
        let (offset, bytes) = gateway.piece(1).await;
        assert_eq!(offset, came as u64);
        assert!(bytes.len() <= DATA_BYTES_MAX);
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(usize::from(*byte), (came + at) % 253);
        }
        came += bytes.len();
        assert!(came as u64 <= allowed, "{came} of {allowed}");
        let more = bytes.len() as u64;
        allowed += more;
        gateway.credit(1, more).await;
    }
    let end = gateway.next().await;
    assert!(matches!(end, Frame::End { .. }), "{end:?}");
    drop(writing);
}

#[tokio::test]
async fn a_frame_that_is_longer_than_any_may_be_ends_the_connection() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    gateway.send(1, 0, vec![b'x'; FRAME_BYTES_MAX]).await;
    let ended = gateway.ended().await;
    let is_refused = matches!(ended, Ended::Closed { code: 1009, .. });
    assert!(is_refused, "{ended:?}");
}
