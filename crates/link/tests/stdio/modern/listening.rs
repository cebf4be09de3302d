//! What a modern server tells between calls.

use super::*;

/// Declares that it tells of its tools, and agrees to all that is wanted.
const TELLING: &str = r#"
*'"server/discover"'*) discovered '"tools":{"listChanged":true},"resources":{"subscribe":true}' ;;
*subscriptions/listen*)
  wanted="${line#*\"notifications\":}"; wanted="${wanted%%\}*}"
  tag='"_meta":{"io.modelcontextprotocol/subscriptionId":'"$id"'}'
  printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{'"$tag"',"notifications":'"$wanted"'}}}'
  stream="$id"; touch_all ;;
"#;

fn telling(more: &str, touch: &str) -> Scene {
    let mut scene = modern(&format!("{TELLING}{more}"));
    let script = scene.spec.args[1].to_string_lossy().into_owned();
    scene.spec.args[1] = format!("touch_all() {{ {touch}; }}\n{script}").into();
    scene
}

fn uris(uris: &[&str]) -> Vec<Arc<str>> {
    uris.iter().map(|uri| Arc::from(*uri)).collect()
}

async fn next(events: &mut mpsc::Receiver<LinkEvent>) -> LinkEvent {
    let event = tokio::time::timeout(Duration::from_secs(20), events.recv());
    event.await.expect("an event").unwrap()
}

#[tokio::test]
async fn changes_of_lists_are_heard_on_one_stream_that_is_nobodys_call() {
    let changed = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{'"$tag"'}}'"#;
    let scene = telling("", changed);
    let (link, mut events) = scene.connect().await.unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::ToolsChanged);
    assert_eq!(link.in_flight(), 0);
    let heard = scene.lines(2).await;
    assert!(heard[1].contains(r#""method":"subscriptions/listen""#));
    assert!(
        heard[1].contains(r#""notifications":{"toolsListChanged":true}"#),
        "{heard:?}"
    );
    assert!(heard[1].contains("io.modelcontextprotocol/protocolVersion"));
    link.close().await;
}

#[tokio::test]
async fn a_server_that_tells_of_nothing_is_not_listened_to() {
    let scene = modern(&format!(
        "{MODERN} *tools/call*) answer '\"content\":[]' ;;"
    ));
    let link = scene.link().await;
    call(&*link).await.unwrap();
    assert_eq!(scene.lines(2).await.len(), 2);
    assert!(scene.texts()[1].contains("tools/call"));
    link.close().await;
}

#[tokio::test]
async fn what_is_wanted_of_resources_makes_the_stream_anew() {
    let updated = r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u:1",'"$tag"'}}'"#;
    let scene = telling("", updated);
    let (link, mut events) = scene.connect().await.unwrap();
    next(&mut events).await;
    let wanted = uris(&["u:1", "u:2"]);
    let agreed = link.listen_to(wanted.clone(), after(Duration::from_secs(20)));
    assert_eq!(agreed.await.unwrap(), wanted);
    let LinkEvent::ResourceUpdated { uri, notification } = next(&mut events).await else {
        panic!("another event");
    };
    assert_eq!(&*uri, "u:1");
    assert_eq!(
        notification,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u:1","_meta":{}}}"#
    );
    let heard = scene.lines(4).await;
    assert!(heard[2].contains(
        r#""notifications":{"toolsListChanged":true,"resourceSubscriptions":["u:1","u:2"]}"#
    ));
    // The stream before is taken back once the new one is agreed to.
    assert!(heard[3].contains(r#""method":"notifications/cancelled","params":{"requestId":2"#));
    assert_eq!(link.in_flight(), 0);
    link.close().await;
}

#[tokio::test]
async fn a_resource_that_is_refused_costs_nothing_else() {
    let refuses = TELLING.replace(
        "*subscriptions/listen*)",
        "*subscriptions/listen*bad:*) refuse -32602 ;;\n*subscriptions/listen*)",
    );
    let mut scene = modern(&refuses);
    let script = scene.spec.args[1].to_string_lossy().into_owned();
    scene.spec.args[1] = format!("touch_all() {{ :; }}\n{script}").into();
    let link = scene.link().await;
    let soon = || after(Duration::from_secs(20));
    let first = link.listen_to(uris(&["u:1"]), soon()).await.unwrap();
    assert_eq!(first, uris(&["u:1"]));
    let both = link
        .listen_to(uris(&["u:1", "bad:2"]), soon())
        .await
        .unwrap();
    assert_eq!(both, uris(&["u:1"]));
    link.close().await;
}

#[tokio::test]
async fn a_stream_that_ends_is_asked_for_again_and_everything_may_have_changed() {
    for ends in [
        r#"answer '"_meta":{"io.modelcontextprotocol/subscriptionId":'"$id"'}'"#,
        r#"printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":'"$id"'}}'"#,
    ] {
        let scene = telling("", &format!(r#"[ "$stream" = 2 ] && {ends}"#));
        let (link, mut events) = scene.connect().await.unwrap();
        assert_eq!(next(&mut events).await, LinkEvent::ToolsChanged);
        assert!(scene.lines(3).await[2].contains("subscriptions/listen"));
        assert!(link.is_open());
        link.close().await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_agree_holds_up_nothing() {
    let mute = TELLING.replace("touch_all", ":").replace("printf", ": #");
    let scene = modern(&format!("{mute} *tools/call*) answer '\"content\":[]' ;;"));
    let link = scene.link().await;
    call(&*link).await.unwrap();
    link.close().await;
}
