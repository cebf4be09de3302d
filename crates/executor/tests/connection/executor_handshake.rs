//! Handshake with an executor, and invalid handshakes.

use bowline_executor::connection::{ExecutorConnection as _, ExecutorHandshakeError};
use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{ExecutorFrame, ExecutorHello, OpenSessionReply, VERSION};
use bowline_link::websocket::DisconnectReason;

use crate::scripted_executor::{
    dialed_tunnel_pair, new_session, open_tunnel, read_text, socket_pair, start_get, test_hello,
    test_limits,
};

#[tokio::test]
async fn executor_hello_opens_session() {
    let (gateway, mut script) = socket_pair(test_limits()).await;
    let hello = test_hello();
    let (tunnel, open) = tokio::join!(
        open_tunnel(gateway, new_session(FlowLimits::default())),
        script.complete_handshake(&hello)
    );
    let tunnel = tunnel.unwrap();
    assert_eq!(open.protocol_version, VERSION);
    assert_eq!(&*open.session, "session");
    assert!(open.marks.is_empty());
    assert_eq!(&*tunnel.info().software, "script/1");
    assert_eq!(tunnel.info().servers, ["files".into()]);
    assert_eq!(tunnel.info().secrets, ["tracker".into()]);
}

#[tokio::test]
async fn roles_hold_when_gateway_dials() {
    let (tunnel, mut script) = dialed_tunnel_pair().await;
    let asked_for = start_get(&tunnel);
    let stream = script.receive_bodyless_request().await;
    script.respond_whole(stream, "answered").await;
    assert_eq!(
        read_text(&mut asked_for.await.unwrap().unwrap()).await,
        "answered"
    );
}

#[tokio::test]
async fn invalid_hello_is_refused_with_reason() {
    let other = ExecutorHello {
        protocol_version: VERSION + 1,
        ..test_hello()
    };
    let firsts = [
        (
            ExecutorFrame::Hello(other),
            ExecutorHandshakeError::Version(VERSION + 1),
        ),
        (
            ExecutorFrame::Cancel { stream: 1 },
            ExecutorHandshakeError::Unexpected,
        ),
        (
            ExecutorFrame::OpenSessionReply(OpenSessionReply::default()),
            ExecutorHandshakeError::Unexpected,
        ),
    ];
    for (first, want) in firsts {
        let (gateway, mut script) = socket_pair(test_limits()).await;
        script.send_frame(first).await;
        let error = open_tunnel(gateway, new_session(FlowLimits::default())).await;
        assert_eq!(error.unwrap_err(), want);
        let ended = script.wait_disconnect().await;
        assert!(
            matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn invalid_frame_is_no_hello() {
    let (gateway, mut script) = socket_pair(test_limits()).await;
    script.socket.sender.send("hello".into()).await.unwrap();
    let error = open_tunnel(gateway, new_session(FlowLimits::default())).await;
    assert!(
        matches!(error, Err(ExecutorHandshakeError::Frame(_))),
        "{error:?}"
    );
    let ended = script.wait_disconnect().await;
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}

#[tokio::test]
async fn response_before_open_is_refused() {
    let (gateway, mut script) = socket_pair(test_limits()).await;
    let early = async {
        script.send_frame(ExecutorFrame::Hello(test_hello())).await;
        script.next_frame().await;
        script.send_head(1).await;
        script.wait_disconnect().await
    };
    let (joined, ended) = tokio::join!(
        open_tunnel(gateway, new_session(FlowLimits::default())),
        early
    );
    assert_eq!(joined.unwrap_err(), ExecutorHandshakeError::Unexpected);
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn silent_executor_handshake_times_out() {
    let (gateway, mut script) = socket_pair(test_limits()).await;
    let error = open_tunnel(gateway, new_session(FlowLimits::default())).await;
    assert_eq!(error.unwrap_err(), ExecutorHandshakeError::Timeout);
    let ended = script.wait_disconnect().await;
    assert!(
        matches!(ended, DisconnectReason::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}
