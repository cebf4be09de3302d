//! Responses of a running gateway against the shared types of the API, resource by resource.
//! `Gateway::get_api` checks the responses of all further tests in the same way.

use bowline_testkit::gateway::{
    Gateway, HttpConnection, assert_api_shape, assert_event_shape, fixture_config, server_config,
};
use serde_json::{Value, json};

use crate::events::EventWatcher;

/// A policy with every kind of rule, which lets anybody use everything else.
const RULES: &str = r#"
[policy]
default = "allow"
[roles.reviewer]
allow = ["one.*"]
deny = ["one.add"]
when = [{ on = "one.echo", if = "args.message.startsWith('ok')" }]
budget = { calls = 500, per = "1h" }
rate = { calls = 50, per = "1s" }
[principals.ci]
role = "reviewer"
[context.quiet]
hide = ["one.slow"]
[profiles.small]
allow = ["one.echo"]
[audit]
calls = true
"#;

/// A gateway with a server that serves and a server that cannot start.
fn start_gateway() -> Gateway {
    let broken = server_config("lost", std::path::Path::new("/nowhere/at-all"), &[]);
    let config = format!("{}{broken}{RULES}", fixture_config("one", &[]));
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    gateway
}

/// Sends a request and checks the response; returns the body.
fn send_checked(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Value {
    let mut http = HttpConnection::connect(gateway.address);
    let token = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", token.as_str()),
        ("Content-Type", "application/json"),
    ];
    http.send_request(method, path, &headers, body.to_string().as_bytes());
    let response = http.read_response();
    assert_api_shape(method, path, response.status, &response.body);
    response.json()
}

/// Sends a GET request and checks the response; returns the body.
fn get_checked(gateway: &Gateway, path: &str) -> Value {
    send_checked(gateway, "GET", path, &Value::Null)
}

#[test]
fn status_and_server_responses_round_trip() {
    let gateway = start_gateway();
    let _session = gateway.open_session("/mcp");
    let status = get_checked(&gateway, "/api/v1/status");
    assert_eq!(status["audit"]["state"], "ok", "{status}");
    assert_eq!(get_checked(&gateway, "/readyz")["status"], "degraded");
    get_checked(&gateway, "/api/v1/servers");
    get_checked(&gateway, "/api/v1/servers/lost");
    get_checked(&gateway, "/api/v1/executors");
    for order in ["restart", "stop", "start", "reload", "refresh"] {
        let path = format!("/api/v1/servers/one/{order}");
        assert_eq!(send_checked(&gateway, "POST", &path, &json!({}))["v"], 1);
    }
    send_checked(&gateway, "POST", "/api/v1/refresh", &json!({}));
    let misspelled = get_checked(&gateway, "/api/v1/servers/onee");
    assert_eq!(misspelled["error"]["suggestions"], json!(["one"]));
}

#[test]
fn config_reload_responses_round_trip() {
    let gateway = start_gateway();
    let path = gateway.dir.path().join("bowline.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let changed = config.replace("[servers.lost]", "[servers.gone]")
        + "[servers.two]\ncommand = \"true\"\nlazy = true\n[gateway]\nexpose = \"search\"\n";
    std::fs::write(&path, changed).unwrap();
    let report = send_checked(&gateway, "POST", "/api/v1/reload", &json!({}));
    assert_eq!(report["removed"], json!(["lost"]), "{report}");
    std::fs::write(&path, "[servers]\nnonsense = 1\n").unwrap();
    let refused = send_checked(&gateway, "POST", "/api/v1/reload", &json!({}));
    assert_eq!(refused["error"]["code"], "config", "{refused}");
}

#[test]
fn tool_and_call_responses_round_trip() {
    let gateway = start_gateway();
    for path in [
        "/api/v1/tools",
        "/api/v1/tools?server=one",
        "/api/v1/discover?timeout_ms=100",
        "/api/v1/search?q=echo%20a%20message&limit=5",
        "/api/v1/exposure",
    ] {
        assert_eq!(get_checked(&gateway, path)["v"], 1, "{path}");
    }
    let call = json!({"server": "one", "tool": "echo", "arguments": {"message": "hi"}});
    let reply = send_checked(&gateway, "POST", "/api/v1/call", &call);
    assert_eq!(reply["result"]["content"][0]["text"], "hi", "{reply}");
    let unknown = json!({"server": "one", "tool": "eko"});
    let failure = send_checked(&gateway, "POST", "/api/v1/call", &unknown);
    assert_eq!(failure["error"]["code"], "tool_not_found", "{failure}");
    let strict = json!({"server": "one", "tool": "echo", "argument": {}});
    let failure = send_checked(&gateway, "POST", "/api/v1/call", &strict);
    assert_eq!(failure["error"]["code"], "invalid", "{failure}");
}

#[test]
fn session_and_token_responses_round_trip() {
    let gateway = start_gateway();
    let _session = gateway.open_session("/mcp");
    let sessions = get_checked(&gateway, "/api/v1/sessions");
    let id = sessions["sessions"][0]["id"].as_str().unwrap();
    let quiet = json!({"contexts": ["quiet"]});
    let path = format!("/api/v1/sessions/{id}");
    let narrowed = send_checked(&gateway, "PUT", &format!("{path}/context"), &quiet);
    assert_eq!(narrowed["narrows"], "session", "{narrowed}");
    send_checked(&gateway, "DELETE", &path, &json!({}));
    let request = json!({"principal": "ann", "kind": "agent", "role": "reviewer"});
    let created = send_checked(&gateway, "POST", "/api/v1/tokens", &request);
    let path = format!("/api/v1/tokens/{}", created["id"].as_str().unwrap());
    send_checked(&gateway, "PUT", &format!("{path}/context"), &quiet);
    let tokens = get_checked(&gateway, "/api/v1/tokens");
    assert_eq!(tokens["tokens"][0]["state"], "active", "{tokens}");
    let unknown = json!({"principal": "bob", "kind": "king"});
    let failure = send_checked(&gateway, "POST", "/api/v1/tokens", &unknown);
    assert_eq!(failure["error"]["code"], "invalid", "{failure}");
    let not_a_run = send_checked(&gateway, "POST", &format!("{path}/end"), &json!({}));
    assert_eq!(not_a_run["error"]["code"], "no_run", "{not_a_run}");
    send_checked(&gateway, "DELETE", &path, &json!({}));
    send_checked(&gateway, "POST", "/api/v1/owner-token/rotate", &json!({}));
}

#[test]
fn policy_pin_and_audit_responses_round_trip() {
    let gateway = start_gateway();
    let roles = get_checked(&gateway, "/api/v1/roles");
    assert_eq!(roles["roles"][0]["budget"]["calls"], 500, "{roles}");
    let query = json!({"role": "reviewer", "target": "one.add"});
    let decision = send_checked(&gateway, "POST", "/api/v1/roles/test", &query);
    assert_eq!(decision["rule"], "roles.reviewer.deny", "{decision}");
    get_checked(&gateway, "/api/v1/pins");
    get_checked(&gateway, "/api/v1/pins/one/echo/diff");
    let one = json!({"server": "one", "tool": "echo"});
    let accepted = send_checked(&gateway, "POST", "/api/v1/pins/accept", &one);
    assert_eq!(accepted["accepted"][0]["tool"], "echo", "{accepted}");
    let all = json!({"server": "one"});
    send_checked(&gateway, "POST", "/api/v1/pins/accept", &all);
    let rows = get_checked(&gateway, "/api/v1/audit?limit=5");
    assert!(!rows["rows"].as_array().unwrap().is_empty(), "{rows}");
    let verdict = get_checked(&gateway, "/api/v1/audit/verify");
    assert_eq!(verdict["ok"], true, "{verdict}");
    get_checked(&gateway, "/api/v1/logs?server=one");
}

#[test]
fn queue_responses_and_events_round_trip() {
    let gateway = start_gateway();
    for path in ["/api/v1/outbox", "/api/v1/broker", "/api/v1/broker/dead"] {
        assert_eq!(get_checked(&gateway, path)["v"], 1, "{path}");
    }
    for path in ["/api/v1/outbox/9", "/api/v1/broker/dead/9"] {
        assert!(get_checked(&gateway, path)["error"]["hint"].is_string());
    }
    let mut watcher = EventWatcher::start(&gateway);
    send_checked(&gateway, "POST", "/api/v1/servers/one/restart", &json!({}));
    let is_ready = |data: &Value| data["event"] == "state" && data["state"] == "ready";
    let last = watcher.next_matching(|event| {
        assert_event_shape(&event.name, &event.data);
        is_ready(&event.data)
    });
    assert_eq!(last.data["server"], "one");
}
