//! Mismatched headers: a proxy could authorize one call while another runs, so none runs.

use bowline_testkit::gateway::{
    Gateway, HttpConnection, MODERN, ModernClient, StubServer, fixture_config,
};
use serde_json::{Value, json};

use super::{HeaderEdit, send_edited};

/// Sends a request with the given headers besides the matching ones.
fn send_with_extra_headers(
    client: &ModernClient<'_>,
    message: &Value,
    more: &[(&str, &str)],
) -> (u16, i64) {
    let own = client.request_headers(message);
    let own = own.iter().map(|(k, v)| (&k[..], &v[..]));
    let all: Vec<_> = own.chain(more.iter().copied()).collect();
    let answer = client.send_with_headers(message, &all);
    let code = answer.json()["error"]["code"].as_i64();
    (answer.status, code.unwrap_or_default())
}

#[test]
fn call_with_mismatched_headers_does_not_run() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let client = gateway.modern_client("/mcp");
    let arguments = json!({"key": "lie"});
    let params = json!({"name": "one__effect", "arguments": arguments});
    let call = client.build_request(&json!(1), "tools/call", &params);
    let long = format!("one__effect{}", "a".repeat(4096));
    for edit in [
        HeaderEdit::Drop("Mcp-Method"),
        HeaderEdit::Drop("Mcp-Name"),
        HeaderEdit::Drop("MCP-Protocol-Version"),
        HeaderEdit::Set("Mcp-Method", "tools/list"),
        HeaderEdit::Set("Mcp-Method", "TOOLS/CALL"),
        HeaderEdit::Set("Mcp-Method", "tools/call, tools/list"),
        HeaderEdit::Set("Mcp-Method", ""),
        HeaderEdit::Add("Mcp-Method", "tools/call"),
        HeaderEdit::Add("mcp-method", "tools/list"),
        HeaderEdit::Set("Mcp-Name", "one__echo"),
        HeaderEdit::Set("Mcp-Name", "One__Effect"),
        HeaderEdit::Set("Mcp-Name", "one__effect, one__echo"),
        HeaderEdit::Set("Mcp-Name", &long),
        HeaderEdit::Add("Mcp-Name", "one__effect"),
        HeaderEdit::Add("mcp-name", "one__echo"),
        HeaderEdit::Add("MCP-PROTOCOL-VERSION", MODERN),
        HeaderEdit::Add("MCP-Protocol-Version", "2025-11-25"),
        // Base64 of another name, in the wrong form, unfinished, or doubled.
        HeaderEdit::Set("Mcp-Name", "=?base64?b25lX19lY2hv?="),
        HeaderEdit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3Q?="),
        HeaderEdit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3R=?="),
        HeaderEdit::Set("Mcp-Name", "=?BASE64?b25lX19lZmZlY3Q=?="),
        HeaderEdit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3Q="),
        HeaderEdit::Set("Mcp-Name", "=?base64?b25lX19l ZmZlY3Q=?="),
        HeaderEdit::Set(
            "Mcp-Name",
            "=?base64?PT9iYXNlNjQ/YjI1bFgxOWxabVpsWTNRPT89?=",
        ),
    ] {
        assert_eq!(send_edited(&client, &call, edit), (400, -32020), "{edit:?}");
    }
    let honest = HeaderEdit::Set("Mcp-Name", "=?base64?b25lX19lZmZlY3Q=?=");
    assert_eq!(send_edited(&client, &call, honest), (200, 0));
    let ran = client.call_tool("one__executions", &arguments);
    assert_eq!(ran["structuredContent"]["count"], 1, "{ran}");
}

#[test]
fn unauthenticated_request_is_refused_before_body() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let client = gateway.modern_client("/mcp");
    let params = json!({"name": "one__effect", "arguments": {"key": "stranger"}});
    let call = client.build_request(&json!(1), "tools/call", &params);
    for (edit, status) in [
        (HeaderEdit::Add("Origin", "http://evil.example"), 403),
        (HeaderEdit::Add("Origin", "null"), 403),
        (HeaderEdit::Add("Host", "evil.example"), 403),
        (HeaderEdit::Set("Authorization", "Bearer x"), 401),
        (HeaderEdit::Drop("Authorization"), 401),
    ] {
        let (told, _) = send_edited(&client, &call, edit);
        assert!(
            told == status || told == 400 && status == 403,
            "{edit:?}: {told}"
        );
    }
    let ran = client.call_tool("one__executions", &json!({"key": "stranger"}));
    assert_eq!(ran["structuredContent"]["count"], 0, "{ran}");
}

/// A server with mirrored arguments in headers, and a gateway in front.
fn start_mirroring_server() -> (StubServer, Gateway) {
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    }});
    let tool = json!({"name": "look", "inputSchema": schema});
    let listener = StubServer::start_mcp_with_tool(tool, |asked| {
        let id = &asked.json()["id"];
        let result = json!({"content": []});
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        (200, answer.to_string())
    });
    let config = format!(
        "[servers.one]\nurl = {}\nera = \"legacy\"\n",
        json!(listener.url)
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    (listener, gateway)
}

#[test]
fn mirrored_arguments_must_match_headers() {
    let (listener, gateway) = start_mirroring_server();
    let client = gateway.modern_client("/mcp");
    let params = json!({"name": "one__look", "arguments": {"region": "ä", "count": 7}});
    let call = client.build_request(&json!(1), "tools/call", &params);
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
        // The header `Bowline-Carried` does not relax the check.
        &[
            region,
            ("Mcp-Param-Count", "8"),
            ("Bowline-Carried", "stdio"),
        ],
    ] {
        assert_eq!(
            send_with_extra_headers(&client, &call, lie),
            (400, -32020),
            "{lie:?}"
        );
    }
    assert_eq!(listener.calls().len(), 0);
    let other = ("Mcp-Param-Other", "x");
    assert_eq!(
        send_with_extra_headers(&client, &call, &[region, count, other]),
        (200, 0)
    );
    let params = json!({"name": "one__look", "arguments": {"region": null}});
    let none = client.build_request(&json!(1), "tools/call", &params);
    assert_eq!(send_with_extra_headers(&client, &none, &[]), (200, 0));
    assert_eq!(
        send_with_extra_headers(&client, &none, &[region]),
        (400, -32020)
    );
    assert_eq!(listener.calls().len(), 2);
    // A legacy caller has no such headers.
    let said = gateway
        .open_session("/mcp")
        .call("one__look", &json!({"region": "x"}));
    assert!(said["result"].is_object(), "{said}");
}

#[test]
fn foreign_session_is_neither_used_nor_ended() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut other = gateway.open_session("/mcp");
    let bearer = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", &*bearer),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Session-Id", &other.id),
    ];
    let mut http = HttpConnection::connect(gateway.address);
    http.send_request("DELETE", "/mcp", &headers, b"");
    assert_eq!(http.read_response().status, 405);
    let said = other.call("one__echo", &json!({"message": "still here"}));
    assert_eq!(said["result"]["content"][0]["text"], "still here", "{said}");
}
