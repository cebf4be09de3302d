//! What breaks a bound hurts nobody else.

use bowline_core::error::Execution;

use super::*;
use crate::message_limits::LargeLimits;

/// The same thread feeds and reads, so all that is fed must be read meanwhile.
async fn feed(scene: &mut Scene, bytes: &[u8]) {
    scene.voice.write_all(bytes).await.unwrap();
}

#[tokio::test]
async fn a_nine_mebibyte_line_fails_only_the_call_it_answers() {
    let mut scene = Scene::new();
    let large = scene.call(request("large")).await;
    let small = scene.call(request("small")).await;
    scene.hears().await;
    scene.hears().await;
    let text_9_mib = "y".repeat(9 * 1024 * 1024);
    feed(&mut scene, br#"{"jsonrpc":"2.0","result":{"id":2,"text":""#).await;
    feed(&mut scene, text_9_mib.as_bytes()).await;
    feed(&mut scene, b"\"},\"id\":1}\n").await;
    let error = large.await.unwrap().unwrap_err();
    let bytes_max = 8 * 1024 * 1024;
    assert_eq!(error, LinkError::TooLong { bytes_max });
    assert_eq!(error.execution(), Execution::Completed);
    assert!(!small.is_finished());
    scene.answers(2).await;
    assert_eq!(text(small.await.unwrap()), ok(2));
}

#[tokio::test]
async fn long_lines_are_read_for_lists_only() {
    let limits = StdioLimits {
        line_bytes_max: 1_000,
        large: LargeLimits {
            list_bytes_max: 10_000,
            ..LargeLimits::default()
        },
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 100_000);
    let ping = scene.call(request("ping")).await;
    let list = scene.call(request("tools/list")).await;
    let longer = scene.call(request("tools/list")).await;
    for _ in 0..3 {
        scene.hears().await;
    }
    let answer = |id: u64, bytes: usize| {
        let text = "y".repeat(bytes);
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"{text}\"}}\n")
    };
    // While a list is waited for, nothing else may be as long: neither another response nor a
    // notification.
    feed(&mut scene, answer(1, 5_000).as_bytes()).await;
    let bytes_max = 1_000;
    assert_eq!(ping.await.unwrap(), Err(LinkError::TooLong { bytes_max }));
    let notice = format!(
        r#"{{"jsonrpc":"2.0","method":"x","params":["{}"]}}"#,
        "y".repeat(5_000)
    );
    feed(&mut scene, format!("{notice}\n").as_bytes()).await;
    feed(&mut scene, answer(2, 9_000).as_bytes()).await;
    assert!(text(list.await.unwrap()).len() > 9_000);
    feed(&mut scene, answer(3, 10_001).as_bytes()).await;
    let bytes_max = 10_000;
    assert_eq!(longer.await.unwrap(), Err(LinkError::TooLong { bytes_max }));
}

#[tokio::test]
async fn a_line_without_end_ends_the_link() {
    let limits = StdioLimits {
        line_bytes_max: 1_000,
        discard_bytes_max: 100_000,
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 1_000);
    let call = scene.call(request("x")).await;
    scene.hears().await;
    let fed = scene.voice.write_all(&[b'x'; 500_000]).await;
    assert!(fed.is_err(), "nobody reads any more");
    assert_eq!(call.await.unwrap(), Err(LinkError::Lost(Exit::Overrun)));
    assert_eq!(scene.peer.ending().await, (Exit::Overrun, Stop::AtOnce));
}

#[tokio::test]
async fn invalid_utf_8_on_stdout_is_replaced_and_used() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    feed(&mut scene, b"\xff\xfe noise\n").await;
    feed(
        &mut scene,
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"a\xffb\"}\n",
    )
    .await;
    let want = "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":\"a\u{fffd}b\"}";
    assert_eq!(text(call.await.unwrap()), want);
}

#[tokio::test]
async fn too_many_calls_at_once_are_refused_and_room_comes_back() {
    let limits = StdioLimits {
        in_flight_max: 2,
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 1_000);
    let one = scene.call(request("x")).await;
    let two = scene.call(request("x")).await;
    let busy = scene.peer.request(request("x")).await;
    assert_eq!(busy, Err(LinkError::Busy { in_flight_max: 2 }));
    scene.answers(1).await;
    assert_eq!(text(one.await.unwrap()), ok(1));
    let three = scene.call(request("x")).await;
    scene.answers(3).await;
    assert_eq!(text(three.await.unwrap()), ok(3));
    assert!(!two.is_finished());
}

#[tokio::test]
async fn a_request_larger_than_the_queue_is_not_sent() {
    let limits = StdioLimits {
        queue_bytes_max: 1_000,
        ..StdioLimits::default()
    };
    let scene = Scene::with(limits, 1_000);
    let large = with_params(format!("[\"{}\"]", "x".repeat(1_000)));
    let error = scene.peer.request(large).await.unwrap_err();
    let bytes_max = 1_000;
    assert_eq!(error, LinkError::NotSent(NotSent::TooLarge { bytes_max }));
    assert_eq!(scene.peer.in_flight(), 0);
}

#[tokio::test]
async fn bytes_in_the_queue_are_counted_and_given_back() {
    let limits = StdioLimits {
        queue_bytes_max: 1_000,
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 16);
    let params = || with_params(format!("[\"{}\"]", "x".repeat(600)));
    let _stuck = scene.sent("stuck").await;
    let first = scene.call(params()).await;
    let second = scene.call(params()).await;
    assert_eq!(scene.peer.lock().queue.len(), 1, "there is room for one");
    first.abort();
    assert!(first.await.is_err());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let queued = scene.peer.lock().queue.front().and_then(|frame| frame.id);
    assert_eq!(queued, Some(3), "what is taken back leaves room at once");
    scene.hears().await;
    assert!(scene.hears().await.contains(r#""id":3"#));
    scene.answers(3).await;
    assert_eq!(text(second.await.unwrap()), ok(3));
    assert_eq!(scene.peer.lock().queue_bytes, 0);
}
