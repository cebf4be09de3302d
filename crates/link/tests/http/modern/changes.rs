//! The one stream on which a server without sessions tells what changed.

use super::*;

const LISTS: &str = r#"{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true}}"#;

/// A link with a server that tells of changes, and the stream on which it does.
async fn listening() -> (Scene, Seen) {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    discovers(&mut server, LISTS).await;
    let stream = agrees(&mut server, r#"{"toolsListChanged":true}"#).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let scene = Scene {
        server,
        link,
        events,
    };
    (scene, stream)
}

/// Takes the request for a stream and agrees to it.
async fn agrees(server: &mut Server, subset: &str) -> Seen {
    let mut seen = asked(server).await;
    seen.streams().await;
    let id = seen.id();
    seen.event(&tagged(
        "subscriptions/acknowledged",
        &id,
        &format!(r#","notifications":{subset}"#),
    ))
    .await;
    seen
}

async fn asked(server: &mut Server) -> Seen {
    let seen = server.post().await;
    assert_eq!(seen.header("mcp-method"), Some("subscriptions/listen"));
    assert_eq!(seen.header("mcp-name"), None);
    assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
    seen
}

fn tagged(what: &str, id: &str, more: &str) -> String {
    format!(
        r#"data: {{"jsonrpc":"2.0","method":"notifications/{what}","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}{more}}}}}"#
    )
}

async fn next(scene: &mut Scene) -> LinkEvent {
    soon(scene.events.recv()).await.unwrap()
}

#[tokio::test]
async fn a_server_is_listened_to_from_the_beginning_and_for_what_it_declares() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    discovers(&mut server, LISTS).await;
    let stream = asked(&mut server).await;
    let want = r#""notifications":{"toolsListChanged":true,"resourcesListChanged":true}"#;
    assert!(stream.body.contains(want), "{}", stream.body);
    assert!(server.has_no_get());
    connecting.abort();
    // One that tells of nothing is not asked to.
    let mut scene = scene().await;
    let call = scene.begin(modern("tools/list", ""));
    scene.server.post().await.result("{}").await;
    call.await.unwrap().unwrap();
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn what_a_server_tells_of_changes_is_heard_without_the_id_of_its_stream() {
    let (mut scene, mut stream) = listening().await;
    assert_eq!(scene.link.in_flight(), 0, "nobody waits for its end");
    let id = stream.id();
    stream.event(&tagged("tools/list_changed", &id, "")).await;
    assert_eq!(next(&mut scene).await, LinkEvent::ToolsChanged);
    stream.event(": keep").await;
    stream
        .event(&tagged("resources/updated", &id, r#","uri":"file:///a""#))
        .await;
    let LinkEvent::ResourceUpdated { uri, notification } = next(&mut scene).await else {
        panic!("another event");
    };
    assert_eq!(&*uri, "file:///a");
    let said = String::from_utf8(notification.to_vec()).unwrap();
    assert!(!said.contains("subscriptionId"), "{said}");
}

#[tokio::test]
async fn resources_are_asked_for_on_a_new_stream_and_the_old_one_ends_after_it() {
    let (mut scene, mut first) = listening().await;
    let link = Arc::clone(&scene.link);
    let uris = ["file:///a", "file:///b"].map(Arc::from).to_vec();
    let wanted = spawn(async move { link.listen_to(uris, after(server::SOON)).await });
    let mut second = asked(&mut scene.server).await;
    let want = r#""resourceSubscriptions":["file:///a","file:///b"]"#;
    assert!(second.body.contains(want), "{}", second.body);
    assert_ne!(first.id(), second.id());
    // The old one still counts.
    let id = first.id();
    first.event(&tagged("tools/list_changed", &id, "")).await;
    assert_eq!(next(&mut scene).await, LinkEvent::ToolsChanged);
    second.streams().await;
    let id = second.id();
    let subset = r#","notifications":{"resourceSubscriptions":["file:///b"]}"#;
    second
        .event(&tagged("subscriptions/acknowledged", &id, subset))
        .await;
    let told = wanted.await.unwrap().unwrap();
    assert_eq!(told, ["file:///b".into()], "what it agreed to");
    first.is_left().await;
}

#[tokio::test]
async fn a_stream_that_is_lost_is_opened_again_and_everything_is_looked_at_anew() {
    for graceful in [false, true] {
        let (mut scene, mut stream) = listening().await;
        let id = stream.id();
        if graceful {
            let end = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
            );
            stream.event(&format!("data: {end}")).await;
        }
        stream.ends().await;
        let mut again = agrees(&mut scene.server, "{}").await;
        assert_ne!(again.id(), id);
        let heard = [next(&mut scene).await, next(&mut scene).await];
        assert!(heard.contains(&LinkEvent::ToolsChanged), "{heard:?}");
        assert!(heard.contains(&LinkEvent::ResourcesChanged), "{heard:?}");
        let id = again.id();
        again.event(&tagged("tools/list_changed", &id, "")).await;
        assert_eq!(next(&mut scene).await, LinkEvent::ToolsChanged);
    }
}

#[tokio::test]
async fn a_server_that_will_not_tell_is_left_alone_and_serves() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    discovers(&mut server, LISTS).await;
    let stream = asked(&mut server).await;
    let body = error(&stream.id(), -32601);
    stream.answer(404, JSON, &body).await;
    let (link, events) = connecting.await.unwrap().unwrap();
    let mut scene = Scene {
        server,
        link,
        events,
    };
    let call = scene.begin(modern("tools/call", r#""name":"x""#));
    scene.server.post().await.result("1").await;
    call.await.unwrap().unwrap();
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_stream_that_is_never_agreed_to_keeps_nobody_from_calling() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    let connecting = spawn(connect(spec));
    discovers(&mut server, LISTS).await;
    let mut stream = asked(&mut server).await;
    stream.streams().await;
    // Nothing counts before it agrees.
    let id = stream.id();
    stream.event(&tagged("tools/list_changed", &id, "")).await;
    let (link, events) = soon(connecting).await.unwrap().unwrap();
    let mut scene = Scene {
        server,
        link,
        events,
    };
    let call = scene.begin(modern("tools/call", r#""name":"x""#));
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-method"), Some("tools/call"));
    seen.result("1").await;
    call.await.unwrap().unwrap();
    assert!(scene.events.try_recv().is_err());
    // After a while it is given up.
    stream.is_left().await;
}

#[tokio::test]
async fn only_changes_are_heard_on_the_stream() {
    let (mut scene, mut stream) = listening().await;
    let (end, mut ears) = caller();
    // A further round, so that it is surely sent in this era.
    let mut asking = modern("tools/call", r#""name":"x","requestState":"s""#);
    asking.caller = Some(end);
    let call = scene.begin(asking);
    let seen = scene.server.post().await;
    let id = stream.id();
    for stray in [
        tagged("message", &id, r#","level":"info","data":1"#),
        tagged("progress", &id, &format!(r#","progressToken":{},"progress":1"#, seen.id())),
        format!("data: {}", result(&seen.id(), "\"forged\"")),
        format!("data: [{}]", result(&seen.id(), "\"forged\"")),
        r#"data: {"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#.into(),
        "data: no json".into(),
    ] {
        stream.event(&stray).await;
    }
    stream.event(&tagged("tools/list_changed", &id, "")).await;
    assert_eq!(next(&mut scene).await, LinkEvent::ToolsChanged);
    seen.result("\"true\"").await;
    assert_eq!(text(call.await.unwrap()), answered("\"true\""));
    assert!(ears.told.try_recv().is_err() && ears.asked.try_recv().is_err());
    assert!(scene.events.try_recv().is_err());
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn an_event_without_end_on_the_stream_is_let_go() {
    let mut server = Server::start().await;
    let mut spec = spec(&server);
    spec.speaks = Speaks::Auto;
    spec.limits.body_bytes_max = 10_000;
    let connecting = spawn(connect(spec));
    discovers(&mut server, LISTS).await;
    let mut stream = agrees(&mut server, "{}").await;
    let (_link, _events) = connecting.await.unwrap().unwrap();
    let flood = "x".repeat(1_000);
    let mut poured = 0;
    while poured < 10_000 && stream.pours(&format!("3e8\r\n{flood}\r\n")).await {
        poured += 1;
    }
    assert!(poured < 10_000, "it was let go");
    agrees(&mut server, "{}").await;
}

#[tokio::test]
async fn a_link_that_ends_lets_go_of_its_stream() {
    let (scene, mut stream) = listening().await;
    assert_eq!(soon(scene.link.close()).await, Exit::Stopping);
    stream.is_left().await;
    let (scene, mut stream) = listening().await;
    drop(scene.link);
    stream.is_left().await;
}

#[tokio::test]
async fn a_server_that_is_gone_is_noticed_by_who_listens() {
    let (mut scene, stream) = listening().await;
    scene.server.stop().await;
    stream.ends().await;
    assert_eq!(soon(scene.link.closed()).await, Exit::Gone);
}
