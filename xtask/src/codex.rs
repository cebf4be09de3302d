//! The exec-server of Codex, started where the peers hold it and ended by its process id.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{peers, process};

const READY_SECONDS_MAX: u64 = 30;
const STOP_SECONDS_MAX: u64 = 6;
const LOOK: Duration = Duration::from_millis(25);

/// The native program, relative to the folder of the script that starts it.
const NATIVE: &str = "../../codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";

/// A running exec-server, to be ended by whoever has it.
#[derive(Debug)]
pub(crate) struct Codex {
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
}

impl Codex {
    /// Starts one on a free port of this machine that performs so many requests at a time.
    pub(crate) fn start(root: &Path, folder: &Path, concurrent: usize) -> Result<Self> {
        let mut command = program(root)?;
        fs::create_dir_all(folder)?;
        command
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .args(["--concurrent-requests", &concurrent.to_string()])
            .env("CODEX_HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("stderr"))?);
        let mut child = command.spawn().context("could not start codex")?;
        let ready = process::ready_line(&mut child, READY_SECONDS_MAX)
            .and_then(|line| address(&line))
            .and_then(|address| wait_until_ready(address).map(|()| address));
        match ready {
            Ok(address) => Ok(Self { address, child }),
            Err(error) => {
                process::end(&mut child, STOP_SECONDS_MAX);
                let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                bail!("codex exec-server: {error:#}; it said: {}", said.trim())
            }
        }
    }
}

/// The native program, so that its process is the one that works; its script where that is not
/// where it used to be.
fn program(root: &Path) -> Result<Command> {
    let text = fs::read_to_string(peers::file(root)).context("run `cargo xtask peers`")?;
    let all: Value = serde_json::from_str(&text).context("read peers.json")?;
    let place = |key: &str| {
        let place = all.pointer(key).and_then(Value::as_str).map(PathBuf::from);
        place.with_context(|| format!("no peer {key}"))
    };
    let script = place("/agents/codex")?;
    let native = script.parent().map(|folder| folder.join(NATIVE));
    if let Some(native) = native.filter(|native| native.exists()) {
        return Ok(Command::new(native));
    }
    let mut command = Command::new(place("/node")?);
    command.arg(script);
    Ok(command)
}

/// `ws://127.0.0.1:46297`
fn address(line: &str) -> Result<SocketAddr> {
    let rest = line.trim().strip_prefix("ws://");
    let rest = rest.with_context(|| format!("no address: {line:?}"))?;
    rest.parse()
        .with_context(|| format!("no address: {rest:?}"))
}

/// Waits until `/readyz` says that it is.
fn wait_until_ready(address: SocketAddr) -> Result<()> {
    let start = process::now();
    let mut said = String::new();
    while start.elapsed().as_secs() < READY_SECONDS_MAX {
        said = ask(address).unwrap_or_else(|error| format!("{error:#}"));
        if said.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    bail!("never ready: {}", said.lines().next().unwrap_or_default())
}

fn ask(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let head = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_first_line_is_its_address() {
        let wanted = SocketAddr::from(([127, 0, 0, 1], 46_297));
        assert_eq!(address("ws://127.0.0.1:46297\n").unwrap(), wanted);
        assert!(address("listening").is_err());
    }
}
