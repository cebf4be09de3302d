//! Executors: processes that perform requests and run servers for a gateway.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::served::Served;
use super::worker::write_private;
use super::{Gateway, bowline, eventually, signal};

/// An executor in its own process and directory.
#[derive(Debug)]
pub(crate) struct Executor {
    child: Child,
    dir: TempDir,
    args: Vec<String>,
    /// What it said when it was ready.
    pub(crate) ready: Value,
}

impl Executor {
    /// Joins a gateway under a name, with a token, a configuration and more arguments.
    pub(crate) fn join(
        gateway: &Gateway,
        (name, token): (&str, &str),
        config: &str,
        args: &[&str],
    ) -> Self {
        let url = format!("http://{}", gateway.address);
        let all = [&["join", &url, "--name", name], args].concat();
        Self::start(Some(token), config, &all)
    }

    /// Listens on a free port.
    pub(crate) fn listen(token: Option<&str>, config: &str, args: &[&str]) -> Self {
        let all = [&["listen", "127.0.0.1:0"], args].concat();
        Self::start(token, config, &all)
    }

    fn start(token: Option<&str>, config: &str, args: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        if let Some(token) = token {
            let file = dir.path().join("token");
            write_private(&file, token);
            args.push("--token-file".to_owned());
            args.push(file.display().to_string());
        }
        let (child, ready) = launch(dir.path(), &args);
        Self {
            child,
            dir,
            args,
            ready,
        }
    }

    /// The file with its token.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.ready["listen"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as the kernel would, without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another one of the same kind; one that listens does so where it did.
    pub(crate) fn restart(&mut self) {
        if self.ready["listen"].is_string() {
            self.args[1] = self.address().to_string();
        }
        (self.child, self.ready) = launch(self.dir.path(), &self.args);
    }

    /// Stops it in order and returns whether it exited well.
    pub(crate) fn stop(&mut self) -> bool {
        signal(self.pid(), "TERM");
        self.wait().success()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
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
pub(crate) fn command(dir: &Path, args: &[String]) -> Command {
    let mut command = Command::new(bowline());
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

fn launch(dir: &Path, args: &[String]) -> (Child, Value) {
    let mut child = command(dir, args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
    (child, ready)
}

/// Tries to be an executor, and returns its exit code and what it says of its failure. One that
/// becomes ready is killed and has no exit code.
pub(crate) fn fails(token: Option<&str>, args: &[&str]) -> (Option<i32>, Value) {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    if let Some(token) = token {
        let file = dir.path().join("token");
        write_private(&file, token);
        args.extend(["--token-file".to_owned(), file.display().to_string()]);
    }
    let mut child = command(dir.path(), &args)
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
    /// Makes a token with which a principal joins as an executor, and returns its text.
    pub(crate) fn executor_token(&self, principal: &str) -> String {
        let wanted = json!({"principal": principal, "kind": "executor"});
        self.token_of(&wanted).1
    }

    /// Returns what the gateway says of an executor.
    pub(crate) fn executor(&self, name: &str) -> Value {
        let listed = self.api("/api/v1/executors");
        let found = listed["executors"].as_array().unwrap().iter();
        found
            .clone()
            .find(|one| one["name"] == name)
            .cloned()
            .unwrap_or(Value::Null)
    }

    /// Waits until an executor is connected, or is not.
    pub(crate) fn until_executor(&self, name: &str, is_connected: bool) {
        eventually(&format!("{name} is connected: {is_connected}"), || {
            self.executor(name)["connected"] == is_connected
        });
    }
}

/// Returns the configuration of a server over HTTP that is reached through an executor.
pub(crate) fn through(server: &str, served: &Served, executor: &str) -> String {
    let (url, via) = (json!(served.url), json!(format!("executor:{executor}")));
    format!("[servers.{server}]\nurl = {url}\nvia = {via}\n")
}
