//! Hub and worker processes that can be killed and restarted with the same address and state.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{blocking_client::BlockingClient, process};

const READY_SECONDS_MAX: u64 = 60;
const STOP_SECONDS_MAX: u64 = 10;

/// A gateway that keeps its state across kills; dropping terminates the process.
#[derive(Debug)]
pub(crate) struct RestartableGateway {
    name: &'static str,
    /// Program and arguments.
    command_line: Vec<OsString>,
    folder: PathBuf,
    child: Child,
    pub(crate) token: String,
}

impl RestartableGateway {
    /// Starts the program named by `command` and waits for the ready line.
    pub(crate) fn start(name: &'static str, folder: &Path, command: &Command) -> Result<Self> {
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let words: Vec<OsString> = words.map(OsString::from).collect();
        let (child, ready) = spawn_until_ready(name, folder, &words)?;
        let file = ready.get("token_file").and_then(Value::as_str);
        let file = file.with_context(|| format!("{name}: no token file in {ready}"))?;
        let token = fs::read_to_string(file).context("read the token file")?;
        Ok(Self {
            name,
            command_line: words,
            folder: folder.to_owned(),
            child,
            token: token.trim().to_owned(),
        })
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the process and starts a new one with the same command line.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.kill();
        let (child, _) = spawn_until_ready(self.name, &self.folder, &self.command_line)?;
        self.child = child;
        Ok(())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(log_path(&self.folder, self.name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(10);
        lines.get(from..).unwrap_or_default().join("\n")
    }
}

impl Drop for RestartableGateway {
    fn drop(&mut self) {
        process::terminate(&mut self.child, STOP_SECONDS_MAX);
    }
}

fn log_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.stderr"))
}

fn spawn_until_ready(name: &str, folder: &Path, words: &[OsString]) -> Result<(Child, Value)> {
    let [program, rest @ ..] = words else {
        bail!("{name}: no program");
    };
    let file = log_path(folder, name);
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)?;
    // With `setpriv` the child is terminated if this process dies.
    let mut command = match process::run_captured(Command::new("setpriv").arg("--version")) {
        Ok(_) => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "TERM", "--"]).arg(program);
            command
        }
        Err(_) => Command::new(program),
    };
    command
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command
        .stderr(log)
        .spawn()
        .with_context(|| format!("could not start the {name}"))?;
    let ready = process::read_ready_line(&mut child, READY_SECONDS_MAX)
        .and_then(|line| serde_json::from_str(&line).context("no ready line"));
    match ready {
        Ok(ready) => Ok((child, ready)),
        Err(error) => {
            process::terminate(&mut child, STOP_SECONDS_MAX);
            let text = fs::read_to_string(file).unwrap_or_default();
            bail!("{name}: {error:#}; it said: {}", text.trim())
        }
    }
}

/// Creates a token for a principal.
pub(crate) fn create_token(
    at: SocketAddr,
    owner: &str,
    principal: &str,
    role: &str,
) -> Result<String> {
    let wanted = json!({"principal": principal, "role": role});
    let made = BlockingClient::connect(at, owner)?.call_api_with_body(
        "POST",
        "/api/v1/tokens",
        &wanted,
    )?;
    let token = made.get("token").and_then(Value::as_str);
    Ok(token
        .with_context(|| format!("no token: {made}"))?
        .to_owned())
}

/// Returns the configuration of a fixture with the given ledger.
pub(crate) fn fixture_config(name: &str, binary: &Path, ledger: &Path) -> String {
    // The ledger is beside the config file, where the sandbox forbids a server to create files.
    let _made = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(ledger);
    let args = json!(["--toolset", "writes", "--ledger", ledger]);
    format!(
        "[servers.{name}]\ncommand = {}\nargs = {args}\n",
        json!(process::fixture_binary(binary))
    )
}
