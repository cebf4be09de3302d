//! Sending and cancelling of requests.

use bowline_core::error::ExecutionStatus;
use tokio::io::AsyncReadExt;

use super::*;

const CANCELLED: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":"#;

#[tokio::test]
async fn rename_and_token_edits_in_any_order() {
    let mut scene = RpcScene::new();
    for (params, wire) in [
        (
            r#"{"name":"s__t","_meta":{"progressToken":"T"}}"#,
            r#"{"name":"t\"","_meta":{"progressToken":1}}"#,
        ),
        (
            r#"{"_meta":{"progressToken":"T"}, "name":"s__t"}"#,
            r#"{"_meta":{"progressToken":2}, "name":"t\""}"#,
        ),
    ] {
        let at = |what: &str| {
            let start = params.find(what).unwrap();
            start..start + what.len()
        };
        let mut request = request_with_params(params);
        request.rename = Some(ParamRename {
            at: at("\"s__t\""),
            to: "t\"".into(),
        });
        request.message.progress_at = Some(at("\"T\""));
        let _call = scene.start_call(request).await;
        let line = scene.read_line().await;
        assert!(line.ends_with(&format!(r#""params":{wire}}}"#)), "{line}");
    }
}

#[tokio::test]
async fn queued_requests_are_written_in_batch() {
    let mut scene = RpcScene::with_limits(StdioLimits::default(), 7);
    let mut calls = Vec::new();
    for _ in 0..50 {
        calls.push(
            scene
                .start_call(request_with_params(r#"{"a":"line one\nline two"}"#))
                .await,
        );
    }
    for id in 1..=50 {
        let line = scene.read_line().await;
        assert!(
            line.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#)),
            "{line}"
        );
        scene.respond(id).await;
    }
    for (id, call) in (1..).zip(calls) {
        assert_eq!(response_text(call.await.unwrap()), ok_text(id));
    }
}

#[tokio::test]
async fn line_breaks_in_params_keep_framing() {
    let mut scene = RpcScene::new();
    let _call = scene
        .start_call(request_with_params("{\n\"a\":\r\n1}"))
        .await;
    assert!(scene.read_line().await.ends_with(r#""params":{ "a":  1}}"#));
}

#[tokio::test]
async fn call_dropped_during_write_leaves_whole_lines() {
    let mut scene = RpcScene::with_limits(StdioLimits::default(), 16);
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(5_000));
    let call = scene.start_call(request_with_params(large)).await;
    // A part is in the full pipe.
    let mut start = [0; 8];
    scene.heard.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, br#"{"jsonrp"#);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());

    let next = scene.start_call(test_request("next")).await;
    let rest = scene.read_line().await;
    assert!(rest.ends_with(r#"xxx"}}"#), "the line is finished");
    assert!(scene.read_line().await.starts_with(CANCELLED));
    let line = scene.read_line().await;
    assert_eq!(line, r#"{"jsonrpc":"2.0","id":2,"method":"next"}"#);
    scene.respond(2).await;
    assert_eq!(response_text(next.await.unwrap()), ok_text(2));
}

#[tokio::test]
async fn dropped_call_sends_cancel() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    call.abort();
    let told = scene.read_line().await;
    let params = r#"{"requestId":1,"reason":"the caller took the request back"}}"#;
    assert_eq!(told, format!("{CANCELLED}{params}"));
    assert_eq!(scene.rpc.in_flight(), 0);
    scene.respond(1).await;
    scene.settle().await;
    assert!(scene.rpc.is_open(), "a late answer does no harm");
}

#[tokio::test]
async fn handshake_is_never_cancelled() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("initialize")).await;
    scene.read_line().await;
    call.abort();
    assert!(call.await.is_err());
    scene.settle().await;
}

#[tokio::test]
async fn call_dropped_in_queue_is_never_sent() {
    let mut scene = RpcScene::with_limits(StdioLimits::default(), 16);
    let stuck = scene.start_sent_call("stuck").await;
    let dropped = scene.start_call(test_request("dropped")).await;
    let kept = scene.start_call(test_request("kept")).await;
    dropped.abort();
    assert!(dropped.await.is_err());
    assert!(scene.read_line().await.contains("stuck"));
    assert!(
        scene.read_line().await.contains("kept"),
        "nothing of the dropped one"
    );
    scene.respond(3).await;
    assert_eq!(response_text(kept.await.unwrap()), ok_text(3));
    assert!(!stuck.is_finished());
}

#[tokio::test(start_paused = true)]
async fn timeout_tells_whether_request_was_sent() {
    let mut scene = RpcScene::new();
    let sent = scene.start_sent_call("sent").await;
    scene.read_line().await;
    let error = sent.await.unwrap().unwrap_err();
    let perhaps = SendState::MaybeSent;
    assert_eq!(error, LinkError::Timeout { sent: perhaps });
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let told = scene.read_line().await;
    assert!(told.contains(r#""requestId":1,"reason":"the request timed out""#));
    assert_eq!(scene.rpc.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_behind_unread_pipe_are_not_started() {
    let mut scene = RpcScene::with_limits(StdioLimits::default(), 16);
    let stuck = scene.start_sent_call("stuck").await;
    let behind = scene.start_call(test_request("behind")).await;
    let error = behind.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::NotSent(NotSentReason::NotRead));
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    let error = stuck.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    assert!(scene.read_line().await.contains("stuck"));
    assert!(scene.read_line().await.starts_with(CANCELLED));
    scene.settle().await;
}

#[tokio::test(start_paused = true)]
async fn full_queue_means_not_started() {
    let limits = StdioLimits {
        queue_frames_max: 1,
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 16);
    let _stuck = scene.start_sent_call("stuck").await;
    let _queued = scene.start_call(test_request("queued")).await;
    let full = LinkError::NotSent(NotSentReason::QueueFull);
    assert_eq!(scene.rpc.notify("note", None), Err(full.clone()));
    let impatient = LinkRequest {
        deadline: deadline_after(Duration::from_secs(1)),
        ..test_request("impatient")
    };
    let impatient = scene.start_call(impatient).await;
    let patient = scene.start_call(test_request("patient")).await;
    assert_eq!(impatient.await.unwrap(), Err(full));
    for name in ["stuck", "queued", "patient"] {
        assert!(scene.read_line().await.contains(name));
    }
    scene.respond(4).await;
    assert_eq!(response_text(patient.await.unwrap()), ok_text(4));
}

#[tokio::test]
async fn cancels_survive_full_queue() {
    let limits = StdioLimits {
        queue_frames_max: 1,
        in_flight_max: 8,
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 16);
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.push(scene.start_sent_call("sent").await);
        scene.read_line().await;
    }
    let _stuck = scene.start_sent_call("stuck").await;
    let _queued = scene.start_call(test_request("queued")).await;
    for call in &sent {
        call.abort();
    }
    for call in sent {
        assert!(call.await.is_err());
    }
    assert!(scene.read_line().await.contains("stuck"));
    for id in 1..=5 {
        let told = scene.read_line().await;
        assert!(told.contains(&format!(r#""requestId":{id},"#)), "{told}");
    }
    assert!(scene.read_line().await.contains("queued"));
}

#[tokio::test]
async fn lost_link_distinguishes_sent_and_unsent_calls() {
    let scene = RpcScene::with_limits(StdioLimits::default(), 16);
    let sent = scene.start_sent_call("sent").await;
    let unsent = scene.start_call(test_request("unsent")).await;
    scene.rpc.finish(LinkExit::Signal(9));
    let error = sent.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Lost(LinkExit::Signal(9)));
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let error = unsent.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Closed(LinkExit::Signal(9)));
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
}

#[tokio::test]
async fn shutdown_closes_stdin_of_unreading_server() {
    let mut scene = RpcScene::with_limits(StdioLimits::default(), 16);
    let _stuck = scene.start_sent_call("stuck").await;
    scene
        .rpc
        .begin_shutdown(LinkExit::Stopping, StopMode::Graceful);
    scene.writer.await.unwrap();
    let mut read = Vec::new();
    scene.heard.read_to_end(&mut read).await.unwrap();
    assert_eq!(read.len(), 16);
}

#[tokio::test]
async fn server_closing_stdin_ends_link() {
    let mut scene = RpcScene::new();
    let heard = std::mem::replace(&mut scene.heard, BufReader::new(tokio::io::duplex(1).0));
    drop(heard);
    let call = scene.start_call(test_request("x")).await;
    assert_eq!(
        scene.rpc.wait_ending().await,
        (LinkExit::Closed, StopMode::Graceful)
    );
    scene.rpc.finish(LinkExit::Closed);
    assert_eq!(call.await.unwrap(), Err(LinkError::Lost(LinkExit::Closed)));
}
