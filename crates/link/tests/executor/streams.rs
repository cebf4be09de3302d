//! What the reference promises of its streams, on our frames.

use bowline_core::error::Execution;
use bowline_link::executor::Carrier as _;
use bowline_link::http::client::HttpError;
use bowline_wire::executor::{Answered, FaultCode, Frame};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, SET_COOKIE};

use crate::script::{asking, get, pair, pieces, start, text};

#[tokio::test]
async fn an_answer_that_came_whole_is_read_whole() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let (stream, asked) = script.request().await;
    assert_eq!(stream, 1);
    assert_eq!(&*asked.server, "tracker");
    assert_eq!(&*asked.method, "POST");
    assert_eq!(&*asked.url, "http://inside.example/a?b=c");
    assert!(asked.first_byte_ms.is_some() && asked.connect_ms.is_some());
    script.whole(stream, "all of it").await;
    let mut response = asked_for.await.unwrap().unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(
        response.headers.get(&CONTENT_TYPE),
        Some(&b"text/plain"[..])
    );
    assert_eq!(text(&mut response).await, "all of it");
    assert_eq!(tunnel.carried().streams, 0);
}

#[tokio::test]
async fn streams_are_numbered_anew_and_each_is_given_its_own_pieces_in_order() {
    let (tunnel, mut script) = pair().await;
    for number in 1..=3 {
        let asked_for = asking(&tunnel);
        let stream = script.bare().await;
        assert_eq!(stream, number);
        script.answer(stream).await;
        script.data(stream, 0, "one ").await;
        script.data(stream, 4, "two ").await;
        script.data(stream, 8, "three").await;
        let mut response = asked_for.await.unwrap().unwrap();
        script.finish(stream, 13).await;
        assert_eq!(text(&mut response).await, "one two three");
    }
    assert_eq!(tunnel.carried().opened, 3);
    assert_eq!(tunnel.carried().received_bytes, 3 * 13);
}

#[tokio::test]
async fn an_end_before_its_head_that_nobody_reads_leaves_the_next_stream_alone() {
    let (tunnel, mut script) = pair().await;
    let first = asking(&tunnel);
    let stream = script.bare().await;
    script.data(stream, 0, "early").await;
    script.finish(stream, 5).await;
    script.answer(stream).await;
    drop(first.await.unwrap().unwrap());
    let second = asking(&tunnel);
    assert_eq!(script.bare().await, stream + 1);
    script.whole(stream + 1, "its own").await;
    assert_eq!(text(&mut second.await.unwrap().unwrap()).await, "its own");
}

#[tokio::test]
async fn an_end_before_its_head_is_read_behind_it() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.data(stream, 0, "ear").await;
    script.data(stream, 3, "ly").await;
    script.finish(stream, 5).await;
    script.answer(stream).await;
    assert_eq!(text(&mut asked_for.await.unwrap().unwrap()).await, "early");
}

#[tokio::test]
async fn who_leaves_before_the_head_cancels_and_late_frames_are_nobodys() {
    let (tunnel, mut script) = pair().await;
    let left = asking(&tunnel);
    let stream = script.bare().await;
    left.abort();
    assert_eq!(script.next().await, Frame::Cancel { stream });
    script.whole(stream, "too late").await;
    let next = asking(&tunnel);
    let other = script.bare().await;
    assert_ne!(other, stream);
    script.data(stream, 8, "still").await;
    script.whole(other, "its own").await;
    assert_eq!(text(&mut next.await.unwrap().unwrap()).await, "its own");
    assert_eq!(tunnel.ended(), None);
}

#[tokio::test]
async fn a_body_that_is_dropped_after_its_head_cancels_and_the_next_stream_is_clean() {
    let (tunnel, mut script) = pair().await;
    let first = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    script.data(stream, 0, "unread").await;
    drop(first.await.unwrap().unwrap());
    assert_eq!(script.next().await, Frame::Cancel { stream });
    script.data(stream, 6, "late").await;
    script.finish(stream, 10).await;
    let next = asking(&tunnel);
    let other = script.bare().await;
    script.whole(other, "clean").await;
    assert_eq!(text(&mut next.await.unwrap().unwrap()).await, "clean");
    assert_eq!(tunnel.carried().streams, 0);
}

#[tokio::test]
async fn a_disconnect_before_the_end_is_an_error_and_nobody_hangs() {
    let (tunnel, mut script) = pair().await;
    let with_head = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    let mut response = with_head.await.unwrap().unwrap();
    let without = asking(&tunnel);
    script.bare().await;
    drop(script);
    let (read, error) = pieces(&mut response).await;
    assert!(read.is_empty());
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    let error = without.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown);
    // What was not handed over was not carried out.
    let never = get(&tunnel, "/").await.unwrap_err();
    assert_eq!(never.execution(), Execution::NotStarted, "{never:?}");
}

#[tokio::test]
async fn a_queue_of_256_pieces_is_read_to_its_end_before_the_disconnect_is_told() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    for offset in 0..256 {
        script.data(stream, offset, "x").await;
    }
    script.out.close(1000, "");
    tunnel.over().await;
    let mut response = asked_for.await.unwrap().unwrap();
    let (read, error) = pieces(&mut response).await;
    assert_eq!(read.len(), 256);
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
}

#[tokio::test]
async fn frames_beyond_their_credit_end_their_stream_after_what_was_queued_and_nothing_else() {
    let (tunnel, mut script) = pair().await;
    let flooded = asking(&tunnel);
    let (stream, asked) = script.request().await;
    script.next().await;
    let piece = Bytes::from(vec![b'x'; 1_000]);
    let mut sent = 0;
    for _ in 0..1_024 {
        script.data(stream, sent, piece.clone()).await;
        sent += 1_000;
    }
    assert!(sent > asked.credit);
    script.answer(stream).await;
    // The head came behind an end by overflow, so that only the error is left.
    let error = flooded.await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Lost(_)), "{error:?}");
    assert_eq!(script.next().await, Frame::Cancel { stream });
    let next = asking(&tunnel);
    let other = script.bare().await;
    script.whole(other, "up").await;
    assert_eq!(text(&mut next.await.unwrap().unwrap()).await, "up");
}

#[tokio::test]
async fn repeated_headers_bytes_that_are_no_text_and_trailers_are_kept() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    let lines = Bytes::from_static(b"set-cookie: a\r\nx-raw: \xff\x80\r\nset-cookie: b\r\n");
    let answered = Answered {
        status: 206,
        lines: lines.clone(),
    };
    script.say(Frame::Answer { stream, answered }).await;
    let trailers = Bytes::from_static(b"x-sum: 1\r\n");
    script
        .say(Frame::End {
            stream,
            offset: 0,
            trailers: trailers.clone(),
        })
        .await;
    let mut response = asked_for.await.unwrap().unwrap();
    assert_eq!(response.headers.lines(), &lines[..]);
    assert_eq!(response.headers.get(&SET_COOKIE), Some(&b"a"[..]));
    assert_eq!(pieces(&mut response).await, (vec![], None));
    assert_eq!(response.body.trailers(), trailers);
}

#[tokio::test]
async fn many_streams_are_answered_in_any_order() {
    let (tunnel, mut script) = pair().await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let asked_for = asking(&tunnel);
        waiting.push((script.bare().await, asked_for));
    }
    waiting.reverse();
    for (stream, asked_for) in waiting {
        script.answer(stream).await;
        let body = stream.to_string();
        let length = u64::try_from(body.len()).unwrap();
        script.data(stream, 0, body.clone()).await;
        script.finish(stream, length).await;
        assert_eq!(text(&mut asked_for.await.unwrap().unwrap()).await, body);
    }
}

#[tokio::test]
async fn a_fault_is_told_by_its_code_and_after_what_had_come() {
    let (tunnel, mut script) = pair().await;
    let denied = asking(&tunnel);
    let stream = script.bare().await;
    script
        .fail(stream, FaultCode::Denied, Execution::NotStarted)
        .await;
    let Err(HttpError::Elsewhere(failure)) = denied.await.unwrap() else {
        panic!("not denied");
    };
    assert_eq!(&*failure.code, "egress_denied");
    assert_eq!(failure.execution, Execution::NotStarted);
    let broken = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    script.data(stream, 0, "some").await;
    script
        .fail(stream, FaultCode::Lost, Execution::Unknown)
        .await;
    let mut response = broken.await.unwrap().unwrap();
    let (read, error) = pieces(&mut response).await;
    assert_eq!(read, ["some"]);
    assert_eq!(error, Some(HttpError::Lost("because".into())));
}

#[tokio::test]
async fn a_connection_ends_when_nobody_holds_it_or_a_body_of_it() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    drop(tunnel);
    script.data(stream, 0, "still here").await;
    script.finish(stream, 10).await;
    assert_eq!(text(&mut response).await, "still here");
    let ended = start(async move { script.end().await });
    drop(response);
    let ended = ended.await.unwrap();
    assert!(
        matches!(
            ended,
            bowline_link::websocket::Ended::Closed { code: 1000, .. }
        ),
        "{ended:?}"
    );
}
