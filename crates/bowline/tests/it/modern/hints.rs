//! How long lists may be kept and by whom, where servers say so.

use serde_json::{Value, json};

use crate::harness::listener::Listener;
use crate::harness::{Gateway, fixture};

/// A test takes less.
const HOUR_MS: u64 = 3_600_000;

/// A server of the modern era with these tools, which may be kept as `hint` says.
fn hinted(hint: Value, tools: Value) -> Listener {
    Listener::start(move |asked| {
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

fn public(ttl_ms: u64) -> Value {
    json!({"ttlMs": ttl_ms, "cacheScope": "public"})
}

fn private(ttl_ms: u64) -> Value {
    json!({"ttlMs": ttl_ms, "cacheScope": "private"})
}

fn tool(name: &str) -> Value {
    json!([{"name": name, "inputSchema": {"type": "object"}}])
}

fn config(name: &str, listener: &Listener) -> String {
    format!("[servers.{name}]\nurl = {}\n", json!(listener.url))
}

fn up(servers: &[(&str, &Listener)], more: &str) -> Gateway {
    let all = servers
        .iter()
        .map(|(name, listener)| config(name, listener));
    let all: Vec<_> = all.chain([more.to_owned()]).collect();
    let gateway = Gateway::up(&all.concat());
    for (name, _) in servers {
        gateway.wait_for(name, "ready");
    }
    gateway
}

/// What a client is told of a list, or of what an endpoint is. Of a list it is told what is left,
/// which is hours here.
fn told(gateway: &Gateway, path: &str, method: &str) -> Value {
    let result = gateway.modern(path).result(method, &json!({}));
    let left_ms = result["ttlMs"].as_u64().unwrap();
    let whole_ms = left_ms.div_ceil(HOUR_MS) * HOUR_MS;
    json!({"ttlMs": whole_ms, "cacheScope": result["cacheScope"]})
}

#[test]
fn the_shortest_time_and_the_strictest_sharing_are_told_of_all() {
    let (one, two) = (
        hinted(public(2 * HOUR_MS), tool("a")),
        hinted(public(HOUR_MS), tool("b")),
    );
    let gateway = up(&[("one", &one), ("two", &two)], "");
    for method in ["tools/list", "server/discover"] {
        assert_eq!(told(&gateway, "/mcp", method), public(HOUR_MS), "{method}");
        let alone = told(&gateway, "/servers/one/mcp", method);
        assert_eq!(alone, public(2 * HOUR_MS), "{method}");
    }
    let listed = gateway.session("/mcp").request("tools/list", &json!({}));
    for key in ["ttlMs", "cacheScope", "resultType"] {
        assert!(listed["result"].get(key).is_none(), "{listed}");
    }
    let three = hinted(private(HOUR_MS), tool("c"));
    let gateway = up(&[("one", &one), ("three", &three)], "");
    assert_eq!(told(&gateway, "/mcp", "tools/list"), private(HOUR_MS));
    // One that says nothing makes all of it nothing to keep.
    let gateway = up(&[("one", &one)], &fixture("old", &[]));
    gateway.wait_for("old", "ready");
    assert_eq!(told(&gateway, "/mcp", "tools/list"), private(0));
    assert_eq!(
        told(&gateway, "/servers/one/mcp", "tools/list"),
        public(2 * HOUR_MS)
    );
}

#[test]
fn where_anybody_sees_less_nothing_is_public() {
    let one = hinted(public(2 * HOUR_MS), tool("a"));
    let gateway = up(&[("one", &one)], "[roles.r]\nallow = [\"one.b\"]\n");
    assert_eq!(told(&gateway, "/mcp", "tools/list"), private(2 * HOUR_MS));
    assert_eq!(
        told(&gateway, "/mcp", "server/discover"),
        private(2 * HOUR_MS)
    );
}

#[test]
fn a_tool_whose_headers_cannot_be_is_left_out_and_the_others_stay() {
    let good = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-mcp-header": "A"}}});
    let bad = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-mcp-header": "A b"}}});
    let tools = json!([
        {"name": "good", "inputSchema": good},
        {"name": "bad", "inputSchema": bad},
        {"name": "plain", "inputSchema": {"type": "object"}},
    ]);
    let one = hinted(public(1), tools);
    let gateway = up(&[("one", &one)], "");
    let listed = gateway
        .modern("/servers/one/mcp")
        .result("tools/list", &json!({}));
    let names: Vec<_> = listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert_eq!(names, ["good", "plain"], "{listed}");
}
