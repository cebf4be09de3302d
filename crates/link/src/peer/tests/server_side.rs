//! What a server says without being asked.

use std::sync::atomic::Ordering;

use super::*;

const TOOLS: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const PROMPTS: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
const RESOURCES: &str = r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#;

#[tokio::test]
async fn a_server_request_with_a_colliding_id_is_not_taken_for_the_answer() {
    let mut scene = Scene::new();
    let call = scene.call(request("x")).await;
    scene.hears().await;
    scene
        .says(r#"{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}"#)
        .await;
    assert_eq!(
        scene.hears().await,
        concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no call is in flight, "#,
            r#"so there is nobody to ask"}}"#
        )
    );
    // Even one that poses as an answer.
    scene
        .says(r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#)
        .await;
    let pong = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(scene.hears().await, pong);
    assert!(!call.is_finished());
    scene.answers(1).await;
    assert_eq!(text(call.await.unwrap()), ok(1));
}

#[tokio::test]
async fn ids_of_the_server_are_echoed_as_written() {
    let mut scene = Scene::new();
    for id in ["\"x\\u0041\"", "123456789012345678901234567890", "-7"] {
        scene
            .says(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#))
            .await;
        let pong = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(scene.hears().await, pong);
    }
}

#[tokio::test]
async fn a_server_that_asks_and_does_not_read_is_answered_within_bounds() {
    let mut scene = Scene::with(StdioLimits::default(), 16);
    let mut asked = 0;
    while scene.peer.counts.dropped.load(Ordering::Relaxed) == 0 {
        asked += 1;
        assert!(asked < 1_000, "there is no bound");
        scene
            .says(&format!(
                r#"{{"jsonrpc":"2.0","id":{asked},"method":"ping"}}"#
            ))
            .await;
        tokio::task::yield_now().await;
    }
    assert!(asked > REPLIES_MAX);
    for id in 1..=REPLIES_MAX {
        assert!(scene.hears().await.contains(&format!(r#""id":{id},"#)));
    }
}

#[tokio::test]
async fn progress_comes_back_under_the_callers_token_and_late_progress_is_dropped() {
    let mut scene = Scene::new();
    let heard = Arc::new(Heard::default());
    let params = r#"{"_meta":{"progressToken":"tok"}}"#;
    let call = scene
        .call(Request {
            progress_at: Some(26..31),
            caller: Some(heard.clone()),
            ..with_params(params)
        })
        .await;
    assert!(scene.hears().await.contains(r#"{"progressToken":1}"#));
    let progress = |token: &str| {
        let params = format!(r#"{{"progress":0.50,"progressToken":{token},"x":1}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
    };
    for token in ["1", "2", "\"tok\"", "\"1\""] {
        scene.says(&progress(token)).await;
    }
    scene.answers(1).await;
    assert_eq!(text(call.await.unwrap()), ok(1));
    scene.says(&progress("1")).await;
    scene.settles().await;
    let want = progress("\"tok\"");
    assert_eq!(*heard.told.lock().unwrap(), [want.clone(), want]);
    assert_eq!(scene.peer.counts.late.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn changes_are_never_lost_and_come_together_when_nobody_listens() {
    let limits = StdioLimits {
        events_max: 1,
        ..StdioLimits::default()
    };
    let mut scene = Scene::with(limits, 1_000);
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    scene.says(log).await;
    for _ in 0..10 {
        for line in [TOOLS, log, PROMPTS, RESOURCES] {
            scene.says(line).await;
        }
    }
    scene.settles().await;
    assert_eq!(scene.peer.counts.dropped.load(Ordering::Relaxed), 10);
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
    scene.settles().await;
    assert!(scene.events.try_recv().is_err());
}

#[tokio::test]
async fn nobody_who_listens_is_no_reason_to_stop() {
    let mut scene = Scene::new();
    scene.events.close();
    scene.says(TOOLS).await;
    let call = scene.call(request("x")).await;
    scene.hears().await;
    scene.answers(1).await;
    assert_eq!(text(call.await.unwrap()), ok(1));
}

#[tokio::test]
async fn other_notifications_are_passed_on_whole() {
    let mut scene = Scene::new();
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
        scene.says(std::str::from_utf8(line).unwrap()).await;
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
