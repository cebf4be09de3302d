//! Sessions on several connections, and one server's state.

use serde_json::{Value, json};

use super::{Gateway, Http, Response, Session};

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

    /// The names of the tools that it is shown.
    pub(crate) fn tools(&mut self) -> Vec<String> {
        let list = self.request("tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().unwrap();
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
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

    /// Sends the API something, with the owner's token.
    pub(crate) fn ask_api(&self, method: &str, path: &str, body: &Value) -> Response {
        let token = format!("Bearer {}", self.token);
        let headers = [
            ("Authorization", &token[..]),
            ("Content-Type", "application/json"),
        ];
        let mut http = Http::connect(self.address);
        http.send(method, path, &headers, body.to_string().as_bytes());
        http.read()
    }

    /// Makes a token and returns its id and its text.
    pub(crate) fn token_of(&self, wanted: &Value) -> (String, String) {
        let made = self.ask_api("POST", "/api/v1/tokens", wanted);
        assert_eq!(made.status, 200, "{}", made.text());
        let made = made.json();
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }

    /// Opens a session with a token of somebody's own.
    pub(crate) fn session_as(&self, token: &str, path: &str) -> Session {
        Session::open(self.address, path, Some(token))
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
