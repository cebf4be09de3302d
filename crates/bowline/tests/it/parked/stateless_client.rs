//! A sessionless client.

use std::net::SocketAddr;

use bowline_testkit::gateway::{Gateway, HttpConnection, Response};
use serde_json::{Value, json};

/// All client capabilities.
pub(super) fn all_capabilities() -> Value {
    json!({
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
    })
}

/// One client; every request is self-contained.
#[derive(Clone, Debug)]
pub(super) struct StatelessClient {
    address: SocketAddr,
    token: String,
    path: String,
    pub(super) capabilities: Value,
    /// More members of `_meta`.
    pub(super) meta: Value,
}

impl StatelessClient {
    pub(super) fn new(gateway: &Gateway, path: &str) -> Self {
        Self {
            address: gateway.address,
            token: gateway.token.clone(),
            path: path.to_owned(),
            capabilities: all_capabilities(),
            meta: json!({}),
        }
    }

    /// The same client with another token.
    pub(super) fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// The same client at another endpoint.
    pub(super) fn with_path(&self, path: &str) -> Self {
        Self {
            path: path.to_owned(),
            ..self.clone()
        }
    }

    /// Sends a request on a new connection, and leaves the response unread.
    pub(super) fn send_request(
        &self,
        id: &Value,
        method: &str,
        mut params: Value,
    ) -> HttpConnection {
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
        });
        for (key, value) in self.meta.as_object().unwrap() {
            meta[key] = value.clone();
        }
        params["_meta"] = meta;
        let name = ["name", "uri", "taskId"]
            .iter()
            .find_map(|key| params[key].as_str())
            .unwrap_or_default()
            .to_owned();
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut headers = vec![
            ("Authorization", format!("Bearer {}", self.token)),
            ("MCP-Protocol-Version", "2026-07-28".to_owned()),
            ("Mcp-Method", method.to_owned()),
            ("Content-Type", "application/json".to_owned()),
            ("Accept", "application/json, text/event-stream".to_owned()),
        ];
        if !name.is_empty() {
            headers.push(("Mcp-Name", name));
        }
        let headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        let mut http = HttpConnection::connect(self.address);
        http.send_request("POST", &self.path, &headers, body.to_string().as_bytes());
        http
    }

    /// Sends a request and reads the whole response.
    pub(super) fn send_and_read(&self, id: &Value, method: &str, params: Value) -> Response {
        self.send_request(id, method, params).read_response()
    }

    /// Sends a request and returns the JSON-RPC response, checked by id.
    pub(super) fn request_response(&self, method: &str, params: Value) -> Value {
        let id = json!(format!("r{}", fastrand::u64(..)));
        let answer = self.send_and_read(&id, method, params).json();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub(super) fn call_tool(&self, tool: &str, arguments: &Value) -> Value {
        self.request_response("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Sends the same request again, with answers.
    pub(super) fn retry_with_answers(
        &self,
        tool: &str,
        arguments: &Value,
        answers: &Value,
        state: &str,
    ) -> Value {
        let params = json!({
            "name": tool, "arguments": arguments,
            "inputResponses": answers, "requestState": state,
        });
        self.request_response("tools/call", params)
    }
}
