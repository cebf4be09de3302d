//! Limits of the executor service.

use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{DATA_BYTES_MAX, ExecutorFrame, FRAME_BYTES_MAX, StreamFaultCode};
use bowline_link::websocket::DisconnectReason;
use bowline_testkit::{RawUpstream, read_head, spawn_task, write_bytes};

use super::service_rig::*;

#[tokio::test]
async fn excess_request_is_refused_until_release() {
    let upstream = RawUpstream::start().await;
    let mut offer = offer_for(&upstream);
    offer.limits.flow.streams_max = 2;
    let mut gateway = ScriptedGateway::new(offer).await;
    let mut streams = Vec::new();
    for number in 1..=2 {
        gateway.send_request(number, get(&upstream.url)).await;
        streams.push(upstream.accept_request().await.0);
    }
    gateway.send_request(3, get(&upstream.url)).await;
    assert_eq!(gateway.next_fault(3).await.code, StreamFaultCode::Busy);
    write_bytes(&mut streams[0], "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(1).await, 204);
    gateway.read_body(1).await;
    // A permit is free at once after an end or a cancel.
    gateway.send_request(4, get(&upstream.url)).await;
    read_head(&mut streams[0]).await;
    gateway
        .send_frame(ExecutorFrame::Cancel { stream: 4 })
        .await;
    gateway.send_request(5, get(&upstream.url)).await;
    let (mut stream, _) = upstream.accept_request().await;
    write_bytes(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(gateway.status(5).await, 204);
}

#[tokio::test]
async fn response_frames_stay_within_credit() {
    const LENGTH: usize = 4 << 20;
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let mut allowed = FlowLimits::default().first_bytes;
    gateway.send_request(1, get(&upstream.url)).await;
    let writing = spawn_task(async move {
        let (mut stream, _) = upstream.accept_request().await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        write_bytes(&mut stream, head).await;
        let body: Vec<u8> = (0..LENGTH).map(|at| (at % 253) as u8).collect();
        write_bytes(&mut stream, &body).await;
        stream
    });
    assert_eq!(gateway.status(1).await, 200);
    let mut came = 0;
    while came < LENGTH {
        let (offset, bytes) = gateway.next_data(1).await;
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
    assert!(matches!(end, ExecutorFrame::End { .. }), "{end:?}");
    drop(writing);
}

#[tokio::test]
async fn oversized_frame_closes_the_connection() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    gateway.send(1, 0, vec![b'x'; FRAME_BYTES_MAX]).await;
    let ended = gateway.wait_ended().await;
    let is_refused = matches!(ended, DisconnectReason::Closed { code: 1009, .. });
    assert!(is_refused, "{ended:?}");
}
