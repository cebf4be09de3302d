//! Stream guarantees of the reference executor, on our protocol.

use bowline_core::error::ExecutionStatus;
use bowline_executor::connection::ExecutorConnection as _;
use bowline_executor::frames::{ExecutorFrame, ResponseHead, StreamFaultCode};
use bowline_link::http::http_client::HttpError;
use bowline_testkit::spawn_task;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, SET_COOKIE};

use crate::scripted_executor::{read_chunks, read_text, send_get, start_get, tunnel_pair};

#[tokio::test]
async fn complete_response_is_read_whole() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let (stream, asked) = script.receive_request().await;
    assert_eq!(stream, 1);
    assert_eq!(&*asked.server, "tracker");
    assert_eq!(&*asked.method, "POST");
    assert_eq!(&*asked.url, "http://inside.example/a?b=c");
    assert!(asked.first_byte_ms.is_some() && asked.connect_ms.is_some());
    script.respond_whole(stream, "all of it").await;
    let mut response = asked_for.await.unwrap().unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(
        response.headers.get(&CONTENT_TYPE),
        Some(&b"text/plain"[..])
    );
    assert_eq!(read_text(&mut response).await, "all of it");
    assert_eq!(tunnel.traffic().streams, 0);
}

#[tokio::test]
async fn streams_get_their_own_pieces_in_order() {
    let (tunnel, mut script) = tunnel_pair().await;
    for number in 1..=3 {
        let asked_for = start_get(&tunnel);
        let stream = script.receive_bodyless_request().await;
        assert_eq!(stream, number);
        script.send_head(stream).await;
        script.send_data(stream, 0, "one ").await;
        script.send_data(stream, 4, "two ").await;
        script.send_data(stream, 8, "three").await;
        let mut response = asked_for.await.unwrap().unwrap();
        script.send_end(stream, 13).await;
        assert_eq!(read_text(&mut response).await, "one two three");
    }
    assert_eq!(tunnel.traffic().opened, 3);
    assert_eq!(tunnel.traffic().received_bytes, 3 * 13);
}

#[tokio::test]
async fn unread_early_end_leaves_next_stream() {
    let (tunnel, mut script) = tunnel_pair().await;
    let first = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_data(stream, 0, "early").await;
    script.send_end(stream, 5).await;
    script.send_head(stream).await;
    drop(first.await.unwrap().unwrap());
    let second = start_get(&tunnel);
    assert_eq!(script.receive_bodyless_request().await, stream + 1);
    script.respond_whole(stream + 1, "its own").await;
    assert_eq!(
        read_text(&mut second.await.unwrap().unwrap()).await,
        "its own"
    );
}

#[tokio::test]
async fn early_end_is_read_after_head() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_data(stream, 0, "ear").await;
    script.send_data(stream, 3, "ly").await;
    script.send_end(stream, 5).await;
    script.send_head(stream).await;
    assert_eq!(
        read_text(&mut asked_for.await.unwrap().unwrap()).await,
        "early"
    );
}

#[tokio::test]
async fn dropping_before_head_cancels_stream() {
    let (tunnel, mut script) = tunnel_pair().await;
    let left = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    left.abort();
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    script.respond_whole(stream, "too late").await;
    let next = start_get(&tunnel);
    let other = script.receive_bodyless_request().await;
    assert_ne!(other, stream);
    script.send_data(stream, 8, "still").await;
    script.respond_whole(other, "its own").await;
    assert_eq!(
        read_text(&mut next.await.unwrap().unwrap()).await,
        "its own"
    );
    assert_eq!(tunnel.disconnect_reason(), None);
}

#[tokio::test]
async fn dropped_body_cancels_stream() {
    let (tunnel, mut script) = tunnel_pair().await;
    let first = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    script.send_data(stream, 0, "unread").await;
    drop(first.await.unwrap().unwrap());
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    script.send_data(stream, 6, "late").await;
    script.send_end(stream, 10).await;
    let next = start_get(&tunnel);
    let other = script.receive_bodyless_request().await;
    script.respond_whole(other, "clean").await;
    assert_eq!(read_text(&mut next.await.unwrap().unwrap()).await, "clean");
    assert_eq!(tunnel.traffic().streams, 0);
}

#[tokio::test]
async fn early_disconnect_is_an_error() {
    let (tunnel, mut script) = tunnel_pair().await;
    let with_head = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    let mut response = with_head.await.unwrap().unwrap();
    let without = start_get(&tunnel);
    script.receive_bodyless_request().await;
    drop(script);
    let (read, error) = read_chunks(&mut response).await;
    assert!(read.is_empty());
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    let error = without.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    // Unsent requests were not executed.
    let never = send_get(&tunnel, "/").await.unwrap_err();
    assert_eq!(never.execution(), ExecutionStatus::NotStarted, "{never:?}");
}

#[tokio::test]
async fn full_queue_is_read_before_disconnect() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    for offset in 0..256 {
        script.send_data(stream, offset, "x").await;
    }
    script.socket.sender.close(1000, "");
    tunnel.wait_closed().await;
    let mut response = asked_for.await.unwrap().unwrap();
    let (read, error) = read_chunks(&mut response).await;
    assert_eq!(read.len(), 256);
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
}

#[tokio::test]
async fn frames_beyond_credit_end_one_stream() {
    let (tunnel, mut script) = tunnel_pair().await;
    let flooded = start_get(&tunnel);
    let (stream, asked) = script.receive_request().await;
    script.next_frame().await;
    let piece = Bytes::from(vec![b'x'; 1_000]);
    let mut sent = 0;
    for _ in 0..1_024 {
        script.send_data(stream, sent, piece.clone()).await;
        sent += 1_000;
    }
    assert!(sent > asked.credit);
    script.send_head(stream).await;
    // The head arrived after an overflow, so only the error is left.
    let error = flooded.await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Lost(_)), "{error:?}");
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    let next = start_get(&tunnel);
    let other = script.receive_bodyless_request().await;
    script.respond_whole(other, "up").await;
    assert_eq!(read_text(&mut next.await.unwrap().unwrap()).await, "up");
}

#[tokio::test]
async fn repeated_binary_headers_and_trailers_are_kept() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    let lines = Bytes::from_static(b"set-cookie: a\r\nx-raw: \xff\x80\r\nset-cookie: b\r\n");
    let head = ResponseHead {
        status: 206,
        header_lines: lines.clone(),
    };
    script
        .send_frame(ExecutorFrame::Response { stream, head })
        .await;
    let trailers = Bytes::from_static(b"x-sum: 1\r\n");
    script
        .send_frame(ExecutorFrame::End {
            stream,
            offset: 0,
            trailers: trailers.clone(),
        })
        .await;
    let mut response = asked_for.await.unwrap().unwrap();
    assert_eq!(response.headers.lines(), &lines[..]);
    assert_eq!(response.headers.get(&SET_COOKIE), Some(&b"a"[..]));
    assert_eq!(read_chunks(&mut response).await, (vec![], None));
    assert_eq!(response.body.take_trailers(), trailers);
}

#[tokio::test]
async fn streams_are_answered_in_any_order() {
    let (tunnel, mut script) = tunnel_pair().await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let asked_for = start_get(&tunnel);
        waiting.push((script.receive_bodyless_request().await, asked_for));
    }
    waiting.reverse();
    for (stream, asked_for) in waiting {
        script.send_head(stream).await;
        let body = stream.to_string();
        let length = u64::try_from(body.len()).unwrap();
        script.send_data(stream, 0, body.clone()).await;
        script.send_end(stream, length).await;
        assert_eq!(
            read_text(&mut asked_for.await.unwrap().unwrap()).await,
            body
        );
    }
}

#[tokio::test]
async fn stream_fault_follows_received_pieces() {
    let (tunnel, mut script) = tunnel_pair().await;
    let denied = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script
        .send_fault(stream, StreamFaultCode::Denied, ExecutionStatus::NotStarted)
        .await;
    let Err(HttpError::RemoteFailure(failure)) = denied.await.unwrap() else {
        panic!("not denied");
    };
    assert_eq!(&*failure.code, "egress_denied");
    assert_eq!(failure.execution, ExecutionStatus::NotStarted);
    let broken = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    script.send_data(stream, 0, "some").await;
    script
        .send_fault(stream, StreamFaultCode::Lost, ExecutionStatus::Unknown)
        .await;
    let mut response = broken.await.unwrap().unwrap();
    let (read, error) = read_chunks(&mut response).await;
    assert_eq!(read, ["some"]);
    assert_eq!(error, Some(HttpError::Lost("because".into())));
}

#[tokio::test]
async fn connection_closes_with_last_handle_and_body() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    drop(tunnel);
    script.send_data(stream, 0, "still here").await;
    script.send_end(stream, 10).await;
    assert_eq!(read_text(&mut response).await, "still here");
    let ended = spawn_task(async move { script.wait_disconnect().await });
    drop(response);
    let ended = ended.await.unwrap();
    assert!(
        matches!(
            ended,
            bowline_link::websocket::DisconnectReason::Closed { code: 1000, .. }
        ),
        "{ended:?}"
    );
}
