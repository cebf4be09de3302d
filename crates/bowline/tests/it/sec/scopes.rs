//! A narrowed token: no session, stream, era or path of it is wider.

use bowline_testkit::gateway::{
    Gateway, HttpConnection, ModernClient, Response, Session, fixture_config, request_meta,
};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

fn start_scoped() -> Gateway {
    let rules = r#"
[roles.writer]
allow = ["one.*"]
[context.no-echo]
hide = ["*.echo"]
"#;
    let gateway = Gateway::start(&format!("{}{rules}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    gateway
}

fn narrow_token(gateway: &Gateway, token: &str, contexts: &Value) -> Response {
    let path = format!("/api/v1/tokens/{token}/context");
    gateway.send_api("PUT", &path, &json!({"contexts": contexts}))
}

/// Whether the tool is listed and runs in a new session, an open one, and without a session.
fn tool_access_by_path(gateway: &Gateway, token: &str, open: &mut Session) -> [bool; 4] {
    let message = json!({"message": "hi"});
    let ran = |answer: &Value| answer["result"]["content"][0]["text"] == "hi";
    let mut new = gateway.open_session_as(token, "/mcp");
    let mut single = gateway.open_session_as(token, "/servers/one/mcp");
    let modern = ModernClient {
        token: token.to_owned(),
        ..gateway.modern_client("/mcp")
    };
    let call = json!({"name": "one__echo", "arguments": message});
    let by_modern = ran(&modern.send_request("tools/call", &call).json());
    let listed = modern.request_result("tools/list", &json!({}))["tools"].clone();
    let mut listed = listed.as_array().unwrap().iter();
    assert_eq!(listed.any(|tool| tool["name"] == "one__echo"), by_modern);
    [
        ran(&open.call("one__echo", &message)),
        ran(&new.call("one__echo", &message)),
        ran(&single.call("echo", &message)),
        by_modern,
    ]
}

#[test]
fn sec_52_narrowed_token_is_narrow_everywhere() {
    let mut gateway = start_scoped();
    let (id, token) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let mut open = gateway.open_session_as(&token, "/mcp");
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [true; 4]);
    let mut stream = open.open_stream();
    stream.read_chunk().unwrap();
    let answer = narrow_token(&gateway, &id, &json!(["no-echo"]));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["narrowed"], json!(["no-echo"]));
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [false; 4]);
    // Listeners are notified.
    let told = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(told.contains("notifications/tools/list_changed"), "{told}");
    // Another token of the same principal is unaffected.
    let (_, other) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let mut others = gateway.open_session_as(&other, "/mcp");
    assert_eq!(
        tool_access_by_path(&gateway, &other, &mut others),
        [true; 4]
    );
    // The narrowing persists.
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    let mut open = gateway.open_session_as(&token, "/mcp");
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [false; 4]);
    let unknown = narrow_token(&gateway, &id, &json!(["no-such"]));
    assert_eq!(unknown.status, 422, "{}", unknown.text());
    let ran = gateway.run_cli(&["token", "narrow", &id, "--clear"]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [true; 4]);
    let ran = gateway.run_cli(&["token", "narrow", &id, "no-echo"]);
    let noted = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(
        noted.contains(&format!("bowline token narrow {id} --clear")),
        "{noted}"
    );
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [false; 4]);
    let nobody = narrow_token(&gateway, "nobody", &json!([]));
    assert_eq!(nobody.json()["error"]["code"], "token_not_found");
}

#[test]
fn sec_53_session_narrowing_narrows_its_run_token() {
    let gateway = start_scoped();
    let wanted = json!({"run": "claude"});
    let (id, token) = gateway.create_token(&wanted);
    let mut open = gateway.open_session_as(&token, "/mcp");
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [true; 4]);
    let begin = &open.id[..16].to_owned();
    let ran = gateway.run_cli(&["session", "narrow", begin, "no-echo"]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        said.contains(&format!("narrowed token {id}")),
        "{said} {ran:?}"
    );
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [false; 4]);
    let ran = gateway.run_cli(&["session", "narrow", begin, "--clear", "--credential"]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [true; 4]);

    // A person's token is narrowed only explicitly, and the command says so.
    let (id, token) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let mut open = gateway.open_session_as(&token, "/mcp");
    let begin = &open.id[..16].to_owned();
    let ran = gateway.run_cli(&["session", "narrow", begin, "no-echo"]);
    let noted = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(noted.contains("only this session is narrowed"), "{noted}");
    assert_eq!(
        tool_access_by_path(&gateway, &token, &mut open),
        [false, true, true, true]
    );
    let ran = gateway.run_cli(&["session", "narrow", begin, "no-echo", "--credential"]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        said.contains(&format!("narrowed token {id}")),
        "{said} {ran:?}"
    );
    assert_eq!(tool_access_by_path(&gateway, &token, &mut open), [false; 4]);

    let listed = String::from_utf8_lossy(&gateway.run_cli(&["session", "ls"]).stdout).into_owned();
    assert!(listed.contains("it 1"), "the client is named: {listed}");
    assert!(listed.contains("no-echo (token)"), "{listed}");
    let ran = gateway.run_cli(&["session", "end", begin]);
    assert!(ran.status.success(), "{ran:?}");
    let gone = open.post(&json!({"jsonrpc": "2.0", "id": 9, "method": "ping"}));
    assert_eq!(gone.status, 404);
}

#[test]
fn sec_57_ended_session_stays_ended_after_restart() {
    let mut gateway = start_scoped();
    let mut session = gateway.open_session("/mcp");
    let kept = gateway.open_session("/mcp");
    session.end_session();
    for _life in 0..2 {
        gateway.restart_after_kill();
        gateway.wait_for_state("one", "ready");
        for (id, status) in [(&session.id, 404), (&kept.id, 200)] {
            let mut http = HttpConnection::connect(gateway.address);
            let token = format!("Bearer {}", gateway.token);
            let headers = [("Authorization", &token[..]), ("MCP-Session-Id", id)];
            let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
            assert_eq!(http.post("/mcp", &headers, ping.as_bytes()).status, status);
        }
    }
}

#[test]
fn sec_55_hidden_server_looks_nonexistent() {
    let rules = "[roles.none]\nallow = [\"one.*\"]\n";
    let servers = [fixture_config("one", &[]), fixture_config("hidden", &[])].concat();
    let gateway = Gateway::start(&format!("{servers}{rules}"));
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("hidden", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "none"}));
    let bearer = format!("Bearer {token}");
    let ask = |path: &str, era: &str, method: &str| {
        let mut message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {
            "protocolVersion": era, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"},
        }});
        let mut headers = vec![("Authorization", &bearer[..])];
        if method == "server/discover" {
            message["params"] = json!({"_meta": request_meta(&json!({}))});
            headers.push(("MCP-Protocol-Version", era));
            headers.push(("Mcp-Method", method));
        }
        let mut http = HttpConnection::connect(gateway.address);
        let answer = http.post(path, &headers, message.to_string().as_bytes());
        (answer.status, answer.text())
    };
    for (era, method) in [
        ("2026-07-28", "server/discover"),
        ("2025-11-25", "initialize"),
    ] {
        let (status, text) = ask("/servers/hidden/mcp", era, method);
        let (no_status, no_text) = ask("/servers/absent/mcp", era, method);
        assert_eq!(status, 404, "{method}: {text}");
        assert_eq!(
            (status, text.replace("hidden", "absent")),
            (no_status, no_text)
        );
        assert!(!text.contains("serverInfo"), "{text}");
        assert_eq!(ask("/servers/one/mcp", era, method).0, 200);
    }
    // A log level set at /mcp reaches only servers of which the caller sees something.
    let mut session = gateway.open_session_as(&token, "/mcp");
    let set = session.request("logging/setLevel", &json!({"level": "error"}));
    assert_eq!(set["result"], json!({}), "{set}");
    let mut owner = gateway.open_session("/mcp");
    let level = |owner: &mut Session, server: &str| {
        let answer = owner.call(&format!("{server}__test_client_state"), &json!({}));
        answer["result"]["structuredContent"]["level"].clone()
    };
    wait_until("the server that is seen is told", || {
        level(&mut owner, "one") == "error"
    });
    assert_ne!(level(&mut owner, "hidden"), "error");
}

#[test]
fn sec_56_readyz_names_servers_to_owner_only() {
    let broken = "[servers.prod-db-finance]\ncommand = \"/nonexistent/program\"\n";
    let gateway = Gateway::start(&format!("{}{broken}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"run": "claude"}));
    let get = |token: Option<&str>| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = bearer
            .iter()
            .map(|text| ("Authorization", &text[..]))
            .collect();
        let answer = HttpConnection::connect(gateway.address).get("/readyz", &headers);
        (answer.status, answer.json())
    };
    let owner = gateway.token.clone();
    wait_until("the owner is told which server fails", || {
        get(Some(&owner)).1["servers"]["prod-db-finance"].is_string()
    });
    for token in [None, Some(&token[..])] {
        assert_eq!(get(token), (200, json!({"status": "ok"})));
    }
}
