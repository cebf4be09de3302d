//! Setup of executor-chaos: a gateway, an executor joined through a proxy, an HTTP server and a
//! stdio server behind the executor, and callers.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    executor_callers::ExecutorCaller,
    executor_tally::{ExecutorCallKind, ExecutorCallRecord, ExecutorTally},
};
use crate::{
    blocking_client::BlockingClient,
    broker_chaos::{
        broker_tally,
        fault_proxy::FaultProxy,
        restartable_gateway::{self, RestartableGateway},
    },
    http_fixture::HttpFixture,
    process,
};

/// Names of the HTTP server and of the stdio server.
pub(super) const HTTP_SERVER: &str = "web";
pub(super) const STDIO_SERVER: &str = "pipe";

/// Name of the executor.
const EXECUTOR_NAME: &str = "office";

/// Callers of each kind.
const CALLERS_PER_KIND: u64 = 3;

/// Size of each caller's range of numbers, so that numbers are unique.
const NUMBERS_PER_CALLER: u64 = 1_000_000;

const READY_SECONDS_MAX: u64 = 60;
const STOP_SECONDS_MAX: u64 = 10;

/// Time limit for the last calls after the last cut.
const FINISH_TIMEOUT: Duration = Duration::from_secs(90);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// All processes and threads of a run.
#[derive(Debug)]
pub(super) struct ExecutorChaosSetup {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    finished_calls: Arc<Mutex<Vec<ExecutorCallRecord>>>,
    /// Finished calls of each caller.
    finished_counts: Vec<Arc<AtomicU64>>,
    // Fields drop in this order.
    executor: ChildGuard,
    gateway: RestartableGateway,
    http_fixture: HttpFixture,
    pub(super) proxy: FaultProxy,
    address: SocketAddr,
    folder: ExecutorFolder,
}

/// A child process that is terminated on drop.
#[derive(Debug)]
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        process::terminate(&mut self.0, STOP_SECONDS_MAX);
    }
}

#[derive(Debug)]
struct ExecutorFolder(PathBuf);

impl Drop for ExecutorFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl ExecutorChaosSetup {
    pub(super) fn start(root: &Path, binary: &Path, seed: u64) -> Result<Self> {
        let binary = &binary.canonicalize().context("the gateway is not there")?;
        let folder =
            ExecutorFolder(root.join(format!("target/executor-chaos-{}", std::process::id())));
        fs::create_dir_all(&folder.0)?;
        let proxy = FaultProxy::open()?;
        // A gateway accepts only its own port in `Host`, so the proxy has the same port at another
        // address.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port()));
        let log = folder.0.join("web.stderr");
        let web = HttpFixture::start(binary, &folder.0.join(HTTP_SERVER), &log)?;
        let gateway = start_gateway(binary, &folder.0, address, &web.url)?;
        let afar = proxy.set_hub(address);
        let executor = start_executor(binary, &folder.0, afar, web.authority(), &gateway.token)?;
        let mut world = Self {
            stop: Arc::default(),
            callers: Vec::new(),
            finished_calls: Arc::default(),
            finished_counts: Vec::new(),
            executor,
            gateway,
            http_fixture: web,
            proxy,
            address,
            folder,
        };
        world.wait_ready()?;
        world.start_callers(seed);
        Ok(world)
    }

    /// Waits until both servers are ready; otherwise the first calls would fail for another reason.
    fn wait_ready(&self) -> Result<()> {
        let start = process::now();
        loop {
            let status = BlockingClient::connect(self.address, &self.gateway.token)?
                .call_api("GET", "/api/v1/servers")?;
            let servers = status.get("servers").and_then(Value::as_array);
            let servers = servers.context("no servers")?;
            if servers
                .iter()
                .all(|server| server.get("state") == Some(&json!("ready")))
            {
                return Ok(());
            }
            if start.elapsed().as_secs() > READY_SECONDS_MAX {
                bail!("never ready: {status}\n{}", self.log_tails());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn start_callers(&mut self, seed: u64) {
        let kinds = ExecutorCallKind::ALL
            .iter()
            .flat_map(|kind| (0..CALLERS_PER_KIND).map(|_| *kind));
        for (nth, kind) in (1..).zip(kinds) {
            let caller = ExecutorCaller {
                address: self.address,
                token: self.gateway.token.clone(),
                kind,
                first_number: (seed % 1_000 * 1_000 + nth) * NUMBERS_PER_CALLER,
            };
            let (stop, ended) = (Arc::clone(&self.stop), Arc::clone(&self.finished_calls));
            let count = Arc::<AtomicU64>::default();
            self.finished_counts.push(Arc::clone(&count));
            self.callers.push(thread::spawn(move || {
                caller.call_until_stopped(&stop, |one| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    ended.push(one);
                });
            }));
        }
    }

    /// Returns the number of finished calls of each caller.
    pub(super) fn finished_counts(&self) -> Vec<u64> {
        let counts = self.finished_counts.iter();
        counts.map(|count| count.load(Ordering::SeqCst)).collect()
    }

    /// Returns whether each caller finished a call since `seen`.
    pub(super) fn has_finished_since(&self, seen: &[u64]) -> bool {
        self.finished_counts()
            .iter()
            .zip(seen)
            .all(|(now, then)| now > then)
    }

    /// Waits for the last calls and returns the tally.
    pub(super) fn finish(&mut self) -> Result<ExecutorTally> {
        self.stop.store(true, Ordering::SeqCst);
        let start = process::now();
        let mut tally = ExecutorTally::default();
        while self.callers.iter().any(|caller| !caller.is_finished()) {
            if start.elapsed() > FINISH_TIMEOUT {
                tally.add_violation("without an end", "a caller still waits".to_owned());
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let mut executed: BTreeMap<u64, u64> = BTreeMap::new();
        for server in [HTTP_SERVER, STDIO_SERVER] {
            let ledger = fs::read_to_string(self.folder.0.join(server)).unwrap_or_default();
            executed.extend(broker_tally::count_executions(&ledger));
        }
        let ended = self
            .finished_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for call in ended.iter() {
            tally.add_call(call, executed.get(&call.number).copied().unwrap_or(0));
        }
        drop(ended);
        self.check_leftovers(&mut tally)?;
        Ok(tally)
    }

    /// Checks that no process exited by itself and no stream outlived its call.
    fn check_leftovers(&mut self, tally: &mut ExecutorTally) -> Result<()> {
        let executor_lives = matches!(self.executor.0.try_wait(), Ok(None));
        for (name, lives) in [
            ("web", self.http_fixture.is_alive()),
            (EXECUTOR_NAME, executor_lives),
        ] {
            if !lives {
                tally.add_violation("ended by itself", name.to_owned());
            }
        }
        let list = BlockingClient::connect(self.address, &self.gateway.token)?
            .call_api("GET", "/api/v1/executors")?;
        let streams = list.pointer("/executors/0/streams").and_then(Value::as_u64);
        // Two streams remain: the HTTP server's stream for server-initiated messages, and the
        // stdio server's.
        if streams.is_none_or(|streams| streams > 2) {
            tally.add_violation("streams left", list.to_string());
        }
        Ok(())
    }

    /// Returns the last lines of both logs.
    pub(super) fn log_tails(&self) -> String {
        let log = fs::read_to_string(self.folder.0.join("executor.stderr")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(20);
        let executor = lines.get(from..).unwrap_or_default().join("\n");
        format!(
            "gateway:\n{}\nexecutor:\n{executor}",
            self.gateway.log_tail()
        )
    }
}

impl Drop for ExecutorChaosSetup {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn start_gateway(
    binary: &Path,
    folder: &Path,
    at: SocketAddr,
    url: &str,
) -> Result<RestartableGateway> {
    let config = folder.join("gateway.toml");
    // Breaker and restart budget have their defaults: no cut may eject a server.
    fs::write(
        &config,
        format!(
            "[servers.{HTTP_SERVER}]\nurl = {url:?}\nvia = \"executor:{EXECUTOR_NAME}\"\n\
             [servers.{STDIO_SERVER}]\nvia = \"executor:{EXECUTOR_NAME}\"\n"
        ),
    )?;
    let mut command = Command::new(binary);
    command.args(["up", "--json", "--config"]).arg(config);
    command.arg("--state").arg(folder.join("state"));
    command.args(["--listen", &at.to_string()]);
    RestartableGateway::start("gateway", folder, &command)
}

fn start_executor(
    binary: &Path,
    folder: &Path,
    to: SocketAddr,
    allow: &str,
    token: &str,
) -> Result<ChildGuard> {
    let (file, config) = (folder.join("token"), folder.join("executor.toml"));
    fs::write(
        &config,
        restartable_gateway::fixture_config(STDIO_SERVER, binary, &folder.join(STDIO_SERVER)),
    )?;
    let mut options = fs::OpenOptions::new();
    let mut made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)?;
    std::io::Write::write_all(&mut made, token.as_bytes())?;
    let mut command = Command::new(binary);
    command.args(["executor", "join", &format!("http://{to}"), "--json"]);
    command.args(["--name", EXECUTOR_NAME, "--allow", allow]);
    command.arg("--token-file").arg(file);
    command.arg("--config").arg(config);
    Ok(spawn_until_ready("executor", folder, &mut command)?.0)
}

/// Starts a program and waits for the first line of its output.
fn spawn_until_ready(
    name: &str,
    folder: &Path,
    command: &mut Command,
) -> Result<(ChildGuard, String)> {
    let log = fs::File::create(folder.join(format!("{name}.stderr")))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let child = command.spawn();
    let mut process = ChildGuard(child.with_context(|| format!("could not start the {name}"))?);
    let line = process::read_ready_line(&mut process.0, READY_SECONDS_MAX).with_context(|| {
        let said = fs::read_to_string(folder.join(format!("{name}.stderr")));
        format!("the {name} said: {}", said.unwrap_or_default().trim())
    })?;
    Ok((process, line))
}
