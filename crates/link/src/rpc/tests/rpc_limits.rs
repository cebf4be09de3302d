//! Exceeded limits affect only the offending call.

use bowline_core::error::ExecutionStatus;
use bowline_testkit::run_until_idle;

use super::*;
use crate::link::LargeResponseLimits;

/// Feeds and reads on the same thread, so input must be read meanwhile.
async fn feed_bytes(scene: &mut RpcScene, bytes: &[u8]) {
    scene.voice.write_all(bytes).await.unwrap();
}

#[tokio::test]
async fn overlong_response_fails_only_its_call() {
    let mut scene = RpcScene::new();
    let large = scene.start_call(test_request("large")).await;
    let small = scene.start_call(test_request("small")).await;
    scene.read_line().await;
    scene.read_line().await;
    let text_9_mib = "y".repeat(9 * 1024 * 1024);
    feed_bytes(&mut scene, br#"{"jsonrpc":"2.0","result":{"id":2,"text":""#).await;
    feed_bytes(&mut scene, text_9_mib.as_bytes()).await;
    feed_bytes(&mut scene, b"\"},\"id\":1}\n").await;
    let error = large.await.unwrap().unwrap_err();
    let bytes_max = 8 * 1024 * 1024;
    assert_eq!(error, LinkError::TooLong { bytes_max });
    assert_eq!(error.execution(), ExecutionStatus::Completed);
    assert!(!small.is_finished());
    scene.respond(2).await;
    assert_eq!(response_text(small.await.unwrap()), ok_text(2));
}

#[tokio::test]
async fn long_lines_are_read_for_lists_only() {
    let limits = StdioLimits {
        line_bytes_max: 1_000,
        large: LargeResponseLimits {
            list_bytes_max: 10_000,
            ..LargeResponseLimits::default()
        },
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 100_000);
    let ping = scene.start_call(test_request("ping")).await;
    let list = scene.start_call(test_request("tools/list")).await;
    let longer = scene.start_call(test_request("tools/list")).await;
    for _ in 0..3 {
        scene.read_line().await;
    }
    let answer = |id: u64, bytes: usize| {
        let text = "y".repeat(bytes);
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"{text}\"}}\n")
    };
    // While a list is pending, neither a different response nor a notification may be as long.
    feed_bytes(&mut scene, answer(1, 5_000).as_bytes()).await;
    let bytes_max = 1_000;
    assert_eq!(ping.await.unwrap(), Err(LinkError::TooLong { bytes_max }));
    let notice = format!(
        r#"{{"jsonrpc":"2.0","method":"x","params":["{}"]}}"#,
        "y".repeat(5_000)
    );
    feed_bytes(&mut scene, format!("{notice}\n").as_bytes()).await;
    feed_bytes(&mut scene, answer(2, 9_000).as_bytes()).await;
    assert!(response_text(list.await.unwrap()).len() > 9_000);
    feed_bytes(&mut scene, answer(3, 10_001).as_bytes()).await;
    let bytes_max = 10_000;
    assert_eq!(longer.await.unwrap(), Err(LinkError::TooLong { bytes_max }));
}

#[tokio::test]
async fn endless_line_ends_link() {
    let limits = StdioLimits {
        line_bytes_max: 1_000,
        discard_bytes_max: 100_000,
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 1_000);
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    let fed = scene.voice.write_all(&[b'x'; 500_000]).await;
    assert!(fed.is_err(), "nobody reads any more");
    assert_eq!(call.await.unwrap(), Err(LinkError::Lost(LinkExit::Overrun)));
    assert_eq!(
        scene.rpc.wait_ending().await,
        (LinkExit::Overrun, StopMode::Immediate)
    );
}

#[tokio::test]
async fn invalid_utf8_on_stdout_is_replaced() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    feed_bytes(&mut scene, b"\xff\xfe noise\n").await;
    feed_bytes(
        &mut scene,
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"a\xffb\"}\n",
    )
    .await;
    let want = "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":\"a\u{fffd}b\"}";
    assert_eq!(response_text(call.await.unwrap()), want);
}

#[tokio::test]
async fn in_flight_limit_refuses_until_room() {
    let limits = StdioLimits {
        in_flight_max: 2,
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 1_000);
    let one = scene.start_call(test_request("x")).await;
    let two = scene.start_call(test_request("x")).await;
    let busy = scene.rpc.request(test_request("x")).await;
    assert_eq!(busy, Err(LinkError::Busy { in_flight_max: 2 }));
    scene.respond(1).await;
    assert_eq!(response_text(one.await.unwrap()), ok_text(1));
    let three = scene.start_call(test_request("x")).await;
    scene.respond(3).await;
    assert_eq!(response_text(three.await.unwrap()), ok_text(3));
    assert!(!two.is_finished());
}

#[tokio::test]
async fn request_larger_than_queue_is_refused() {
    let limits = StdioLimits {
        queue_bytes_max: 1_000,
        ..StdioLimits::default()
    };
    let scene = RpcScene::with_limits(limits, 1_000);
    let large = request_with_params(format!("[\"{}\"]", "x".repeat(1_000)));
    let error = scene.rpc.request(large).await.unwrap_err();
    let bytes_max = 1_000;
    assert_eq!(
        error,
        LinkError::NotSent(NotSentReason::TooLarge { bytes_max })
    );
    assert_eq!(scene.rpc.in_flight(), 0);
}

#[tokio::test]
async fn queued_bytes_are_counted_and_released() {
    let limits = StdioLimits {
        queue_bytes_max: 1_000,
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 16);
    let params = || request_with_params(format!("[\"{}\"]", "x".repeat(600)));
    let _stuck = scene.start_sent_call("stuck").await;
    let first = scene.start_call(params()).await;
    let second = scene.start_call(params()).await;
    assert_eq!(scene.rpc.lock().queue.len(), 1, "there is room for one");
    first.abort();
    assert!(first.await.is_err());
    run_until_idle().await;
    let queued = scene.rpc.lock().queue.front().and_then(|frame| frame.id);
    assert_eq!(queued, Some(3), "what is taken back leaves room at once");
    scene.read_line().await;
    assert!(scene.read_line().await.contains(r#""id":3"#));
    scene.respond(3).await;
    assert_eq!(response_text(second.await.unwrap()), ok_text(3));
    assert_eq!(scene.rpc.lock().queue_bytes, 0);
}
