//! Every message the gateway makes itself, against the official schema of each revision.

use std::path::PathBuf;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{left_out, root};
use crate::harness::{Gateway, Http, fixture};

/// The schema of one revision.
struct Schema {
    revision: &'static str,
    all: Value,
    /// Where the types stand in it.
    types: &'static str,
    error: &'static str,
    response: &'static str,
}

impl Schema {
    fn load(revision: &'static str) -> Option<Self> {
        let file = |base: &std::path::Path| -> PathBuf {
            base.join("shared/mcp-schema")
                .join(revision)
                .join("schema.json")
        };
        let text = root()
            .ancestors()
            .find_map(|base| std::fs::read(file(base)).ok())?;
        let all: Value = serde_json::from_slice(&text).unwrap();
        let latest = all.get("$defs").is_some();
        Some(Self {
            revision,
            all,
            types: if latest { "$defs" } else { "definitions" },
            error: if latest {
                "JSONRPCErrorResponse"
            } else {
                "JSONRPCError"
            },
            response: if latest {
                "JSONRPCResultResponse"
            } else {
                "JSONRPCResponse"
            },
        })
    }

    fn check(&self, name: &str, message: &Value) {
        let mut schema = self.all.clone();
        assert!(schema[self.types].get(name).is_some(), "no {name}");
        schema["$ref"] = json!(format!("#/{}/{name}", self.types));
        let validator: Validator = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<_> = validator
            .iter_errors(message)
            .map(|fault| format!("{fault} at {}", fault.instance_path()))
            .collect();
        let revision = self.revision;
        assert!(
            faults.is_empty(),
            "{message} is no {name} of {revision}: {faults:?}"
        );
    }

    /// An answer is one of its envelope, and what is in it of its own type.
    fn check_result(&self, name: &str, answer: &Value) {
        self.check(self.response, answer);
        self.check(name, &answer["result"]);
    }
}

/// A session of one revision.
struct Session<'a> {
    gateway: &'a Gateway,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
}

impl Session<'_> {
    fn post(&self, message: &str) -> (u16, Value) {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let mut http = Http::connect(self.gateway.address);
        let response = http.post(self.path, &headers, message.as_bytes());
        (response.status, response.json())
    }

    fn request(&self, method: &str, params: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": "a", "method": method, "params": params});
        self.post(&message.to_string()).1
    }
}

#[test]
fn what_the_gateway_originates_is_valid_by_the_official_schemas() {
    let revisions = ["2025-03-26", "2025-06-18", "2025-11-25"];
    let schemas: Vec<_> = revisions.into_iter().filter_map(Schema::load).collect();
    if schemas.len() < revisions.len() {
        let test = "what_the_gateway_originates_is_valid_by_the_official_schemas";
        return left_out(test, "no shared/mcp-schema beside the workspace");
    }
    let config = [
        fixture("one", &[]),
        fixture("two", &[]),
        crate::harness::server("gone", "/nowhere/at/all".as_ref(), &[]),
    ]
    .concat();
    let gateway = Gateway::up(&config);
    for schema in &schemas {
        for path in ["/mcp", "/servers/one/mcp"] {
            check_session(schema, &gateway, path);
        }
    }
}

fn check_session(schema: &Schema, gateway: &Gateway, path: &'static str) {
    let mut session = Session {
        gateway,
        path,
        headers: vec![("Authorization", format!("Bearer {}", gateway.token))],
    };
    let opened = open(schema, &mut session);
    schema.check_result("InitializeResult", &opened);
    assert_eq!(opened["result"]["protocolVersion"], schema.revision);
    schema.check_result("EmptyResult", &session.request("ping", &json!({})));
    schema.check_result(
        "ListToolsResult",
        &session.request("tools/list", &json!({})),
    );
    for (method, result) in [
        ("prompts/list", "ListPromptsResult"),
        ("resources/list", "ListResourcesResult"),
        ("resources/templates/list", "ListResourceTemplatesResult"),
    ] {
        schema.check_result(result, &session.request(method, &json!({})));
    }
    let refused = [
        session.request("tools/list", &json!({"cursor": "x"})),
        session.request("resources/read", &json!({"uri": "no://where"})),
        session.request("server/discover", &json!({})),
        session.request("tools/call", &json!({"name": "nobody"})),
        session.request("tools/call", &json!({"name": "gone__x", "arguments": {}})),
        session.request("tools/call", &json!({"name": 5})),
        session.request("tools/call", &json!({})),
        session
            .post(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#)
            .1,
    ];
    for refused in refused {
        schema.check(schema.error, &refused);
    }
    announce(schema, gateway, path);
    if path == "/mcp" {
        let lost = json!({"name": "two__crash", "arguments": {"when": "before"}});
        schema.check(schema.error, &session.request("tools/call", &lost));
    }
    let mut strangers = session;
    strangers
        .headers
        .retain(|(key, _)| *key == "Authorization" || *key == "MCP-Protocol-Version");
    let (status, answer) = strangers.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!(status, 400);
    schema.check(schema.error, &answer);
    strangers.headers.push(("Mcp-Session-Id", "none".into()));
    let (status, answer) = strangers.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!(status, 404);
    schema.check(schema.error, &answer);
}

/// Opens a session of the schema's revision and returns the answer to `initialize`.
fn open(schema: &Schema, session: &mut Session<'_>) -> Value {
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": schema.revision,
            "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        },
    });
    let mut http = Http::connect(session.gateway.address);
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

/// Hears of a change of the tools and checks the words in which it is told.
fn announce(schema: &Schema, gateway: &Gateway, path: &'static str) {
    let mut session = gateway.session(path);
    session.request("tools/list", &json!({}));
    let mut stream = session.listen();
    // The stream is open when its first comment has come.
    stream.read_chunk().unwrap();
    let mut one = gateway.session("/servers/one/mcp");
    one.call("test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
    let message: Value = serde_json::from_str(data.unwrap()).unwrap();
    schema.check("JSONRPCNotification", &message);
    schema.check("ToolListChangedNotification", &message);
}
