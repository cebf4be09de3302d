//! Handshake with an exec-server.

use super::*;

/// Opens a connection with this response to the first request.
async fn open_with_response(
    resume: Option<&str>,
    answer: Value,
) -> (Result<ExecServerConnection, ExecServerOpenError>, Value) {
    let (listener, endpoint) = listen_on_free_port().await;
    let opening = async {
        let socket = dial_endpoint(&endpoint).await;
        ExecServerConnection::open(socket, "bowline", resume.map(Arc::from), &DetachedSpawner).await
    };
    let scripting = async {
        let mut peer = accept_client(&listener).await;
        let first = peer.read_message().await;
        let mut answer = answer;
        answer["id"] = first["id"].clone();
        peer.write_message(&answer).await;
        (peer, first["params"].clone())
    };
    let (opened, (_peer, params)) = wait_bounded(async { tokio::join!(opening, scripting) }).await;
    (opened, params)
}

#[tokio::test]
async fn earlier_session_is_resumed() {
    let result = json!({"result": {"sessionId": "s-7", "more": 1}});
    let (opened, params) = open_with_response(Some("s-7"), result).await;
    assert_eq!(&**opened.unwrap().session_id(), "s-7");
    let want = json!({"clientName": "bowline", "resumeSessionId": "s-7"});
    assert_eq!(params, want);
}

#[tokio::test]
async fn refused_handshake_reports_code() {
    let refusal = |code| json!({"error": {"code": code, "message": "no"}});
    let (opened, _) = open_with_response(Some("s"), refusal(-32010)).await;
    assert_eq!(opened.unwrap_err(), ExecServerOpenError::Attached);
    let (opened, _) = open_with_response(Some("s"), refusal(-32600)).await;
    let want = ExecServerOpenError::Refused {
        code: -32600,
        message: "no".into(),
    };
    assert_eq!(opened.unwrap_err(), want);
    let (opened, _) = open_with_response(None, json!({"result": {"session": "s"}})).await;
    assert!(
        matches!(opened, Err(ExecServerOpenError::Frame(_))),
        "{opened:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn unanswered_handshake_times_out() {
    let (near, far) = tokio::io::duplex(4_096);
    let limits = exec_server_limits();
    let side = websocket::WebSocketRole::Client;
    let socket = websocket::open_websocket(near, side, Bytes::new(), limits, &DetachedSpawner);
    let opened = ExecServerConnection::open(socket, "bowline", None, &DetachedSpawner).await;
    assert_eq!(opened.unwrap_err(), ExecServerOpenError::Timeout);
    drop(far);
}

#[tokio::test]
async fn exec_server_version_is_kept() {
    let about = json!({"executorVersion": "1.2.3", "shell": {"name": "bash"}});
    let result = json!({"result": {"sessionId": "s", "environmentInfo": about}});
    let (opened, _) = open_with_response(None, result).await;
    let opened = opened.unwrap();
    assert_eq!(&*opened.info().software, "codex exec-server 1.2.3");
}
