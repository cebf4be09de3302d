//! How a connection begins.

use super::*;

/// Has the script answer the first request so.
async fn answered(resume: Option<&str>, answer: Value) -> (Result<ExecServer, OpenError>, Value) {
    let (listener, endpoint) = listening().await;
    let opening = async {
        let io = dialled(&endpoint).await;
        ExecServer::open(io, "bowline", resume.map(Arc::from), &Tokio).await
    };
    let scripting = async {
        let mut peer = accepted(&listener).await;
        let first = peer.read().await;
        let mut answer = answer;
        answer["id"] = first["id"].clone();
        peer.write(&answer).await;
        (peer, first["params"].clone())
    };
    let (opened, (_peer, params)) = in_time(async { tokio::join!(opening, scripting) }).await;
    (opened, params)
}

#[tokio::test]
async fn a_session_of_an_earlier_connection_is_asked_for_again() {
    let result = json!({"result": {"sessionId": "s-7", "more": 1}});
    let (opened, params) = answered(Some("s-7"), result).await;
    assert_eq!(&**opened.unwrap().session(), "s-7");
    let want = json!({"clientName": "bowline", "resumeSessionId": "s-7"});
    assert_eq!(params, want);
}

#[tokio::test]
async fn a_refused_handshake_is_told_by_its_code() {
    let refusal = |code| json!({"error": {"code": code, "message": "no"}});
    let (opened, _) = answered(Some("s"), refusal(-32010)).await;
    assert_eq!(opened.unwrap_err(), OpenError::Attached);
    let (opened, _) = answered(Some("s"), refusal(-32600)).await;
    let want = OpenError::Refused {
        code: -32600,
        message: "no".into(),
    };
    assert_eq!(opened.unwrap_err(), want);
    let (opened, _) = answered(None, json!({"result": {"session": "s"}})).await;
    assert!(matches!(opened, Err(OpenError::Frame(_))), "{opened:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_nobody_answers_ends_in_time() {
    let (near, far) = tokio::io::duplex(4_096);
    let limits = exec_server_limits();
    let side = websocket::Side::Client;
    let io = websocket::join(near, side, Bytes::new(), limits, &Tokio);
    let opened = ExecServer::open(io, "bowline", None, &Tokio).await;
    assert_eq!(opened.unwrap_err(), OpenError::Timeout);
    drop(far);
}

#[tokio::test]
async fn the_version_of_the_other_side_is_kept() {
    let about = json!({"executorVersion": "1.2.3", "shell": {"name": "bash"}});
    let result = json!({"result": {"sessionId": "s", "environmentInfo": about}});
    let (opened, _) = answered(None, result).await;
    let opened = opened.unwrap();
    assert_eq!(&*opened.offers().software, "codex exec-server 1.2.3");
}
