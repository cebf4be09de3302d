//! The gateway under test, its servers, and process figures from the kernel.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::blocking_client::BlockingClient;
use crate::running_gateway::RunningGateway;
use crate::{peers, process};

/// Healthy servers, which must not be affected.
pub(super) const HEALTHY_FIXTURES: [&str; 2] = ["well-a", "well-b"];

/// The real MCP server among the healthy servers.
pub(super) const EVERYTHING_SERVER: &str = "everything";

/// Faulty servers and their fixture options.
pub(super) const FAULTY_SERVERS: [(&str, &[&str]); 5] = [
    ("crash", &["--fault", "crash-after=400"]),
    ("hang", &[]),
    ("flap", &[]),
    ("slow", &["--fault", "slow-start=300"]),
    (
        "babble",
        &[
            "--fault",
            "noise",
            "--fault",
            "late-answers",
            "--fault",
            "duplicate-answers",
        ],
    ),
];

/// Timeout of the faulty servers, so that hanging calls end within the run. Breaker and restart
/// budget have their defaults.
const FAULTY_TIMEOUT: &str = "timeout = \"1s\"\n";

const SETTLE_SECONDS_MAX: u64 = 60;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running gateway; dropping terminates the process.
#[derive(Debug)]
pub(super) struct ChaosGateway {
    running: RunningGateway,
    pub(super) address: SocketAddr,
    pub(super) token: String,
    healthy: Vec<&'static str>,
}

/// Process figures of the gateway from `/proc`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ProcessVitals {
    /// Open descriptors.
    pub(super) fds: usize,
    /// Resident memory.
    pub(super) rss_kib: u64,
    /// Descendants that exited and were not reaped.
    pub(super) zombies: usize,
    /// All descendants.
    pub(super) processes: usize,
}

/// CPU time, in microseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct CpuTime {
    pub(super) gateway_us: u64,
    /// Sum over the processes of the healthy servers.
    pub(super) healthy_us: u64,
}

impl CpuTime {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            gateway_us: self.gateway_us.saturating_sub(before.gateway_us),
            healthy_us: self.healthy_us.saturating_sub(before.healthy_us),
        }
    }
}

impl ChaosGateway {
    pub(super) fn start(root: &Path, binary: &Path) -> Result<Self> {
        let mut config = String::new();
        let fixture = process::fixture_binary(binary);
        let mut healthy = HEALTHY_FIXTURES.to_vec();
        for name in HEALTHY_FIXTURES {
            config.push_str(&server_config(name, &fixture, &[]));
        }
        if let Some((node, script)) = find_everything_server(root) {
            config.push_str(&server_config(
                EVERYTHING_SERVER,
                Path::new(&node),
                &[&script, "stdio"],
            ));
            healthy.push(EVERYTHING_SERVER);
        }
        for (name, args) in FAULTY_SERVERS {
            config.push_str(&server_config(name, &fixture, args));
            config.push_str(FAULTY_TIMEOUT);
        }
        let running = RunningGateway::start(root, Command::new(binary), &config)?;
        // The first closed session opens the file of ended sessions, which stays open.
        BlockingClient::open_session(running.address, &running.owner_token)?.close_session()?;
        Ok(Self {
            address: running.address,
            token: running.owner_token.clone(),
            running,
            healthy,
        })
    }

    pub(super) fn has_everything(&self) -> bool {
        self.healthy.contains(&EVERYTHING_SERVER)
    }

    pub(super) fn healthy_servers(&self) -> &[&'static str] {
        &self.healthy
    }

    /// Kills the process of a faulty server; `false` if the server is not running.
    pub(super) fn kill_faulty(&self, server: &str) -> Result<bool> {
        if !FAULTY_SERVERS.iter().any(|(name, _)| *name == server) {
            bail!("`{server}` is not ours to kill");
        }
        let Some(pid) = self.running.server_pids()?.get(server).copied() else {
            return Ok(false);
        };
        // The process may have exited in the meantime.
        let mut kill = Command::new("kill");
        Ok(process::run_captured(kill.args(["-KILL", &pid.to_string()])).is_ok())
    }

    /// Restarts the faulty servers and waits until every server is active.
    pub(super) fn restart_faulty(&self) -> Result<()> {
        let mut api = self.running.api_client()?;
        for (name, _) in FAULTY_SERVERS {
            api.call_api("POST", &format!("/api/v1/servers/{name}/restart"))?;
        }
        let start = process::now();
        let all = self.healthy.len() + FAULTY_SERVERS.len();
        while self.running.server_pids()?.len() < all {
            if start.elapsed().as_secs() > SETTLE_SECONDS_MAX {
                bail!("not all servers serve: {:?}", self.running.server_pids()?);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    pub(super) fn cpu_time(&self) -> Result<CpuTime> {
        let pids = self.running.server_pids()?;
        let healthy = self.healthy.iter().filter_map(|name| pids.get(*name));
        Ok(CpuTime {
            gateway_us: process::thread_cpu_us(self.running.pid()),
            healthy_us: healthy.map(|pid| process::thread_cpu_us(*pid)).sum(),
        })
    }

    pub(super) fn vitals(&self) -> Result<ProcessVitals> {
        let pid = self.running.pid();
        let fds = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        let descendants = descendants(pid);
        let zombies = descendants.iter().filter(|(_, zombie)| *zombie).count();
        Ok(ProcessVitals {
            fds,
            rss_kib: process::rss_kib(pid)?,
            zombies,
            processes: descendants.len(),
        })
    }

    /// Returns the vitals once closed connections are gone, which takes the gateway a moment.
    pub(super) fn wait_for_vitals(&self, before: &ProcessVitals) -> Result<ProcessVitals> {
        let start = process::now();
        loop {
            let now = self.vitals()?;
            let same = now.fds <= before.fds && now.zombies == 0;
            if same && now.processes == before.processes || start.elapsed().as_secs() > 10 {
                return Ok(now);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

fn server_config(name: &str, command: &Path, args: &[&str]) -> String {
    format!(
        "[servers.{name}]\ncommand = {}\nargs = {}\n",
        json!(command),
        json!(args)
    )
}

/// Returns interpreter and script of server-everything, if the peers were fetched.
fn find_everything_server(root: &Path) -> Option<(String, String)> {
    let file =
        process::env_var("BOWLINE_PEERS").map_or_else(|| peers::peers_file(root), PathBuf::from);
    let peers: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let node = peers.get("node")?.as_str()?.to_owned();
    let script = peers.pointer("/servers/everything")?.as_str()?.to_owned();
    Some((node, script))
}

/// Returns all descendants of a process, each with whether the process is a zombie.
fn descendants(root: u32) -> Vec<(u32, bool)> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut words = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let zombie = words.next() == Some("Z");
        if let Some(parent) = words.next().and_then(|word| word.parse::<u32>().ok()) {
            parents.insert(pid, (parent, zombie));
        }
    }
    let below = |pid: &u32| {
        let mut at = *pid;
        while let Some((parent, _)) = parents.get(&at) {
            if *parent == root {
                return true;
            }
            at = *parent;
        }
        false
    };
    let found = parents.iter().filter(|(pid, _)| below(pid));
    found.map(|(pid, (_, zombie))| (*pid, *zombie)).collect()
}
