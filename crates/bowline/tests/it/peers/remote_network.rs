//! The remote network: our executor, Codex, and neighbouring servers.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bowline_testkit::gateway::{Gateway, bowline_binary, write_private_file};
use bowline_testkit::{send_signal, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use super::PeerManifest;

/// The name of our executor.
pub(crate) const EXECUTOR_NAME: &str = "office";

/// Concurrent requests of Codex; the default is 1. An open listen stream occupies a slot
/// permanently.
const CODEX_REQUESTS: &str = "64";

/// The native program, relative to the folder of its start script.
const CODEX_NATIVE: &str = "../../codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";

/// The network split of `cargo xtask netns`: this process, the gateway and the clients are on the
/// near side.
#[derive(Debug, Clone)]
pub(crate) struct NetworkSplit {
    /// The network namespace of the far side.
    far_namespace: String,
    /// The gateway's address from the far side: the only reachable one.
    pub(crate) gateway_address: SocketAddr,
    /// The address of the far side, unreachable from here.
    pub(crate) far_address: std::net::IpAddr,
}

impl NetworkSplit {
    /// Returns the split, if set up.
    pub(crate) fn from_env() -> Option<Self> {
        let text = std::env::var("BOWLINE_APART").ok()?;
        let mut words = text.split(',');
        let mut next = || words.next().unwrap();
        Some(Self {
            far_namespace: next().to_owned(),
            gateway_address: next().parse().unwrap(),
            far_address: next().parse().unwrap(),
        })
    }
}

/// A command that runs on the far side, or here without a split.
pub(crate) fn remote_command(program: impl AsRef<Path>, walls: Option<&NetworkSplit>) -> Command {
    let Some(walls) = walls else {
        return Command::new(program.as_ref());
    };
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &walls.far_namespace])
        .arg(program.as_ref());
    command
}

/// Our executor in a separate process; ends when dropped.
#[derive(Debug)]
pub(crate) struct RemoteExecutor {
    child: Child,
    _dir: TempDir,
}

impl RemoteExecutor {
    /// Joins a gateway as the owner's executor, with its own configuration.
    pub(crate) fn join(
        gateway: &Gateway,
        walls: Option<&NetworkSplit>,
        allow: &[String],
        config: &str,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let (token, file) = (dir.path().join("token"), dir.path().join("executor.toml"));
        write_private_file(&token, &gateway.token);
        std::fs::write(&file, config).unwrap();
        let at = walls.map_or(gateway.address, |walls| walls.gateway_address);
        let mut command = remote_command(bowline_binary(), walls);
        command
            .args(["executor", "join", &format!("http://{at}"), "--json"])
            .args(["--name", EXECUTOR_NAME, "--token-file"])
            .arg(&token)
            .arg("--config")
            .arg(&file);
        for allow in allow {
            command.args(["--allow", allow]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = read_first_line(&mut child);
        let ready: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
        assert_eq!(ready["name"], EXECUTOR_NAME, "{ready}");
        Self { child, _dir: dir }
    }
}

impl Drop for RemoteExecutor {
    fn drop(&mut self) {
        kill_and_wait(&mut self.child);
    }
}

/// The exec-server of Codex; ends when dropped.
#[derive(Debug)]
pub(crate) struct RemoteCodex {
    child: Child,
    pub(crate) url: String,
    _dir: TempDir,
}

impl RemoteCodex {
    /// Starts an exec-server on a free port and waits until it is ready.
    pub(crate) fn start(peers: &PeerManifest) -> Self {
        let dir = TempDir::new().unwrap();
        let mut child = native_codex(peers)
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .args(["--concurrent-requests", CODEX_REQUESTS])
            .env("CODEX_HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let url = read_first_line(&mut child).trim().to_owned();
        let address = url
            .strip_prefix("ws://")
            .and_then(|rest| rest.parse().ok())
            .unwrap_or_else(|| panic!("no address: {url:?}"));
        wait_until("codex is ready", || responds_ready(address));
        Self {
            child,
            url,
            _dir: dir,
        }
    }

    /// The config entry of an executor of this name.
    pub(crate) fn executor_config(&self, name: &str) -> String {
        format!(
            "[executors.{name}]\nurl = {:?}\nprotocol = \"exec-server\"\n",
            self.url
        )
    }
}

impl Drop for RemoteCodex {
    fn drop(&mut self) {
        kill_and_wait(&mut self.child);
    }
}

/// The native program, so the test ends the right process.
fn native_codex(peers: &PeerManifest) -> Command {
    let script = peers.peer_path("/agents/codex");
    let native: PathBuf = script.parent().unwrap().join(CODEX_NATIVE);
    if native.exists() {
        return Command::new(native);
    }
    let mut command = Command::new(peers.peer_path("/node"));
    command.arg(script);
    command
}

fn responds_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        let head = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    };
    ask().is_ok_and(|said| said.starts_with("HTTP/1.1 200"))
}

fn read_first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    line
}

fn kill_and_wait(child: &mut Child) {
    if child.try_wait().unwrap().is_none() {
        send_signal(child.id(), "TERM");
        child.wait().unwrap();
    }
}
