//! Frames that have no business where they come: ignored, or the end of one stream.

use bowline_core::error::Execution;
use bowline_core::flow::FlowLimits;
use bowline_link::executor::Carrier as _;
use bowline_link::http::client::HttpError;
use bowline_link::websocket::Ended;
use bowline_wire::executor::{Asked, Frame, Hello, Start};
use bytes::Bytes;

use crate::script::{asking, get, hello, limits, pair, pair_of, pieces, soon, text, within};

/// Sends a piece at a place behind `some`; returns what the reader gets.
async fn broken_by(offset: u64) {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    script.data(stream, 0, "some").await;
    script.data(stream, offset, "more").await;
    script.data(stream, 4, "more").await;
    script.finish(stream, 8).await;
    let mut response = asked_for.await.unwrap().unwrap();
    let (read, error) = pieces(&mut response).await;
    assert_eq!(read, ["some"], "at {offset}");
    let Some(HttpError::Lost(reason)) = error else {
        panic!("at {offset}: {error:?}");
    };
    assert!(reason.contains("out of place"), "{reason}");
    assert_eq!(script.next().await, Frame::Cancel { stream });
    assert_eq!(tunnel.ended(), None);
}

#[tokio::test]
async fn sec_47_a_piece_that_is_doubled_or_missing_ends_its_stream_and_no_other() {
    for offset in [0, 3, 5, u64::MAX] {
        broken_by(offset).await;
    }
}

#[tokio::test]
async fn sec_47_an_end_that_is_not_behind_the_last_piece_is_no_clean_end() {
    for offset in [0, 3, 5, u64::MAX] {
        let (tunnel, mut script) = pair().await;
        let asked_for = asking(&tunnel);
        let stream = script.bare().await;
        script.answer(stream).await;
        script.data(stream, 0, "some").await;
        script.finish(stream, offset).await;
        let mut response = asked_for.await.unwrap().unwrap();
        let (read, error) = pieces(&mut response).await;
        assert_eq!(read, ["some"]);
        assert!(matches!(error, Some(HttpError::Lost(_))), "{error:?}");
    }
}

#[tokio::test]
async fn sec_47_frames_that_come_late_or_for_nobody_are_ignored() {
    let (tunnel, mut script) = pair().await;
    let first = asking(&tunnel);
    let stream = script.bare().await;
    script.whole(stream, "done").await;
    assert_eq!(text(&mut first.await.unwrap().unwrap()).await, "done");
    for nobody in [0, stream, stream + 100, u64::MAX] {
        script.answer(nobody).await;
        script.data(nobody, 4, "late").await;
        script.finish(nobody, 8).await;
        script
            .say(Frame::Credit {
                stream: nobody,
                bytes: u64::MAX,
            })
            .await;
    }
    let next = asking(&tunnel);
    let stream = script.bare().await;
    script.whole(stream, "own").await;
    assert_eq!(text(&mut next.await.unwrap().unwrap()).await, "own");
    assert_eq!(tunnel.ended(), None);
    assert_eq!(tunnel.carried().streams, 0);
}

#[tokio::test]
async fn what_only_a_gateway_says_or_is_no_frame_ends_the_connection() {
    let wrong = [
        Frame::Hello(hello()).to_bytes(),
        Frame::Cancel { stream: 1 }.to_bytes(),
        Frame::Request {
            stream: 1,
            asked: Asked::default(),
        }
        .to_bytes(),
        Frame::Start {
            stream: 1,
            start: Start::default(),
        }
        .to_bytes(),
        Bytes::from_static(b"{}"),
        Bytes::from_static(b"\x12\0"),
    ];
    for message in wrong {
        let (tunnel, mut script) = pair().await;
        let asked_for = asking(&tunnel);
        script.bare().await;
        script.out.send(message.clone()).await.unwrap();
        let error = asked_for.await.unwrap().unwrap_err();
        assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
        let ended = script.end().await;
        assert!(
            matches!(ended, Ended::Closed { code: 4004, .. }),
            "{message:?}: {ended:?}"
        );
        let never = get(&tunnel, "/").await.unwrap_err();
        assert_eq!(never.execution(), Execution::NotStarted, "{never:?}");
    }
}

#[tokio::test]
async fn tables_hold_only_what_is_open_however_much_there_was() {
    let (tunnel, mut script) = pair().await;
    for _ in 0..2_000 {
        let left = asking(&tunnel);
        let stream = script.bare().await;
        left.abort();
        assert_eq!(script.next().await, Frame::Cancel { stream });
    }
    let carried = tunnel.carried();
    assert_eq!((carried.streams, carried.opened), (0, 2_000));
}

#[tokio::test]
async fn an_answer_that_is_no_valid_head_is_told_as_such() {
    for (status, lines) in [(99, ""), (200, "no colon\r\n"), (200, "a: b\r\n\r\nbody")] {
        let (tunnel, mut script) = pair().await;
        let asked_for = asking(&tunnel);
        let stream = script.bare().await;
        let answered = bowline_wire::executor::Answered {
            status,
            lines: Bytes::from_static(lines.as_bytes()),
        };
        script.say(Frame::Answer { stream, answered }).await;
        let error = asked_for.await.unwrap().unwrap_err();
        assert!(matches!(error, HttpError::Head(_)), "{error:?}");
        assert_eq!(script.next().await, Frame::Cancel { stream });
    }
}

#[tokio::test]
async fn a_connection_without_room_for_streams_says_that_it_is_busy() {
    let few = Hello {
        streams_max: 1,
        ..hello()
    };
    let (tunnel, mut script) = pair_of(few, FlowLimits::default(), limits()).await;
    let _held = asking(&tunnel);
    script.bare().await;
    let to = bowline_link::http::endpoint::Endpoint::parse("http://a.example/").unwrap();
    let errand = bowline_link::executor::Errand {
        server: "s",
        request: bowline_link::http::client::Outgoing::new(http::Method::GET, &to),
        fills: &[],
    };
    let wait = bowline_link::http::client::Wait {
        connect: Some(soon() - crate::script::LONG),
        first_byte: None,
        leaving: &|| panic!("nothing leaves"),
    };
    let Err(HttpError::Elsewhere(failure)) = within(tunnel.carry(errand, wait)).await else {
        panic!("not busy");
    };
    assert_eq!(&*failure.code, "executor_busy");
}
