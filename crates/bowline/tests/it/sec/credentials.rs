//! Tokens: the right one or no access, on every route, and never a second identity.

use std::os::unix::fs::PermissionsExt as _;

use bowline_testkit::gateway::{Gateway, HttpConnection, bowline_binary, fixture_config};
use serde_json::json;

use crate::sec::{
    assert_unharmed, bearer_header, exchange_bytes, initialize_message, post_message, request_head,
    response_statuses,
};

#[test]
fn sec_03_missing_or_wrong_token_is_401() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let session = gateway.open_session("/mcp");
    let token = gateway.token.clone();
    let wrong = [
        None,
        Some(format!("Bearer {}", &token[1..])),
        Some(format!("Bearer {}", &token[..token.len() - 1])),
        Some(format!("Bearer {token}0")),
        Some(format!("Bearer {}", token.to_ascii_uppercase()))
            .filter(|bearer| !bearer.contains(&token)),
        Some("Bearer ".to_owned()),
        Some("Bearer".to_owned()),
        Some(token.clone()),
        Some(format!("Token {token}")),
    ];
    for path in [
        "/mcp",
        "/servers/one/mcp",
        "/api/v1/status",
        "/api/v1/nothing",
    ] {
        for credential in &wrong {
            for method in ["GET", "POST", "DELETE", "PUT"] {
                let mut headers = vec![("Mcp-Session-Id", session.id.as_str())];
                headers.extend(
                    credential
                        .iter()
                        .map(|text| ("Authorization", text.as_str())),
                );
                let answer = request_head(gateway.address, method, path, &headers);
                assert_eq!(answer.status, 401, "{method} {path} {credential:?}");
                let asks = answer.header("www-authenticate").unwrap();
                assert!(asks.starts_with("Bearer"), "{asks}");
                assert!(!answer.text().contains(&token));
            }
        }
    }
    // A token in the query is refused, in every position.
    for path in ["/mcp", "/api/v1/status", "/livez"] {
        for query in [
            format!("token={token}"),
            format!("a=b&access_token={token}"),
            format!("API_KEY={token}"),
        ] {
            let target = format!("{path}?{query}");
            let answer = request_head(gateway.address, "GET", &target, &[]);
            assert_eq!(answer.status, 400, "{target}");
            assert!(!answer.text().contains(&token));
            let both = post_message(&gateway, &target, &[], &initialize_message());
            assert_eq!(both.status, 400, "{target}");
        }
    }
    assert_unharmed(&gateway);
}

#[test]
fn sec_04_garbage_credential_never_gets_identity() {
    let gateway = Gateway::start_with_args(&fixture_config("one", &[]), &["--insecure-no-auth"]);
    let bare =
        |path: &str| HttpConnection::connect(gateway.address).post(path, &[], initialize_text());
    assert_eq!(
        bare("/mcp").status,
        200,
        "no credential is an identity here"
    );
    let right = bearer_header(&gateway);
    let garbage = [
        "Bearer x",
        "Bearer",
        "Bearer  ",
        "Basic b3duZXI6b3duZXI=",
        "Digest username=\"owner\"",
        "null",
        "undefined",
        "",
        "Bearer null",
        "Bearer \u{e9}",
        &format!("{right}, {right}"),
        &format!("Basic x, {right}"),
        &format!("x{right}"),
    ];
    for path in [
        "/mcp",
        "/servers/one/mcp",
        "/api/v1/status",
        "/livez",
        "/readyz",
    ] {
        for credential in garbage {
            let answer = post_message(
                &gateway,
                path,
                &[("Authorization", credential)],
                &initialize_message(),
            );
            assert_eq!(answer.status, 401, "{path} {credential:?}");
            assert_eq!(answer.header("mcp-session-id"), None);
        }
        for twice in [
            [
                ("Authorization", right.as_str()),
                ("Authorization", "Bearer x"),
            ],
            [
                ("Authorization", "Bearer x"),
                ("Authorization", right.as_str()),
            ],
            [
                ("Authorization", right.as_str()),
                ("authorization", right.as_str()),
            ],
        ] {
            let answer = post_message(&gateway, path, &twice, &initialize_message());
            assert_eq!(answer.status, 401, "{path} {twice:?}");
        }
    }
    assert_other_routes_refused(&gateway);
    assert_huge_credential_431(&gateway);
    assert_unharmed(&gateway);
}

fn initialize_text() -> &'static [u8] {
    br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#
}

/// Unknown routes are refused, with and without a credential.
fn assert_other_routes_refused(gateway: &Gateway) {
    let right = bearer_header(gateway);
    for path in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/mcp",
        "/health",
        "/metrics",
        "/mcp/../api/v1/status",
        "/mcp/..%2fapi/v1/status",
        "/api/v1/../../mcp",
        "//mcp",
        "/mcp/",
        "/MCP",
        "/%6dcp",
        "/servers/one/../one/mcp",
    ] {
        for credential in [right.as_str(), "Bearer x", ""] {
            let answer = post_message(
                gateway,
                path,
                &[("Authorization", credential)],
                &initialize_message(),
            );
            let known = path.starts_with("/api/v1/") || path == "/metrics";
            // POST to `/metrics` is refused for every caller.
            let barred = path == "/metrics" && answer.status == 405;
            let refused = answer.status == 404 || (known && answer.status == 401) || barred;
            assert!(refused, "{path} {credential:?}: {}", answer.status);
            assert_eq!(answer.header("mcp-session-id"), None);
        }
    }
}

fn assert_huge_credential_431(gateway: &Gateway) {
    let at = gateway.address;
    for kib in [64, 65, 256] {
        let filler = "x".repeat(kib * 1024);
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {at}\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {filler}\r\nContent-Length: 0\r\n\r\n"
        );
        let status = response_statuses(&exchange_bytes(at, head.as_bytes()));
        // A connection closed during a write may lose its last response.
        assert!(status == [431] || status.is_empty(), "{status:?}");
    }
}

/// With authentication off, only the MCP endpoints are open, and only on loopback.
#[test]
fn no_auth_opens_only_mcp_on_loopback() {
    let dir = tempfile::TempDir::new().unwrap();
    let config = dir.path().join("bowline.toml");
    std::fs::write(&config, "").unwrap();
    let state = dir.path().join("state");
    let refused = std::process::Command::new(bowline_binary())
        .args([
            "up",
            "--insecure-no-auth",
            "--listen",
            "0.0.0.0:0",
            "--config",
        ])
        .arg(&config)
        .arg("--state")
        .arg(&state)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!state.join("run.json").exists());

    let gateway = Gateway::start_with_args(&fixture_config("one", &[]), &["--insecure-no-auth"]);
    let at = gateway.address;
    for path in ["/mcp", "/servers/one/mcp"] {
        let answer = HttpConnection::connect(at).post(path, &[], initialize_text());
        assert_eq!(answer.status, 200, "{path}");
    }
    for path in ["status", "servers", "tools", "logs", "nothing"] {
        let answer = request_head(at, "GET", &format!("/api/v1/{path}"), &[]);
        assert_eq!(answer.status, 401, "{path}");
    }
    let call = json!({"server": "one", "tool": "echo", "arguments": {"message": "hi"}}).to_string();
    let answer = HttpConnection::connect(at).post("/api/v1/call", &[], call.as_bytes());
    assert_eq!(answer.status, 401);
    let order = HttpConnection::connect(at).post("/api/v1/servers/one/stop", &[], b"{}");
    assert_eq!(order.status, 401);
    for headers in [("Host", "evil.example"), ("Origin", "null")] {
        let answer = HttpConnection::connect(at).post("/mcp", &[headers], initialize_text());
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    assert_eq!(gateway.get_api("/api/v1/status")["insecure_no_auth"], true);
    assert!(
        gateway.run_cli(&["ls"]).status.success(),
        "the owner still may"
    );
}

#[test]
fn state_files_are_readable_by_owner_only() {
    let gateway = Gateway::start("");
    for file in ["run.json", "token"] {
        let mode = std::fs::metadata(gateway.state_dir().join(file)).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600, "{file}");
    }
    for entry in std::fs::read_dir(gateway.state_dir()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", entry.path());
    }
    let run = std::fs::read_to_string(gateway.state_dir().join("run.json")).unwrap();
    assert!(!run.contains(&gateway.token));
}

#[test]
fn sec_05_form_or_text_post_is_415() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let open = Gateway::start_with_args(&fixture_config("one", &[]), &["--insecure-no-auth"]);
    let kinds = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; charset=application/json",
        "application/jsonp",
        "application/json-seq",
        "text/json",
        "",
    ];
    for gateway in [&gateway, &open] {
        for path in [
            "/mcp",
            "/servers/one/mcp",
            "/api/v1/call",
            "/api/v1/servers/one/stop",
        ] {
            for kind in kinds {
                let answer = post_message(
                    gateway,
                    path,
                    &[("Content-Type", kind)],
                    &initialize_message(),
                );
                assert_eq!(answer.status, 415, "{path} {kind:?}: {}", answer.text());
            }
        }
        let json = [("Content-Type", "Application/JSON; charset=utf-8")];
        assert_eq!(
            post_message(gateway, "/mcp", &json, &initialize_message()).status,
            200
        );
        let twice = [
            ("Content-Type", "text/plain"),
            ("Content-Type", "application/json"),
        ];
        assert_eq!(
            post_message(gateway, "/mcp", &twice, &initialize_message()).status,
            415
        );
    }
    // A method-override header has no effect.
    let mut session = gateway.open_session("/mcp");
    let id = session.id.clone();
    for name in [
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
    ] {
        let headers = [("Mcp-Session-Id", id.as_str()), (name, "DELETE")];
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        let answer = post_message(&gateway, "/mcp?_method=DELETE", &headers, &ping);
        assert_eq!(answer.status, 200, "{name}");
    }
    session.request("ping", &json!({}));
    // Protocol upgrades are refused too.
    let bearer = bearer_header(&gateway);
    let upgrade = [
        ("Authorization", bearer.as_str()),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let answer = request_head(gateway.address, "GET", "/mcp", &upgrade);
    assert_eq!(answer.status, 400, "{}", answer.text());
    let answer = request_head(gateway.address, "GET", "/mcp", &upgrade[1..]);
    assert_eq!(answer.status, 401);
}
