//! A client of the modern era: every request says all it needs, and shows every byte.

use serde_json::{Value, json};

use super::{Gateway, Http, Response};

/// The revision of this era.
pub(crate) const MODERN: &str = "2026-07-28";

/// What every request says of its client.
pub(crate) fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
    })
}

/// A client that declares these capabilities.
#[derive(Clone, Debug)]
pub(crate) struct Modern<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) path: &'a str,
    pub(crate) token: String,
    pub(crate) capabilities: Value,
}

impl Gateway {
    /// A client at `path` that can be asked for nothing.
    pub(crate) fn modern<'a>(&'a self, path: &'a str) -> Modern<'a> {
        Modern {
            gateway: self,
            path,
            token: self.token.clone(),
            capabilities: json!({}),
        }
    }
}

impl Modern<'_> {
    /// Returns a request with what it must say of itself.
    pub(crate) fn message(&self, id: &Value, method: &str, params: &Value) -> Value {
        let mut params = params.clone();
        let own = params.get("_meta").cloned().unwrap_or_else(|| json!({}));
        let mut all = meta(&self.capabilities);
        for (key, value) in own.as_object().unwrap() {
            all[key] = value.clone();
        }
        params["_meta"] = all;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// Returns the headers that such a request has.
    pub(crate) fn headers(&self, message: &Value) -> Vec<(String, String)> {
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

    /// Sends a message with these headers instead of those it should have.
    pub(crate) fn send(&self, message: &Value, headers: &[(&str, &str)]) -> Response {
        let mut http = Http::connect(self.gateway.address);
        http.post(self.path, headers, message.to_string().as_bytes())
    }

    /// Sends a request as it should be.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Response {
        let message = self.message(&json!(1), method, params);
        let headers = self.headers(&message);
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        self.send(&message, &headers)
    }

    /// Sends a request and returns its result.
    pub(crate) fn result(&self, method: &str, params: &Value) -> Value {
        let answer = self.ask(method, params);
        let answer = answer.json();
        assert!(answer["result"].is_object(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.result("tools/call", &json!({"name": tool, "arguments": arguments}))
    }
}
