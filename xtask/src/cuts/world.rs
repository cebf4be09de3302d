//! A gateway, an executor that joined it through a proxy, a server of each kind there, and callers.

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
    callers::Caller,
    tally::{Ended, Kind, Tally},
};
use crate::{
    client::Client,
    fleet::{
        gateway::{self, Gateway},
        proxy::Proxy,
        tally,
    },
    http_fixture::HttpFixture,
    process,
};

/// The server over HTTP, and the one over stdio.
pub(super) const WEB: &str = "web";
pub(super) const PIPE: &str = "pipe";

/// The executor.
const OFFICE: &str = "office";

/// Callers of each kind.
const CALLERS: u64 = 3;

/// Numbers begin here for each caller, so that no number is anybody else's.
const NUMBERS: u64 = 1_000_000;

const READY_SECONDS_MAX: u64 = 60;
const STOP_SECONDS_MAX: u64 = 10;

/// How long the last calls may take once everything is well.
const FINISH: Duration = Duration::from_secs(90);

const LOOK: Duration = Duration::from_millis(20);

/// Everything that a run consists of.
#[derive(Debug)]
pub(super) struct World {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    ended: Arc<Mutex<Vec<Ended>>>,
    /// How many calls of each caller are over.
    counts: Vec<Arc<AtomicU64>>,
    // In the order in which it ends.
    executor: Process,
    gateway: Gateway,
    web: HttpFixture,
    pub(super) proxy: Proxy,
    address: SocketAddr,
    folder: Folder,
}

/// A process that ends when dropped.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        process::end(&mut self.0, STOP_SECONDS_MAX);
    }
}

#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl World {
    pub(super) fn start(root: &Path, binary: &Path, seed: u64) -> Result<Self> {
        let binary = &binary.canonicalize().context("the gateway is not there")?;
        let folder = Folder(root.join(format!("target/cuts-{}", std::process::id())));
        fs::create_dir_all(&folder.0)?;
        let proxy = Proxy::open()?;
        // A gateway answers to its own port only, so the proxy has the same at another address.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port()));
        let log = folder.0.join("web.stderr");
        let web = HttpFixture::start(binary, &folder.0.join(WEB), &log)?;
        let gateway = gateway_of(binary, &folder.0, address, &web.url)?;
        let afar = proxy.lead_to(address);
        let executor = executor(binary, &folder.0, afar, web.authority(), &gateway.token)?;
        let mut world = Self {
            stop: Arc::default(),
            callers: Vec::new(),
            ended: Arc::default(),
            counts: Vec::new(),
            executor,
            gateway,
            web,
            proxy,
            address,
            folder,
        };
        world.until_ready()?;
        world.call(seed);
        Ok(world)
    }

    /// Both servers must be there before the first call, or it would be about something else.
    fn until_ready(&self) -> Result<()> {
        let start = process::now();
        loop {
            let status = Client::connect(self.address, &self.gateway.token)?
                .api("GET", "/api/v1/servers")?;
            let servers = status.get("servers").and_then(Value::as_array);
            let servers = servers.context("no servers")?;
            if servers
                .iter()
                .all(|server| server.get("state") == Some(&json!("ready")))
            {
                return Ok(());
            }
            if start.elapsed().as_secs() > READY_SECONDS_MAX {
                bail!("never ready: {status}\n{}", self.last_words());
            }
            thread::sleep(LOOK);
        }
    }

    fn call(&mut self, seed: u64) {
        let kinds = Kind::ALL
            .iter()
            .flat_map(|kind| (0..CALLERS).map(|_| *kind));
        for (nth, kind) in (1..).zip(kinds) {
            let caller = Caller {
                address: self.address,
                token: self.gateway.token.clone(),
                kind,
                first: (seed % 1_000 * 1_000 + nth) * NUMBERS,
            };
            let (stop, ended) = (Arc::clone(&self.stop), Arc::clone(&self.ended));
            let count = Arc::<AtomicU64>::default();
            self.counts.push(Arc::clone(&count));
            self.callers.push(thread::spawn(move || {
                caller.work(&stop, |one| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    ended.push(one);
                });
            }));
        }
    }

    /// How many calls of each caller are over.
    pub(super) fn ended(&self) -> Vec<u64> {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::SeqCst)).collect()
    }

    /// Whether each caller had an end since.
    pub(super) fn ended_since(&self, seen: &[u64]) -> bool {
        self.ended().iter().zip(seen).all(|(now, then)| now > then)
    }

    /// Lets the last calls end, and counts.
    pub(super) fn finish(&mut self) -> Result<Tally> {
        self.stop.store(true, Ordering::SeqCst);
        let start = process::now();
        let mut tally = Tally::default();
        while self.callers.iter().any(|caller| !caller.is_finished()) {
            if start.elapsed() > FINISH {
                tally.blame("without an end", "a caller still waits".to_owned());
                break;
            }
            thread::sleep(LOOK);
        }
        let mut executed: BTreeMap<u64, u64> = BTreeMap::new();
        for server in [WEB, PIPE] {
            let ledger = fs::read_to_string(self.folder.0.join(server)).unwrap_or_default();
            executed.extend(tally::executions(&ledger));
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        for one in ended.iter() {
            tally.add(one, executed.get(&one.number).copied().unwrap_or(0));
        }
        drop(ended);
        self.nothing_is_left(&mut tally)?;
        Ok(tally)
    }

    /// No process ended by itself, and no stream outlived its call.
    fn nothing_is_left(&mut self, tally: &mut Tally) -> Result<()> {
        let executor_lives = matches!(self.executor.0.try_wait(), Ok(None));
        for (name, lives) in [("web", self.web.is_alive()), (OFFICE, executor_lives)] {
            if !lives {
                tally.blame("ended by itself", name.to_owned());
            }
        }
        let list =
            Client::connect(self.address, &self.gateway.token)?.api("GET", "/api/v1/executors")?;
        let streams = list.pointer("/executors/0/streams").and_then(Value::as_u64);
        // Each server over HTTP has a stream on which it may say something by itself, and each
        // over stdio has one.
        if streams.is_none_or(|streams| streams > 2) {
            tally.blame("streams left", list.to_string());
        }
        Ok(())
    }

    /// The ends of the logs.
    pub(super) fn last_words(&self) -> String {
        let said = fs::read_to_string(self.folder.0.join("executor.stderr")).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let from = lines.len().saturating_sub(20);
        let executor = lines.get(from..).unwrap_or_default().join("\n");
        format!("gateway:\n{}\nexecutor:\n{executor}", self.gateway.said())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn gateway_of(binary: &Path, folder: &Path, at: SocketAddr, url: &str) -> Result<Gateway> {
    let config = folder.join("gateway.toml");
    // Breaker and restart budget are the shipped ones: no cut may keep a server away.
    fs::write(
        &config,
        format!(
            "[servers.{WEB}]\nurl = {url:?}\nvia = \"executor:{OFFICE}\"\n\
             [servers.{PIPE}]\nvia = \"executor:{OFFICE}\"\n"
        ),
    )?;
    let mut command = Command::new(binary);
    command.args(["up", "--json", "--config"]).arg(config);
    command.arg("--state").arg(folder.join("state"));
    command.args(["--listen", &at.to_string()]);
    Gateway::start("gateway", folder, &command)
}

fn executor(
    binary: &Path,
    folder: &Path,
    to: SocketAddr,
    allow: &str,
    token: &str,
) -> Result<Process> {
    let (file, config) = (folder.join("token"), folder.join("executor.toml"));
    fs::write(&config, gateway::fixture(PIPE, binary, &folder.join(PIPE)))?;
    let mut options = fs::OpenOptions::new();
    let mut made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)?;
    std::io::Write::write_all(&mut made, token.as_bytes())?;
    let mut command = Command::new(binary);
    command.args(["executor", "join", &format!("http://{to}"), "--json"]);
    command.args(["--name", OFFICE, "--allow", allow]);
    command.arg("--token-file").arg(file);
    command.arg("--config").arg(config);
    Ok(spawn("executor", folder, &mut command)?.0)
}

/// Starts a program and waits for its first line.
fn spawn(name: &str, folder: &Path, command: &mut Command) -> Result<(Process, String)> {
    let log = fs::File::create(folder.join(format!("{name}.stderr")))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let child = command.spawn();
    let mut process = Process(child.with_context(|| format!("could not start the {name}"))?);
    let line = process::ready_line(&mut process.0, READY_SECONDS_MAX).with_context(|| {
        let said = fs::read_to_string(folder.join(format!("{name}.stderr")));
        format!("the {name} said: {}", said.unwrap_or_default().trim())
    })?;
    Ok((process, line))
}
