//! Workers: gateways joined to a hub.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Gateway, bowline_binary, parse_ready, spawn_gateway};
use crate::wait_until;

/// A worker in a separate process and directory.
#[derive(Debug)]
pub struct Worker {
    pub gateway: Gateway,
    /// The ready message.
    pub ready: Value,
    args: Vec<String>,
}

impl Worker {
    /// Joins a hub with a token, a configuration and more arguments.
    pub fn join(hub: &Gateway, token: &str, config: &str, args: &[&str]) -> Self {
        let url = format!("http://{}", hub.address);
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        write_private_file(&dir.path().join("hub.token"), token);
        let mut all = vec![url];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let (child, ready) = spawn_worker(worker_command(dir.path(), &all));
        let (address, token) = parse_ready(&ready);
        Self {
            gateway: Gateway {
                child,
                dir,
                address,
                token,
            },
            ready,
            args: all,
        }
    }

    /// Starts the worker again on the same configuration and state.
    pub fn restart(&mut self) {
        let (child, ready) = spawn_worker(worker_command(self.gateway.dir.path(), &self.args));
        (self.gateway.address, self.gateway.token) = parse_ready(&ready);
        self.gateway.child = child;
        self.ready = ready;
    }

    /// The file with the hub's token.
    pub fn token_file(&self) -> PathBuf {
        self.gateway.dir.path().join("hub.token")
    }

    /// Waits until a tool of this visible name is listed, or is not.
    pub fn wait_for_tool(&self, tool: &str, is_there: bool) {
        wait_until(&format!("{tool} is there: {is_there}"), || {
            let tools = self.gateway.open_session("/mcp").list_tool_names();
            tools.iter().any(|name| name == tool) == is_there
        });
    }
}

impl Gateway {
    /// Starts another gateway on the same configuration, state and address.
    pub fn restart_same_address(&mut self) {
        let there = self.address.to_string();
        let (child, _elsewhere, token) = spawn_gateway(self.dir.path(), |command| {
            command.args(["--listen", &there]);
        });
        self.child = child;
        self.token = token;
    }

    /// Creates a token of a principal in a role and returns the text.
    pub fn create_role_token(&self, principal: &str, role: &str) -> String {
        let wanted = json!({"principal": principal, "role": role});
        self.create_token(&wanted).1
    }

    /// Writes and reloads another configuration.
    pub fn reconfigure(&self, config: &str) {
        std::fs::write(self.dir.path().join("bowline.toml"), config).unwrap();
        let applied = self.run_cli(&["reload", "--json"]);
        assert!(applied.status.success(), "{applied:?}");
    }
}

/// Writes a file with mode 600.
pub fn write_private_file(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns the command of a worker in a directory.
pub fn worker_command(dir: &Path, args: &[String]) -> Command {
    let mut command = Command::new(bowline_binary());
    command
        .args(["worker", "join", "--json"])
        .args(args)
        .arg("--token-file")
        .arg(dir.join("hub.token"))
        .arg("--config")
        .arg(dir.join("bowline.toml"))
        .arg("--state")
        .arg(dir.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

fn spawn_worker(mut command: Command) -> (Child, Value) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
    (child, ready)
}
