//! Token kinds and API routes: every combination.

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use serde_json::{Value, json};

/// The API routes, with the allowed token kinds besides the owner.
const ROUTES: [(&str, &str, &[&str]); 38] = [
    ("GET", "/api/v1/status", &["auditor", "viewer"]),
    ("GET", "/api/v1/audit", &["auditor"]),
    ("GET", "/api/v1/audit/verify", &["auditor"]),
    ("POST", "/api/v1/audit/verify", &["auditor"]),
    ("GET", "/api/v1/servers", &["viewer"]),
    ("GET", "/api/v1/servers/one", &["viewer"]),
    ("GET", "/api/v1/tools", &["viewer"]),
    ("GET", "/api/v1/executors", &["viewer"]),
    ("GET", "/metrics", &["viewer"]),
    ("POST", "/api/v1/status", &[]),
    ("POST", "/api/v1/audit", &[]),
    ("GET", "/api/v1/servers/", &[]),
    ("GET", "/api/v1/servers//", &[]),
    ("GET", "/api/v1/servers/one/stop", &[]),
    ("POST", "/api/v1/servers/one/stop", &[]),
    ("GET", "/api/v1/discover", &[]),
    ("GET", "/api/v1/search", &[]),
    ("GET", "/api/v1/exposure", &[]),
    ("POST", "/api/v1/call", &[]),
    ("GET", "/api/v1/logs", &[]),
    ("POST", "/api/v1/reload", &[]),
    ("GET", "/api/v1/sessions", &[]),
    ("PUT", "/api/v1/sessions/x/context", &[]),
    ("GET", "/api/v1/roles", &[]),
    ("POST", "/api/v1/roles/test", &[]),
    ("GET", "/api/v1/tokens", &[]),
    ("POST", "/api/v1/tokens", &[]),
    ("DELETE", "/api/v1/tokens/x", &[]),
    ("POST", "/api/v1/tokens/x/end", &[]),
    ("GET", "/api/v1/pins", &[]),
    ("POST", "/api/v1/pins/accept", &[]),
    ("GET", "/api/v1/pins/one/echo/diff", &[]),
    ("GET", "/api/v1/outbox", &[]),
    ("DELETE", "/api/v1/outbox/1", &[]),
    ("GET", "/api/v1/broker", &[]),
    ("GET", "/api/v1/broker/dead", &[]),
    ("DELETE", "/api/v1/broker/dead/1", &[]),
    ("GET", "/api/v1/nothing", &[]),
];

fn request_status(gateway: &Gateway, token: &str, method: &str, path: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
    ];
    let mut http = HttpConnection::connect(gateway.address);
    http.send_request(method, path, &headers, b"");
    http.read_response().status
}

fn create_token(gateway: &Gateway, kind: &str) -> String {
    let role = (kind == "agent").then_some("r");
    let wanted = json!({"principal": format!("the-{kind}"), "kind": kind, "role": role});
    gateway.create_token(&wanted).1
}

#[test]
fn sec_99_each_token_kind_reads_its_part() {
    let config = format!(
        "{}[roles.r]\nallow = [\"one.*\"]\n",
        fixture_config("one", &[])
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    for kind in ["agent", "executor", "auditor", "viewer"] {
        let token = create_token(&gateway, kind);
        for (method, path, readers) in ROUTES {
            let status = request_status(&gateway, &token, method, path);
            if readers.contains(&kind) {
                assert_eq!(status, 200, "{kind} {method} {path}");
            } else {
                assert_eq!(status, 403, "{kind} {method} {path}");
            }
        }
    }
    assert_eq!(
        gateway.server_status("one")["state"],
        "ready",
        "nothing was changed"
    );
}

#[test]
fn sec_99_reading_tokens_speak_no_mcp() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    for kind in ["auditor", "viewer"] {
        let token = create_token(&gateway, kind);
        for path in ["/mcp", "/servers/one/mcp", "/sse", "/messages", "/broker"] {
            let status = request_status(&gateway, &token, "GET", path);
            assert!([400, 403, 426].contains(&status), "{kind} {path}: {status}");
            if path != "/broker" {
                assert_eq!(status, 403, "{kind} {path}");
            }
        }
        let bearer = format!("Bearer {token}");
        let mut http = HttpConnection::connect(gateway.address);
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
        let answer = http.post(
            "/mcp",
            &[("Authorization", &bearer)],
            hello.to_string().as_bytes(),
        );
        assert_eq!(answer.status, 403);
        let more = json!({"principal": "x", "kind": kind, "role": "r"});
        let refused = gateway.send_api("POST", "/api/v1/tokens", &more);
        assert_eq!(refused.json()["error"]["code"], "invalid_kind");
    }
    let rows: Value = gateway.get_api("/api/v1/audit?kind=unauthenticated");
    let rows = rows["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["reason"] == "kind"), "{rows:#?}");
}
