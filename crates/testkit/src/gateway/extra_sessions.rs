//! Further session and gateway helpers: several connections, capabilities, tokens, server control.

use serde_json::{Value, json};

use super::{Gateway, HttpConnection, Response, Session};

impl Session {
    /// The endpoint path of this session.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The same session on a new connection.
    pub fn clone_on_new_connection(&self) -> Self {
        Self {
            http: HttpConnection::connect(self.http.stream.get_ref().peer_addr().unwrap()),
            id: self.id.clone(),
            path: self.path.clone(),
            token: self.token.clone(),
            next_id: self.next_id,
        }
    }

    /// The names of the listed tools.
    pub fn list_tool_names(&mut self) -> Vec<String> {
        let list = self.request("tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().unwrap();
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }

    /// Ends the session.
    pub fn end_session(&mut self) {
        let headers = self.request_headers();
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let path = self.path.clone();
        self.http.send_request("DELETE", &path, &headers, b"");
        assert_eq!(self.http.read_response().status, 204);
    }

    /// Sends a call without waiting for the response.
    pub fn send_call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let body = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        });
        let mut headers = self.request_headers();
        let json = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        headers.push(json("Content-Type", "application/json"));
        headers.push(json("Accept", "application/json, text/event-stream"));
        let headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let path = self.path.clone();
        self.http
            .send_request("POST", &path, &headers, body.to_string().as_bytes());
    }
}

impl Gateway {
    /// Opens a session with the given client capabilities.
    pub fn open_session_with_capabilities(&self, capabilities: &Value) -> Session {
        let mut session = self.open_session("/mcp");
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

    /// The status of a server.
    pub fn server_status(&self, server: &str) -> Value {
        let servers = self.get_api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        let found = servers.iter().find(|status| status["name"] == server);
        found.unwrap().clone()
    }

    /// Sends an API request with the owner's token.
    pub fn send_api(&self, method: &str, path: &str, body: &Value) -> Response {
        let token = format!("Bearer {}", self.token);
        let headers = [
            ("Authorization", &token[..]),
            ("Content-Type", "application/json"),
        ];
        let mut http = HttpConnection::connect(self.address);
        http.send_request(method, path, &headers, body.to_string().as_bytes());
        http.read_response()
    }

    /// Creates a token and returns its id and text.
    pub fn create_token(&self, wanted: &Value) -> (String, String) {
        let made = self.send_api("POST", "/api/v1/tokens", wanted);
        assert_eq!(made.status, 200, "{}", made.text());
        let made = made.json();
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }

    /// Opens a session with this token.
    pub fn open_session_as(&self, token: &str, path: &str) -> Session {
        Session::open(self.address, path, Some(token))
    }

    /// Sends `start`, `stop` or `restart` for a server.
    pub fn control_server(&self, server: &str, order: &str) -> Value {
        let path = format!("/api/v1/servers/{server}/{order}");
        let token = format!("Bearer {}", self.token);
        let mut http = HttpConnection::connect(self.address);
        http.post(&path, &[("Authorization", &token)], b"{}").json()
    }

    /// Waits for the requested exit and returns the exit code.
    pub fn wait_for_exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}
