//! Workers: gateways that joined a hub.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Gateway, address_of, bowline, start};

/// A worker in its own process and directory.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) gateway: Gateway,
    /// What it said when it served.
    pub(crate) ready: Value,
    args: Vec<String>,
}

impl Worker {
    /// Joins a hub with a token of it, a configuration and more arguments.
    pub(crate) fn join(hub: &Gateway, token: &str, config: &str, args: &[&str]) -> Self {
        let url = format!("http://{}", hub.address);
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        write_private(&dir.path().join("hub.token"), token);
        let mut all = vec![url];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let (child, ready) = launch(command(dir.path(), &all));
        let (address, token) = address_of(&ready);
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

    /// Starts it again on the same configuration and state.
    pub(crate) fn restart(&mut self) {
        let (child, ready) = launch(command(self.gateway.dir.path(), &self.args));
        (self.gateway.address, self.gateway.token) = address_of(&ready);
        self.gateway.child = child;
        self.ready = ready;
    }

    /// The file with the token of its hub.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.gateway.dir.path().join("hub.token")
    }

    /// Waits until a tool of this visible name is listed, or is not any more.
    pub(crate) fn until_tool(&self, tool: &str, is_there: bool) {
        super::eventually(&format!("{tool} is there: {is_there}"), || {
            let tools = self.gateway.session("/mcp").tools();
            tools.iter().any(|name| name == tool) == is_there
        });
    }
}

impl Gateway {
    /// Starts another gateway on the same configuration and state that is found where this one
    /// was.
    pub(crate) fn restart_there(&mut self) {
        let there = self.address.to_string();
        let (child, _elsewhere, token) = start(self.dir.path(), |command| {
            command.args(["--listen", &there]);
        });
        self.child = child;
        self.token = token;
    }

    /// Makes a token of a principal in a role and returns its text.
    pub(crate) fn token_for(&self, principal: &str, role: &str) -> String {
        let wanted = json!({"principal": principal, "role": role});
        self.token_of(&wanted).1
    }

    /// Writes another configuration, and has it applied.
    pub(crate) fn reconfigure(&self, config: &str) {
        std::fs::write(self.dir.path().join("bowline.toml"), config).unwrap();
        let applied = self.cli(&["reload", "--json"]);
        assert!(applied.status.success(), "{applied:?}");
    }
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns the command of a worker in a directory.
pub(crate) fn command(dir: &Path, args: &[String]) -> Command {
    let mut command = Command::new(bowline());
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

fn launch(mut command: Command) -> (Child, Value) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
    (child, ready)
}
