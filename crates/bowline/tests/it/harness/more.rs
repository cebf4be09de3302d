//! Sessions on several connections, and one server's state.

use serde_json::{Value, json};

use super::{Gateway, Http, Session};

impl Session {
    /// Where this session posts.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The same session on a connection of its own.
    pub(crate) fn twin(&self) -> Self {
        Self {
            http: Http::connect(self.http.stream.get_ref().peer_addr().unwrap()),
            id: self.id.clone(),
            path: self.path.clone(),
            token: self.token.clone(),
            next: self.next,
        }
    }

    /// Ends the session.
    pub(crate) fn delete(&mut self) {
        let headers = self.headers();
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let path = self.path.clone();
        self.http.send("DELETE", &path, &headers, b"");
        assert_eq!(self.http.read().status, 204);
    }

    /// Sends a call and does not wait for its answer.
    pub(crate) fn send_call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let body = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        });
        let mut headers = self.headers();
        let json = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        headers.push(json("Content-Type", "application/json"));
        headers.push(json("Accept", "application/json, text/event-stream"));
        let headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let path = self.path.clone();
        self.http
            .send("POST", &path, &headers, body.to_string().as_bytes());
    }
}

impl Gateway {
    /// Opens a session whose client can be asked for what it declares.
    pub(crate) fn able(&self, capabilities: &Value) -> Session {
        let mut session = self.session("/mcp");
        session.id.clear();
        let response = session.post(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": {"name": "it", "version": "1"},
            },
        }));
        session.id = response.header("mcp-session-id").unwrap().to_owned();
        session
    }

    /// What status says of one server.
    pub(crate) fn status(&self, server: &str) -> Value {
        let servers = self.api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        let found = servers.iter().find(|status| status["name"] == server);
        found.unwrap().clone()
    }

    /// Orders a server to start, stop or restart.
    pub(crate) fn order(&self, server: &str, order: &str) -> Value {
        let path = format!("/api/v1/servers/{server}/{order}");
        let token = format!("Bearer {}", self.token);
        let mut http = Http::connect(self.address);
        http.post(&path, &[("Authorization", &token)], b"{}").json()
    }

    /// Waits for the end that was asked for and returns the exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}
