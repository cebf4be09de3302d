//! Codex's exec-server as a child process, started from the pinned test peers.

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
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Path of the native program relative to the folder of the start script.
const NATIVE: &str = "../../codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";

/// A running exec-server; the owner of `child` must terminate the process.
#[derive(Debug)]
pub(crate) struct CodexProcess {
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
}

impl CodexProcess {
    /// Starts an exec-server on a free port with the given limit of concurrent requests.
    pub(crate) fn start(root: &Path, folder: &Path, concurrent: usize) -> Result<Self> {
        let mut command = find_program(root)?;
        fs::create_dir_all(folder)?;
        command
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .args(["--concurrent-requests", &concurrent.to_string()])
            .env("CODEX_HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("stderr"))?);
        let mut child = command.spawn().context("could not start codex")?;
        let ready = process::read_ready_line(&mut child, READY_SECONDS_MAX)
            .and_then(|line| parse_address(&line))
            .and_then(|address| wait_until_ready(address).map(|()| address));
        match ready {
            Ok(address) => Ok(Self { address, child }),
            Err(error) => {
                process::terminate(&mut child, STOP_SECONDS_MAX);
                let log = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                bail!("codex exec-server: {error:#}; it said: {}", log.trim())
            }
        }
    }
}

/// Returns the native program, so that the child's pid is the working process; falls back to the
/// script if the native program is not at the expected path.
fn find_program(root: &Path) -> Result<Command> {
    let text = fs::read_to_string(peers::peers_file(root)).context("run `cargo xtask peers`")?;
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
fn parse_address(line: &str) -> Result<SocketAddr> {
    let rest = line.trim().strip_prefix("ws://");
    let rest = rest.with_context(|| format!("no address: {line:?}"))?;
    rest.parse()
        .with_context(|| format!("no address: {rest:?}"))
}

/// Waits until `/readyz` returns 200.
fn wait_until_ready(address: SocketAddr) -> Result<()> {
    let start = process::now();
    let mut response = String::new();
    while start.elapsed().as_secs() < READY_SECONDS_MAX {
        response = request_readiness(address).unwrap_or_else(|error| format!("{error:#}"));
        if response.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    bail!(
        "never ready: {}",
        response.lines().next().unwrap_or_default()
    )
}

fn request_readiness(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let head = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_is_listen_address() {
        let wanted = SocketAddr::from(([127, 0, 0, 1], 46_297));
        assert_eq!(parse_address("ws://127.0.0.1:46297\n").unwrap(), wanted);
        assert!(parse_address("listening").is_err());
    }
}
