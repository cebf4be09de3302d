//! Credentials of servers: read at each send, fetched again when refused, and applied to lists and
//! children when they change.

mod caller_token;
mod keychain;
mod rotation;
mod secret_store;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use bowline_testkit::gateway::{
    Gateway, HttpConnection, ReceivedRequest, Session, StubServer, bowline_binary,
};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

/// An HTTP MCP server with authentication by `Authorization`: each accepted value has separate
/// tools, other values are refused.
pub(crate) struct GuardedServer {
    pub(crate) server: StubServer,
    accepted: Arc<Mutex<HashMap<String, Vec<&'static str>>>>,
}

impl GuardedServer {
    pub(crate) fn start(good: &[(&str, &[&'static str])]) -> Self {
        let known = Arc::<Mutex<HashMap<_, _>>>::default();
        let looked = Arc::clone(&known);
        let listener = StubServer::start(move |asked| respond(asked, &looked));
        let this = Self {
            server: listener,
            accepted: known,
        };
        this.set_accepted(good);
        this
    }

    /// Replaces the accepted credentials.
    pub(crate) fn set_accepted(&self, good: &[(&str, &[&'static str])]) {
        let good = good.iter().map(|(who, tools)| {
            let who = format!("Bearer {who}");
            (who, tools.to_vec())
        });
        *self.accepted.lock().unwrap() = good.collect();
    }

    /// The entry of this server in a config file.
    pub(crate) fn config_entry(&self, name: &str, bearer: &str) -> String {
        let url = format!("{}/mcp", self.server.url);
        format!(
            "[servers.{name}]\nurl = {}\nheaders = {{ Authorization = \"Bearer {bearer}\" }}\n",
            json!(url)
        )
    }

    /// The `Authorization` header of each request of this method, in order.
    pub(crate) fn authorization_headers(&self, method: &str) -> Vec<String> {
        let asked = self.server.requests();
        let of_method = asked.iter().filter(|one| one.json()["method"] == method);
        let proofs = of_method.map(|one| one.header("authorization").unwrap_or_default());
        proofs.map(str::to_owned).collect()
    }
}

fn respond(
    asked: &ReceivedRequest,
    good: &Mutex<HashMap<String, Vec<&'static str>>>,
) -> (u16, String) {
    let who = asked.header("authorization").unwrap_or_default();
    let Some(tools) = good.lock().unwrap().get(who).cloned() else {
        // Some servers repeat a refused credential in the error.
        return (401, json!(format!("you are not {who}")).to_string());
    };
    let message = asked.json();
    let id = &message["id"];
    let tools = || {
        let tools = tools.iter();
        let tools = tools.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
        tools.collect::<Vec<_>>()
    };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "guarded", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": tools()}),
        Some("tools/call") => json!({"content": [{"type": "text", "text": "done"}]}),
        Some(_) if id.is_null() => return (202, String::new()),
        Some(_) => json!({}),
        None => return (405, String::new()),
    };
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    (200, answer.to_string())
}

/// Runs a CLI command with this stdin.
pub(crate) fn run_command(gateway: &Gateway, args: &[&str], input: &str) -> Output {
    let config = gateway.dir.path().join("bowline.toml");
    let mut child = Command::new(bowline_binary())
        .arg("--state")
        .arg(gateway.state_dir())
        .arg("--config")
        .arg(config)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Stores a secret.
pub(crate) fn set_secret(gateway: &Gateway, name: &str, value: &str) {
    let out = run_command(gateway, &["secret", "set", name], value);
    assert!(out.status.success(), "{out:?}");
    let told = [out.stdout, out.stderr].concat();
    let told = String::from_utf8(told).unwrap();
    assert!(!told.contains(value.trim()), "{told}");
}

/// Waits until a previously omitted server is listed and in this state.
pub(crate) fn wait_for_listed_server(gateway: &Gateway, server: &str, state: &str) {
    wait_until(&format!("{server} is {state}"), || {
        let servers = gateway.get_api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        let is_it = |one: &Value| one["name"] == server && one["state"] == state;
        servers.iter().any(is_it)
    });
}

/// Opens the session's stream for change notifications.
pub(crate) fn open_stream(gateway: &Gateway, session: &Session) -> HttpConnection {
    let mut stream = HttpConnection::connect(gateway.address);
    let mut headers = session.request_headers();
    headers.push(("Accept".to_owned(), "text/event-stream".to_owned()));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    stream.send_request("GET", session.path(), &headers, b"");
    assert_eq!(stream.read_head().status, 200);
    stream
}

/// The text of a call's result, or the error.
pub(crate) fn call_outcome(answer: &Value) -> String {
    match answer["result"]["content"][0]["text"].as_str() {
        Some(text) => text.to_owned(),
        None => answer["error"]["data"]["code"].to_string(),
    }
}
