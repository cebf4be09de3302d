//! The gateway under test: its servers, its processes and what the kernel knows of them.

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

use crate::client::Client;
use crate::gateway::RunningGateway;
use crate::{peers, process};

/// Servers that must not notice anything.
pub(super) const FIXTURES: [&str; 2] = ["well-a", "well-b"];

/// The real server among them.
pub(super) const EVERYTHING: &str = "everything";

/// Servers that misbehave, and how.
pub(super) const FAULTY: [(&str, &[&str]); 5] = [
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

/// The timeout of the faulty servers, so that calls that hang end within the run. Breaker and
/// restart budget are the shipped ones.
const TIMEOUT: &str = "timeout = \"1s\"\n";

const SETTLE_SECONDS_MAX: u64 = 60;
const LOOK: Duration = Duration::from_millis(50);

/// A running gateway; dropping it ends it.
#[derive(Debug)]
pub(super) struct Gateway {
    running: RunningGateway,
    pub(super) address: SocketAddr,
    pub(super) token: String,
    healthy: Vec<&'static str>,
}

/// What the kernel knows of the gateway.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Vitals {
    /// Open descriptors.
    pub(super) fds: usize,
    /// Resident memory.
    pub(super) rss_kib: u64,
    /// Descendants that ended and that nobody waited for.
    pub(super) zombies: usize,
    /// Descendants in all.
    pub(super) processes: usize,
}

/// Processor time, in microseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Cpu {
    pub(super) gateway_us: u64,
    /// The processes of the healthy servers.
    pub(super) healthy_us: u64,
}

impl Cpu {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            gateway_us: self.gateway_us.saturating_sub(before.gateway_us),
            healthy_us: self.healthy_us.saturating_sub(before.healthy_us),
        }
    }
}

impl Gateway {
    pub(super) fn start(root: &Path, binary: &Path) -> Result<Self> {
        let mut config = String::new();
        let mut healthy = FIXTURES.to_vec();
        for name in FIXTURES {
            config.push_str(&entry(name, binary, &["fixture"]));
        }
        if let Some((node, script)) = everything(root) {
            config.push_str(&entry(EVERYTHING, Path::new(&node), &[&script, "stdio"]));
            healthy.push(EVERYTHING);
        }
        for (name, args) in FAULTY {
            let args = [&["fixture"], args].concat();
            config.push_str(&entry(name, binary, &args));
            config.push_str(TIMEOUT);
        }
        let running = RunningGateway::start(root, Command::new(binary), &config)?;
        // The first session that ends opens the file of ended sessions, which stays open.
        Client::open(running.address, &running.owner)?.close()?;
        Ok(Self {
            address: running.address,
            token: running.owner.clone(),
            running,
            healthy,
        })
    }

    pub(super) fn has_everything(&self) -> bool {
        self.healthy.contains(&EVERYTHING)
    }

    pub(super) fn healthy(&self) -> &[&'static str] {
        &self.healthy
    }

    /// Kills the process of one of the faulty servers; `false` when it does not run just now.
    pub(super) fn crash(&self, server: &str) -> Result<bool> {
        if !FAULTY.iter().any(|(name, _)| *name == server) {
            bail!("`{server}` is not ours to kill");
        }
        let Some(pid) = self.running.server_pids()?.get(server).copied() else {
            return Ok(false);
        };
        // It may have gone by itself in the meantime.
        let mut kill = Command::new("kill");
        Ok(process::quiet(kill.args(["-KILL", &pid.to_string()])).is_ok())
    }

    /// Waits until every server serves, the faulty ones anew.
    pub(super) fn settle(&self) -> Result<()> {
        let mut api = self.running.api()?;
        for (name, _) in FAULTY {
            api.api("POST", &format!("/api/v1/servers/{name}/restart"))?;
        }
        let start = process::now();
        let all = self.healthy.len() + FAULTY.len();
        while self.running.server_pids()?.len() < all {
            if start.elapsed().as_secs() > SETTLE_SECONDS_MAX {
                bail!("not all servers serve: {:?}", self.running.server_pids()?);
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    pub(super) fn cpu(&self) -> Result<Cpu> {
        let pids = self.running.server_pids()?;
        let healthy = self.healthy.iter().filter_map(|name| pids.get(*name));
        Ok(Cpu {
            gateway_us: process::cpu_us(self.running.pid()),
            healthy_us: healthy.map(|pid| process::cpu_us(*pid)).sum(),
        })
    }

    pub(super) fn vitals(&self) -> Result<Vitals> {
        let pid = self.running.pid();
        let fds = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        let descendants = descendants(pid);
        let zombies = descendants.iter().filter(|(_, zombie)| *zombie).count();
        Ok(Vitals {
            fds,
            rss_kib: process::rss_kib(pid)?,
            zombies,
            processes: descendants.len(),
        })
    }

    /// The same, once connections that were closed are gone: that takes the gateway a moment.
    pub(super) fn vitals_like(&self, before: &Vitals) -> Result<Vitals> {
        let start = process::now();
        loop {
            let now = self.vitals()?;
            let same = now.fds <= before.fds && now.zombies == 0;
            if same && now.processes == before.processes || start.elapsed().as_secs() > 10 {
                return Ok(now);
            }
            thread::sleep(LOOK);
        }
    }
}

fn entry(name: &str, command: &Path, args: &[&str]) -> String {
    format!(
        "[servers.{name}]\ncommand = {}\nargs = {}\n",
        json!(command),
        json!(args)
    )
}

/// The real server, where peers were fetched: the interpreter and the script.
fn everything(root: &Path) -> Option<(String, String)> {
    let file = process::env("BOWLINE_PEERS").map_or_else(|| peers::file(root), PathBuf::from);
    let peers: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let node = peers.get("node")?.as_str()?.to_owned();
    let script = peers.pointer("/servers/everything")?.as_str()?.to_owned();
    Some((node, script))
}

/// All processes below one, each with whether it is a zombie.
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
