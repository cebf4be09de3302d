//! Headers that lie: somebody on the way who goes by them would have judged another call than the
//! one that runs, so that none runs.

use serde_json::{Value, json};

use super::{Edit, told};
use crate::harness::listener::Listener;
use crate::harness::modern::{MODERN, Modern};
use crate::harness::{Gateway, Http, fixture};

/// Sends a request with these headers beside those it should have.
fn with(client: &Modern<'_>, message: &Value, more: &[(&str, &str)]) -> (u16, i64) {
    let own = client.headers(message);
    let own = own.iter().map(|(k, v)| (&k[..], &v[..]));
    let all: Vec<_> = own.chain(more.iter().copied()).collect();
    let answer = client.send(message, &all);
    let code = answer.json()["error"]["code"].as_i64();
    (answer.status, code.unwrap_or_default())
}

#[test]
fn a_call_whose_headers_lie_does_not_run() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let client = gateway.modern("/mcp");
    let arguments = json!({"key": "lie"});
    let params = json!({"name": "one__effect", "arguments": arguments});
    let call = client.message(&json!(1), "tools/call", &params);
    let long = format!("one__effect{}", "a".repeat(4096));
    for edit in [
        Edit::Drop("Mcp-Method"),
        Edit::Drop("Mcp-Name"),
        Edit::Drop("MCP-Protocol-Version"),
        Edit::Set("Mcp-Method", "tools/list"),
        Edit::Set("Mcp-Method", "TOOLS/CALL"),
        Edit::Set("Mcp-Method", "tools/call, tools/list"),
        Edit::Set("Mcp-Method", ""),
        Edit::Add("Mcp-Method", "tools/call"),
        Edit::Add("mcp-method", "tools/list"),
        Edit::Set("Mcp-Name", "one__echo"),
        Edit::Set("Mcp-Name", "One__Effect"),
        Edit::Set("Mcp-Name", "one__effect, one__echo"),
        Edit::Set("Mcp-Name", &long),
        Edit::Add("Mcp-Name", "one__effect"),
        Edit::Add("mcp-name", "one__echo"),
        Edit::Add("MCP-PROTOCOL-VERSION", MODERN),
        Edit::Add("MCP-Protocol-Version", "2025-11-25"),
        // Base64 of another name, not in the one right form, unfinished, or twice over.
        Edit::Set("Mcp-Name", "=?base64?b25lX19lY2hv?="),
        Edit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3Q?="),
        Edit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3R=?="),
        Edit::Set("Mcp-Name", "=?BASE64?b25lX19lZmZlY3Q=?="),
        Edit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3Q="),
        Edit::Set("Mcp-Name", "=?base64?b25lX19l ZmZlY3Q=?="),
        Edit::Set(
            "Mcp-Name",
            "=?base64?PT9iYXNlNjQ/YjI1bFgxOWxabVpsWTNRPT89?=",
        ),
    ] {
        assert_eq!(told(&client, &call, edit), (400, -32020), "{edit:?}");
    }
    let honest = Edit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3Q=?=");
    assert_eq!(told(&client, &call, honest), (200, 0));
    let ran = client.call("one__executions", &arguments);
    assert_eq!(ran["structuredContent"]["count"], 1, "{ran}");
}

#[test]
fn strangers_are_turned_away_before_anything_is_read() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let client = gateway.modern("/mcp");
    let params = json!({"name": "one__effect", "arguments": {"key": "stranger"}});
    let call = client.message(&json!(1), "tools/call", &params);
    for (edit, status) in [
        (Edit::Add("Origin", "http://evil.example"), 403),
        (Edit::Add("Origin", "null"), 403),
        (Edit::Add("Host", "evil.example"), 403),
        (Edit::Set("Authorization", "Bearer x"), 401),
        (Edit::Drop("Authorization"), 401),
    ] {
        let (told, _) = told(&client, &call, edit);
        assert!(
            told == status || told == 400 && status == 403,
            "{edit:?}: {told}"
        );
    }
    let ran = client.call("one__executions", &json!({"key": "stranger"}));
    assert_eq!(ran["structuredContent"]["count"], 0, "{ran}");
}

/// A server that repeats arguments in headers, and a gateway before it.
fn mirrored() -> (Listener, Gateway) {
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    }});
    let tool = json!({"name": "look", "inputSchema": schema});
    let listener = Listener::mcp_with(tool, |asked| {
        let id = &asked.json()["id"];
        let result = json!({"content": []});
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        (200, answer.to_string())
    });
    let config = format!(
        "[servers.one]\nurl = {}\nera = \"legacy\"\n",
        json!(listener.url)
    );
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    (listener, gateway)
}

#[test]
fn arguments_that_headers_repeat_are_what_the_headers_say() {
    let (listener, gateway) = mirrored();
    let client = gateway.modern("/mcp");
    let params = json!({"name": "one__look", "arguments": {"region": "ä", "count": 7}});
    let call = client.message(&json!(1), "tools/call", &params);
    let region = ("Mcp-Param-Region", "=?base64?w6Q=?=");
    let count = ("Mcp-Param-Count", "7");
    for lie in [
        &[][..],
        &[region],
        &[count],
        &[region, count, count],
        &[region, ("mcp-param-count", "7"), ("MCP-PARAM-COUNT", "8")],
        &[region, ("Mcp-Param-Count", "8")],
        &[region, ("Mcp-Param-Count", "\"7\"")],
        &[count, ("Mcp-Param-Region", "a")],
        &[count, ("Mcp-Param-Region", "=?base64?w6Q?=")],
        &[count, ("Mcp-Param-Region", "w6Q=")],
        // Who says that it came another way is held to what it says all the same.
        &[
            region,
            ("Mcp-Param-Count", "8"),
            ("Bowline-Carried", "stdio"),
        ],
    ] {
        assert_eq!(with(&client, &call, lie), (400, -32020), "{lie:?}");
    }
    assert_eq!(listener.calls().len(), 0);
    let other = ("Mcp-Param-Other", "x");
    assert_eq!(with(&client, &call, &[region, count, other]), (200, 0));
    let params = json!({"name": "one__look", "arguments": {"region": null}});
    let none = client.message(&json!(1), "tools/call", &params);
    assert_eq!(with(&client, &none, &[]), (200, 0));
    assert_eq!(with(&client, &none, &[region]), (400, -32020));
    assert_eq!(listener.calls().len(), 2);
    // A caller of the other era has no such headers.
    let said = gateway
        .session("/mcp")
        .call("one__look", &json!({"region": "x"}));
    assert!(said["result"].is_object(), "{said}");
}

#[test]
fn a_session_of_another_is_neither_used_nor_ended() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut other = gateway.session("/mcp");
    let bearer = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", &*bearer),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Session-Id", &other.id),
    ];
    let mut http = Http::connect(gateway.address);
    http.send("DELETE", "/mcp", &headers, b"");
    assert_eq!(http.read().status, 405);
    let said = other.call("one__echo", &json!({"message": "still here"}));
    assert_eq!(said["result"]["content"][0]["text"], "still here", "{said}");
}
