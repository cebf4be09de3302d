//! Clients of the modern era: what is checked before a request counts, and what they are told.

mod headers;
mod hints;

use serde_json::{Value, json};

use crate::harness::modern::{MODERN, Modern};
use crate::harness::{Gateway, Http, fixture};

fn gateway() -> Gateway {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    gateway
}

/// The headers of a message, with one of them replaced, taken out or added.
fn edited(client: &Modern<'_>, message: &Value, edit: Edit<'_>) -> Vec<(String, String)> {
    let mut headers = client.headers(message);
    let own = |name: &str| name.to_owned();
    match edit {
        Edit::None => {}
        Edit::Set(name, value) => {
            headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
            headers.push((own(name), own(value)));
        }
        Edit::Add(name, value) => headers.push((own(name), own(value))),
        Edit::Drop(name) => headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name)),
    }
    headers
}

#[derive(Clone, Copy, Debug)]
enum Edit<'a> {
    None,
    Set(&'a str, &'a str),
    Add(&'a str, &'a str),
    Drop(&'a str),
}

/// Sends a message with headers edited; returns the status and the code of the error, or 0.
fn told(client: &Modern<'_>, message: &Value, edit: Edit<'_>) -> (u16, i64) {
    let headers = edited(client, message, edit);
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let answer = client.send(message, &headers);
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
fn a_modern_client_finds_lists_and_calls_without_a_session() {
    let gateway = gateway();
    let client = gateway.modern("/mcp");
    let found = client.result("server/discover", &json!({}));
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
        let listed = client.result(method, &json!({}));
        assert!(!listed[member].as_array().unwrap().is_empty(), "{listed}");
        assert_eq!(listed["resultType"], "complete");
        assert_eq!(listed["ttlMs"], 0);
        assert_eq!(listed["cacheScope"], "private");
    }
    let said = client.call("one__echo", &json!({"message": "hello"}));
    assert_eq!(said["resultType"], "complete");
    assert_eq!(said["content"][0]["text"], "hello", "{said}");
    let read = client.result("resources/read", &json!({"uri": "test://static-text"}));
    assert_eq!(read["ttlMs"], 0, "{read}");
    let got = client.result("prompts/get", &json!({"name": "one__test_simple_prompt"}));
    assert_eq!(got["resultType"], "complete", "{got}");
    assert!(got.get("ttlMs").is_none(), "{got}");
    // One server speaks for itself.
    let alone = gateway.modern("/servers/one/mcp");
    let found = alone.result("server/discover", &json!({}));
    let info = &found["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_ne!(info["name"], "bowline", "{found}");
    let said = alone.call("echo", &json!({"message": "hello"}));
    assert_eq!(said["_meta"]["io.modelcontextprotocol/serverInfo"], *info);
}

#[test]
fn faults_are_told_in_order_with_their_statuses_and_codes() {
    let gateway = gateway();
    let client = gateway.modern("/mcp");
    let list = client.message(&json!(7), "tools/list", &json!({}));
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
    let drop = Edit::Drop("MCP-Protocol-Version");
    let old = Edit::Set("MCP-Protocol-Version", "2025-11-25");
    let strange = Edit::Set("MCP-Protocol-Version", "v9");
    let mut bare = list.clone();
    bare["params"] = json!({});
    for (message, edit, want) in [
        (&list, Edit::None, (200, 0)),
        (&list, drop, (400, -32020)),
        (&list, strange, (400, -32020)),
        (&without(version), Edit::None, (400, -32602)),
        (&bare, Edit::None, (400, -32602)),
        (&without(capabilities), Edit::None, (400, -32602)),
        (&with(capabilities, json!([])), Edit::None, (400, -32602)),
        (
            &with("io.modelcontextprotocol/logLevel", json!("loud")),
            Edit::None,
            (400, -32602),
        ),
        (
            &without("io.modelcontextprotocol/clientInfo"),
            Edit::None,
            (200, 0),
        ),
        (&with(version, json!("v9")), strange, (400, -32022)),
        (&with(version, json!("v9")), Edit::None, (400, -32020)),
        (&with(version, json!(5)), Edit::None, (400, -32602)),
        // Faults of headers are told before those of parameters.
        (
            &without(version),
            Edit::Set("Mcp-Method", "ping"),
            (400, -32020),
        ),
    ] {
        assert_eq!(told(&client, message, edit), want, "{edit:?} {message}");
    }
    // With a header of the other era it is one of the other era, which needs a session.
    assert_eq!(told(&client, &list, old), (400, -32600));
}

#[test]
fn a_revision_that_is_not_spoken_is_told_those_that_are() {
    let gateway = gateway();
    let client = gateway.modern("/mcp");
    let version = "io.modelcontextprotocol/protocolVersion";
    let strange = Edit::Set("MCP-Protocol-Version", "v9");
    let answer = client.ask("server/discover", &json!({"_meta": {version: "v9"}}));
    assert_eq!(answer.json()["error"]["code"], -32020);
    let asked = client.message(
        &json!(1),
        "server/discover",
        &json!({"_meta": {version: "v9"}}),
    );
    let headers = edited(&client, &asked, strange);
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let refused = client.send(&asked, &headers).json();
    let data = &refused["error"]["data"];
    assert_eq!(data["requested"], "v9");
    let found = client.result("server/discover", &json!({}));
    assert_eq!(data["supported"], found["supportedVersions"]);
}

#[test]
fn methods_that_this_era_has_not_are_not_found() {
    let gateway = gateway();
    let client = gateway.modern("/mcp");
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
        let message = client.message(&json!("a"), removed, &json!({"uri": "x://y"}));
        assert_eq!(
            told(&client, &message, Edit::None),
            (404, -32601),
            "{removed}"
        );
    }
}

#[test]
fn what_is_no_request_is_taken_or_refused_by_its_kind() {
    let gateway = gateway();
    let client = gateway.modern("/mcp");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}});
    assert_eq!(told(&client, &note, Edit::None), (202, 0));
    assert_eq!(told(&client, &note, Edit::Drop("Mcp-Method")), (202, 0));
    let lie = Edit::Set("Mcp-Method", "tools/call");
    assert_eq!(told(&client, &note, lie), (400, -32020));
    let bearer = format!("Bearer {}", gateway.token);
    let modern = [
        ("Authorization", &*bearer),
        ("MCP-Protocol-Version", MODERN),
    ];
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    assert_eq!(client.send(&answer, &modern).status, 400);
    assert_eq!(client.send(&json!([answer]), &modern).status, 400);
    assert_eq!(client.send(&json!("x"), &modern).status, 400);
    for method in ["GET", "DELETE"] {
        let mut http = Http::connect(gateway.address);
        http.send(method, "/mcp", &modern, b"");
        let refused = http.read();
        assert_eq!(refused.status, 405, "{method}");
        assert_eq!(refused.header("allow"), Some("POST"));
    }
}

#[test]
fn a_session_id_of_anybody_is_not_looked_at() {
    let gateway = gateway();
    let other = gateway.session("/mcp");
    let client = gateway.modern("/mcp");
    let list = client.message(&json!(1), "tools/list", &json!({}));
    for id in [other.id.as_str(), "never-was", ""] {
        let edit = Edit::Add("Mcp-Session-Id", id);
        assert_eq!(told(&client, &list, edit), (200, 0), "{id}");
    }
    let edit = Edit::Add("Last-Event-ID", "1-1");
    assert_eq!(told(&client, &list, edit), (200, 0));
    let headers = edited(&client, &list, Edit::Add("Mcp-Session-Id", &other.id));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    assert_eq!(client.send(&list, &headers).header("mcp-session-id"), None);
}
