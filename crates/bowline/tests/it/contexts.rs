//! Narrowing of open sessions, and profiles as endpoints.

use bowline_testkit::gateway::{Gateway, HttpConnection, Response, Session, fixture_config};
use serde_json::{Value, json};

fn start_contexts() -> Gateway {
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
    let servers = [fixture_config("one", &[]), fixture_config("two", &[])].concat();
    let gateway = Gateway::start(&format!("{servers}{rules}"));
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("two", "ready");
    gateway
}

fn narrow_session(gateway: &Gateway, session: &str, contexts: &Value) -> Response {
    let path = format!("/api/v1/sessions/{session}/context");
    gateway.send_api("PUT", &path, &json!({"contexts": contexts}))
}

fn is_listed(session: &mut Session, tool: &str) -> bool {
    let listed = session.list_tool_names().iter().any(|name| name == tool);
    let answer = session.call(tool, &json!({"message": "hi"}));
    let called = answer["result"]["content"][0]["text"] == "hi";
    assert_eq!(
        listed, called,
        "{tool}: listed and called are one decision: {answer}"
    );
    called
}

/// Opens the stream of a session and skips its first event.
fn open_stream(session: &Session) -> HttpConnection {
    let mut stream = session.open_stream();
    stream.read_chunk().unwrap();
    stream
}

/// The method of the next message; a keepalive is an error here.
fn next_method(stream: &mut HttpConnection) -> String {
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
fn narrowed_session_is_narrow_and_notified_everywhere() {
    let gateway = start_contexts();
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    for (path, echo) in [("/mcp", "one__echo"), ("/servers/one/mcp", "echo")] {
        let mut session = gateway.open_session_as(&token, path);
        let mut other = gateway.open_session_as(&token, path);
        let mut stream = open_stream(&session);
        assert!(is_listed(&mut session, echo));
        let answer = narrow_session(&gateway, &session.id, &json!(["no-echo"]));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["contexts"], json!(["no-echo"]));
        assert_eq!(next_method(&mut stream), TOOLS);
        assert!(!is_listed(&mut session, echo));
        assert!(is_listed(&mut other, echo), "only that session is narrowed");
        assert_eq!(
            narrow_session(&gateway, &session.id, &json!([])).status,
            200
        );
        assert_eq!(next_method(&mut stream), TOOLS);
        assert!(is_listed(&mut session, echo), "as wide as its token again");
    }
}

#[test]
fn session_narrowing_never_widens() {
    let gateway = start_contexts();
    let wanted = json!({"principal": "ann", "role": "writer", "contexts": ["no-echo"]});
    let (_, token) = gateway.create_token(&wanted);
    let mut session = gateway.open_session_as(&token, "/mcp");
    for contexts in [json!([]), json!(["no-two"]), json!([])] {
        assert_eq!(narrow_session(&gateway, &session.id, &contexts).status, 200);
        assert!(!is_listed(&mut session, "one__echo"), "{contexts}");
    }
}

#[test]
fn narrowed_session_loses_hidden_subscriptions() {
    let gateway = start_contexts();
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let mut sessions = [(); 2].map(|()| gateway.open_session_as(&token, "/servers/one/mcp"));
    let watched = json!({"uri": "test://watched-resource"});
    let mut streams = sessions.each_mut().map(|session| {
        let subscribed = session.request("resources/subscribe", &watched);
        assert_eq!(subscribed["result"], json!({}), "{subscribed}");
        open_stream(session)
    });
    let [narrowed, other] = &mut sessions;
    other.call("touch", &watched);
    for stream in &mut streams {
        assert_eq!(next_method(stream), UPDATED);
    }
    narrow_session(&gateway, &narrowed.id, &json!(["no-news"]));
    assert_eq!(next_method(&mut streams[0]), RESOURCES);
    other.call("touch", &watched);
    assert_eq!(next_method(&mut streams[1]), UPDATED);
    // A shared notification comes next on both streams, with nothing earlier on the second.
    other.call("test_trigger_tool_change", &json!({}));
    for stream in &mut streams {
        assert_eq!(next_method(stream), TOOLS);
    }
    let refused = narrowed.request("resources/subscribe", &watched);
    assert!(refused["error"].is_object(), "{refused}");
}

#[test]
fn session_stays_narrowed_after_restart() {
    let mut gateway = start_contexts();
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let narrowed = gateway.open_session_as(&token, "/mcp").id;
    let later = gateway.open_session_as(&token, "/mcp").id;
    assert_eq!(
        narrow_session(&gateway, &narrowed, &json!(["no-echo"])).status,
        200
    );
    let revived = |gateway: &Gateway, id: &str| {
        let mut session = gateway.open_session_as(&token, "/mcp");
        session.id = id.to_owned();
        session
    };
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    assert!(!is_listed(&mut revived(&gateway, &narrowed), "one__echo"));
    assert!(is_listed(&mut revived(&gateway, &later), "one__echo"));
    // A session unused since the restart can be narrowed too.
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    assert_eq!(
        narrow_session(&gateway, &later, &json!(["no-echo"])).status,
        200
    );
    assert!(!is_listed(&mut revived(&gateway, &later), "one__echo"));
    assert_eq!(narrow_session(&gateway, &narrowed, &json!([])).status, 200);
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    assert!(is_listed(&mut revived(&gateway, &narrowed), "one__echo"));
    let kept = std::fs::read_to_string(gateway.state_dir().join("contexts.json")).unwrap();
    assert!(!kept.contains(&later), "only its hash is kept: {kept}");
}

#[test]
fn unknown_contexts_and_sessions_are_refused() {
    let gateway = start_contexts();
    let session = gateway.open_session("/mcp");
    let unknown = narrow_session(&gateway, &session.id, &json!(["no-ecko"]));
    assert_eq!(unknown.status, 422);
    let error = unknown.json()["error"].clone();
    assert_eq!(error["code"], "context_not_found");
    assert_eq!(error["suggestions"][0], "no-echo");
    let mut forged = session.id.clone();
    forged.replace_range(..1, if forged.starts_with('A') { "B" } else { "A" });
    for id in [&forged, "x", &"A".repeat(600)] {
        let answer = narrow_session(&gateway, id, &json!(["no-echo"]));
        assert_eq!(answer.status, 404, "{id}");
        assert_eq!(answer.json()["error"]["code"], "session_not_found");
    }
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let path = format!("/api/v1/sessions/{}/context", session.id);
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Content-Type", "application/json"),
    ];
    let mut http = HttpConnection::connect(gateway.address);
    http.send_request("PUT", &path, &headers, b"{\"contexts\":[]}");
    assert_eq!(
        http.read_response().status,
        403,
        "nobody changes what narrows it"
    );
}

#[test]
fn session_list_shows_narrowing() {
    let gateway = start_contexts();
    let wanted = json!({"principal": "ann", "role": "writer", "contexts": ["no-two"]});
    let (id, token) = gateway.create_token(&wanted);
    let session = gateway.open_session_as(&token, "/mcp/small");
    let _stream = open_stream(&session);
    narrow_session(&gateway, &session.id, &json!(["no-echo"]));
    let mut owner = gateway.open_session("/mcp");
    owner.request("ping", &json!({}));
    let listed = gateway.get_api("/api/v1/sessions");
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
fn policy_change_notifies_affected_session() {
    let gateway = start_contexts();
    let wanted = json!({"principal": "ann", "role": "writer"});
    let (_, token) = gateway.create_token(&wanted);
    let mut session = gateway.open_session_as(&token, "/mcp");
    let mut stream = open_stream(&session);
    assert!(is_listed(&mut session, "two__echo"));
    let path = gateway.dir.path().join("bowline.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("\"two.*\", ", "")).unwrap();
    let applied = gateway.send_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(applied.status, 200, "{}", applied.text());
    assert_eq!(next_method(&mut stream), TOOLS);
    assert!(!is_listed(&mut session, "two__echo"));
}

#[test]
fn profile_endpoint_shows_less() {
    let gateway = start_contexts();
    // Even the owner sees only the tools of the profile endpoint.
    let mut session = gateway.open_session("/mcp/small");
    assert_eq!(session.list_tool_names(), ["one__echo"]);
    assert!(is_listed(&mut session, "one__echo"));
    assert!(!is_listed(&mut session, "two__echo"));
    let denied = session.call("one__add", &json!({"a": 1, "b": 2}));
    assert!(denied["error"].is_object(), "{denied}");
    // A session of one endpoint is invalid at another.
    let mut elsewhere = gateway.open_session("/mcp");
    elsewhere.id.clone_from(&session.id);
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    assert_eq!(elsewhere.post(&ping).status, 404);
    let bearer = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", &bearer[..]),
        ("Accept", "text/event-stream"),
    ];
    let mut old = HttpConnection::connect(gateway.address);
    old.send_request("GET", "/sse/small", &headers, b"");
    assert_eq!(old.read_head().status, 200);
    let first = String::from_utf8(old.read_chunk().unwrap()).unwrap();
    assert!(
        first.contains("data: /messages/small?sessionId="),
        "{first}"
    );
    for path in ["/mcp/none", "/sse/none", "/messages/none"] {
        let answer = HttpConnection::connect(gateway.address).get(path, &headers);
        assert_eq!(answer.status, 404, "{path}");
    }
    for path in ["/mcp/Small", "/mcp/small/", "/mcp/", "/mcp/..%2fx"] {
        let answer = HttpConnection::connect(gateway.address).get(path, &headers);
        assert_eq!(answer.status, 404, "{path}");
    }
}
