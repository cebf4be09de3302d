//! The same server reached by a gateway in five ways.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::{CODEX, DIRECT, JOINED, OURS, RELAY};
use crate::{
    bench::{
        target::{self, Beside, Target},
        tools::Tools,
    },
    codex::Codex,
    process,
};

const READY_SECONDS_MAX: u64 = 20;

/// How many requests Codex performs at a time; one, unless it is told otherwise.
pub(super) const CODEX_REQUESTS: usize = 64;

/// Nothing between the gateway and the backend.
pub(super) fn direct(tools: &Tools) -> Result<Target> {
    let behind = target::direct(tools)?;
    let config = format!("[servers.b]\nurl = {:?}\n", behind.url);
    Ok(
        target::started(tools, "direct", &config, Some(Box::new(behind)))?
            .named(DIRECT, Vec::new()),
    )
}

/// Through two processes that only carry bytes.
pub(super) fn relay(tools: &Tools) -> Result<Target> {
    let behind = target::direct(tools)?;
    let (near, beside) = relays(tools, &authority(&behind.url))?;
    let config = format!("[servers.b]\nurl = \"http://{near}/mcp\"\n");
    let target = target::started(tools, "relay", &config, Some(Box::new(behind)))?;
    Ok(target.named(RELAY, beside))
}

/// Through an executor that the gateway dials.
pub(super) fn dialled(tools: &Tools) -> Result<Target> {
    let behind = target::direct(tools)?;
    let (address, executor) = listening(tools, &authority(&behind.url))?;
    let there = format!("[executors.office]\nurl = \"ws://{address}\"\n");
    via(tools, OURS, "office", &there, behind, vec![executor])
}

/// Through the exec-server of Codex, which the gateway dials.
pub(super) fn codex(tools: &Tools) -> Result<Target> {
    let behind = target::direct(tools)?;
    let codex = Codex::start(&tools.root, &tools.folder("codex-home")?, CODEX_REQUESTS)?;
    let there = format!(
        "[executors.codex]\nurl = \"ws://{}\"\nprotocol = \"exec-server\"\n",
        codex.address
    );
    via(tools, CODEX, "codex", &there, behind, vec![codex.into()])
}

/// Through an executor that dials the gateway. It can only join one that is there, so that the
/// first right call waits for it.
pub(super) fn joined(tools: &Tools) -> Result<Target> {
    let behind = target::direct(tools)?;
    let allow = authority(&behind.url);
    let config = format!(
        "[servers.b]\nurl = {:?}\nvia = \"executor:office\"\n",
        behind.url
    );
    let prepared = target::prepare(tools, "joined", &config)?;
    let mut command = Command::new(&tools.bowline);
    command.args([
        "executor",
        "join",
        &format!("http://127.0.0.1:{}", prepared.port),
    ]);
    command.args(["--name", "office", "--allow", &allow, "--token-file"]);
    command.arg(prepared.folder.join("state/token"));
    // It tries until the gateway is there.
    let executor = spawn(&command, &prepared.folder.join("executor"))?;
    let command = prepared.command(tools);
    let target = target::run(tools, JOINED, prepared, &command, Some(Box::new(behind)))?;
    Ok(target.named(JOINED, vec![executor]))
}

fn via(
    tools: &Tools,
    name: &'static str,
    executor: &'static str,
    there: &str,
    behind: Target,
    beside: Vec<Beside>,
) -> Result<Target> {
    let config = format!(
        "[servers.b]\nurl = {:?}\nvia = \"executor:{executor}\"\n{there}",
        behind.url
    );
    let target = target::started(tools, executor, &config, Some(Box::new(behind)))?;
    Ok(target.named(name, beside))
}

/// Both sides of the relay before a backend; says where the near one listens.
pub(super) fn relays(tools: &Tools, backend: &str) -> Result<(String, Vec<Beside>)> {
    let side = |name: &str, to: &str| -> Result<(String, Beside)> {
        let at = format!("127.0.0.1:{}", process::free_port()?);
        let mut command = Command::new(&tools.xtask);
        command.args(["bench", "--relay", name, &at, to]);
        let folder = tools.folder(name)?;
        Ok((at, spawn(&command, &folder.join("relay"))?))
    };
    let (far, second) = side("far", backend)?;
    let (near, first) = side("near", &far)?;
    Ok((near, vec![first, second]))
}

/// Our executor on a free port, for a gateway that dials it.
pub(super) fn listening(tools: &Tools, allow: &str) -> Result<(String, Beside)> {
    let mut command = Command::new(&tools.bowline);
    command.args(["executor", "listen", "127.0.0.1:0", "--insecure-no-auth"]);
    command.args(["--name", "office", "--allow", allow, "--json"]);
    let folder = tools.folder("executor")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(fs::File::create(folder.join("stderr"))?);
    let mut child = command.spawn().context("could not start the executor")?;
    let line = process::ready_line(&mut child, READY_SECONDS_MAX);
    let executor = Beside(child);
    let line = line.with_context(|| {
        let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
        format!("the executor said: {}", said.trim())
    })?;
    let ready: serde_json::Value = serde_json::from_str(&line).context("no ready line")?;
    let address = ready.get("listen").and_then(serde_json::Value::as_str);
    let address = address.with_context(|| format!("no address in {ready}"))?;
    Ok((address.trim_start_matches("ws://").to_owned(), executor))
}

/// Starts something that says nothing of interest.
fn spawn(command: &Command, log: &Path) -> Result<Beside> {
    let mut command = target::under_limits(command);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(log)?);
    let child = command.spawn();
    Ok(Beside(child.with_context(|| {
        format!("could not start {}", log.display())
    })?))
}

/// `http://127.0.0.1:80/mcp` -> `127.0.0.1:80`
fn authority(url: &str) -> String {
    let rest = url.trim_start_matches("http://");
    rest.split('/').next().unwrap_or_default().to_owned()
}

impl From<Codex> for Beside {
    fn from(codex: Codex) -> Self {
        Self(codex.child)
    }
}
