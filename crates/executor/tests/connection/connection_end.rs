//! Disconnects, reported after the received data.

use std::time::Duration;

use bowline_executor::connection::ExecutorConnection as _;
use bowline_executor::flow::FlowLimits;
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::{DisconnectReason, WebSocketLimits};
use bowline_testkit::wait_bounded;

use crate::scripted_executor::{
    read_chunks, start_get, test_hello, test_limits, tunnel_pair, tunnel_pair_with,
};

#[tokio::test]
async fn disconnect_is_reported_after_any_chunks() {
    for count in [0, 1, 2, 7, 255, 300] {
        let (tunnel, mut script) = tunnel_pair().await;
        let asked_for = start_get(&tunnel);
        let stream = script.receive_bodyless_request().await;
        script.send_head(stream).await;
        for offset in 0..count {
            script.send_data(stream, offset, "x").await;
        }
        script.socket.sender.close(1001, "going down");
        tunnel.wait_closed().await;
        let mut response = asked_for.await.unwrap().unwrap();
        let (read, error) = read_chunks(&mut response).await;
        let bytes: usize = read.iter().map(bytes::Bytes::len).sum();
        assert_eq!(u64::try_from(bytes).unwrap(), count);
        let Some(HttpError::Disconnected(reason)) = error else {
            panic!("{error:?}");
        };
        assert!(reason.contains("going down"), "{reason}");
        // A further read returns the same error, not the end.
        let again = wait_bounded(response.body.next_chunk()).await;
        assert!(
            matches!(again, Some(Err(HttpError::Disconnected(_)))),
            "{again:?}"
        );
    }
}

#[tokio::test]
async fn silent_executor_is_detected() {
    let impatient = WebSocketLimits {
        ping_interval: Duration::from_millis(20),
        silence_max: Duration::from_millis(120),
        ..test_limits()
    };
    let (tunnel, mut script) =
        tunnel_pair_with(test_hello(), FlowLimits::default(), impatient).await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    // The peer stops reading and so sends no pong; the socket stays open.
    let (read, error) = read_chunks(&mut response).await;
    assert!(read.is_empty());
    assert!(
        matches!(error, Some(HttpError::Disconnected(_))),
        "{error:?}"
    );
    let ended = wait_bounded(tunnel.wait_closed()).await;
    assert!(matches!(ended, DisconnectReason::Silent(_)), "{ended:?}");
    drop(script);
}

#[tokio::test]
async fn quiet_stream_has_no_deadline() {
    let impatient = WebSocketLimits {
        ping_interval: Duration::from_millis(10),
        silence_max: Duration::from_millis(80),
        ..test_limits()
    };
    let (tunnel, mut script) =
        tunnel_pair_with(test_hello(), FlowLimits::default(), impatient).await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.send_head(stream).await;
    let mut response = asked_for.await.unwrap().unwrap();
    // Reading answers the pings.
    let quiet = tokio::time::timeout(Duration::from_millis(400), script.socket.receiver.next());
    assert!(quiet.await.is_err());
    script.send_data(stream, 0, "late").await;
    script.send_end(stream, 4).await;
    let (read, error) = read_chunks(&mut response).await;
    assert_eq!((read.concat(), error), (b"late".to_vec(), None));
}

#[tokio::test]
async fn local_close_fails_open_streams() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    script.receive_bodyless_request().await;
    tunnel.close(4002, "the token was revoked");
    let error = asked_for.await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Disconnected(_)), "{error:?}");
    let ended = script.wait_disconnect().await;
    let DisconnectReason::Closed { code, reason } = ended else {
        panic!("{ended:?}");
    };
    assert_eq!((code, &*reason), (4002, "the token was revoked"));
}
