//! The other network: executors there, ours and Codex's, and what runs beside them.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::Peers;
use crate::harness::worker::write_private;
use crate::harness::{Gateway, bowline, eventually, signal};

/// The name under which our executor joins.
pub(crate) const OFFICE: &str = "office";

/// How many requests Codex performs at a time; one, unless it is told otherwise. A stream that is
/// listened to takes one for as long as it is open.
const CODEX_REQUESTS: &str = "64";

/// The native program, relative to the folder of the script that starts it.
const CODEX_NATIVE: &str = "../../codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";

/// The walls of `cargo xtask apart`: this process, the gateway and the clients are on one side.
#[derive(Debug, Clone)]
pub(crate) struct Walls {
    /// The network namespace of the other side.
    far: String,
    /// Where the gateway is found from there: the only thing that is.
    pub(crate) near: SocketAddr,
    /// The address of the other side, at which nobody is found from here.
    pub(crate) beyond: std::net::IpAddr,
}

impl Walls {
    /// Returns the walls, where they were put up.
    pub(crate) fn standing() -> Option<Self> {
        let text = std::env::var("BOWLINE_APART").ok()?;
        let mut words = text.split(',');
        let mut next = || words.next().unwrap();
        Some(Self {
            far: next().to_owned(),
            near: next().parse().unwrap(),
            beyond: next().parse().unwrap(),
        })
    }
}

/// A command that runs on the other side of the walls, or here where there are none.
pub(crate) fn there(program: impl AsRef<Path>, walls: Option<&Walls>) -> Command {
    let Some(walls) = walls else {
        return Command::new(program.as_ref());
    };
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &walls.far])
        .arg(program.as_ref());
    command
}

/// Our executor in its own process; ends when dropped.
#[derive(Debug)]
pub(crate) struct Office {
    child: Child,
    _dir: TempDir,
}

impl Office {
    /// Joins a gateway as its owner's, with a configuration of its own.
    pub(crate) fn join(
        gateway: &Gateway,
        walls: Option<&Walls>,
        allow: &[String],
        config: &str,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        let (token, file) = (dir.path().join("token"), dir.path().join("executor.toml"));
        write_private(&token, &gateway.token);
        std::fs::write(&file, config).unwrap();
        let at = walls.map_or(gateway.address, |walls| walls.near);
        let mut command = there(bowline(), walls);
        command
            .args(["executor", "join", &format!("http://{at}"), "--json"])
            .args(["--name", OFFICE, "--token-file"])
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
        let line = first_line(&mut child);
        let ready: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line: {line:?}"));
        assert_eq!(ready["name"], OFFICE, "{ready}");
        Self { child, _dir: dir }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The exec-server of Codex; ends when dropped.
#[derive(Debug)]
pub(crate) struct Codex {
    child: Child,
    pub(crate) url: String,
    _dir: TempDir,
}

impl Codex {
    /// Starts one on a free port and waits until it is ready.
    pub(crate) fn start(peers: &Peers) -> Self {
        let dir = TempDir::new().unwrap();
        let mut child = program(peers)
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .args(["--concurrent-requests", CODEX_REQUESTS])
            .env("CODEX_HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let url = first_line(&mut child).trim().to_owned();
        let address = url
            .strip_prefix("ws://")
            .and_then(|rest| rest.parse().ok())
            .unwrap_or_else(|| panic!("no address: {url:?}"));
        eventually("codex is ready", || is_ready(address));
        Self {
            child,
            url,
            _dir: dir,
        }
    }

    /// What makes it an executor of this name.
    pub(crate) fn config(&self, name: &str) -> String {
        format!(
            "[executors.{name}]\nurl = {:?}\nprotocol = \"exec-server\"\n",
            self.url
        )
    }
}

impl Drop for Codex {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The native program, so that its process is the one that is ended.
fn program(peers: &Peers) -> Command {
    let script = peers.path("/agents/codex");
    let native: PathBuf = script.parent().unwrap().join(CODEX_NATIVE);
    if native.exists() {
        return Command::new(native);
    }
    let mut command = Command::new(peers.path("/node"));
    command.arg(script);
    command
}

fn is_ready(address: SocketAddr) -> bool {
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

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    line
}

fn end(child: &mut Child) {
    if child.try_wait().unwrap().is_none() {
        signal(child.id(), "TERM");
        child.wait().unwrap();
    }
}
