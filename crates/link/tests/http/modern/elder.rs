//! Servers that speak both ways, and callers of the old era that can be asked.

use super::*;

fn call() -> (Request, Ears) {
    let (end, ears) = caller();
    let mut call = request("tools/call");
    call.caller = Some(end);
    (call, ears)
}

#[tokio::test]
async fn a_caller_that_can_be_asked_is_brought_to_a_server_in_the_era_in_which_its_tools_ask() {
    let mut scene = scene().await;
    let (first, mut ears) = call();
    let calling = scene.begin(first);
    scene.server.shakes("one").await;
    let mut seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    assert_eq!(seen.header("mcp-method"), None);
    assert!(!seen.body.contains("io.modelcontextprotocol"), "{seen:?}");
    assert_eq!(scene.link.in_flight(), 1);
    seen.streams().await;
    seen.event(r#"data: {"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}"#)
        .await;
    let question = soon(ears.asked.recv()).await.unwrap();
    question.answer(result("\"q\"", r#"{"action":"decline"}"#).into());
    let answer = scene.server.post().await;
    assert_eq!(answer.header("mcp-session-id"), Some("one"));
    assert!(answer.body.contains("decline"), "{}", answer.body);
    answer.accepted().await;
    let body = result(&seen.id(), "7");
    seen.event(&format!("data: {body}")).await;
    let answer = calling.await.unwrap().unwrap();
    assert_eq!(answer.era, Era::Legacy);
    assert_eq!(text(Ok(answer)), answered("7"));
    // The session stays, and others go without it.
    let (second, _ears) = call();
    let calling = scene.begin(second);
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    seen.result("8").await;
    assert_eq!(text(calling.await.unwrap()), answered("8"));
    for alone in [request("tools/call"), modern("tools/call", r#""name":"x""#)] {
        let calling = scene.begin(alone);
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-session-id"), None);
        seen.result("9").await;
        assert_eq!(calling.await.unwrap().unwrap().era, Era::Modern);
    }
    drop(scene.link);
    let deleted = scene.server.delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("one"));
}

#[tokio::test]
async fn a_server_that_keeps_no_sessions_is_greeted_once_at_most() {
    let mut scene = scene().await;
    for greeted in [true, false] {
        let (asking, _ears) = call();
        let calling = scene.begin(asking);
        if greeted {
            let seen = scene.server.post().await;
            assert!(seen.body.contains(r#""method":"initialize""#));
            let body = error(&seen.id(), -32601);
            seen.answer(404, JSON, &body).await;
        }
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-method"), Some("tools/call"));
        seen.result("7").await;
        assert_eq!(text(calling.await.unwrap()), answered("7"));
    }
    assert!(scene.link.is_open() && scene.server.has_no_get());
}

#[tokio::test]
async fn nobody_is_greeted_for_callers_that_cannot_be_asked_or_for_tasks() {
    let mut scene = scene().await;
    let (mut task, _ears) = call();
    task.params = Some(Bytes::from_static(br#"{"name":"x","task":{}}"#));
    let (mut list, _ears) = call();
    list.method = "tools/list".into();
    for asking in [request("tools/call"), task, list] {
        let calling = scene.begin(asking);
        let seen = scene.server.post().await;
        assert!(seen.header("mcp-method").is_some(), "{seen:?}");
        seen.result("7").await;
        assert_eq!(text(calling.await.unwrap()), answered("7"));
    }
}

#[tokio::test]
async fn a_call_that_is_taken_back_while_the_server_is_greeted_is_not_sent() {
    let mut scene = scene().await;
    let (asking, _ears) = call();
    let calling = scene.begin(asking);
    let greeting = scene.server.post().await;
    calling.abort();
    assert!(calling.await.is_err());
    let hello = server::hello(&greeting.id());
    greeting.json(&hello).await;
    let initialized = scene.server.post().await;
    assert!(initialized.body.contains("notifications/initialized"));
    initialized.accepted().await;
    scene.server.get().await.status(405).await;
    assert!(scene.server.is_quiet());
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn calls_do_not_wait_for_a_session_whose_handshake_just_failed() {
    let mut scene = scene().await;
    let (first, _ears) = call();
    let calling = scene.begin(first);
    // Something in between turns away what it does not know, as often as it is tried.
    let called = loop {
        let seen = scene.server.post().await;
        if seen.header("mcp-method") == Some("tools/call") {
            break seen;
        }
        assert!(seen.body.contains(r#""method":"initialize""#));
        seen.status(502).await;
    };
    called.result("7").await;
    assert_eq!(text(calling.await.unwrap()), answered("7"));
    for _ in 0..2 {
        let (next, _ears) = call();
        let calling = scene.begin(next);
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-method"), Some("tools/call"));
        seen.result("8").await;
        assert_eq!(text(calling.await.unwrap()), answered("8"));
    }
    assert!(scene.link.is_open());
}

#[tokio::test]
async fn a_session_is_ended_when_its_link_is_closed() {
    let mut scene = scene().await;
    let (asking, _ears) = call();
    let calling = scene.begin(asking);
    scene.server.shakes("one").await;
    scene.server.post().await.result("7").await;
    calling.await.unwrap().unwrap();
    // Every connection is in use, so that it is not said at once.
    let mut others = Vec::new();
    for _ in 0..4 {
        let calling = scene.begin(request("tools/call"));
        others.push((calling, scene.server.post().await));
    }
    assert_eq!(soon(scene.link.close()).await, Exit::Stopping);
    let deleted = scene.server.delete().await;
    assert_eq!(deleted.header("mcp-session-id"), Some("one"));
}

/// Opens the session `one` with a server that says this of itself.
async fn opens(server: &mut Server, capabilities: &str) {
    let init = server.post().await;
    let hello = server::hello(&init.id());
    let body = hello.replace(r#""capabilities":{}"#, capabilities);
    let headers = format!("{JSON}Mcp-Session-Id: one\r\n");
    init.answer(200, &headers, &body).await;
    server.post().await.accepted().await;
    server.get().await.status(405).await;
}

#[tokio::test]
async fn a_server_is_told_in_the_session_how_much_its_callers_want_to_hear() {
    for (capabilities, takes) in [
        (r#""capabilities":{"logging":{}}"#, true),
        (r#""capabilities":{}"#, false),
    ] {
        let mut scene = scene().await;
        for (nth, level, told) in [
            (0, None, None),
            (1, Some(Level::Warning), Some("warning")),
            (2, Some(Level::Error), None),
            (3, Some(Level::Debug), Some("debug")),
            (4, Some(Level::Info), None),
        ] {
            let (end, _ears) = caller_at(level);
            let mut call = request("tools/call");
            call.caller = Some(end);
            let calling = scene.begin(call);
            if nth == 0 {
                opens(&mut scene.server, capabilities).await;
            }
            if let Some(told) = told.filter(|_| takes) {
                let seen = scene.server.post().await;
                assert_eq!(seen.header("mcp-session-id"), Some("one"));
                let words = format!(r#""method":"logging/setLevel","params":{{"level":"{told}"}}"#);
                assert!(seen.body.contains(&words), "{}", seen.body);
                seen.result("{}").await;
            }
            let seen = scene.server.post().await;
            assert!(seen.body.contains("tools/call"), "{}", seen.body);
            seen.result("7").await;
            assert_eq!(text(calling.await.unwrap()), answered("7"));
        }
    }
}

#[tokio::test]
async fn a_modern_call_goes_over_the_session_as_one_of_its_era_unless_it_must_not() {
    let mut scene = scene().await;
    let (asked, _ears) = caller();
    let mut first = modern("tools/call", r#""name":"x""#);
    first.caller = Some(asked.clone());
    let calling = scene.begin(first);
    scene.server.shakes("one").await;
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-session-id"), Some("one"));
    assert!(!seen.body.contains("io.modelcontextprotocol"), "{seen:?}");
    seen.result("7").await;
    assert_eq!(calling.await.unwrap().unwrap().era, Era::Legacy);
    let takes_tasks = concat!(
        r#"{"name":"x","_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":"#,
        r#"{"io.modelcontextprotocol/tasks":{}}}}}"#,
    );
    let mut task = modern("tools/call", r#""name":"x""#);
    task.params = Some(Bytes::from_static(takes_tasks.as_bytes()));
    let further = modern("tools/call", r#""name":"x","requestState":"s""#);
    for mut stays in [task, further] {
        stays.caller = Some(asked.clone());
        let calling = scene.begin(stays);
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-session-id"), None, "{seen:?}");
        seen.result("8").await;
        assert_eq!(calling.await.unwrap().unwrap().era, Era::Modern);
    }
}
