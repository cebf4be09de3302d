//! Sessions that are narrowed while they live, and profiles as endpoints.

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, Response, Session, fixture};

fn up() -> Gateway {
    let rules = r#"
[roles.writer]
allow = ["one.*", "two.*", "resource:one.*"]
[context.no-echo]
hide = ["*.echo"]
[context.no-news]
hide = ["resource:one.*"]
[context.no-two]
hide = ["two.*"]
[profiles.small]
allow = ["one.echo", "one.add"]
deny = ["one.add"]
"#;
    let servers = [fixture("one", &[]), fixture("two", &[])].concat();
    let gateway = Gateway::up(&format!("{servers}{rules}"));
    gateway.wait_for("one", "ready");
    gateway.wait_for("two", "ready");
    gateway
}

fn narrow(gateway: &Gateway, session: &str, contexts: &Value) -> Response {
    let path = format!("/api/v1/sessions/{session}/context");
    gateway.ask_api("PUT", &path, &json!({"contexts": contexts}))
}

fn sees(session: &mut Session, tool: &str) -> bool {
    let listed = session.tools().iter().any(|name| name == tool);
    let answer = session.call(tool, &json!({"message": "hi"}));
    let called = answer["result"]["content"][0]["text"] == "hi";
    assert_eq!(
        listed, called,
        "{tool}: listed and called are one decision: {answer}"
    );
    called
}

/// Opens the stream of a session, after its beginning.
fn listen(session: &Session) -> Http {
    let mut stream = session.listen();
    stream.read_chunk().unwrap();
    stream
}

/// The method of the next message; a stream that only says that it lives is a fault.
fn told(stream: &mut Http) -> String {
    let chunk = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(!chunk.starts_with(": alive"), "it was not told");
    let data = chunk.lines().find_map(|line| line.strip_prefix("data: "));
    let message: Value = serde_json::from_str(data.unwrap()).unwrap();
    message["method"].as_str().unwrap().to_owned()
}

const TOOLS: &str = "notifications/tools/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const UPDATED: &str = "notifications/resources/updated";

#[test]
fn a_session_is_narrowed_on_every_path_and_told_so() {
    let gateway = up();
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    for (path, echo) in [("/mcp", "one__echo"), ("/servers/one/mcp", "echo")] {
        let mut session = gateway.session_as(&token, path);
        let mut other = gateway.session_as(&token, path);
        let mut stream = listen(&session);
        assert!(sees(&mut session, echo));
        let answer = narrow(&gateway, &session.id, &json!(["no-echo"]));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["contexts"], json!(["no-echo"]));
        assert_eq!(told(&mut stream), TOOLS);
        assert!(!sees(&mut session, echo));
        assert!(sees(&mut other, echo), "only that session is narrowed");
        assert_eq!(narrow(&gateway, &session.id, &json!([])).status, 200);
        assert_eq!(told(&mut stream), TOOLS);
        assert!(sees(&mut session, echo), "as wide as its token again");
    }
}

#[test]
fn what_narrows_a_session_can_never_widen_it() {
    let gateway = up();
    let wanted = json!({"principal": "ann", "role": "writer", "contexts": ["no-echo"]});
    let (_, token) = gateway.token_of(&wanted);
    let mut session = gateway.session_as(&token, "/mcp");
    for contexts in [json!([]), json!(["no-two"]), json!([])] {
        assert_eq!(narrow(&gateway, &session.id, &contexts).status, 200);
        assert!(!sees(&mut session, "one__echo"), "{contexts}");
    }
}

#[test]
fn a_narrowed_session_hears_no_more_of_what_it_subscribed_to() {
    let gateway = up();
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    let mut sessions = [(); 2].map(|()| gateway.session_as(&token, "/servers/one/mcp"));
    let watched = json!({"uri": "test://watched-resource"});
    let mut streams = sessions.each_mut().map(|session| {
        let subscribed = session.request("resources/subscribe", &watched);
        assert_eq!(subscribed["result"], json!({}), "{subscribed}");
        listen(session)
    });
    let [narrowed, other] = &mut sessions;
    other.call("touch", &watched);
    for stream in &mut streams {
        assert_eq!(told(stream), UPDATED);
    }
    narrow(&gateway, &narrowed.id, &json!(["no-news"]));
    assert_eq!(told(&mut streams[0]), RESOURCES);
    other.call("touch", &watched);
    assert_eq!(told(&mut streams[1]), UPDATED);
    // What both hear comes next for one of them, and nothing before it for the other.
    other.call("test_trigger_tool_change", &json!({}));
    for stream in &mut streams {
        assert_eq!(told(stream), TOOLS);
    }
    let refused = narrowed.request("resources/subscribe", &watched);
    assert!(refused["error"].is_object(), "{refused}");
}

#[test]
fn a_session_that_comes_back_after_a_restart_is_as_narrow_as_it_was() {
    let mut gateway = up();
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    let narrowed = gateway.session_as(&token, "/mcp").id;
    let later = gateway.session_as(&token, "/mcp").id;
    assert_eq!(narrow(&gateway, &narrowed, &json!(["no-echo"])).status, 200);
    let revived = |gateway: &Gateway, id: &str| {
        let mut session = gateway.session_as(&token, "/mcp");
        session.id = id.to_owned();
        session
    };
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    assert!(!sees(&mut revived(&gateway, &narrowed), "one__echo"));
    assert!(sees(&mut revived(&gateway, &later), "one__echo"));
    // A session that nobody used since the restart can be narrowed as well.
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    assert_eq!(narrow(&gateway, &later, &json!(["no-echo"])).status, 200);
    assert!(!sees(&mut revived(&gateway, &later), "one__echo"));
    assert_eq!(narrow(&gateway, &narrowed, &json!([])).status, 200);
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    assert!(sees(&mut revived(&gateway, &narrowed), "one__echo"));
    let kept = std::fs::read_to_string(gateway.state().join("contexts.json")).unwrap();
    assert!(!kept.contains(&later), "only its hash is kept: {kept}");
}

#[test]
fn contexts_and_sessions_that_are_not_there_are_refused() {
    let gateway = up();
    let session = gateway.session("/mcp");
    let unknown = narrow(&gateway, &session.id, &json!(["no-ecko"]));
    assert_eq!(unknown.status, 422);
    let error = unknown.json()["error"].clone();
    assert_eq!(error["code"], "context_not_found");
    assert_eq!(error["suggestions"][0], "no-echo");
    let mut forged = session.id.clone();
    forged.replace_range(..1, if forged.starts_with('A') { "B" } else { "A" });
    for id in [&forged, "x", &"A".repeat(600)] {
        let answer = narrow(&gateway, id, &json!(["no-echo"]));
        assert_eq!(answer.status, 404, "{id}");
        assert_eq!(answer.json()["error"]["code"], "session_not_found");
    }
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    let path = format!("/api/v1/sessions/{}/context", session.id);
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Content-Type", "application/json"),
    ];
    let mut http = Http::connect(gateway.address);
    http.send("PUT", &path, &headers, b"{\"contexts\":[]}");
    assert_eq!(http.read().status, 403, "nobody changes what narrows it");
}

#[test]
fn sessions_are_listed_with_what_narrows_them() {
    let gateway = up();
    let wanted = json!({"principal": "ann", "role": "writer", "contexts": ["no-two"]});
    let (id, token) = gateway.token_of(&wanted);
    let session = gateway.session_as(&token, "/mcp/small");
    let _stream = listen(&session);
    narrow(&gateway, &session.id, &json!(["no-echo"]));
    let mut owner = gateway.session("/mcp");
    owner.request("ping", &json!({}));
    let listed = gateway.api("/api/v1/sessions");
    assert_eq!(listed["total"], 2);
    let all = listed["sessions"].as_array().unwrap();
    assert_eq!(all[0]["principal"], "owner", "the one used last: {listed}");
    assert_eq!(all[0]["token"], Value::Null);
    let ann = &all[1];
    for (key, want) in [
        ("id", json!(session.id)),
        ("principal", json!("ann")),
        ("role", json!("writer")),
        ("token", json!(id)),
        ("endpoint", json!("/mcp/small")),
        ("contexts", json!(["no-echo"])),
        ("token_contexts", json!(["no-two"])),
        ("streams", json!(1)),
        ("calls", json!(0)),
    ] {
        assert_eq!(ann[key], want, "{key}: {ann}");
    }
    assert!(ann["age_ms"].is_u64() && ann["idle_ms"].is_u64(), "{ann}");
}

#[test]
fn a_listening_session_is_told_when_other_rules_show_it_something_else() {
    let gateway = up();
    let wanted = json!({"principal": "ann", "role": "writer"});
    let (_, token) = gateway.token_of(&wanted);
    let mut session = gateway.session_as(&token, "/mcp");
    let mut stream = listen(&session);
    assert!(sees(&mut session, "two__echo"));
    let path = gateway.dir.path().join("bowline.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("\"two.*\", ", "")).unwrap();
    let applied = gateway.ask_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(applied.status, 200, "{}", applied.text());
    assert_eq!(told(&mut stream), TOOLS);
    assert!(!sees(&mut session, "two__echo"));
}

#[test]
fn a_profile_is_an_endpoint_that_shows_less() {
    let gateway = up();
    // The owner may do all, but not at an endpoint that is for less.
    let mut session = gateway.session("/mcp/small");
    assert_eq!(session.tools(), ["one__echo"]);
    assert!(sees(&mut session, "one__echo"));
    assert!(!sees(&mut session, "two__echo"));
    let denied = session.call("one__add", &json!({"a": 1, "b": 2}));
    assert!(denied["error"].is_object(), "{denied}");
    // Its session is of no use elsewhere.
    let mut elsewhere = gateway.session("/mcp");
    elsewhere.id.clone_from(&session.id);
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    assert_eq!(elsewhere.post(&ping).status, 404);
    let bearer = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", &bearer[..]),
        ("Accept", "text/event-stream"),
    ];
    let mut old = Http::connect(gateway.address);
    old.send("GET", "/sse/small", &headers, b"");
    assert_eq!(old.read_head().status, 200);
    let first = String::from_utf8(old.read_chunk().unwrap()).unwrap();
    assert!(
        first.contains("data: /messages/small?sessionId="),
        "{first}"
    );
    for path in ["/mcp/none", "/sse/none", "/messages/none"] {
        let answer = Http::connect(gateway.address).get(path, &headers);
        assert_eq!(answer.status, 404, "{path}");
    }
    for path in ["/mcp/Small", "/mcp/small/", "/mcp/", "/mcp/..%2fx"] {
        let answer = Http::connect(gateway.address).get(path, &headers);
        assert_eq!(answer.status, 404, "{path}");
    }
}
