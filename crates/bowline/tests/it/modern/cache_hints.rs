//! Cache hints of lists: TTL and scope, if servers send them.

use bowline_testkit::gateway::{Gateway, StubServer, fixture_config};
use serde_json::{Value, json};

/// Longer than any test.
const HOUR_MS: u64 = 3_600_000;

/// A modern server with the given tools and this cache hint.
fn start_hinting_server(hint: Value, tools: Value) -> StubServer {
    StubServer::start(move |asked| {
        let message = asked.json();
        let id = &message["id"];
        let mut result = match message["method"].as_str() {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "l", "version": "1"}},
            }),
            Some("tools/list") => json!({"tools": tools}),
            Some(_) => {
                let error = json!({"code": -32601, "message": "no such method"});
                let refused = json!({"jsonrpc": "2.0", "id": id, "error": error});
                return (404, refused.to_string());
            }
            None => return (405, String::new()),
        };
        result["resultType"] = json!("complete");
        for (key, value) in hint.as_object().unwrap() {
            result[key] = value.clone();
        }
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        (200, answer.to_string())
    })
}

fn public_hint(ttl_ms: u64) -> Value {
    json!({"ttlMs": ttl_ms, "cacheScope": "public"})
}

fn private_hint(ttl_ms: u64) -> Value {
    json!({"ttlMs": ttl_ms, "cacheScope": "private"})
}

fn tool_definition(name: &str) -> Value {
    json!([{"name": name, "inputSchema": {"type": "object"}}])
}

fn server_config(name: &str, listener: &StubServer) -> String {
    format!("[servers.{name}]\nurl = {}\n", json!(listener.url))
}

fn start_with_servers(servers: &[(&str, &StubServer)], more: &str) -> Gateway {
    let all = servers
        .iter()
        .map(|(name, listener)| server_config(name, listener));
    let all: Vec<_> = all.chain([more.to_owned()]).collect();
    let gateway = Gateway::start(&all.concat());
    for (name, _) in servers {
        gateway.wait_for_state(name, "ready");
    }
    gateway
}

/// The hints of a list or of `server/discover`. A list shows the remaining TTL, which is rounded to
/// hours here.
fn list_hints(gateway: &Gateway, path: &str, method: &str) -> Value {
    let result = gateway
        .modern_client(path)
        .request_result(method, &json!({}));
    let left_ms = result["ttlMs"].as_u64().unwrap();
    let whole_ms = left_ms.div_ceil(HOUR_MS) * HOUR_MS;
    json!({"ttlMs": whole_ms, "cacheScope": result["cacheScope"]})
}

#[test]
fn merged_list_has_shortest_ttl_and_strictest_scope() {
    let (one, two) = (
        start_hinting_server(public_hint(2 * HOUR_MS), tool_definition("a")),
        start_hinting_server(public_hint(HOUR_MS), tool_definition("b")),
    );
    let gateway = start_with_servers(&[("one", &one), ("two", &two)], "");
    for method in ["tools/list", "server/discover"] {
        assert_eq!(
            list_hints(&gateway, "/mcp", method),
            public_hint(HOUR_MS),
            "{method}"
        );
        let alone = list_hints(&gateway, "/servers/one/mcp", method);
        assert_eq!(alone, public_hint(2 * HOUR_MS), "{method}");
    }
    let listed = gateway
        .open_session("/mcp")
        .request("tools/list", &json!({}));
    for key in ["ttlMs", "cacheScope", "resultType"] {
        assert!(listed["result"].get(key).is_none(), "{listed}");
    }
    let three = start_hinting_server(private_hint(HOUR_MS), tool_definition("c"));
    let gateway = start_with_servers(&[("one", &one), ("three", &three)], "");
    assert_eq!(
        list_hints(&gateway, "/mcp", "tools/list"),
        private_hint(HOUR_MS)
    );
    // One server without a hint makes the merged list uncacheable.
    let gateway = start_with_servers(&[("one", &one)], &fixture_config("old", &[]));
    gateway.wait_for_state("old", "ready");
    assert_eq!(list_hints(&gateway, "/mcp", "tools/list"), private_hint(0));
    assert_eq!(
        list_hints(&gateway, "/servers/one/mcp", "tools/list"),
        public_hint(2 * HOUR_MS)
    );
}

#[test]
fn list_is_private_if_views_differ() {
    let one = start_hinting_server(public_hint(2 * HOUR_MS), tool_definition("a"));
    let gateway = start_with_servers(&[("one", &one)], "[roles.r]\nallow = [\"one.b\"]\n");
    assert_eq!(
        list_hints(&gateway, "/mcp", "tools/list"),
        private_hint(2 * HOUR_MS)
    );
    assert_eq!(
        list_hints(&gateway, "/mcp", "server/discover"),
        private_hint(2 * HOUR_MS)
    );
}

#[test]
fn tool_with_invalid_header_params_is_unlisted() {
    let good = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-mcp-header": "A"}}});
    let bad = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-mcp-header": "A b"}}});
    let tools = json!([
        {"name": "good", "inputSchema": good},
        {"name": "bad", "inputSchema": bad},
        {"name": "plain", "inputSchema": {"type": "object"}},
    ]);
    let one = start_hinting_server(public_hint(1), tools);
    let gateway = start_with_servers(&[("one", &one)], "");
    let listed = gateway
        .modern_client("/servers/one/mcp")
        .request_result("tools/list", &json!({}));
    let names: Vec<_> = listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert_eq!(names, ["good", "plain"], "{listed}");
}
