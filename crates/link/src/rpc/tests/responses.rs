//! Matching of responses to pending requests.

use std::sync::atomic::Ordering;

use bowline_core::call::BodyKind;
use bowline_core::error::ExecutionStatus;

use super::*;

#[tokio::test]
async fn response_resolves_and_removes_pending_request() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("tools/list")).await;
    assert_eq!(
        scene.read_line().await,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#
    );
    assert_eq!(scene.rpc.in_flight(), 1);
    scene
        .write_line(r#" {"jsonrpc":"2.0" , "id": 1,"result":{"a" :1.0}} "#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(
        &answer.bytes[..],
        br#"{"jsonrpc":"2.0" , "id": "a","result":{"a" :1.0}}"#,
        "every byte but the id is the server's"
    );
    assert_eq!(answer.body, BodyKind::Result);
    assert_eq!(answer.body_bytes(), br#"{"a" :1.0}"#);
    assert_eq!(scene.rpc.in_flight(), 0);
    scene.respond(1).await;
    scene.settle().await;
    assert_eq!(scene.rpc.counters.late.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn body_is_found_before_and_after_id() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene.write_line(r#"{"result":[7],"id":1,"x":2}"#).await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.body_bytes(), b"[7]");
    assert_eq!(&answer.bytes[..], br#"{"result":[7],"id":"a","x":2}"#);
}

#[tokio::test]
async fn unknown_response_id_is_ignored() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    for id in [
        "2",
        "0",
        "\"x\"",
        "-1",
        "18446744073709551616",
        "\"+1\"",
        "\"\"",
    ] {
        scene
            .write_line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#))
            .await;
    }
    scene
        .write_line(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#)
        .await;
    scene.settle().await;
    assert_eq!(scene.rpc.in_flight(), 1);
    assert_eq!(scene.rpc.counters.late.load(Ordering::Relaxed), 8);
    scene.respond(1).await;
    assert_eq!(response_text(call.await.unwrap()), ok_text(1));
}

const GARBAGE: [&str; 13] = [
    "",
    "   ",
    "Listening on stdio",
    "{",
    "}",
    "[",
    "[]",
    "[1,{}]",
    "null",
    r#"{"id":1}"#,
    r#"{"id":1,"level":"info","msg":"a log line that looks alike"}"#,
    r#"{"jsonrpc":"2.0","method":7,"id":1}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/unheard","params":[]}"#,
];

#[tokio::test]
async fn notifications_and_garbage_are_ignored() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    for line in GARBAGE {
        scene.write_line(line).await;
    }
    scene.settle().await;
    assert_eq!(scene.rpc.counters.noise.load(Ordering::Relaxed), 10);
    assert!(scene.rpc.is_open() && !call.is_finished());
}

#[tokio::test]
async fn garbage_before_response_is_ignored() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    for line in GARBAGE {
        scene.write_line(line).await;
    }
    scene.respond(1).await;
    assert_eq!(response_text(call.await.unwrap()), ok_text(1));
}

#[tokio::test]
async fn error_response_reaches_caller() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene
        .write_line(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.body, BodyKind::Error);
    assert_eq!(answer.body_bytes(), br#"{"code":-32602,"message":"no"}"#);
}

#[tokio::test]
async fn null_result_is_a_result() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene
        .write_line(r#"{"jsonrpc":"2.0","id":1,"result":null}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(
        (answer.body, answer.body_bytes()),
        (BodyKind::Result, &b"null"[..])
    );
}

#[tokio::test]
async fn string_id_for_number_is_accepted() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene
        .write_line(r#"{"jsonrpc":"2.0","id":"1","result":"ok 1"}"#)
        .await;
    assert_eq!(response_text(call.await.unwrap()), ok_text(1));
}

#[tokio::test]
async fn slow_call_does_not_block_link() {
    let mut scene = RpcScene::new();
    let slow = scene.start_call(test_request("slow")).await;
    let quick = scene.start_call(test_request("quick")).await;
    scene.read_line().await;
    scene.read_line().await;
    scene.respond(2).await;
    assert_eq!(response_text(quick.await.unwrap()), ok_text(2));
    assert!(!slow.is_finished());
    scene.respond(1).await;
    assert_eq!(response_text(slow.await.unwrap()), ok_text(1));
}

#[tokio::test]
async fn batched_responses_reach_their_callers() {
    let mut scene = RpcScene::new();
    let one = scene.start_call(test_request("one")).await;
    let two = scene.start_call(test_request("two")).await;
    scene
        .write_line(r#"[{"jsonrpc":"2.0","id":2,"result":"ok 2"},{"id":1,"result":"ok 1"}]"#)
        .await;
    assert_eq!(
        response_text(one.await.unwrap()),
        r#"{"id":"a","result":"ok 1"}"#
    );
    assert_eq!(response_text(two.await.unwrap()), ok_text(2));
}

#[tokio::test]
async fn invalid_response_fails_its_call() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"result":NaN}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        r#"{"jsonrpc":"1.0","id":1,"result":1}"#,
    ] {
        let mut scene = RpcScene::new();
        let call = scene.start_call(test_request("x")).await;
        scene.write_line(line).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkError::BadResponse(_)),
            "{line}: {error:?}"
        );
        assert_eq!(error.execution(), ExecutionStatus::Completed);
        assert!(scene.rpc.is_open());
    }
}

#[tokio::test]
async fn end_of_stream_fails_unanswered_calls() {
    let mut scene = RpcScene::new();
    let answered = scene.start_call(test_request("x")).await;
    let unanswered = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene.read_line().await;
    // The last line has no line end.
    let last = br#"{"jsonrpc":"2.0","id":1,"result":"ok 1"}"#;
    scene.voice.write_all(last).await.unwrap();
    drop(scene.voice);
    scene.reader.await.unwrap();
    assert!(!scene.rpc.is_open());
    assert_eq!(response_text(answered.await.unwrap()), ok_text(1));
    let late = scene.rpc.request(test_request("x")).await;
    assert_eq!(late, Err(LinkError::Closed(LinkExit::Closed)));

    scene.rpc.finish(LinkExit::Status(3));
    assert_eq!(scene.rpc.wait_ended().await, LinkExit::Status(3));
    let lost = unanswered.await.unwrap();
    assert_eq!(lost, Err(LinkError::Lost(LinkExit::Status(3))));
    let closed = scene.rpc.request(test_request("x")).await;
    assert_eq!(closed, Err(LinkError::Closed(LinkExit::Status(3))));
}
