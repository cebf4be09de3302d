//! The same server behind a gateway, reached in five variants.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::{CODEX, DIALED, DIRECT, JOINED_EXECUTOR, RELAY};
use crate::{
    bench::{
        bench_target::{self, BenchTarget, HelperProcess},
        bench_tools::BenchTools,
    },
    codex_process::CodexProcess,
    process,
};

const READY_SECONDS_MAX: u64 = 20;

/// Concurrent requests of Codex's exec-server; its default is 1.
pub(super) const CODEX_REQUESTS: usize = 64;

/// Starts a gateway connected to the backend directly.
pub(super) fn start_direct(tools: &BenchTools) -> Result<BenchTarget> {
    let behind = bench_target::start_backend(tools)?;
    let config = format!("[servers.b]\nurl = {:?}\n", behind.url);
    Ok(bench_target::start_gateway(
        tools,
        tools.gateway("direct"),
        &config,
        Some(Box::new(behind)),
    )?
    .with_helpers(DIRECT, Vec::new()))
}

/// Starts a gateway behind two relay processes that only forward bytes.
pub(super) fn start_relayed(tools: &BenchTools) -> Result<BenchTarget> {
    let behind = bench_target::start_backend(tools)?;
    let (near, beside) = start_relay_pair(tools, &url_authority(&behind.url))?;
    let config = format!("[servers.b]\nurl = \"http://{near}/mcp\"\n");
    let target = bench_target::start_gateway(
        tools,
        tools.gateway("relay"),
        &config,
        Some(Box::new(behind)),
    )?;
    Ok(target.with_helpers(RELAY, beside))
}

/// Starts a gateway that dials an executor.
pub(super) fn start_dialed(tools: &BenchTools) -> Result<BenchTarget> {
    let behind = bench_target::start_backend(tools)?;
    let (address, executor) = start_listening_executor(tools, &url_authority(&behind.url))?;
    let there = format!("[executors.office]\nurl = \"ws://{address}\"\n");
    start_via_executor(tools, DIALED, "office", &there, behind, vec![executor])
}

/// Starts a gateway that dials Codex's exec-server.
pub(super) fn start_codex(tools: &BenchTools) -> Result<BenchTarget> {
    let behind = bench_target::start_backend(tools)?;
    let codex = CodexProcess::start(
        &tools.root,
        &tools.new_folder("codex-home")?,
        CODEX_REQUESTS,
    )?;
    let there = format!(
        "[executors.codex]\nurl = \"ws://{}\"\nprotocol = \"exec-server\"\n",
        codex.address
    );
    start_via_executor(tools, CODEX, "codex", &there, behind, vec![codex.into()])
}

/// Starts a gateway that an executor joins. The executor starts first and retries until the gateway
/// listens; the first successful call waits for the executor.
pub(super) fn start_joined(tools: &BenchTools) -> Result<BenchTarget> {
    let behind = bench_target::start_backend(tools)?;
    let allow = url_authority(&behind.url);
    let config = format!(
        "[servers.b]\nurl = {:?}\nvia = \"executor:office\"\n",
        behind.url
    );
    let prepared = bench_target::prepare_gateway(tools, "joined", &config)?;
    let mut command = Command::new(&tools.bowline);
    command.args([
        "executor",
        "join",
        &format!("http://127.0.0.1:{}", prepared.port),
    ]);
    command.args(["--name", "office", "--allow", &allow, "--token-file"]);
    command.arg(prepared.folder.join("state/token"));
    // The executor retries until the gateway listens.
    let executor = spawn_helper(&command, &prepared.folder.join("executor"))?;
    let command = prepared.up_command(&tools.bowline);
    let target = bench_target::run_gateway(
        tools,
        JOINED_EXECUTOR,
        prepared,
        &command,
        Some(Box::new(behind)),
    )?;
    Ok(target.with_helpers(JOINED_EXECUTOR, vec![executor]))
}

fn start_via_executor(
    tools: &BenchTools,
    name: &'static str,
    executor: &'static str,
    there: &str,
    behind: BenchTarget,
    beside: Vec<HelperProcess>,
) -> Result<BenchTarget> {
    let config = format!(
        "[servers.b]\nurl = {:?}\nvia = \"executor:{executor}\"\n{there}",
        behind.url
    );
    let target = bench_target::start_gateway(
        tools,
        tools.gateway(executor),
        &config,
        Some(Box::new(behind)),
    )?;
    Ok(target.with_helpers(name, beside))
}

/// Starts both relay processes before a backend; returns the address of the near process.
pub(super) fn start_relay_pair(
    tools: &BenchTools,
    backend: &str,
) -> Result<(String, Vec<HelperProcess>)> {
    let side = |name: &str, to: &str| -> Result<(String, HelperProcess)> {
        let at = format!("127.0.0.1:{}", process::free_port()?);
        let mut command = Command::new(&tools.xtask);
        command.args(["bench", "--relay", name, &at, to]);
        let folder = tools.new_folder(name)?;
        Ok((at, spawn_helper(&command, &folder.join("relay"))?))
    };
    let (far, second) = side("far", backend)?;
    let (near, first) = side("near", &far)?;
    Ok((near, vec![first, second]))
}

/// Starts an executor on a free port for a gateway that dials.
pub(super) fn start_listening_executor(
    tools: &BenchTools,
    allow: &str,
) -> Result<(String, HelperProcess)> {
    let mut command = Command::new(&tools.bowline);
    command.args(["executor", "listen", "127.0.0.1:0", "--insecure-no-auth"]);
    command.args(["--name", "office", "--allow", allow, "--json"]);
    let folder = tools.new_folder("executor")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(fs::File::create(folder.join("stderr"))?);
    let mut child = command.spawn().context("could not start the executor")?;
    let line = process::read_ready_line(&mut child, READY_SECONDS_MAX);
    let executor = HelperProcess(child);
    let line = line.with_context(|| {
        let log = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
        format!("the executor said: {}", log.trim())
    })?;
    let ready: serde_json::Value = serde_json::from_str(&line).context("no ready line")?;
    let address = ready.get("listen").and_then(serde_json::Value::as_str);
    let address = address.with_context(|| format!("no address in {ready}"))?;
    Ok((address.trim_start_matches("ws://").to_owned(), executor))
}

/// Starts a helper process; its standard output is ignored.
fn spawn_helper(command: &Command, log: &Path) -> Result<HelperProcess> {
    let mut command = bench_target::with_open_file_limit(command);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(log)?);
    let child = command.spawn();
    Ok(HelperProcess(child.with_context(|| {
        format!("could not start {}", log.display())
    })?))
}

/// `http://127.0.0.1:80/mcp` -> `127.0.0.1:80`
fn url_authority(url: &str) -> String {
    let rest = url.trim_start_matches("http://");
    rest.split('/').next().unwrap_or_default().to_owned()
}

impl From<CodexProcess> for HelperProcess {
    fn from(codex: CodexProcess) -> Self {
        Self(codex.child)
    }
}
