//! Server-initiated messages.

use std::sync::atomic::Ordering;

use bowline_testkit::run_until_idle;

use super::*;

const TOOLS: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const PROMPTS: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
const RESOURCES: &str = r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#;

#[tokio::test]
async fn server_request_id_does_not_match_response() {
    let mut scene = RpcScene::new();
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene
        .write_line(r#"{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}"#)
        .await;
    assert_eq!(
        scene.read_line().await,
        concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no call is in flight, "#,
            r#"so there is nobody to ask"}}"#
        )
    );
    // Even a request that looks like a response.
    scene
        .write_line(r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#)
        .await;
    let pong = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(scene.read_line().await, pong);
    assert!(!call.is_finished());
    scene.respond(1).await;
    assert_eq!(response_text(call.await.unwrap()), ok_text(1));
}

#[tokio::test]
async fn server_ids_are_echoed_unchanged() {
    let mut scene = RpcScene::new();
    for id in ["\"x\\u0041\"", "123456789012345678901234567890", "-7"] {
        scene
            .write_line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#))
            .await;
        let pong = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(scene.read_line().await, pong);
    }
}

#[tokio::test]
async fn replies_to_unread_server_are_bounded() {
    let mut scene = RpcScene::with_limits(StdioLimits::default(), 16);
    let mut asked = 0;
    while scene.rpc.counters.dropped.load(Ordering::Relaxed) == 0 {
        asked += 1;
        assert!(asked < 1_000, "there is no bound");
        scene
            .write_line(&format!(
                r#"{{"jsonrpc":"2.0","id":{asked},"method":"ping"}}"#
            ))
            .await;
        run_until_idle().await;
    }
    assert!(asked > REPLIES_MAX);
    for id in 1..=REPLIES_MAX {
        assert!(scene.read_line().await.contains(&format!(r#""id":{id},"#)));
    }
}

#[tokio::test]
async fn progress_uses_caller_token_until_response() {
    let mut scene = RpcScene::new();
    let heard = Arc::new(RecordingClient::default());
    let params = r#"{"_meta":{"progressToken":"tok"}}"#;
    let call = scene
        .start_call({
            let mut request = request_with_params(params);
            request.message.progress_at = Some(26..31);
            request.message.client = Some(heard.clone());
            request
        })
        .await;
    assert!(scene.read_line().await.contains(r#"{"progressToken":1}"#));
    let progress = |token: &str| {
        let params = format!(r#"{{"progress":0.50,"progressToken":{token},"x":1}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
    };
    for token in ["1", "2", "\"tok\"", "\"1\""] {
        scene.write_line(&progress(token)).await;
    }
    scene.respond(1).await;
    assert_eq!(response_text(call.await.unwrap()), ok_text(1));
    scene.write_line(&progress("1")).await;
    scene.settle().await;
    let want = progress("\"tok\"");
    assert_eq!(*heard.told.lock().unwrap(), [want.clone(), want]);
    assert_eq!(scene.rpc.counters.late.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn list_changes_coalesce_when_channel_full() {
    let limits = StdioLimits {
        events_max: 1,
        ..StdioLimits::default()
    };
    let mut scene = RpcScene::with_limits(limits, 1_000);
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    scene.write_line(log).await;
    for _ in 0..10 {
        for line in [TOOLS, log, PROMPTS, RESOURCES] {
            scene.write_line(line).await;
        }
    }
    scene.settle().await;
    assert_eq!(scene.rpc.counters.dropped.load(Ordering::Relaxed), 10);
    let first = scene.events.recv().await.unwrap();
    assert_eq!(first, LinkEvent::Log(Bytes::from_static(log.as_bytes())));
    let mut changes = Vec::new();
    for _ in 0..3 {
        changes.push(scene.events.recv().await.unwrap());
    }
    changes.sort_by_key(|event| format!("{event:?}"));
    let want = [
        LinkEvent::PromptsChanged,
        LinkEvent::ResourcesChanged,
        LinkEvent::ToolsChanged,
    ];
    assert_eq!(changes, want);
    scene.settle().await;
    assert!(scene.events.try_recv().is_err());
}

#[tokio::test]
async fn dropped_event_receiver_keeps_link_open() {
    let mut scene = RpcScene::new();
    scene.events.close();
    scene.write_line(TOOLS).await;
    let call = scene.start_call(test_request("x")).await;
    scene.read_line().await;
    scene.respond(1).await;
    assert_eq!(response_text(call.await.unwrap()), ok_text(1));
}

#[tokio::test]
async fn unknown_notifications_are_emitted_unchanged() {
    let mut scene = RpcScene::new();
    let said = |method: &str, params: &str| {
        let method = format!("notifications/{method}");
        Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#
        ))
    };
    let updated = said("resources/updated", r#"{"uri":"u","x":1}"#);
    let status = said("tasks/status", r#"{"taskId":"t"}"#);
    let other = said("vendor/thing", "[1]");
    for line in [&updated, &status, &other] {
        scene.write_line(std::str::from_utf8(line).unwrap()).await;
    }
    let expected = [
        LinkEvent::ResourceUpdated {
            uri: "u".into(),
            notification: updated,
        },
        LinkEvent::TaskStatus {
            task: "t".into(),
            notification: status,
        },
        LinkEvent::Other(other),
    ];
    for event in expected {
        assert_eq!(scene.events.recv().await, Some(event));
    }
}
