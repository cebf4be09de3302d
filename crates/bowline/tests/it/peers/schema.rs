//! Messages created by the gateway match the official schema of each revision.

use bowline_testkit::McpSchema;
use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config, server_config};
use serde_json::{Value, json};

/// A session of a revision.
struct SchemaSession<'a> {
    gateway: &'a Gateway,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
}

impl SchemaSession<'_> {
    fn post_message(&self, message: &str) -> (u16, Value) {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let mut http = HttpConnection::connect(self.gateway.address);
        let response = http.post(self.path, &headers, message.as_bytes());
        (response.status, response.json())
    }

    fn send_request(&self, method: &str, params: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": "a", "method": method, "params": params});
        self.post_message(&message.to_string()).1
    }
}

#[test]
fn gateway_messages_match_official_schemas() {
    let revisions = ["2025-03-26", "2025-06-18", "2025-11-25"];
    let test = "gateway_messages_match_official_schemas";
    let Some(schemas) = McpSchema::load_all(revisions, test) else {
        return;
    };
    let config = [
        fixture_config("one", &[]),
        fixture_config("two", &[]),
        server_config("gone", "/nowhere/at/all".as_ref(), &[]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    for schema in &schemas {
        for path in ["/mcp", "/servers/one/mcp"] {
            assert_session_messages(schema, &gateway, path);
        }
    }
}

fn assert_session_messages(schema: &McpSchema, gateway: &Gateway, path: &'static str) {
    let mut session = SchemaSession {
        gateway,
        path,
        headers: vec![("Authorization", format!("Bearer {}", gateway.token))],
    };
    let opened = open_session(schema, &mut session);
    schema.assert_valid_result("InitializeResult", &opened);
    assert_eq!(opened["result"]["protocolVersion"], schema.revision);
    schema.assert_valid_result("EmptyResult", &session.send_request("ping", &json!({})));
    schema.assert_valid_result(
        "ListToolsResult",
        &session.send_request("tools/list", &json!({})),
    );
    for (method, result) in [
        ("prompts/list", "ListPromptsResult"),
        ("resources/list", "ListResourcesResult"),
        ("resources/templates/list", "ListResourceTemplatesResult"),
    ] {
        schema.assert_valid_result(result, &session.send_request(method, &json!({})));
    }
    let refused = [
        session.send_request("tools/list", &json!({"cursor": "x"})),
        session.send_request("resources/read", &json!({"uri": "no://where"})),
        session.send_request("server/discover", &json!({})),
        session.send_request("tools/call", &json!({"name": "nobody"})),
        session.send_request("tools/call", &json!({"name": "gone__x", "arguments": {}})),
        session.send_request("tools/call", &json!({"name": 5})),
        session.send_request("tools/call", &json!({})),
        session
            .post_message(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#)
            .1,
    ];
    for refused in refused {
        schema.assert_valid_error(&refused);
    }
    assert_list_change_valid(schema, gateway, path);
    if path == "/mcp" {
        let lost = json!({"name": "two__crash", "arguments": {"when": "before"}});
        schema.assert_valid_error(&session.send_request("tools/call", &lost));
    }
    let mut strangers = session;
    strangers
        .headers
        .retain(|(key, _)| *key == "Authorization" || *key == "MCP-Protocol-Version");
    let (status, answer) = strangers.post_message(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!(status, 400);
    schema.assert_valid_error(&answer);
    strangers.headers.push(("Mcp-Session-Id", "none".into()));
    let (status, answer) = strangers.post_message(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!(status, 404);
    schema.assert_valid_error(&answer);
}

/// Opens a session of the schema's revision and returns the response to `initialize`.
fn open_session(schema: &McpSchema, session: &mut SchemaSession<'_>) -> Value {
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": schema.revision,
            "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        },
    });
    let mut http = HttpConnection::connect(session.gateway.address);
    let headers: Vec<_> = session
        .headers
        .iter()
        .map(|(k, v)| (*k, v.as_str()))
        .collect();
    let response = http.post(session.path, &headers, message.to_string().as_bytes());
    let id = response.header("mcp-session-id").unwrap().to_owned();
    session.headers.push(("Mcp-Session-Id", id));
    let revision = schema.revision.to_owned();
    session.headers.push(("MCP-Protocol-Version", revision));
    response.json()
}

/// Receives a tools-changed notification and checks it against the schema.
fn assert_list_change_valid(schema: &McpSchema, gateway: &Gateway, path: &'static str) {
    let mut session = gateway.open_session(path);
    session.request("tools/list", &json!({}));
    let mut stream = session.open_stream();
    // The first comment shows an open stream.
    stream.read_chunk().unwrap();
    let mut one = gateway.open_session("/servers/one/mcp");
    one.call("test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
    let message: Value = serde_json::from_str(data.unwrap()).unwrap();
    schema.assert_valid("JSONRPCNotification", &message);
    schema.assert_valid("ToolListChangedNotification", &message);
}
