//! Ends of connections: told as what they are, after what had come.

use std::time::Duration;

use bowline_core::flow::FlowLimits;
use bowline_link::executor::Carrier as _;
use bowline_link::http::client::HttpError;
use bowline_link::websocket::{Ended, SocketLimits};

use crate::script::{asking, hello, limits, pair, pair_of, pieces, within};

#[tokio::test]
async fn a_disconnect_is_told_as_one_however_many_pieces_had_come() {
    for count in [0, 1, 2, 7, 255, 300] {
        let (tunnel, mut script) = pair().await;
        let asked_for = asking(&tunnel);
        let stream = script.bare().await;
        script.answer(stream).await;
        for offset in 0..count {
            script.data(stream, offset, "x").await;
        }
        script.out.close(1001, "going down");
        tunnel.over().await;
        let mut response = asked_for.await.unwrap().unwrap();
        let (read, error) = pieces(&mut response).await;
        let bytes: usize = read.iter().map(bytes::Bytes::len).sum();
        assert_eq!(u64::try_from(bytes).unwrap(), count);
        let Some(HttpError::Disconnected(reason)) = error else {
            panic!("{error:?}");
        };
        assert!(reason.contains("going down"), "{reason}");
        // It does not become an end by being asked again.
        let again = within(response.body.chunk()).await;
        assert!(
            matches!(again, Some(Err(HttpError::Disconnected(_)))),
            "{again:?}"
        );
    }
}

#[tokio::test]
async fn an_executor_that_is_gone_without_a_word_is_noticed() {
    let impatient = SocketLimits {
        ping_every: Duration::from_millis(20),
        silence_max: Duration::from_millis(120),
        ..limits()
    };
    let (tunnel, mut script) = pair_of(hello(), FlowLimits::default(), impatient).await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    // It reads no more, and so answers no ping; its socket stays open.
    let (read, error) = pieces(&mut response).await;
    assert!(read.is_empty());
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    let ended = within(tunnel.over()).await;
    assert!(matches!(ended, Ended::Silent(_)), "{ended:?}");
    drop(script);
}

#[tokio::test]
async fn a_quiet_stream_on_a_living_connection_has_no_deadline() {
    let impatient = SocketLimits {
        ping_every: Duration::from_millis(10),
        silence_max: Duration::from_millis(80),
        ..limits()
    };
    let (tunnel, mut script) = pair_of(hello(), FlowLimits::default(), impatient).await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.answer(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    // Reading answers the pings.
    let quiet = tokio::time::timeout(Duration::from_millis(400), script.incoming.next());
    assert!(quiet.await.is_err());
    script.data(stream, 0, "late").await;
    script.finish(stream, 4).await;
    let (read, error) = pieces(&mut response).await;
    assert_eq!((read.concat(), error), (b"late".to_vec(), None));
}

#[tokio::test]
async fn closing_here_fails_what_is_open() {
    let (tunnel, mut script) = pair().await;
    let asked_for = asking(&tunnel);
    script.bare().await;
    tunnel.close(4002, "the token was revoked");
    let error = asked_for.await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
    let ended = script.end().await;
    let Ended::Closed { code, reason } = ended else {
        panic!("{ended:?}");
    };
    assert_eq!((code, &*reason), (4002, "the token was revoked"));
}
