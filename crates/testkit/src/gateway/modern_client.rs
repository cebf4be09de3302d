//! A modern client: every request is self-contained, and every byte is visible.

use serde_json::{Value, json};

use super::{Gateway, HttpConnection, Response};

/// The modern revision.
pub const MODERN: &str = "2026-07-28";

/// The `_meta` of every request.
pub fn request_meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
    })
}

/// A client with the given capabilities.
#[derive(Clone, Debug)]
pub struct ModernClient<'a> {
    pub gateway: &'a Gateway,
    pub path: &'a str,
    pub token: String,
    pub capabilities: Value,
}

impl Gateway {
    /// A client at `path` without capabilities.
    pub fn modern_client<'a>(&'a self, path: &'a str) -> ModernClient<'a> {
        ModernClient {
            gateway: self,
            path,
            token: self.token.clone(),
            capabilities: json!({}),
        }
    }
}

impl ModernClient<'_> {
    /// Builds a request with `_meta`.
    pub fn build_request(&self, id: &Value, method: &str, params: &Value) -> Value {
        let mut params = params.clone();
        let own = params.get("_meta").cloned().unwrap_or_else(|| json!({}));
        let mut all = request_meta(&self.capabilities);
        for (key, value) in own.as_object().unwrap() {
            all[key] = value.clone();
        }
        params["_meta"] = all;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// Returns the matching headers of a request.
    pub fn request_headers(&self, message: &Value) -> Vec<(String, String)> {
        let method = message["method"].as_str().unwrap();
        let mut headers = vec![
            ("Authorization".to_owned(), format!("Bearer {}", self.token)),
            ("MCP-Protocol-Version".to_owned(), MODERN.to_owned()),
            ("Mcp-Method".to_owned(), method.to_owned()),
        ];
        let key = match method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
            _ => return headers,
        };
        if let Some(name) = message["params"][key].as_str() {
            headers.push(("Mcp-Name".to_owned(), name.to_owned()));
        }
        headers
    }

    /// Sends a message with the given headers instead of the matching ones.
    pub fn send_with_headers(&self, message: &Value, headers: &[(&str, &str)]) -> Response {
        let mut http = HttpConnection::connect(self.gateway.address);
        http.post(self.path, headers, message.to_string().as_bytes())
    }

    /// Sends a request with the matching headers.
    pub fn send_request(&self, method: &str, params: &Value) -> Response {
        let message = self.build_request(&json!(1), method, params);
        let headers = self.request_headers(&message);
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        self.send_with_headers(&message, &headers)
    }

    /// Sends a request and returns the result.
    pub fn request_result(&self, method: &str, params: &Value) -> Value {
        let answer = self.send_request(method, params);
        let answer = answer.json();
        assert!(answer["result"].is_object(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool.
    pub fn call_tool(&self, tool: &str, arguments: &Value) -> Value {
        self.request_result("tools/call", &json!({"name": tool, "arguments": arguments}))
    }
}
