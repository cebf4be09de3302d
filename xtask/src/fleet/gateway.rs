//! The hub and the worker: started, killed and started again at the same place.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{client::Client, process};

const READY_SECONDS_MAX: u64 = 60;
const STOP_SECONDS_MAX: u64 = 10;

/// A gateway that can be killed and comes back with its state; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Gateway {
    name: &'static str,
    /// The program and its words.
    words: Vec<OsString>,
    folder: PathBuf,
    child: Child,
    pub(crate) token: String,
}

impl Gateway {
    /// Starts the program that `command` names and waits until it says that it is ready.
    pub(crate) fn start(name: &'static str, folder: &Path, command: &Command) -> Result<Self> {
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let words: Vec<OsString> = words.map(OsString::from).collect();
        let (child, ready) = spawn(name, folder, &words)?;
        let file = ready.get("token_file").and_then(Value::as_str);
        let file = file.with_context(|| format!("{name}: no token file in {ready}"))?;
        let token = fs::read_to_string(file).context("read the token file")?;
        Ok(Self {
            name,
            words,
            folder: folder.to_owned(),
            child,
            token: token.trim().to_owned(),
        })
    }

    /// Kills it without a warning.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, where it was.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.kill();
        let (child, _) = spawn(self.name, &self.folder, &self.words)?;
        self.child = child;
        Ok(())
    }

    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The last words of its log.
    pub(crate) fn said(&self) -> String {
        let text = fs::read_to_string(log(&self.folder, self.name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(10);
        lines.get(from..).unwrap_or_default().join("\n")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        process::end(&mut self.child, STOP_SECONDS_MAX);
    }
}

fn log(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.stderr"))
}

fn spawn(name: &str, folder: &Path, words: &[OsString]) -> Result<(Child, Value)> {
    let [program, rest @ ..] = words else {
        bail!("{name}: no program");
    };
    let file = log(folder, name);
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)?;
    // Whatever becomes of us, it does not stay behind, where there is a way to see to that.
    let mut command = match process::quiet(Command::new("setpriv").arg("--version")) {
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
    let ready = process::ready_line(&mut child, READY_SECONDS_MAX)
        .and_then(|line| serde_json::from_str(&line).context("no ready line"));
    match ready {
        Ok(ready) => Ok((child, ready)),
        Err(error) => {
            process::end(&mut child, STOP_SECONDS_MAX);
            let said = fs::read_to_string(file).unwrap_or_default();
            bail!("{name}: {error:#}; it said: {}", said.trim())
        }
    }
}

/// Makes a credential.
pub(crate) fn token(at: SocketAddr, owner: &str, principal: &str, role: &str) -> Result<String> {
    let wanted = json!({"principal": principal, "role": role});
    let made = Client::connect(at, owner)?.tell("POST", "/api/v1/tokens", &wanted)?;
    let token = made.get("token").and_then(Value::as_str);
    Ok(token
        .with_context(|| format!("no token: {made}"))?
        .to_owned())
}

/// The configuration of one fixture whose ledger is this file.
pub(crate) fn fixture(name: &str, binary: &Path, ledger: &Path) -> String {
    // It stands beside a config file, where the sandbox lets a server make no file of its own.
    let _made = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(ledger);
    let args = json!(["fixture", "--toolset", "writes", "--ledger", ledger]);
    format!(
        "[servers.{name}]\ncommand = {}\nargs = {args}\n",
        json!(binary)
    )
}
