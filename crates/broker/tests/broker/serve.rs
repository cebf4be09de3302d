//! Each request is answered once: finished requests are known, and late requests do not run.

use std::sync::Arc;
use std::time::Duration;

use bowline_broker::{ReplyError, reply_id};
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_testkit::run_until_idle;
use bowline_testkit::serve_rig::{
    RecordingReplySink, ReplyStep, ServeRig, call, failure, incoming, output, run_number,
};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::Semaphore;

#[tokio::test(start_paused = true)]
async fn reply_record_and_ack_keep_their_order() {
    let side = ServeRig::in_memory();
    let receipts = Arc::new(Semaphore::new(0));
    let ledger = side.serving.ledger();
    let post = Arc::new(RecordingReplySink {
        receipts: Some(Arc::clone(&receipts)),
        written: Some((ledger.clone(), "1")),
        ..RecordingReplySink::default()
    });
    let running = side.start(side.request("1", "write"), &post);
    post.handed.notified().await;
    assert_eq!(
        ledger.find_response("ann", "1").await,
        Ok(None),
        "no receipt yet"
    );
    assert!(matches!(post.steps().as_slice(), [ReplyStep::Reply(_)]));
    receipts.add_permits(1);
    running.await.unwrap();
    assert!(ledger.find_response("ann", "1").await.unwrap().is_some());
    assert_eq!(run_number(&post.single_reply()), 1);
}

#[tokio::test(start_paused = true)]
async fn redelivered_request_is_replayed_from_journal() {
    let side = ServeRig::in_memory();
    let first = side.handle_stored(side.request("1", "write")).await;
    let second = side.handle_stored(side.request("1", "write")).await;
    assert_eq!(side.runs.count(), 1);
    let (was, again) = (
        output(&first.single_reply()),
        output(&second.single_reply()),
    );
    assert_eq!((was.1, again.1), (false, true));
    assert_eq!(was.0, again.0, "whole, with all that it said");
    let other = side.handle_stored(side.request("2", "write")).await;
    assert_eq!(
        run_number(&other.single_reply()),
        2,
        "another id is another request"
    );
    let bob = incoming("bob", None, "1", call("write", "{}"), side.deadline());
    let bob = side.handle_stored(bob).await;
    assert_eq!(
        run_number(&bob.single_reply()),
        3,
        "and so is another caller's"
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_duplicate_runs_and_replies_once() {
    let side = ServeRig::in_memory();
    let (one, two) = (
        Arc::new(RecordingReplySink::default()),
        Arc::new(RecordingReplySink::default()),
    );
    let first = side.start(side.request("1", "hang"), &one);
    side.runs.wait_for(1).await;
    let second = side.start(side.request("1", "hang"), &two);
    // The second request waits for the first.
    run_until_idle().await;
    side.gate.add_permits(2);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(side.runs.count(), 1);
    assert_eq!(
        output(&one.single_reply()).0["content"][0]["text"],
        "let go"
    );
    assert_eq!(
        two.steps(),
        [ReplyStep::Ack],
        "its reply is on its way already"
    );
}

#[tokio::test(start_paused = true)]
async fn lost_reply_is_resent_without_rerun() {
    for tool in ["hang", "write"] {
        let side = ServeRig::in_memory();
        side.gate.add_permits(1);
        let lost = RecordingReplySink::refusing_with(ReplyError::Lost);
        side.serving
            .handle_stored(side.request("1", tool), &lost)
            .await;
        assert!(matches!(
            lost.steps().as_slice(),
            [ReplyStep::Reply(_), ReplyStep::PutBack]
        ));
        let next = side.handle_stored(side.request("1", tool)).await;
        assert!(output(&next.single_reply()).1, "told as told before");
        assert_eq!(side.runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicate_delivers_lost_reply() {
    let side = ServeRig::in_memory();
    let lost = Arc::new(RecordingReplySink::refusing_with(ReplyError::Lost));
    let next = Arc::new(RecordingReplySink::default());
    let first = side.start(side.request("1", "hang"), &lost);
    side.runs.wait_for(1).await;
    let second = side.start(side.request("1", "hang"), &next);
    // The second request waits for the first.
    run_until_idle().await;
    side.gate.add_permits(1);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(side.runs.count(), 1);
    assert_eq!(
        output(&next.single_reply()).0["content"][0]["text"],
        "let go"
    );
}

#[tokio::test(start_paused = true)]
async fn expired_request_does_not_run() {
    let side = ServeRig::in_memory();
    tokio::time::advance(Duration::from_secs(1)).await;
    let late = incoming("ann", None, "1", call("write", "{}"), side.clock.now());
    let told = failure(side.handle_stored(late.clone()).await.single_reply());
    assert_eq!(
        (&*told.code, told.class),
        ("expired", FailureClass::Timeout)
    );
    assert_eq!(told.execution, ExecutionStatus::NotStarted);
    assert_eq!(side.runs.count(), 0);
    let live = failure(side.serving.handle_live(late).await);
    assert_eq!((&*live.code, side.runs.count()), ("expired", 0));
}

#[tokio::test(start_paused = true)]
async fn late_duplicate_gets_the_recorded_response() {
    let side = ServeRig::in_memory();
    let request = side.request("1", "write");
    side.handle_stored(request.clone()).await;
    tokio::time::advance(bowline_testkit::serve_rig::TTL * 2).await;
    let late = side.handle_stored(request).await;
    assert_eq!(
        output(&late.single_reply()).0["structuredContent"]["nth"],
        1
    );
    assert_eq!(side.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn slow_tool_times_out_as_unknown() {
    let side = ServeRig::in_memory();
    let told = failure(
        side.handle_stored(side.request("1", "hang"))
            .await
            .single_reply(),
    );
    assert_eq!(
        (&*told.code, told.class),
        ("timeout", FailureClass::Timeout)
    );
    assert_eq!(told.execution, ExecutionStatus::Unknown);
    let again = failure(
        side.handle_stored(side.request("1", "hang"))
            .await
            .single_reply(),
    );
    assert_eq!((again, side.runs.count()), (told, 1));
}

#[tokio::test(start_paused = true)]
async fn unreadable_body_is_a_bad_request() {
    let side = ServeRig::in_memory();
    for body in [
        "7",
        "{}",
        r#"{"op":"dance"}"#,
        r#"{"op":"call"}"#,
        r#"{"op":"call","tool":"write","arguments":"[1]"}"#,
        r#"{"op":"call","tool":"write","arguments":"{"}"#,
        r#"{"op":"call","tool":"write","params":{"name":"read"}}"#,
    ] {
        let body = Bytes::from_static(body.as_bytes());
        let request = incoming("ann", None, "1", body.clone(), side.deadline());
        let told = failure(side.handle_stored(request.clone()).await.single_reply());
        assert_eq!(
            (&*told.code, told.class),
            ("bad_request", FailureClass::Invalid)
        );
        assert_eq!(told.execution, ExecutionStatus::NotStarted, "{body:?}");
        assert!(told.reason.starts_with("bad request: "), "{}", told.reason);
        assert_eq!(failure(side.serving.handle_live(request).await), told);
    }
    assert_eq!(side.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn results_and_typed_errors_are_returned() {
    let side = ServeRig::in_memory();
    let body = call("write", r#"{"n":1.50,"s":"é"}"#);
    let request = incoming("ann", None, "1", body, side.deadline());
    let (result, _) = output(&side.handle_stored(request).await.single_reply());
    let structured = json!({"nth": 1, "given": {"n": 1.5, "s": "é"}});
    assert_eq!(result["structuredContent"], structured);
    let (failed, _) = output(
        &side
            .handle_stored(side.request("2", "fail"))
            .await
            .single_reply(),
    );
    assert_eq!(failed["isError"], json!(true), "ran and failed");
    for (id, tool, code, class, execution) in [
        (
            "3",
            "nope",
            "tool_not_found",
            FailureClass::NotFound,
            ExecutionStatus::NotStarted,
        ),
        (
            "4",
            "break",
            "tool_failed",
            FailureClass::ProtocolError,
            ExecutionStatus::Unknown,
        ),
        (
            "5",
            "panic",
            "tool_failed",
            FailureClass::ProtocolError,
            ExecutionStatus::Unknown,
        ),
    ] {
        let told = failure(
            side.handle_stored(side.request(id, tool))
                .await
                .single_reply(),
        );
        assert_eq!(
            (&*told.code, told.class, told.execution),
            (code, class, execution)
        );
        let again = failure(
            side.handle_stored(side.request(id, tool))
                .await
                .single_reply(),
        );
        assert_eq!(again, told, "the same when it comes again");
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_response_is_reported_without_rerun() {
    let side = ServeRig::in_memory();
    let post = RecordingReplySink::refusing_with(ReplyError::TooLarge);
    side.serving
        .handle_stored(side.request("1", "write"), &post)
        .await;
    let [ReplyStep::Reply(_), ReplyStep::Reply(told), ReplyStep::Ack] = &post.steps()[..] else {
        panic!("{:?}", post.steps())
    };
    let told = failure(told.clone());
    assert_eq!(
        (&*told.code, told.class),
        ("answer_too_large", FailureClass::Truncated)
    );
    assert_eq!(told.execution, ExecutionStatus::Completed);
    side.handle_stored(side.request("1", "write")).await;
    assert_eq!(side.runs.count(), 1);
}

#[test]
fn reply_id_is_unique_per_caller_and_request() {
    let name = reply_id("ann", "1");
    assert_eq!(name, reply_id("ann", "1"));
    let others = [("ann", "2"), ("bob", "1"), ("ann1", ""), ("an", "n1")];
    for (caller, id) in others {
        assert_ne!(name, reply_id(caller, id));
    }
    let long = "x".repeat(128);
    bowline_broker::mailbox::check_message_id(&reply_id("w#mcp", &long)).unwrap();
}
