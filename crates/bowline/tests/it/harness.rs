//! A gateway of one's own for each test, and a small blocking client that shows every byte.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing in a test takes longer unless the product hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test.
pub(crate) fn bowline() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_bowline"))
}

/// Returns the configuration of a fixture under `name`, with these arguments.
pub(crate) fn fixture(name: &str, args: &[&str]) -> String {
    server(name, bowline(), &[&["fixture"], args].concat())
}

/// Returns the configuration of a server.
pub(crate) fn server(name: &str, command: &Path, args: &[&str]) -> String {
    format!(
        "[servers.{name}]\ncommand = {}\nargs = {}\n",
        json!(command),
        json!(args)
    )
}

/// A gateway in its own process and directory.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    pub(crate) dir: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl Gateway {
    /// Starts a gateway with this configuration on a free port.
    pub(crate) fn up(config: &str) -> Self {
        Self::up_with(config, &[])
    }

    /// The same, with more arguments to `up`.
    pub(crate) fn up_with(config: &str, args: &[&str]) -> Self {
        Self::up_as(config, |command| {
            command.args(args);
        })
    }

    /// The same, with more to say about the process.
    pub(crate) fn up_as(config: &str, more: impl FnOnce(&mut Command)) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        let (child, address, token) = start(dir.path(), more);
        Self {
            child,
            dir,
            address,
            token,
        }
    }

    /// The same, with a configuration that knows where its state and itself will be.
    pub(crate) fn up_at(
        config: impl FnOnce(&Path, &Path) -> String,
        more: impl FnOnce(&mut Command),
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("bowline.toml");
        std::fs::write(&file, config(&dir.path().join("state"), &file)).unwrap();
        let (child, address, token) = start(dir.path(), more);
        Self {
            child,
            dir,
            address,
            token,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Runs one command of the command line against this gateway.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        Command::new(bowline())
            .arg("--state")
            .arg(self.state())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Asks the API.
    pub(crate) fn api(&self, path: &str) -> Value {
        let response = Http::connect(self.address).get(
            path,
            &[("Authorization", &format!("Bearer {}", self.token))],
        );
        response.json()
    }

    /// Waits until the server is in this state and returns its status.
    pub(crate) fn wait_for(&self, server: &str, state: &str) -> Value {
        let mut last = Value::Null;
        eventually(&format!("{server} is {state}"), || {
            let servers = self.api("/api/v1/servers");
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
    pub(crate) fn session(&self, path: &str) -> Session {
        Session::open(self.address, path, Some(&self.token))
    }

    /// Kills the gateway as the kernel would, without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the gateway in order and returns whether it exited well.
    pub(crate) fn stop(&mut self) -> bool {
        signal(self.pid(), "TERM");
        self.child.wait().unwrap().success()
    }

    /// Kills the gateway and starts another on the same configuration and state.
    pub(crate) fn restart_after_kill(&mut self) {
        self.kill();
        self.restart();
    }

    /// Starts another gateway on the same configuration and state.
    pub(crate) fn restart(&mut self) {
        let (child, address, token) = start(self.dir.path(), |_| {});
        self.child = child;
        self.address = address;
        self.token = token;
    }
}

/// Starts a gateway in a directory that holds its configuration, and waits until it serves.
fn start(dir: &Path, more: impl FnOnce(&mut Command)) -> (Child, SocketAddr, String) {
    let mut command = Command::new(bowline());
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
    let (address, token) = address_of(&ready);
    (child, address, token)
}

/// Where a gateway serves, and the token of its owner, by what it says when it does.
fn address_of(ready: &Value) -> (SocketAddr, String) {
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
            signal(self.pid(), "TERM");
            let end = Instant::now() + Duration::from_secs(10);
            while self.child.try_wait().unwrap().is_none() {
                if Instant::now() > end {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Sends a signal to a process that a test started.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}

/// Polls until something holds; for what has no event to wait for.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        // Looks again soon; what is waited for happens in another process.
        last(Duration::from_millis(10));
    }
}

/// One MCP session over one connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) http: Http,
    pub(crate) id: String,
    path: String,
    token: Option<String>,
    next: u64,
}

impl Session {
    pub(crate) fn open(address: SocketAddr, path: &str, token: Option<&str>) -> Self {
        let mut this = Self {
            http: Http::connect(address),
            id: String::new(),
            path: path.to_owned(),
            token: token.map(str::to_owned),
            next: 0,
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

    /// The headers every request of this session carries.
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
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

    pub(crate) fn post(&mut self, message: &Value) -> Response {
        self.post_raw(message.to_string().as_bytes())
    }

    pub(crate) fn post_raw(&mut self, body: &[u8]) -> Response {
        let headers = self.headers();
        let headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let path = self.path.clone();
        self.http.post(&path, &headers, body)
    }

    /// Sends a request and returns the whole JSON-RPC answer.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let id = self.next;
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

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool and returns the text of its first content.
    pub(crate) fn text(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.call(tool, arguments);
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text: {answer}"))
            .to_owned()
    }

    /// Opens the stream of this session on a connection of its own and reads its head.
    pub(crate) fn listen(&self) -> Http {
        let address = self.http.stream.get_ref().peer_addr().unwrap();
        let mut http = Http::connect(address);
        let headers = self.headers();
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        headers.push(("Accept", "text/event-stream"));
        http.send("GET", &self.path, &headers, b"");
        let head = http.read_head();
        assert_eq!(head.status, 200, "{head:?}");
        http
    }
}

pub(crate) mod condition;
pub(crate) mod executor;
mod http_client;
pub(crate) mod listener;
pub(crate) mod modern;
mod more;
pub(crate) mod network;
mod process;
pub(crate) mod served;
pub(crate) mod worker;

pub(crate) use http_client::{Http, Response};
pub(crate) use process::{lives, memory};

/// Lets something last for a while, such as an outage; nothing is waited for by it.
pub(crate) fn last(time: Duration) {
    let (_never, pause) = std::sync::mpsc::channel::<()>();
    let _ = pause.recv_timeout(time);
}
