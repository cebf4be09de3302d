//! How requests leave, and how they are taken back.

use bowline_core::error::Execution;
use tokio::io::AsyncReadExt;

use super::*;

const CANCELLED: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":"#;

#[tokio::test]
async fn names_and_tokens_are_replaced_in_either_order() {
    let mut scene = Scene::new();
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
        let _call = scene
            .call(Request {
                rename: Some(Rename {
                    at: at("\"s__t\""),
                    to: "t\"".into(),
                }),
                progress_at: Some(at("\"T\"")),
                ..with_params(params)
            })
            .await;
        let line = scene.hears().await;
        assert!(line.ends_with(&format!(r#""params":{wire}}}"#)), "{line}");
    }
}

#[tokio::test]
async fn requests_that_wait_together_leave_together_and_whole() {
    let mut scene = Scene::with(StdioLimits::default(), 7);
    let mut calls = Vec::new();
    for _ in 0..50 {
        calls.push(
            scene
                .call(with_params(r#"{"a":"line one\nline two"}"#))
                .await,
        );
    }
    for id in 1..=50 {
        let line = scene.hears().await;
        assert!(
            line.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#)),
            "{line}"
        );
        scene.answers(id).await;
    }
    for (id, call) in (1..).zip(calls) {
        assert_eq!(text(call.await.unwrap()), ok(id));
    }
}

#[tokio::test]
async fn raw_line_breaks_in_parameters_do_not_break_the_framing() {
    let mut scene = Scene::new();
    let _call = scene.call(with_params("{\n\"a\":\r\n1}")).await;
    assert!(scene.hears().await.ends_with(r#""params":{ "a":  1}}"#));
}

#[tokio::test]
async fn a_call_dropped_while_it_is_written_leaves_whole_lines() {
    let mut scene = Scene::with(StdioLimits::default(), 16);
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(5_000));
    let call = scene.call(with_params(large)).await;
    // Part of it is in the pipe, and no more can be.
    let mut start = [0; 8];
    scene.heard.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, br#"{"jsonrp"#);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());

    let next = scene.call(request("next")).await;
    let rest = scene.hears().await;
    assert!(rest.ends_with(r#"xxx"}}"#), "the line is finished");
    assert!(scene.hears().await.starts_with(CANCELLED));
    let line = scene.hears().await;
    assert_eq!(line, r#"{"jsonrpc":"2.0","id":2,"method":"next"}"#);
    scene.answers(2).await;
    assert_eq!(text(next.await.unwrap()), ok(2));
}

#[tokio::test]
async fn a_dropped_call_frees_its_waiter_and_the_server_is_told() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    call.abort();
    let told = scene.hears().await;
    let params = r#"{"requestId":1,"reason":"the caller took the request back"}}"#;
    assert_eq!(told, format!("{CANCELLED}{params}"));
    assert_eq!(scene.peer.in_flight(), 0);
    scene.answers(1).await;
    scene.settles().await;
    assert!(scene.peer.is_open(), "a late answer does no harm");
}

#[tokio::test]
async fn the_handshake_is_never_taken_back() {
    let mut scene = Scene::new();
    let call = scene.call(request("initialize")).await;
    scene.hears().await;
    call.abort();
    assert!(call.await.is_err());
    scene.settles().await;
}

#[tokio::test]
async fn a_call_dropped_before_it_is_sent_is_never_sent() {
    let mut scene = Scene::with(StdioLimits::default(), 16);
    let stuck = scene.sent("stuck").await;
    let dropped = scene.call(request("dropped")).await;
    let kept = scene.call(request("kept")).await;
    dropped.abort();
    assert!(dropped.await.is_err());
    assert!(scene.hears().await.contains("stuck"));
    assert!(
        scene.hears().await.contains("kept"),
        "nothing of the dropped one"
    );
    scene.answers(3).await;
    assert_eq!(text(kept.await.unwrap()), ok(3));
    assert!(!stuck.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_tells_whether_the_request_had_left() {
    let mut scene = Scene::new();
    let sent = scene.sent("sent").await;
    scene.hears().await;
    let error = sent.await.unwrap().unwrap_err();
    let perhaps = Sent::Perhaps;
    assert_eq!(error, LinkError::Timeout { sent: perhaps });
    assert_eq!(error.execution(), Execution::Unknown);
    let told = scene.hears().await;
    assert!(told.contains(r#""requestId":1,"reason":"the request timed out""#));
    assert_eq!(scene.peer.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_behind_a_server_that_does_not_read_are_not_started() {
    let mut scene = Scene::with(StdioLimits::default(), 16);
    let stuck = scene.sent("stuck").await;
    let behind = scene.call(request("behind")).await;
    let error = behind.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::NotSent(NotSent::NotRead));
    assert_eq!(error.execution(), Execution::NotStarted);
    let error = stuck.await.unwrap().unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown);
    assert!(scene.hears().await.contains("stuck"));
    assert!(scene.hears().await.starts_with(CANCELLED));
    scene.settles().await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stays_full_means_not_started_and_room_is_used() {
    let limits = StdioLimits {
        queue_frames_max: 1,
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 16);
    let _stuck = scene.sent("stuck").await;
    let _queued = scene.call(request("queued")).await;
    let full = LinkError::NotSent(NotSent::QueueFull);
    assert_eq!(scene.peer.notify("note", None), Err(full.clone()));
    let impatient = Request {
        deadline: after(Duration::from_secs(1)),
        ..request("impatient")
    };
    let impatient = scene.call(impatient).await;
    let patient = scene.call(request("patient")).await;
    assert_eq!(impatient.await.unwrap(), Err(full));
    for name in ["stuck", "queued", "patient"] {
        assert!(scene.hears().await.contains(name));
    }
    scene.answers(4).await;
    assert_eq!(text(patient.await.unwrap()), ok(4));
}

#[tokio::test]
async fn cancellations_are_not_lost_when_the_queue_is_full() {
    let limits = StdioLimits {
        queue_frames_max: 1,
        in_flight_max: 8,
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 16);
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.push(scene.sent("sent").await);
        scene.hears().await;
    }
    let _stuck = scene.sent("stuck").await;
    let _queued = scene.call(request("queued")).await;
    for call in &sent {
        call.abort();
    }
    for call in sent {
        assert!(call.await.is_err());
    }
    assert!(scene.hears().await.contains("stuck"));
    for id in 1..=5 {
        let told = scene.hears().await;
        assert!(told.contains(&format!(r#""requestId":{id},"#)), "{told}");
    }
    assert!(scene.hears().await.contains("queued"));
}

#[tokio::test]
async fn a_lost_link_tells_sent_calls_from_unsent_ones() {
    let scene = Scene::with(StdioLimits::default(), 16);
    let sent = scene.sent("sent").await;
    let unsent = scene.call(request("unsent")).await;
    scene.peer.finish(Exit::Signal(9));
    let error = sent.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Lost(Exit::Signal(9)));
    assert_eq!(error.execution(), Execution::Unknown);
    let error = unsent.await.unwrap().unwrap_err();
    assert_eq!(error, LinkError::Closed(Exit::Signal(9)));
    assert_eq!(error.execution(), Execution::NotStarted);
}

#[tokio::test]
async fn the_end_closes_the_stream_to_a_server_that_does_not_read() {
    let mut scene = Scene::with(StdioLimits::default(), 16);
    let _stuck = scene.sent("stuck").await;
    scene.peer.end(Exit::Stopping, Stop::Orderly);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let mut read = Vec::new();
    scene.heard.read_to_end(&mut read).await.unwrap();
    assert_eq!(read.len(), 16);
}

#[tokio::test]
async fn a_server_that_closes_its_input_ends_the_link() {
    let mut scene = Scene::new();
    let heard = std::mem::replace(&mut scene.heard, BufReader::new(tokio::io::duplex(1).0));
    drop(heard);
    let call = scene.call(request("x")).await;
    assert_eq!(scene.peer.ending().await, (Exit::Closed, Stop::Orderly));
    scene.peer.finish(Exit::Closed);
    assert_eq!(call.await.unwrap(), Err(LinkError::Lost(Exit::Closed)));
}
