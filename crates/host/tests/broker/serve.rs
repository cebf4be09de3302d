//! Each request is answered once: what ran is known, and what is late does not run.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{Class, Execution};
use bowline_host::broker::{ReplyError, reply_id};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::Semaphore;

use super::post::{Post, Side, Step, call, failure, incoming, nth, output};

#[tokio::test(start_paused = true)]
async fn the_reply_is_stored_then_the_result_written_down_then_the_request_ended() {
    let side = Side::new();
    let receipts = Arc::new(Semaphore::new(0));
    let ledger = side.serving.ledger();
    let post = Arc::new(Post {
        receipts: Some(Arc::clone(&receipts)),
        written: Some((ledger.clone(), "1")),
        ..Post::default()
    });
    let running = side.start(side.request("1", "write"), &post);
    post.handed.notified().await;
    assert_eq!(
        ledger.answered("ann", "1").await,
        Ok(None),
        "no receipt yet"
    );
    assert!(matches!(post.steps().as_slice(), [Step::Reply(_)]));
    receipts.add_permits(1);
    running.await.unwrap();
    assert!(ledger.answered("ann", "1").await.unwrap().is_some());
    assert_eq!(nth(&post.answer()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_request_is_answered_from_the_journal_and_not_run_again() {
    let side = Side::new();
    let first = side.carried(side.request("1", "write")).await;
    let second = side.carried(side.request("1", "write")).await;
    assert_eq!(side.runs.count(), 1);
    let (was, again) = (output(&first.answer()), output(&second.answer()));
    assert_eq!((was.1, again.1), (false, true));
    assert_eq!(was.0, again.0, "whole, with all that it said");
    let other = side.carried(side.request("2", "write")).await;
    assert_eq!(nth(&other.answer()), 2, "another id is another request");
    let bob = incoming(("bob", None), "1", call("write", "{}"), side.until());
    let bob = side.carried(bob).await;
    assert_eq!(nth(&bob.answer()), 3, "and so is another caller's");
}

#[tokio::test(start_paused = true)]
async fn the_same_request_that_comes_while_it_runs_runs_once_and_is_answered_once() {
    let side = Side::new();
    let (one, two) = (Arc::new(Post::default()), Arc::new(Post::default()));
    let first = side.start(side.request("1", "hang"), &one);
    while side.runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    let second = side.start(side.request("1", "hang"), &two);
    tokio::task::yield_now().await;
    side.gate.add_permits(2);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(side.runs.count(), 1);
    assert_eq!(output(&one.answer()).0["content"][0]["text"], "let go");
    assert_eq!(two.steps(), [Step::Ack], "its reply is on its way already");
}

#[tokio::test(start_paused = true)]
async fn a_reply_whose_way_is_lost_goes_out_over_the_next_and_nothing_runs_again() {
    for tool in ["hang", "write"] {
        let side = Side::new();
        side.gate.add_permits(1);
        let lost = Post::refusing(ReplyError::Lost);
        side.serving.stored(side.request("1", tool), &lost).await;
        assert!(matches!(
            lost.steps().as_slice(),
            [Step::Reply(_), Step::PutBack]
        ));
        let next = side.carried(side.request("1", tool)).await;
        assert!(output(&next.answer()).1, "told as told before");
        assert_eq!(side.runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_beside_one_whose_way_is_lost_gives_its_answer() {
    let side = Side::new();
    let lost = Arc::new(Post::refusing(ReplyError::Lost));
    let next = Arc::new(Post::default());
    let first = side.start(side.request("1", "hang"), &lost);
    while side.runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    let second = side.start(side.request("1", "hang"), &next);
    tokio::task::yield_now().await;
    side.gate.add_permits(1);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(side.runs.count(), 1);
    assert_eq!(output(&next.answer()).0["content"][0]["text"], "let go");
}

#[tokio::test(start_paused = true)]
async fn a_request_past_its_time_is_answered_expired_and_does_not_run() {
    let side = Side::new();
    tokio::time::advance(Duration::from_secs(1)).await;
    let late = incoming(("ann", None), "1", call("write", "{}"), side.clock.now());
    let told = failure(side.carried(late.clone()).await.answer());
    assert_eq!((&*told.code, told.class), ("expired", Class::Timeout));
    assert_eq!(told.execution, Execution::NotStarted);
    assert_eq!(side.runs.count(), 0);
    let live = failure(side.serving.live(late).await);
    assert_eq!((&*live.code, side.runs.count()), ("expired", 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_in_time_is_answered_the_same_when_it_comes_late() {
    let side = Side::new();
    let request = side.request("1", "write");
    side.carried(request.clone()).await;
    tokio::time::advance(super::post::TTL * 2).await;
    let late = side.carried(request).await;
    assert_eq!(output(&late.answer()).0["structuredContent"]["nth"], 1);
    assert_eq!(side.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_not_done_in_time_is_told_as_a_timeout_that_may_have_run() {
    let side = Side::new();
    let told = failure(side.carried(side.request("1", "hang")).await.answer());
    assert_eq!((&*told.code, told.class), ("timeout", Class::Timeout));
    assert_eq!(told.execution, Execution::Unknown);
    let again = failure(side.carried(side.request("1", "hang")).await.answer());
    assert_eq!((again, side.runs.count()), (told, 1));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_read_is_answered_as_a_bad_request_and_ended() {
    let side = Side::new();
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
        let request = incoming(("ann", None), "1", body.clone(), side.until());
        let told = failure(side.carried(request.clone()).await.answer());
        assert_eq!((&*told.code, told.class), ("bad_request", Class::Invalid));
        assert_eq!(told.execution, Execution::NotStarted, "{body:?}");
        assert!(told.reason.starts_with("bad request: "), "{}", told.reason);
        assert_eq!(failure(side.serving.live(request).await), told);
    }
    assert_eq!(side.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn whole_results_and_typed_errors_come_back() {
    let side = Side::new();
    let body = call("write", r#"{"n":1.50,"s":"é"}"#);
    let request = incoming(("ann", None), "1", body, side.until());
    let (result, _) = output(&side.carried(request).await.answer());
    let structured = json!({"nth": 1, "given": {"n": 1.5, "s": "é"}});
    assert_eq!(result["structuredContent"], structured);
    let (failed, _) = output(&side.carried(side.request("2", "fail")).await.answer());
    assert_eq!(failed["isError"], json!(true), "ran and failed");
    for (id, tool, code, class, execution) in [
        (
            "3",
            "nope",
            "tool_not_found",
            Class::NotFound,
            Execution::NotStarted,
        ),
        (
            "4",
            "break",
            "tool_failed",
            Class::ProtocolError,
            Execution::Unknown,
        ),
        (
            "5",
            "panic",
            "tool_failed",
            Class::ProtocolError,
            Execution::Unknown,
        ),
    ] {
        let told = failure(side.carried(side.request(id, tool)).await.answer());
        assert_eq!(
            (&*told.code, told.class, told.execution),
            (code, class, execution)
        );
        let again = failure(side.carried(side.request(id, tool)).await.answer());
        assert_eq!(again, told, "the same when it comes again");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_to_carry_is_told_as_that_and_not_run_again() {
    let side = Side::new();
    let post = Post::refusing(ReplyError::TooLarge);
    side.serving.stored(side.request("1", "write"), &post).await;
    let [Step::Reply(_), Step::Reply(told), Step::Ack] = &post.steps()[..] else {
        panic!("{:?}", post.steps())
    };
    let told = failure(told.clone());
    assert_eq!(
        (&*told.code, told.class),
        ("answer_too_large", Class::Truncated)
    );
    assert_eq!(told.execution, Execution::Completed);
    side.carried(side.request("1", "write")).await;
    assert_eq!(side.runs.count(), 1);
}

#[test]
fn replies_to_one_request_have_one_name_and_those_to_two_callers_two() {
    let name = reply_id("ann", "1");
    assert_eq!(name, reply_id("ann", "1"));
    let others = [("ann", "2"), ("bob", "1"), ("ann1", ""), ("an", "n1")];
    for (caller, id) in others {
        assert_ne!(name, reply_id(caller, id));
    }
    let long = "x".repeat(128);
    bowline_core::mailbox::check_id(&reply_id("w#mcp", &long)).unwrap();
}
