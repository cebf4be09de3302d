//! The config file of the current directory: a repository may contain a file, a person must trust
//! the file.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use bowline_testkit::gateway::{bowline_binary, fixture_config};
use bowline_testkit::send_signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const LISTEN: &str = "[gateway]\nlisten = \"127.0.0.1:0\"\n";

/// A user with an empty config file, in a repository with its own config file.
struct Repository {
    home: TempDir,
    repository: TempDir,
}

impl Repository {
    fn new() -> Self {
        let (home, repository) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let config = home.path().join("config/bowline");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("bowline.toml"), LISTEN).unwrap();
        let this = Self { home, repository };
        this.write_config("evil");
        this
    }

    /// Writes the repository's file, with one server of this name.
    fn write_config(&self, server: &str) {
        let text = format!("{LISTEN}{}", fixture_config(server, &[]));
        std::fs::write(self.repository.path().join("bowline.toml"), text).unwrap();
    }

    fn state_dir(&self) -> PathBuf {
        self.home.path().join("state")
    }

    fn bowline_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(bowline_binary());
        command
            .args(args)
            .current_dir(self.repository.path())
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.home.path().join("config"))
            .env("BOWLINE_STATE", self.state_dir());
        command
    }

    fn run_command(&self, args: &[&str]) -> Output {
        self.bowline_command(args).output().unwrap()
    }

    fn run_json(&self, args: &[&str]) -> Value {
        let output = self.run_command(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{args:?}: {error}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// The server names known to `check` and to a running `up`.
    fn check_names(&self) -> Vec<String> {
        server_names(&self.run_json(&["check", "--json"]))
    }

    fn start_up(&self) -> GatewayChild {
        let mut child = self
            .bowline_command(&["up", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut ready).unwrap();
        assert!(ready.contains("\"ready\""), "{ready}");
        GatewayChild(child)
    }

    fn served_names(&self) -> Vec<String> {
        server_names(&self.run_json(&["ls", "--json"]))
    }
}

/// A gateway process; killed when dropped.
struct GatewayChild(Child);

impl Drop for GatewayChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server_names(answer: &Value) -> Vec<String> {
    let servers = answer["servers"].as_array().unwrap();
    let names = servers.iter().map(|server| server["name"].as_str());
    names.map(|name| name.unwrap().to_owned()).collect()
}

#[test]
fn sec_100_untrusted_directory_config_is_not_read() {
    let repository = Repository::new();
    let none: [&str; 0] = [];
    assert_eq!(repository.check_names(), none);
    let said = repository.run_command(&["check"]).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("bowline trust ."), "{said}");
    {
        let _up = repository.start_up();
        assert_eq!(repository.served_names(), none);
    }

    let trusted = repository.run_json(&["trust", "--json"]);
    let path = repository.repository.path().canonicalize().unwrap();
    assert_eq!(trusted["trusted"], json!(path));
    assert_eq!(repository.check_names(), ["evil"]);

    // A file named on the command line needs no trust, and trust can be revoked.
    repository.write_config("other");
    assert_eq!(repository.check_names(), none);
    let named = repository.run_json(&["check", "--config", "bowline.toml", "--json"]);
    assert_eq!(server_names(&named), ["other"]);
    assert!(repository.run_command(&["trust", "."]).status.success());
    assert_eq!(repository.check_names(), ["other"]);
    assert!(
        repository
            .run_command(&["trust", "--revoke", "."])
            .status
            .success()
    );
    assert_eq!(repository.check_names(), none);
    let twice = repository.run_command(&["trust", "--revoke", "."]);
    assert_eq!(twice.status.code(), Some(2));
}

#[test]
fn sec_100_client_start_ignores_directory_config() {
    let repository = Repository::new();
    assert!(repository.run_command(&["trust"]).status.success());
    let mut shim = repository
        .bowline_command(&["stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "it", "version": "1"},
        },
    });
    let mut input = shim.stdin.take().unwrap();
    writeln!(input, "{hello}").unwrap();
    let mut answer = String::new();
    let mut output = BufReader::new(shim.stdout.take().unwrap());
    output.read_line(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
    let none: [&str; 0] = [];
    let served = repository.served_names();
    stop_gateway(&repository.state_dir());
    drop(input);
    let _ = shim.kill();
    let _ = shim.wait();
    assert_eq!(served, none, "a client started what a repository says");
}

/// Stops the gateway that a shim started in the background.
fn stop_gateway(state: &Path) {
    let run = std::fs::read(state.join("run.json")).unwrap();
    let run: Value = serde_json::from_slice(&run).unwrap();
    let pid = u32::try_from(run["pid"].as_u64().unwrap()).unwrap();
    send_signal(pid, "TERM");
}

#[test]
fn sec_100_changed_trusted_file_is_not_reloaded() {
    let repository = Repository::new();
    repository.write_config("first");
    assert!(repository.run_command(&["trust"]).status.success());
    let _up = repository.start_up();
    assert_eq!(repository.served_names(), ["first"]);
    repository.write_config("second");
    let refused = repository.run_command(&["reload"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(said.contains("bowline trust "), "{said}");
    assert_eq!(repository.served_names(), ["first"]);
    assert!(repository.run_command(&["trust"]).status.success());
    assert!(repository.run_command(&["reload"]).status.success());
    assert_eq!(repository.served_names(), ["second"]);
}
