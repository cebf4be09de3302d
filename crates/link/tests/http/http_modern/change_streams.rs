//! Change streams of modern HTTP servers.

use bowline_testkit::wait_bounded;

use super::*;

const LISTS: &str = r#"{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true}}"#;

/// Returns a link to a server with list changes, and the change stream.
async fn listening_scene() -> (HttpScene, SeenRequest) {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    answer_discover(&mut server, LISTS).await;
    let stream = acknowledge_listen(&mut server, r#"{"toolsListChanged":true}"#).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let scene = HttpScene {
        server,
        link,
        events,
    };
    (scene, stream)
}

/// Receives the listen request and acknowledges it.
async fn acknowledge_listen(server: &mut ScriptedServer, subset: &str) -> SeenRequest {
    let mut seen = receive_listen(server).await;
    seen.start_stream().await;
    let id = seen.id();
    seen.write_event(&tagged_notification(
        "subscriptions/acknowledged",
        &id,
        &format!(r#","notifications":{subset}"#),
    ))
    .await;
    seen
}

async fn receive_listen(server: &mut ScriptedServer) -> SeenRequest {
    let seen = server.next_post().await;
    assert_eq!(seen.header("mcp-method"), Some("subscriptions/listen"));
    assert_eq!(seen.header("mcp-name"), None);
    assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
    seen
}

fn tagged_notification(what: &str, id: &str, more: &str) -> String {
    format!(
        r#"data: {{"jsonrpc":"2.0","method":"notifications/{what}","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}{more}}}}}"#
    )
}

async fn next_event(scene: &mut HttpScene) -> LinkEvent {
    wait_bounded(scene.events.recv()).await.unwrap()
}

#[tokio::test]
async fn declared_list_changes_are_subscribed_at_start() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    answer_discover(&mut server, LISTS).await;
    let stream = receive_listen(&mut server).await;
    let want = r#""notifications":{"toolsListChanged":true,"resourcesListChanged":true}"#;
    assert!(stream.body.contains(want), "{}", stream.body);
    assert!(server.has_no_get());
    connecting.abort();
    // A server without list changes gets no listen request.
    let mut scene = modern_scene().await;
    let call = scene.start_request(modern_request("tools/list", ""));
    scene.server.next_post().await.respond_result("{}").await;
    call.await.unwrap().unwrap();
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn change_events_hide_subscription_id() {
    let (mut scene, mut stream) = listening_scene().await;
    assert_eq!(scene.link.in_flight(), 0, "nobody waits for its end");
    let id = stream.id();
    stream
        .write_event(&tagged_notification("tools/list_changed", &id, ""))
        .await;
    assert_eq!(next_event(&mut scene).await, LinkEvent::ToolsChanged);
    stream.write_event(": keep").await;
    stream
        .write_event(&tagged_notification(
            "resources/updated",
            &id,
            r#","uri":"file:///a""#,
        ))
        .await;
    let LinkEvent::ResourceUpdated { uri, notification } = next_event(&mut scene).await else {
        panic!("another event");
    };
    assert_eq!(&*uri, "file:///a");
    let said = String::from_utf8(notification.to_vec()).unwrap();
    assert!(!said.contains("subscriptionId"), "{said}");
}

#[tokio::test]
async fn new_resources_replace_stream_without_gap() {
    let (mut scene, mut first) = listening_scene().await;
    let link = Arc::clone(&scene.link);
    let uris = ["file:///a", "file:///b"].map(Arc::from).to_vec();
    let wanted = spawn_task(async move { link.subscribe_resources(uris, test_deadline()).await });
    let mut second = receive_listen(&mut scene.server).await;
    let want = r#""resourceSubscriptions":["file:///a","file:///b"]"#;
    assert!(second.body.contains(want), "{}", second.body);
    assert_ne!(first.id(), second.id());
    // The old stream is still valid.
    let id = first.id();
    first
        .write_event(&tagged_notification("tools/list_changed", &id, ""))
        .await;
    assert_eq!(next_event(&mut scene).await, LinkEvent::ToolsChanged);
    second.start_stream().await;
    let id = second.id();
    let subset = r#","notifications":{"resourceSubscriptions":["file:///b"]}"#;
    second
        .write_event(&tagged_notification(
            "subscriptions/acknowledged",
            &id,
            subset,
        ))
        .await;
    let told = wanted.await.unwrap().unwrap();
    assert_eq!(told, ["file:///b".into()], "what it agreed to");
    first.wait_closed().await;
}

#[tokio::test]
async fn lost_stream_is_reopened_with_all_changes() {
    for graceful in [false, true] {
        let (mut scene, mut stream) = listening_scene().await;
        let id = stream.id();
        if graceful {
            let end = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
            );
            stream.write_event(&format!("data: {end}")).await;
        }
        stream.end_stream().await;
        let mut again = acknowledge_listen(&mut scene.server, "{}").await;
        assert_ne!(again.id(), id);
        let heard = [next_event(&mut scene).await, next_event(&mut scene).await];
        assert!(heard.contains(&LinkEvent::ToolsChanged), "{heard:?}");
        assert!(heard.contains(&LinkEvent::ResourcesChanged), "{heard:?}");
        let id = again.id();
        again
            .write_event(&tagged_notification("tools/list_changed", &id, ""))
            .await;
        assert_eq!(next_event(&mut scene).await, LinkEvent::ToolsChanged);
    }
}

#[tokio::test]
async fn refused_listen_keeps_server_usable() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    answer_discover(&mut server, LISTS).await;
    let stream = receive_listen(&mut server).await;
    let body = error_body(&stream.id(), -32601);
    stream.respond(404, JSON, &body).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let mut scene = HttpScene {
        server,
        link,
        events,
    };
    let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
    scene.server.next_post().await.respond_result("1").await;
    call.await.unwrap().unwrap();
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn unacknowledged_stream_does_not_block_calls() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    let connecting = spawn_task(connect(spec));
    answer_discover(&mut server, LISTS).await;
    let mut stream = receive_listen(&mut server).await;
    stream.start_stream().await;
    // Changes before the acknowledgement are ignored.
    let id = stream.id();
    stream
        .write_event(&tagged_notification("tools/list_changed", &id, ""))
        .await;
    let (link, events) = wait_bounded(connecting).await.unwrap().unwrap();
    let mut scene = HttpScene {
        server,
        link,
        events,
    };
    let call = scene.start_request(modern_request("tools/call", r#""name":"x""#));
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-method"), Some("tools/call"));
    seen.respond_result("1").await;
    call.await.unwrap().unwrap();
    assert!(scene.events.try_recv().is_err());
    // The stream is given up after a while.
    stream.wait_closed().await;
}

#[tokio::test]
async fn change_stream_carries_only_changes() {
    let (mut scene, mut stream) = listening_scene().await;
    let (end, mut ears) = test_client();
    // A further round, which is always sent in the modern era.
    let mut asking = modern_request("tools/call", r#""name":"x","requestState":"s""#);
    asking.message.client = Some(end);
    let call = scene.start_request(asking);
    let seen = scene.server.next_post().await;
    let id = stream.id();
    for stray in [
        tagged_notification("message", &id, r#","level":"info","data":1"#),
        tagged_notification("progress", &id, &format!(r#","progressToken":{},"progress":1"#, seen.id())),
        format!("data: {}", result_body(&seen.id(), "\"forged\"")),
        format!("data: [{}]", result_body(&seen.id(), "\"forged\"")),
        r#"data: {"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#.into(),
        "data: no json".into(),
    ] {
        stream.write_event(&stray).await;
    }
    stream
        .write_event(&tagged_notification("tools/list_changed", &id, ""))
        .await;
    assert_eq!(next_event(&mut scene).await, LinkEvent::ToolsChanged);
    seen.respond_result("\"true\"").await;
    assert_eq!(response_text(call.await.unwrap()), result_text("\"true\""));
    assert!(ears.told.try_recv().is_err() && ears.asked.try_recv().is_err());
    assert!(scene.events.try_recv().is_err());
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn endless_event_closes_change_stream() {
    let mut server = ScriptedServer::start().await;
    let mut spec = http_spec(&server);
    spec.era_setting = EraSetting::Auto;
    spec.limits.body_bytes_max = 10_000;
    let connecting = spawn_task(connect(spec));
    answer_discover(&mut server, LISTS).await;
    let mut stream = acknowledge_listen(&mut server, "{}").await;
    let (_link, _events) = connecting.await.unwrap().unwrap();
    let flood = "x".repeat(1_000);
    let mut poured = 0;
    while poured < 10_000 && stream.try_write(&format!("3e8\r\n{flood}\r\n")).await {
        poured += 1;
    }
    assert!(poured < 10_000, "it was let go");
    acknowledge_listen(&mut server, "{}").await;
}

#[tokio::test]
async fn closed_link_closes_change_stream() {
    let (scene, mut stream) = listening_scene().await;
    assert_eq!(wait_bounded(scene.link.close()).await, LinkExit::Stopping);
    stream.wait_closed().await;
    let (scene, mut stream) = listening_scene().await;
    drop(scene.link);
    stream.wait_closed().await;
}

#[tokio::test]
async fn change_stream_detects_lost_server() {
    let (mut scene, stream) = listening_scene().await;
    scene.server.stop().await;
    stream.end_stream().await;
    assert_eq!(wait_bounded(scene.link.wait_closed()).await, LinkExit::Gone);
}
