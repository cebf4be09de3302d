//! The config file of the current directory: a repository may bring it, a person must trust it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{bowline, fixture};

const LISTEN: &str = "[gateway]\nlisten = \"127.0.0.1:0\"\n";

/// A user with an empty config file, in a repository that brings a config file of its own.
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
        this.write("evil");
        this
    }

    /// Writes the file of the repository, with one server of this name.
    fn write(&self, server: &str) {
        let text = format!("{LISTEN}{}", fixture(server, &[]));
        std::fs::write(self.repository.path().join("bowline.toml"), text).unwrap();
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(bowline());
        command
            .args(args)
            .current_dir(self.repository.path())
            .env("HOME", self.home.path())
            .env("XDG_CONFIG_HOME", self.home.path().join("config"))
            .env("BOWLINE_STATE", self.state());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{args:?}: {error}: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// The names of the servers that `check` and a running `up` know.
    fn checked(&self) -> Vec<String> {
        names(&self.json(&["check", "--json"]))
    }

    fn up(&self) -> Up {
        let mut child = self
            .command(&["up", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut ready).unwrap();
        assert!(ready.contains("\"ready\""), "{ready}");
        Up(child)
    }

    fn served(&self) -> Vec<String> {
        names(&self.json(&["ls", "--json"]))
    }
}

/// A gateway that ends with its test.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn names(answer: &Value) -> Vec<String> {
    let servers = answer["servers"].as_array().unwrap();
    let names = servers.iter().map(|server| server["name"].as_str());
    names.map(|name| name.unwrap().to_owned()).collect()
}

#[test]
fn sec_100_untrusted_directory_config_is_not_read() {
    let repository = Repository::new();
    let none: [&str; 0] = [];
    assert_eq!(repository.checked(), none);
    let said = repository.run(&["check"]).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("bowline trust ."), "{said}");
    {
        let _up = repository.up();
        assert_eq!(repository.served(), none);
    }

    let trusted = repository.json(&["trust", "--json"]);
    let path = repository.repository.path().canonicalize().unwrap();
    assert_eq!(trusted["trusted"], json!(path));
    assert_eq!(repository.checked(), ["evil"]);

    // A file that is named needs no trust, and trust can be taken back.
    repository.write("other");
    assert_eq!(repository.checked(), none);
    let named = repository.json(&["check", "--config", "bowline.toml", "--json"]);
    assert_eq!(names(&named), ["other"]);
    assert!(repository.run(&["trust", "."]).status.success());
    assert_eq!(repository.checked(), ["other"]);
    assert!(repository.run(&["trust", "--revoke", "."]).status.success());
    assert_eq!(repository.checked(), none);
    let twice = repository.run(&["trust", "--revoke", "."]);
    assert_eq!(twice.status.code(), Some(2));
}

#[test]
fn sec_100_client_start_ignores_directory_config() {
    let repository = Repository::new();
    assert!(repository.run(&["trust"]).status.success());
    let mut shim = repository
        .command(&["stdio"])
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
    let served = repository.served();
    end_gateway(&repository.state());
    drop(input);
    let _ = shim.kill();
    let _ = shim.wait();
    assert_eq!(served, none, "a client started what a repository says");
}

/// Ends the gateway that a shim started in the background.
fn end_gateway(state: &Path) {
    let run = std::fs::read(state.join("run.json")).unwrap();
    let run: Value = serde_json::from_slice(&run).unwrap();
    let pid = u32::try_from(run["pid"].as_u64().unwrap()).unwrap();
    crate::harness::signal(pid, "TERM");
}

#[test]
fn sec_100_changed_trusted_file_is_not_reloaded() {
    let repository = Repository::new();
    repository.write("first");
    assert!(repository.run(&["trust"]).status.success());
    let _up = repository.up();
    assert_eq!(repository.served(), ["first"]);
    repository.write("second");
    let refused = repository.run(&["reload"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(said.contains("bowline trust "), "{said}");
    assert_eq!(repository.served(), ["first"]);
    assert!(repository.run(&["trust"]).status.success());
    assert!(repository.run(&["reload"]).status.success());
    assert_eq!(repository.served(), ["second"]);
}
