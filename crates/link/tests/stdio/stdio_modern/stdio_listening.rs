//! Change streams of modern stdio servers.

use super::*;

/// Declares tool list changes, and acknowledges every filter.
const TELLING: &str = r#"
*'"server/discover"'*) discovered '"tools":{"listChanged":true},"resources":{"subscribe":true}' ;;
*subscriptions/listen*)
  wanted="${line#*\"notifications\":}"; wanted="${wanted%%\}*}"
  tag='"_meta":{"io.modelcontextprotocol/subscriptionId":'"$id"'}'
  printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{'"$tag"',"notifications":'"$wanted"'}}}'
  stream="$id"; touch_all ;;
"#;

fn listening_scene(more: &str, touch: &str) -> StdioScene {
    let mut scene = modern_scene(&format!("{TELLING}{more}"));
    let script = scene.spec.args[1].to_string_lossy().into_owned();
    scene.spec.args[1] = format!("touch_all() {{ {touch}; }}\n{script}").into();
    scene
}

fn uri_list(uris: &[&str]) -> Vec<Arc<str>> {
    uris.iter().map(|uri| Arc::from(*uri)).collect()
}

async fn next_event(events: &mut mpsc::Receiver<LinkEvent>) -> LinkEvent {
    wait_bounded(events.recv()).await.unwrap()
}

#[tokio::test]
async fn list_changes_arrive_on_change_stream() {
    let changed = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{'"$tag"'}}'"#;
    let scene = listening_scene("", changed);
    let (link, mut events) = scene.connect().await.unwrap();
    assert_eq!(next_event(&mut events).await, LinkEvent::ToolsChanged);
    assert_eq!(link.in_flight(), 0);
    let heard = scene.wait_lines(2).await;
    assert!(heard[1].contains(r#""method":"subscriptions/listen""#));
    assert!(
        heard[1].contains(r#""notifications":{"toolsListChanged":true}"#),
        "{heard:?}"
    );
    assert!(heard[1].contains("io.modelcontextprotocol/protocolVersion"));
    link.close().await;
}

#[tokio::test]
async fn server_without_changes_is_not_subscribed() {
    let scene = modern_scene(&format!(
        "{MODERN} *tools/call*) answer '\"content\":[]' ;;"
    ));
    let link = scene.connect_link().await;
    call_tool(&*link).await.unwrap();
    assert_eq!(scene.wait_lines(2).await.len(), 2);
    assert!(scene.stderr_texts()[1].contains("tools/call"));
    link.close().await;
}

#[tokio::test]
async fn changed_resources_renew_stream() {
    let updated = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u:1",'"$tag"'}}'"#;
    let scene = listening_scene("", updated);
    let (link, mut events) = scene.connect().await.unwrap();
    next_event(&mut events).await;
    let wanted = uri_list(&["u:1", "u:2"]);
    let agreed = link.subscribe_resources(wanted.clone(), deadline_after(Duration::from_secs(20)));
    assert_eq!(agreed.await.unwrap(), wanted);
    let LinkEvent::ResourceUpdated { uri, notification } = next_event(&mut events).await else {
        panic!("another event");
    };
    assert_eq!(&*uri, "u:1");
    assert_eq!(
        notification,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u:1","_meta":{}}}"#
    );
    let heard = scene.wait_lines(4).await;
    assert!(heard[2].contains(
        r#""notifications":{"toolsListChanged":true,"resourceSubscriptions":["u:1","u:2"]}"#
    ));
    // The earlier stream is cancelled after the new acknowledgement.
    assert!(heard[3].contains(r#""method":"notifications/cancelled","params":{"requestId":2"#));
    assert_eq!(link.in_flight(), 0);
    link.close().await;
}

#[tokio::test]
async fn refused_resource_keeps_list_changes() {
    let refuses = TELLING.replace(
        "*subscriptions/listen*)",
        "*subscriptions/listen*bad:*) refuse -32602 ;;\n*subscriptions/listen*)",
    );
    let mut scene = modern_scene(&refuses);
    let script = scene.spec.args[1].to_string_lossy().into_owned();
    scene.spec.args[1] = format!("touch_all() {{ :; }}\n{script}").into();
    let link = scene.connect_link().await;
    let soon = || deadline_after(Duration::from_secs(20));
    let first = link
        .subscribe_resources(uri_list(&["u:1"]), soon())
        .await
        .unwrap();
    assert_eq!(first, uri_list(&["u:1"]));
    let both = link
        .subscribe_resources(uri_list(&["u:1", "bad:2"]), soon())
        .await
        .unwrap();
    assert_eq!(both, uri_list(&["u:1"]));
    link.close().await;
}

#[tokio::test]
async fn ended_stream_is_renewed_with_all_changes() {
    for ends in [
        r#"answer '"_meta":{"io.modelcontextprotocol/subscriptionId":'"$id"'}'"#,
        r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":'"$id"'}}'"#,
    ] {
        let scene = listening_scene("", &format!(r#"[ "$stream" = 2 ] && {ends}"#));
        let (link, mut events) = scene.connect().await.unwrap();
        assert_eq!(next_event(&mut events).await, LinkEvent::ToolsChanged);
        assert!(scene.wait_lines(3).await[2].contains("subscriptions/listen"));
        assert!(link.is_open());
        link.close().await;
    }
}

#[tokio::test]
async fn unacknowledged_stream_does_not_block_start() {
    let mute = TELLING.replace("touch_all", ":").replace("printf", ": #");
    let scene = modern_scene(&format!("{mute} *tools/call*) answer '\"content\":[]' ;;"));
    let link = scene.connect_link().await;
    call_tool(&*link).await.unwrap();
    link.close().await;
}
