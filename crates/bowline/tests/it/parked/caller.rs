//! A client of the era without sessions.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, Response};

/// Everything a client can be asked.
pub(super) fn able() -> Value {
    json!({
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
    })
}

/// One client; every request stands for itself.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    address: SocketAddr,
    token: String,
    path: String,
    pub(super) capabilities: Value,
    /// More members of `_meta`.
    pub(super) meta: Value,
}

impl Caller {
    pub(super) fn of(gateway: &Gateway, path: &str) -> Self {
        Self {
            address: gateway.address,
            token: gateway.token.clone(),
            path: path.to_owned(),
            capabilities: able(),
            meta: json!({}),
        }
    }

    /// The same with another token.
    pub(super) fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// The same at another endpoint.
    pub(super) fn at(&self, path: &str) -> Self {
        Self {
            path: path.to_owned(),
            ..self.clone()
        }
    }

    /// Sends a request on a connection of its own, and leaves the response there.
    pub(super) fn send(&self, id: &Value, method: &str, mut params: Value) -> Http {
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
        let mut http = Http::connect(self.address);
        http.send("POST", &self.path, &headers, body.to_string().as_bytes());
        http
    }

    /// Sends a request and reads the whole response.
    pub(super) fn ask(&self, id: &Value, method: &str, params: Value) -> Response {
        self.send(id, method, params).read()
    }

    /// Sends a request and returns its answer, under its id.
    pub(super) fn request(&self, method: &str, params: Value) -> Value {
        let id = json!(format!("r{}", fastrand::u64(..)));
        let answer = self.ask(&id, method, params).json();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub(super) fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Sends the same request again, with answers.
    pub(super) fn again(
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
        self.request("tools/call", params)
    }
}
