//! Credit: a slow reader slows its sender, and no other.

use bowline_core::flow::FlowLimits;
use bowline_link::executor::Carrier as _;
use bowline_link::http::client::HttpError;
use bowline_wire::executor::Frame;
use bytes::Bytes;

use crate::script::{asking, hello, limits, pair, pair_of, pieces, start, text, within};
use crate::worker::{fits, work};

#[tokio::test]
async fn a_sender_is_told_of_room_only_when_somebody_has_read() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let (stream, asked) = script.request().await;
    script.next().await;
    script.answer(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    let half = usize::try_from(asked.credit / 2).unwrap();
    script.data(stream, 0, vec![1; half]).await;
    script.data(stream, asked.credit / 2, vec![2; half]).await;
    // Nothing is read, so that the next word is about the other stream.
    let other = asking(&tunnel);
    let next = script.bare().await;
    assert_eq!(next, stream + 1);
    script.whole(next, "not held up").await;
    assert_eq!(
        text(&mut other.await.unwrap().unwrap()).await,
        "not held up"
    );
    for _ in 0..2 {
        let piece = within(response.body.chunk()).await.unwrap().unwrap();
        assert_eq!(piece.len(), half);
    }
    let mut more = 0;
    while more < asked.credit {
        let Frame::Credit { stream: of, bytes } = script.next().await else {
            panic!("no credit");
        };
        assert_eq!(of, stream);
        more += bytes;
    }
}

#[tokio::test]
async fn a_body_of_many_windows_arrives_whole_and_its_sender_never_overdraws() {
    let (tunnel, script) = pair().await;
    start(work(script));
    let length: u64 = 20 * 1024 * 1024;
    let path: &'static str = Box::leak(format!("/7/{length}").into_boxed_str());
    let mut response = crate::script::get(&tunnel, path).await.unwrap();
    let mut offset = 0;
    while let Some(piece) = within(response.body.chunk()).await {
        let piece = piece.unwrap();
        assert!(fits(7, offset, &piece));
        offset += u64::try_from(piece.len()).unwrap();
    }
    assert_eq!(offset, length);
}

#[tokio::test]
async fn who_ignores_its_credit_loses_that_stream_after_what_was_queued() {
    let (tunnel, mut script) = pair().await;
    let flooded = asking(&tunnel);
    let (stream, asked) = script.request().await;
    script.next().await;
    script.answer(stream).await;
    let mut response = flooded.await.unwrap().unwrap();
    let piece = Bytes::from(vec![b'x'; 1_000]);
    for number in 0..1_024 {
        script.data(stream, number * 1_000, piece.clone()).await;
    }
    assert_eq!(script.next().await, Frame::Cancel { stream });
    let (read, error) = pieces(&mut response).await;
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
    // The connection stays up.
    let next = asking(&tunnel);
    let other = script.bare().await;
    script.whole(other, "up").await;
    assert_eq!(text(&mut next.await.unwrap().unwrap()).await, "up");
    assert_eq!(tunnel.ended(), None);
}

#[tokio::test]
async fn a_thousand_small_pieces_within_the_credit_are_all_read() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    for offset in 0..1_024 {
        script.data(stream, offset, "x").await;
    }
    script.finish(stream, 1_024).await;
    let mut response = asked_for.await.unwrap().unwrap();
    assert_eq!(text(&mut response).await.len(), 1_024);
}

#[tokio::test]
async fn one_stream_more_than_there_may_be_waits_for_a_place() {
    let few = bowline_wire::executor::Hello {
        streams_max: 2,
        ..hello()
    };
    let (tunnel, mut script) = pair_of(few, FlowLimits::default(), limits()).await;
    let one = asking(&tunnel);
    let first = script.bare().await;
    let two = asking(&tunnel);
    let second = script.bare().await;
    let three = asking(&tunnel);
    script.whole(second, "second").await;
    assert_eq!(text(&mut two.await.unwrap().unwrap()).await, "second");
    // The place of the second is the third's.
    let third = script.bare().await;
    script.whole(third, "third").await;
    assert_eq!(text(&mut three.await.unwrap().unwrap()).await, "third");
    script.whole(first, "first").await;
    assert_eq!(text(&mut one.await.unwrap().unwrap()).await, "first");
}
