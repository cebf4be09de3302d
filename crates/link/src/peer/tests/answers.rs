//! How answers find those who wait.

use std::sync::atomic::Ordering;

use bowline_core::call::Body;
use bowline_core::error::Execution;

use super::*;

#[tokio::test]
async fn an_answer_reaches_its_waiter_and_the_entry_is_consumed() {
    let mut scene = Scene::new();
    let call = scene.call(request("tools/list")).await;
    assert_eq!(
        scene.hears().await,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#
    );
    assert_eq!(scene.peer.in_flight(), 1);
    scene
        .says(r#" {"jsonrpc":"2.0" , "id": 1,"result":{"a" :1.0}} "#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(
        &answer.bytes[..],
        br#"{"jsonrpc":"2.0" , "id": "a","result":{"a" :1.0}}"#,
        "every byte but the id is the server's"
    );
    assert_eq!(answer.body, Body::Result);
    assert_eq!(answer.body_bytes(), br#"{"a" :1.0}"#);
    assert_eq!(scene.peer.in_flight(), 0);
    scene.answers(1).await;
    scene.settles().await;
    assert_eq!(scene.peer.counts.late.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_body_is_found_on_both_sides_of_the_id() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    scene.says(r#"{"result":[7],"id":1,"x":2}"#).await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.body_bytes(), b"[7]");
    assert_eq!(&answer.bytes[..], br#"{"result":[7],"id":"a","x":2}"#);
}

#[tokio::test]
async fn an_unknown_id_leaves_others_untouched() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
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
            .says(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#))
            .await;
    }
    scene
        .says(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#)
        .await;
    scene.settles().await;
    assert_eq!(scene.peer.in_flight(), 1);
    assert_eq!(scene.peer.counts.late.load(Ordering::Relaxed), 8);
    scene.answers(1).await;
    assert_eq!(text(call.await.unwrap()), ok(1));
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
async fn notifications_and_garbage_are_ignored_without_panic() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    for line in GARBAGE {
        scene.says(line).await;
    }
    scene.settles().await;
    assert_eq!(scene.peer.counts.noise.load(Ordering::Relaxed), 10);
    assert!(scene.peer.is_open() && !call.is_finished());
}

#[tokio::test]
async fn garbage_and_notifications_before_the_answer_do_not_matter() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    for line in GARBAGE {
        scene.says(line).await;
    }
    scene.answers(1).await;
    assert_eq!(text(call.await.unwrap()), ok(1));
}

#[tokio::test]
async fn an_error_answer_is_routed() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    scene
        .says(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.body, Body::Error);
    assert_eq!(answer.body_bytes(), br#"{"code":-32602,"message":"no"}"#);
}

#[tokio::test]
async fn a_null_result_is_a_result() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    scene
        .says(r#"{"jsonrpc":"2.0","id":1,"result":null}"#)
        .await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(
        (answer.body, answer.body_bytes()),
        (Body::Result, &b"null"[..])
    );
}

#[tokio::test]
async fn a_string_id_echoed_for_a_number_is_accepted() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    scene
        .says(r#"{"jsonrpc":"2.0","id":"1","result":"ok 1"}"#)
        .await;
    assert_eq!(text(call.await.unwrap()), ok(1));
}

#[tokio::test]
async fn a_slow_call_does_not_hold_up_others_on_the_same_link() {
    let mut scene = Scene::new();
    let slow = scene.call(request("slow")).await;
    let quick = scene.call(request("quick")).await;
    scene.hears().await;
    scene.hears().await;
    scene.answers(2).await;
    assert_eq!(text(quick.await.unwrap()), ok(2));
    assert!(!slow.is_finished());
    scene.answers(1).await;
    assert_eq!(text(slow.await.unwrap()), ok(1));
}

#[tokio::test]
async fn answers_in_a_batch_are_routed_one_by_one() {
    let mut scene = Scene::new();
    let one = scene.call(request("one")).await;
    let two = scene.call(request("two")).await;
    scene
        .says(r#"[{"jsonrpc":"2.0","id":2,"result":"ok 2"},{"id":1,"result":"ok 1"}]"#)
        .await;
    assert_eq!(text(one.await.unwrap()), r#"{"id":"a","result":"ok 1"}"#);
    assert_eq!(text(two.await.unwrap()), ok(2));
}

#[tokio::test]
async fn an_answer_that_is_none_fails_its_call_at_once() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"result":NaN}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        r#"{"jsonrpc":"1.0","id":1,"result":1}"#,
    ] {
        let mut scene = Scene::new();
        let call = scene.call(request("x")).await;
        scene.says(line).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error, LinkError::BadAnswer(_)),
            "{line}: {error:?}"
        );
        assert_eq!(error.execution(), Execution::Completed);
        assert!(scene.peer.is_open());
    }
}

#[tokio::test]
async fn end_of_stream_delivers_routed_answers_and_fails_the_rest() {
    let mut scene = Scene::new();
    let answered = scene.call(request("x")).await;
    let unanswered = scene.call(request("x")).await;
    scene.hears().await;
    scene.hears().await;
    // The last line has no end.
    let last = br#"{"jsonrpc":"2.0","id":1,"result":"ok 1"}"#;
    scene.voice.write_all(last).await.unwrap();
    drop(scene.voice);
    scene.reader.await.unwrap();
    assert!(!scene.peer.is_open());
    assert_eq!(text(answered.await.unwrap()), ok(1));
    let late = scene.peer.request(request("x")).await;
    assert_eq!(late, Err(LinkError::Closed(Exit::Closed)));

    scene.peer.finish(Exit::Status(3));
    assert_eq!(scene.peer.ended().await, Exit::Status(3));
    let lost = unanswered.await.unwrap();
    assert_eq!(lost, Err(LinkError::Lost(Exit::Status(3))));
    let closed = scene.peer.request(request("x")).await;
    assert_eq!(closed, Err(LinkError::Closed(Exit::Status(3))));
}
