//! The MCP server of both backends: the bytes of a JSON-RPC message in, the bytes of the response
//! out. As cheap as possible, so that a measurement shows the gateway.

use std::{borrow::Cow, fmt::Write as _};

use serde::Deserialize;
use serde_json::{json, value::RawValue};

use crate::options::ToolOptions;

const REVISIONS: &[&str] = &["2025-03-26", "2025-06-18", "2025-11-25"];
/// Bytes of [`BLOB_UNIT`] in a KiB, and the text that blobs repeat.
pub(crate) const BLOB_UNITS_PER_KIB: usize = 64;
pub(crate) const BLOB_UNIT: &str = "0123456789abcdef";

const COMPLETE_LIST: &str = r#""resultType":"complete","ttlMs":60000,"cacheScope":"public","#;
const BASE_TOOLS: &str = concat!(
    r#"{"name":"echo","description":"Returns its message.","inputSchema":{"type":"object","#,
    r#""properties":{"message":{"type":"string"}},"required":["message"]}},"#,
    r#"{"name":"blob","description":"Returns kib KiB of text.","inputSchema":{"type":"object","#,
    r#""properties":{"kib":{"type":"integer"}},"required":["kib"]}},"#,
    r#"{"name":"slow","description":"Sleeps ms milliseconds, then returns its message.","#,
    r#""inputSchema":{"type":"object","properties":{"ms":{"type":"integer"},"#,
    r#""message":{"type":"string"}},"required":["ms"]}}"#,
);
const GENERATED_SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"query":{"type":"string","description":"what to look for"},"#,
    r#""limit":{"type":"integer","minimum":1,"maximum":1000,"default":20},"#,
    r#""cursor":{"type":"string","description":"opaque cursor of the previous page"}},"#,
    r#""required":["query"]}"#,
);
const DISCOVERY: &[u8] = concat!(
    r#","result":{"resultType":"complete","supportedVersions":["2026-07-28"],"#,
    r#""capabilities":{"tools":{}},"#,
    r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"mcpbench","version":"0.1.0"}},"#,
    r#""ttlMs":0,"cacheScope":"private"}}"#,
)
.as_bytes();
const PARSE_ERROR: &[u8] =
    br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}"#;
const METHOD_NOT_FOUND: &[u8] = br#","error":{"code":-32601,"message":"method not found"}}"#;
const EMPTY_RESULT: &[u8] = br#","result":{}}"#;

/// The members of a JSON-RPC message that backends and floors read.
#[derive(Debug, Deserialize)]
pub(crate) struct RpcMessage<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct ToolArguments<'a> {
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(default)]
    kib: Option<usize>,
    #[serde(default)]
    ms: Option<u64>,
}

#[derive(Deserialize)]
struct InitializeParams<'a> {
    #[serde(borrow, rename = "protocolVersion", default)]
    protocol_version: Option<Cow<'a, str>>,
}

#[derive(Debug)]
pub(crate) struct McpServer {
    /// The result of `tools/list`.
    tool_list: Vec<u8>,
    /// A KiB of text.
    blob: String,
    /// Whether the server speaks the revision without sessions.
    is_modern: bool,
}

#[derive(Debug)]
pub(crate) struct ServerReply {
    pub(crate) body: Vec<u8>,
    pub(crate) is_initialize: bool,
    /// Time to sleep before the response.
    pub(crate) sleep_ms: u64,
}

impl ServerReply {
    fn immediate(body: Vec<u8>) -> Self {
        Self {
            body,
            is_initialize: false,
            sleep_ms: 0,
        }
    }
}

impl McpServer {
    /// Builds the server of `--tools N` and `--modern`.
    pub(crate) fn from_options(options: &ToolOptions) -> anyhow::Result<Self> {
        let is_modern = options.has_flag("modern");
        Ok(Self {
            tool_list: write_tool_list(options.number("tools", 0)?, is_modern).into_bytes(),
            blob: BLOB_UNIT.repeat(BLOB_UNITS_PER_KIB),
            is_modern,
        })
    }

    /// Returns the response; `None` for notifications and responses.
    pub(crate) fn respond(&self, raw: &[u8]) -> Option<ServerReply> {
        let Ok(message) = serde_json::from_slice::<RpcMessage<'_>>(raw) else {
            return Some(ServerReply::immediate(PARSE_ERROR.to_vec()));
        };
        let (id, method) = (message.id?.get(), message.method?);
        let mut body = Vec::with_capacity(256);
        body.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        body.extend_from_slice(id.as_bytes());
        let mut reply = ServerReply::immediate(body);
        match &*method {
            "server/discover" if self.is_modern => reply.body.extend_from_slice(DISCOVERY),
            "initialize" if !self.is_modern => {
                reply.is_initialize = true;
                append_initialize_result(&mut reply.body, message.params);
            }
            "ping" | "logging/setLevel" => reply.body.extend_from_slice(EMPTY_RESULT),
            "tools/list" => {
                reply.body.reserve(self.tool_list.len() + 32);
                reply.body.extend_from_slice(br#","result":"#);
                reply.body.extend_from_slice(&self.tool_list);
                reply.body.push(b'}');
            }
            "tools/call" => self.append_tool_result(&mut reply, message.params),
            "resources/list" => append_empty_list(&mut reply.body, "resources"),
            "resources/templates/list" => append_empty_list(&mut reply.body, "resources"),
            "prompts/list" => append_empty_list(&mut reply.body, "prompts"),
            _ => reply.body.extend_from_slice(METHOD_NOT_FOUND),
        }
        Some(reply)
    }

    fn append_tool_result(&self, reply: &mut ServerReply, params: Option<&RawValue>) {
        let call =
            params.and_then(|params| serde_json::from_str::<ToolCall<'_>>(params.get()).ok());
        let Some(call) = call else {
            return append_params_error(&mut reply.body, "bad params");
        };
        let arguments = call.arguments.map(RawValue::get).unwrap_or("{}");
        let arguments: ToolArguments<'_> = serde_json::from_str(arguments).unwrap_or_default();
        let message = arguments.message.map_or("\"\"", RawValue::get);
        let complete = if self.is_modern {
            r#""resultType":"complete","#
        } else {
            ""
        };
        let body = &mut reply.body;
        match &*call.name {
            "blob" => {
                append_text_start(body, complete);
                body.push(b'"');
                for _ in 0..arguments.kib.unwrap_or(1) {
                    body.extend_from_slice(self.blob.as_bytes());
                }
                body.push(b'"');
            }
            name if name == "echo" || name == "slow" || name.starts_with("tool_") => {
                if name == "slow" {
                    reply.sleep_ms = arguments.ms.unwrap_or(10);
                }
                append_text_start(body, complete);
                body.extend_from_slice(message.as_bytes());
            }
            _ => return append_params_error(body, "unknown tool"),
        }
        body.extend_from_slice(b"}]}}");
    }
}

/// Writes the beginning of a result with one text, up to the text.
fn append_text_start(body: &mut Vec<u8>, complete: &str) {
    body.extend_from_slice(br#","result":{"#);
    body.extend_from_slice(complete.as_bytes());
    body.extend_from_slice(br#""content":[{"type":"text","text":"#);
}

fn append_params_error(body: &mut Vec<u8>, message: &str) {
    let error = format!(r#","error":{{"code":-32602,"message":"{message}"}}}}"#);
    body.extend_from_slice(error.as_bytes());
}

fn append_empty_list(body: &mut Vec<u8>, list: &str) {
    body.extend_from_slice(format!(r#","result":{{"{list}":[]}}}}"#).as_bytes());
}

fn append_initialize_result(body: &mut Vec<u8>, params: Option<&RawValue>) {
    let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
    let wanted = params.and_then(|params: InitializeParams<'_>| params.protocol_version);
    let mut revisions = REVISIONS.iter().copied();
    let revision = revisions.find(|revision| Some(*revision) == wanted.as_deref());
    let revision = revision.or_else(|| REVISIONS.last().copied());
    let result = json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mcpbench", "version": "0.1.0"},
    });
    body.extend_from_slice(format!(r#","result":{result}}}"#).as_bytes());
}

/// Writes the tools: three with fixed names, and `generated` of about 450 bytes.
fn write_tool_list(generated: usize, is_modern: bool) -> String {
    let complete = if is_modern { COMPLETE_LIST } else { "" };
    let mut list = format!(r#"{{{complete}"tools":[{BASE_TOOLS}"#);
    for nth in 0..generated {
        let description = format!(
            "Generated tool number {nth}: looks up records of kind {nth} in the catalogue, \
             filtered by the query and bounded by the limit; returns a JSON document."
        );
        // Writing to a string never fails.
        let _ = write!(
            list,
            r#",{{"name":"tool_{nth:04}","description":"{description}","#
        );
        let _ = write!(list, r#""inputSchema":{GENERATED_SCHEMA}}}"#);
    }
    list.push_str("]}");
    list
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn respond(words: &str, request: &Value) -> Value {
        let options = ToolOptions::from_words(words.split(' ').map(str::to_owned));
        let server = McpServer::from_options(&options).unwrap();
        let reply = server.respond(request.to_string().as_bytes()).unwrap();
        serde_json::from_slice(&reply.body).unwrap()
    }

    fn request(method: &str, params: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    }

    #[test]
    fn every_response_is_valid_json() {
        for words in ["--tools 2", "--tools 2 --modern"] {
            for method in [
                "server/discover",
                "initialize",
                "ping",
                "tools/list",
                "resources/list",
                "resources/templates/list",
                "prompts/list",
                "logging/setLevel",
                "unknown",
            ] {
                let response = respond(words, &request(method, &json!({})));
                assert_eq!(response["id"], 7, "{method}");
            }
        }
        let list = respond("--tools 2", &request("tools/list", &json!({})));
        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 5);
    }

    #[test]
    fn calls_return_message_blob_or_error() {
        let call = |name: &str, arguments: Value| {
            let params = json!({"name": name, "arguments": arguments});
            respond("--tools 1", &request("tools/call", &params))
        };
        let echo = call("echo", json!({"message": "hi"}));
        assert_eq!(echo["result"]["content"][0]["text"], "hi");
        let blob = call("blob", json!({"kib": 2}));
        let text = blob["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(text.len(), 2048);
        assert_eq!(call("none", json!({}))["error"]["code"], -32602);
    }

    #[test]
    fn notification_has_no_response() {
        let server = McpServer::from_options(&ToolOptions::from_words(std::iter::empty())).unwrap();
        let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert!(
            server
                .respond(notification.to_string().as_bytes())
                .is_none()
        );
    }
}
