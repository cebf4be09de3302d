//! Unexpected frames: ignored, or fatal for a single stream.

use bowline_core::error::ExecutionStatus;
use bowline_executor::connection::ExecutorConnection as _;
use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{ExecutorFrame, ExecutorHello, RequestHead, StartServer};
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::DisconnectReason;
use bowline_testkit::{deadline_after, wait_bounded};
use bytes::Bytes;

use crate::scripted_executor::{
    read_chunks, read_text, send_get, start_get, test_hello, test_limits, tunnel_pair,
    tunnel_pair_with,
};

/// Sends a piece at a wrong offset behind `some`, and asserts the reader's error.
async fn assert_piece_breaks_stream(offset: u64) {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    script.send_data(stream, 0, "some").await;
    script.send_data(stream, offset, "more").await;
    script.send_data(stream, 4, "more").await;
    script.send_end(stream, 8).await;
    let mut response = asked_for.await.unwrap().unwrap();
    let (read, error) = read_chunks(&mut response).await;
    assert_eq!(read, ["some"], "at {offset}");
    let Some(HttpError::Lost(reason)) = error else {
        panic!("at {offset}: {error:?}");
    };
    assert!(reason.contains("out of place"), "{reason}");
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    assert_eq!(tunnel.disconnect_reason(), None);
}

#[tokio::test]
async fn sec_47_piece_gap_ends_only_its_stream() {
    for offset in [0, 3, 5, u64::MAX] {
        assert_piece_breaks_stream(offset).await;
    }
}

#[tokio::test]
async fn sec_47_misplaced_end_is_an_error() {
    for offset in [0, 3, 5, u64::MAX] {
        let (tunnel, mut script) = tunnel_pair().await;
        let asked_for = start_get(&tunnel);
        let stream = script.receive_bodyless_request().await;
        script.send_head(stream).await;
        script.send_data(stream, 0, "some").await;
        script.send_end(stream, offset).await;
        let mut response = asked_for.await.unwrap().unwrap();
        let (read, error) = read_chunks(&mut response).await;
        assert_eq!(read, ["some"]);
        assert!(matches!(error, Some(HttpError::Lost(_))), "{error:?}");
    }
}

#[tokio::test]
async fn sec_47_late_or_unknown_frames_are_ignored() {
    let (tunnel, mut script) = tunnel_pair().await;
    let first = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.respond_whole(stream, "done").await;
    assert_eq!(read_text(&mut first.await.unwrap().unwrap()).await, "done");
    for nobody in [0, stream, stream + 100, u64::MAX] {
        script.send_head(nobody).await;
        script.send_data(nobody, 4, "late").await;
        script.send_end(nobody, 8).await;
        script
            .send_frame(ExecutorFrame::Credit {
                stream: nobody,
                bytes: u64::MAX,
            })
            .await;
    }
    let next = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.respond_whole(stream, "own").await;
    assert_eq!(read_text(&mut next.await.unwrap().unwrap()).await, "own");
    assert_eq!(tunnel.disconnect_reason(), None);
    assert_eq!(tunnel.traffic().streams, 0);
}

#[tokio::test]
async fn invalid_or_gateway_frames_end_connection() {
    let wrong = [
        ExecutorFrame::Hello(test_hello()).to_bytes(),
        ExecutorFrame::Cancel { stream: 1 }.to_bytes(),
        ExecutorFrame::Request {
            stream: 1,
            head: RequestHead::default(),
        }
        .to_bytes(),
        ExecutorFrame::StartServer {
            stream: 1,
            start: StartServer::default(),
        }
        .to_bytes(),
        Bytes::from_static(b"{}"),
        Bytes::from_static(b"\x12\0"),
    ];
    for message in wrong {
        let (tunnel, mut script) = tunnel_pair().await;
        let asked_for = start_get(&tunnel);
        script.receive_bodyless_request().await;
        script.socket.sender.send(message.clone()).await.unwrap();
        let error = asked_for.await.unwrap().unwrap_err();
        assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
        let ended = script.wait_disconnect().await;
        assert!(
            matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
            "{message:?}: {ended:?}"
        );
        let never = send_get(&tunnel, "/").await.unwrap_err();
        assert_eq!(never.execution(), ExecutionStatus::NotStarted, "{never:?}");
    }
}

#[tokio::test]
async fn stream_table_holds_only_open_streams() {
    let (tunnel, mut script) = tunnel_pair().await;
    for _ in 0..2_000 {
        let left = start_get(&tunnel);
        let stream = script.receive_bodyless_request().await;
        left.abort();
        assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    }
    let carried = tunnel.traffic();
    assert_eq!((carried.streams, carried.opened), (0, 2_000));
}

#[tokio::test]
async fn invalid_response_head_is_reported() {
    for (status, lines) in [(99, ""), (200, "no colon\r\n"), (200, "a: b\r\n\r\nbody")] {
        let (tunnel, mut script) = tunnel_pair().await;
        let asked_for = start_get(&tunnel);
        let stream = script.receive_bodyless_request().await;
        let head = bowline_executor::frames::ResponseHead {
            status,
            header_lines: Bytes::from_static(lines.as_bytes()),
        };
        script
            .send_frame(ExecutorFrame::Response { stream, head })
            .await;
        let error = asked_for.await.unwrap().unwrap_err();
        assert!(matches!(error, HttpError::BadHead(_)), "{error:?}");
        assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    }
}

#[tokio::test]
async fn connection_without_free_stream_is_busy() {
    let few = ExecutorHello {
        streams_max: 1,
        ..test_hello()
    };
    let (tunnel, mut script) = tunnel_pair_with(few, FlowLimits::default(), test_limits()).await;
    let _held = start_get(&tunnel);
    script.receive_bodyless_request().await;
    let to = bowline_link::http::endpoint::HttpEndpoint::parse("http://a.example/").unwrap();
    let errand = bowline_executor::connection::ExecutorRequest {
        server: "s",
        request: bowline_link::http::http_client::HttpRequest::new(http::Method::GET, &to),
        secret_headers: &[],
    };
    let wait = bowline_link::http::http_client::SendOptions {
        connect_by: Some(deadline_after(std::time::Duration::ZERO)),
        first_byte_by: None,
        on_send: &|| panic!("nothing leaves"),
    };
    let Err(HttpError::RemoteFailure(failure)) =
        wait_bounded(tunnel.send_request(errand, wait)).await
    else {
        panic!("not busy");
    };
    assert_eq!(&*failure.code, "executor_busy");
}
