//! Executors: processes that perform requests and run servers for a gateway.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fixture_server::FixtureServer;
use super::worker::write_private_file;
use super::{Gateway, bowline_binary};
use crate::{send_signal, wait_until};

/// An executor in a separate process and directory.
#[derive(Debug)]
pub struct Executor {
    child: Child,
    dir: TempDir,
    args: Vec<String>,
    /// The ready message.
    pub ready: Value,
}

impl Executor {
    /// Joins a gateway under a name, with a token, a configuration and more arguments.
    pub fn join(gateway: &Gateway, name: &str, token: &str, config: &str, args: &[&str]) -> Self {
        let url = format!("http://{}", gateway.address);
        let all = [&["join", &url, "--name", name], args].concat();
        Self::start(Some(token), config, &all)
    }

    /// Listens on a free port.
    pub fn listen(token: Option<&str>, config: &str, args: &[&str]) -> Self {
        let all = [&["listen", "127.0.0.1:0"], args].concat();
        Self::start(token, config, &all)
    }

    fn start(token: Option<&str>, config: &str, args: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        if let Some(token) = token {
            let file = dir.path().join("token");
            write_private_file(&file, token);
            args.push("--token-file".to_owned());
            args.push(file.display().to_string());
        }
        let (child, ready) = spawn_executor(dir.path(), &args);
        Self {
            child,
            dir,
            args,
            ready,
        }
    }

    /// The token file.
    pub fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.ready["listen"].as_str().unwrap().parse().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the executor with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another executor with the same settings; a listening executor keeps the address.
    pub fn restart(&mut self) {
        if self.ready["listen"].is_string() {
            self.args[1] = self.address().to_string();
        }
        (self.child, self.ready) = spawn_executor(self.dir.path(), &self.args);
    }

    /// Stops the executor in order and returns whether it exited with success.
    pub fn stop(&mut self) -> bool {
        send_signal(self.pid(), "TERM");
        self.wait_for_exit().success()
    }

    /// Waits for the exit.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the command of an executor in a directory.
pub fn executor_command(dir: &Path, args: &[String]) -> Command {
    let mut command = Command::new(bowline_binary());
    command
        .args(["executor"])
        .args(args)
        .arg("--json")
        .arg("--config")
        .arg(dir.join("bowline.toml"))
        .arg("--state")
        .arg(dir.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

fn spawn_executor(dir: &Path, args: &[String]) -> (Child, Value) {
    let mut child = executor_command(dir, args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
    (child, ready)
}

/// Runs an executor with an expected failure, and returns the exit code and error. A ready executor
/// is killed and has no exit code.
pub fn run_failing_executor(token: Option<&str>, args: &[&str]) -> (Option<i32>, Value) {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    if let Some(token) = token {
        let file = dir.path().join("token");
        write_private_file(&file, token);
        args.extend(["--token-file".to_owned(), file.display().to_string()]);
    }
    let mut child = executor_command(dir.path(), &args)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    if !ready.is_empty() {
        child.kill().unwrap();
    }
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let status = child.wait().unwrap();
    let last = said.lines().rfind(|line| line.starts_with("{\"error\""));
    let error = last.map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
    (status.code(), error["error"].clone())
}

impl Gateway {
    /// Creates an executor token of a principal, and returns the text.
    pub fn executor_token(&self, principal: &str) -> String {
        let wanted = json!({"principal": principal, "kind": "executor"});
        self.create_token(&wanted).1
    }

    /// Returns the gateway's status of an executor.
    pub fn executor_status(&self, name: &str) -> Value {
        let listed = self.get_api("/api/v1/executors");
        let found = listed["executors"].as_array().unwrap().iter();
        found
            .clone()
            .find(|one| one["name"] == name)
            .cloned()
            .unwrap_or(Value::Null)
    }

    /// Waits until an executor is connected, or is not.
    pub fn wait_for_executor(&self, name: &str, is_connected: bool) {
        wait_until(&format!("{name} is connected: {is_connected}"), || {
            self.executor_status(name)["connected"] == is_connected
        });
    }
}

/// Returns the configuration of an HTTP server that is reached through an executor.
pub fn executor_server_config(server: &str, served: &FixtureServer, executor: &str) -> String {
    let (url, via) = (json!(served.url), json!(format!("executor:{executor}")));
    format!("[servers.{server}]\nurl = {url}\nvia = {via}\n")
}
