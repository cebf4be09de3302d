//! Modern clients: checks before a request counts, and their errors.

mod cache_hints;
mod headers;

use bowline_testkit::gateway::{Gateway, HttpConnection, MODERN, ModernClient, fixture_config};
use serde_json::{Value, json};

fn start_gateway() -> Gateway {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    gateway
}

/// The headers of a message, with one header replaced, removed or added.
fn edited_headers(
    client: &ModernClient<'_>,
    message: &Value,
    edit: HeaderEdit<'_>,
) -> Vec<(String, String)> {
    let mut headers = client.request_headers(message);
    let own = |name: &str| name.to_owned();
    match edit {
        HeaderEdit::None => {}
        HeaderEdit::Set(name, value) => {
            headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
            headers.push((own(name), own(value)));
        }
        HeaderEdit::Add(name, value) => headers.push((own(name), own(value))),
        HeaderEdit::Drop(name) => headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name)),
    }
    headers
}

#[derive(Clone, Copy, Debug)]
enum HeaderEdit<'a> {
    None,
    Set(&'a str, &'a str),
    Add(&'a str, &'a str),
    Drop(&'a str),
}

/// Sends a message with edited headers; returns the status and the error code, or 0.
fn send_edited(client: &ModernClient<'_>, message: &Value, edit: HeaderEdit<'_>) -> (u16, i64) {
    let headers = edited_headers(client, message, edit);
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let answer = client.send_with_headers(message, &headers);
    if answer.body.is_empty() {
        return (answer.status, 0);
    }
    let answered = answer.json();
    let error = &answered["error"];
    if error.is_object() && message.get("id").is_some() && ![401, 403].contains(&answer.status) {
        assert_eq!(answered["id"], message["id"], "{answered}");
    }
    (answer.status, error["code"].as_i64().unwrap_or_default())
}

#[test]
fn modern_client_discovers_lists_and_calls_sessionless() {
    let gateway = start_gateway();
    let client = gateway.modern_client("/mcp");
    let found = client.request_result("server/discover", &json!({}));
    assert_eq!(found["supportedVersions"][0], MODERN);
    assert_eq!(found["resultType"], "complete");
    assert_eq!(found["ttlMs"], 0);
    assert_eq!(found["cacheScope"], "private");
    let info = &found["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info["name"], "bowline");
    assert!(found["capabilities"]["tools"].is_object(), "{found}");
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let listed = client.request_result(method, &json!({}));
        assert!(!listed[member].as_array().unwrap().is_empty(), "{listed}");
        assert_eq!(listed["resultType"], "complete");
        assert_eq!(listed["ttlMs"], 0);
        assert_eq!(listed["cacheScope"], "private");
    }
    let said = client.call_tool("one__echo", &json!({"message": "hello"}));
    assert_eq!(said["resultType"], "complete");
    assert_eq!(said["content"][0]["text"], "hello", "{said}");
    let read = client.request_result("resources/read", &json!({"uri": "test://static-text"}));
    assert_eq!(read["ttlMs"], 0, "{read}");
    let got = client.request_result("prompts/get", &json!({"name": "one__test_simple_prompt"}));
    assert_eq!(got["resultType"], "complete", "{got}");
    assert!(got.get("ttlMs").is_none(), "{got}");
    // A single-server endpoint shows the server's own info.
    let alone = gateway.modern_client("/servers/one/mcp");
    let found = alone.request_result("server/discover", &json!({}));
    let info = &found["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_ne!(info["name"], "bowline", "{found}");
    let said = alone.call_tool("echo", &json!({"message": "hello"}));
    assert_eq!(said["_meta"]["io.modelcontextprotocol/serverInfo"], *info);
}

#[test]
fn modern_faults_are_checked_in_order() {
    let gateway = start_gateway();
    let client = gateway.modern_client("/mcp");
    let list = client.build_request(&json!(7), "tools/list", &json!({}));
    let version = "io.modelcontextprotocol/protocolVersion";
    let without = |key: &str| {
        let mut message = list.clone();
        message["params"]["_meta"]
            .as_object_mut()
            .unwrap()
            .remove(key);
        message
    };
    let with = |key: &str, value: Value| {
        let mut message = list.clone();
        message["params"]["_meta"][key] = value;
        message
    };
    let capabilities = "io.modelcontextprotocol/clientCapabilities";
    let drop = HeaderEdit::Drop("MCP-Protocol-Version");
    let old = HeaderEdit::Set("MCP-Protocol-Version", "2025-11-25");
    let strange = HeaderEdit::Set("MCP-Protocol-Version", "v9");
    let mut bare = list.clone();
    bare["params"] = json!({});
    for (message, edit, want) in [
        (&list, HeaderEdit::None, (200, 0)),
        (&list, drop, (400, -32020)),
        (&list, strange, (400, -32020)),
        (&without(version), HeaderEdit::None, (400, -32602)),
        (&bare, HeaderEdit::None, (400, -32602)),
        (&without(capabilities), HeaderEdit::None, (400, -32602)),
        (
            &with(capabilities, json!([])),
            HeaderEdit::None,
            (400, -32602),
        ),
        (
            &with("io.modelcontextprotocol/logLevel", json!("loud")),
            HeaderEdit::None,
            (400, -32602),
        ),
        (
            &without("io.modelcontextprotocol/clientInfo"),
            HeaderEdit::None,
            (200, 0),
        ),
        (&with(version, json!("v9")), strange, (400, -32022)),
        (&with(version, json!("v9")), HeaderEdit::None, (400, -32020)),
        (&with(version, json!(5)), HeaderEdit::None, (400, -32602)),
        // Header faults are reported before parameter faults.
        (
            &without(version),
            HeaderEdit::Set("Mcp-Method", "ping"),
            (400, -32020),
        ),
    ] {
        assert_eq!(
            send_edited(&client, message, edit),
            want,
            "{edit:?} {message}"
        );
    }
    // A legacy header makes a legacy request, and a session is required.
    assert_eq!(send_edited(&client, &list, old), (400, -32600));
}

#[test]
fn unsupported_revision_gets_supported_list() {
    let gateway = start_gateway();
    let client = gateway.modern_client("/mcp");
    let version = "io.modelcontextprotocol/protocolVersion";
    let strange = HeaderEdit::Set("MCP-Protocol-Version", "v9");
    let answer = client.send_request("server/discover", &json!({"_meta": {version: "v9"}}));
    assert_eq!(answer.json()["error"]["code"], -32020);
    let asked = client.build_request(
        &json!(1),
        "server/discover",
        &json!({"_meta": {version: "v9"}}),
    );
    let headers = edited_headers(&client, &asked, strange);
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let refused = client.send_with_headers(&asked, &headers).json();
    let data = &refused["error"]["data"];
    assert_eq!(data["requested"], "v9");
    let found = client.request_result("server/discover", &json!({}));
    assert_eq!(data["supported"], found["supportedVersions"]);
}

#[test]
fn legacy_only_methods_are_not_found() {
    let gateway = start_gateway();
    let client = gateway.modern_client("/mcp");
    for removed in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "no/such",
        "Tools/List",
    ] {
        let message = client.build_request(&json!("a"), removed, &json!({"uri": "x://y"}));
        assert_eq!(
            send_edited(&client, &message, HeaderEdit::None),
            (404, -32601),
            "{removed}"
        );
    }
}

#[test]
fn modern_non_requests_are_accepted_or_refused() {
    let gateway = start_gateway();
    let client = gateway.modern_client("/mcp");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}});
    assert_eq!(send_edited(&client, &note, HeaderEdit::None), (202, 0));
    assert_eq!(
        send_edited(&client, &note, HeaderEdit::Drop("Mcp-Method")),
        (202, 0)
    );
    let lie = HeaderEdit::Set("Mcp-Method", "tools/call");
    assert_eq!(send_edited(&client, &note, lie), (400, -32020));
    let bearer = format!("Bearer {}", gateway.token);
    let modern = [
        ("Authorization", &*bearer),
        ("MCP-Protocol-Version", MODERN),
    ];
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    assert_eq!(client.send_with_headers(&answer, &modern).status, 400);
    assert_eq!(
        client.send_with_headers(&json!([answer]), &modern).status,
        400
    );
    assert_eq!(client.send_with_headers(&json!("x"), &modern).status, 400);
    for method in ["GET", "DELETE"] {
        let mut http = HttpConnection::connect(gateway.address);
        http.send_request(method, "/mcp", &modern, b"");
        let refused = http.read_response();
        assert_eq!(refused.status, 405, "{method}");
        assert_eq!(refused.header("allow"), Some("POST"));
    }
}

#[test]
fn modern_request_ignores_session_id() {
    let gateway = start_gateway();
    let other = gateway.open_session("/mcp");
    let client = gateway.modern_client("/mcp");
    let list = client.build_request(&json!(1), "tools/list", &json!({}));
    for id in [other.id.as_str(), "never-was", ""] {
        let edit = HeaderEdit::Add("Mcp-Session-Id", id);
        assert_eq!(send_edited(&client, &list, edit), (200, 0), "{id}");
    }
    let edit = HeaderEdit::Add("Last-Event-ID", "1-1");
    assert_eq!(send_edited(&client, &list, edit), (200, 0));
    let headers = edited_headers(&client, &list, HeaderEdit::Add("Mcp-Session-Id", &other.id));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    assert_eq!(
        client
            .send_with_headers(&list, &headers)
            .header("mcp-session-id"),
        None
    );
}
