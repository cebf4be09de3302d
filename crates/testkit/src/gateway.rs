//! A gateway per test in a process of its own, servers and networks around the gateway, and
//! blocking clients that show every byte.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{poll_exit, send_signal, wait_until};

/// Time that a dropped gateway has to stop in order before it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// The binary under test.
pub fn bowline_binary() -> PathBuf {
    built_binary("bowline")
}

/// The test server, which is built beside the binary under test.
pub fn fixture_binary() -> PathBuf {
    built_binary("bowline-fixture")
}

/// Cargo builds binaries into the parent of the directory of the running test. The variable
/// `CARGO_BIN_EXE_bowline` is defined in tests of the product only.
fn built_binary(package: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(package);
    let build = format!("cargo build -p {package}");
    assert!(path.exists(), "{} is missing: {build}", path.display());
    path
}

/// Returns the configuration of a fixture under `name`, with the given arguments.
pub fn fixture_config(name: &str, args: &[&str]) -> String {
    server_config(name, &fixture_binary(), args)
}

/// Returns the configuration of a server.
pub fn server_config(name: &str, command: &Path, args: &[&str]) -> String {
    format!(
        "[servers.{name}]\ncommand = {}\nargs = {}\n",
        json!(command),
        json!(args)
    )
}

/// A gateway in a separate process and directory.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    pub dir: TempDir,
    pub address: SocketAddr,
    pub token: String,
}

impl Gateway {
    /// Starts a gateway with this configuration on a free port.
    pub fn start(config: &str) -> Self {
        Self::start_with_args(config, &[])
    }

    /// Like `start`, with more arguments to `up`.
    pub fn start_with_args(config: &str, args: &[&str]) -> Self {
        Self::start_with_command(config, |command| {
            command.args(args);
        })
    }

    /// Like `start`, with changes to the command of the process.
    pub fn start_with_command(config: &str, more: impl FnOnce(&mut Command)) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        let (child, address, token) = spawn_gateway(dir.path(), more);
        Self {
            child,
            dir,
            address,
            token,
        }
    }

    /// Like `start_with_command`; the configuration may contain the paths of the state and of
    /// itself.
    pub fn start_at(
        config: impl FnOnce(&Path, &Path) -> String,
        more: impl FnOnce(&mut Command),
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("bowline.toml");
        std::fs::write(&file, config(&dir.path().join("state"), &file)).unwrap();
        let (child, address, token) = spawn_gateway(dir.path(), more);
        Self {
            child,
            dir,
            address,
            token,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Runs a CLI command against this gateway.
    pub fn run_cli(&self, args: &[&str]) -> Output {
        Command::new(bowline_binary())
            .arg("--state")
            .arg(self.state_dir())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Sends a GET request to the API, and holds the response against its shared type.
    pub fn get_api(&self, path: &str) -> Value {
        let response = HttpConnection::connect(self.address).get(
            path,
            &[("Authorization", &format!("Bearer {}", self.token))],
        );
        assert_api_shape("GET", path, response.status, &response.body);
        response.json()
    }

    /// Waits until the server is in this state and returns the status.
    pub fn wait_for_state(&self, server: &str, state: &str) -> Value {
        let mut last = Value::Null;
        wait_until(&format!("{server} is {state}"), || {
            let servers = self.get_api("/api/v1/servers");
            last = servers["servers"]
                .as_array()
                .unwrap()
                .iter()
                .find(|status| status["name"] == server)
                .cloned()
                .unwrap_or_else(|| panic!("no server {server}: {servers}"));
            last["state"] == state
        });
        last
    }

    /// Opens a session at `path`, such as `/mcp`.
    pub fn open_session(&self, path: &str) -> Session {
        Session::open(self.address, path, Some(&self.token))
    }

    /// Kills the gateway with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the gateway in order and returns whether it exited with success.
    pub fn stop(&mut self) -> bool {
        send_signal(self.pid(), "TERM");
        self.child.wait().unwrap().success()
    }

    /// Kills the gateway and starts another on the same configuration and state.
    pub fn restart_after_kill(&mut self) {
        self.kill();
        self.restart();
    }

    /// Starts another gateway on the same configuration and state.
    pub fn restart(&mut self) {
        let (child, address, token) = spawn_gateway(self.dir.path(), |_| {});
        self.child = child;
        self.address = address;
        self.token = token;
    }
}

/// Starts a gateway in the directory of the configuration, and waits for the ready message.
fn spawn_gateway(dir: &Path, more: impl FnOnce(&mut Command)) -> (Child, SocketAddr, String) {
    let mut command = Command::new(bowline_binary());
    command
        .args(["up", "--json", "--listen", "127.0.0.1:0"])
        .arg("--config")
        .arg(dir.join("bowline.toml"))
        .arg("--state")
        .arg(dir.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    more(&mut command);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
    let (address, token) = parse_ready(&ready);
    (child, address, token)
}

/// Address and owner token from the ready message of a gateway.
fn parse_ready(ready: &Value) -> (SocketAddr, String) {
    let address = ready["mcp"].as_str().unwrap();
    let address = address
        .strip_prefix("http://")
        .and_then(|rest| rest.strip_suffix("/mcp"))
        .unwrap();
    let token = std::fs::read_to_string(ready["token_file"].as_str().unwrap()).unwrap();
    (address.parse().unwrap(), token.trim().to_owned())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            send_signal(self.pid(), "TERM");
            if !poll_exit(self.pid(), STOP_TIME_MAX) {
                let _ = self.child.kill();
            }
            let _ = self.child.wait();
        }
    }
}

/// An MCP session over one connection.
#[derive(Debug)]
pub struct Session {
    pub http: HttpConnection,
    pub id: String,
    path: String,
    token: Option<String>,
    next_id: u64,
}

impl Session {
    pub fn open(address: SocketAddr, path: &str, token: Option<&str>) -> Self {
        let mut this = Self {
            http: HttpConnection::connect(address),
            id: String::new(),
            path: path.to_owned(),
            token: token.map(str::to_owned),
            next_id: 0,
        };
        let response = this.post(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "it", "version": "1"},
            },
        }));
        assert_eq!(response.status, 200, "{}", response.text());
        this.id = response.header("mcp-session-id").unwrap().to_owned();
        let accepted = this.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        this
    }

    /// The headers of every request of this session.
    pub fn request_headers(&self) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        if let Some(token) = &self.token {
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        if !self.id.is_empty() {
            headers.push(("Mcp-Session-Id".to_owned(), self.id.clone()));
            headers.push(("MCP-Protocol-Version".to_owned(), "2025-11-25".to_owned()));
        }
        headers
    }

    pub fn post(&mut self, message: &Value) -> Response {
        self.post_raw(message.to_string().as_bytes())
    }

    pub fn post_raw(&mut self, body: &[u8]) -> Response {
        let headers = self.request_headers();
        let headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let path = self.path.clone();
        self.http.post(&path, &headers, body)
    }

    /// Sends a request and returns the whole JSON-RPC response.
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let response = self.post(&json!({
            "jsonrpc": "2.0", "id": id, "method": method, "params": params,
        }));
        assert_eq!(response.status, 200, "{}", response.text());
        let answer = if response.header("content-type") == Some("text/event-stream") {
            response.events().pop().unwrap()
        } else {
            response.json()
        };
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool and returns the text of its first content.
    pub fn call_text(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.call(tool, arguments);
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text: {answer}"))
            .to_owned()
    }

    /// Opens the stream of this session on a new connection and reads its head.
    pub fn open_stream(&self) -> HttpConnection {
        let address = self.http.stream.get_ref().peer_addr().unwrap();
        let mut http = HttpConnection::connect(address);
        let headers = self.request_headers();
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        headers.push(("Accept", "text/event-stream"));
        http.send_request("GET", &self.path, &headers, b"");
        let head = http.read_head();
        assert_eq!(head.status, 200, "{head:?}");
        http
    }
}

mod api_shapes;
mod executor;
mod extra_sessions;
mod faulty_network;
mod fixture_server;
mod http_client;
mod modern_client;
mod stub_server;
mod worker;

pub use api_shapes::{assert_api_shape, assert_event_shape};
pub use executor::{Executor, executor_command, executor_server_config, run_failing_executor};
pub use faulty_network::{FaultyNetwork, NetworkState};
pub use fixture_server::FixtureServer;
pub use http_client::{HttpConnection, Response};
pub use modern_client::{MODERN, ModernClient, request_meta};
pub use stub_server::{ReceivedRequest, StubResponse, StubServer};
pub use worker::{Worker, worker_command, write_private_file};
