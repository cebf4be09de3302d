//! The hub, the worker, the way between them, and everybody who calls.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{
    Plan,
    gateway::{self, Gateway},
    network::Network,
    tally::{self, Ended, Tally, Who},
};
use crate::process;

/// Peers of the broker that the hub knows by name; more than any plan has.
const PEERS_NAMED_MAX: usize = 64;

/// The server at the hub, and the one that the worker offers.
const HERE: &str = "here";
const THERE: &str = "there";

/// Agents of each side, and plain peers.
const AGENTS: u64 = 8;
const PEERS: u64 = 4;

/// Numbers begin here for each kind of caller, so that no number is anybody else's.
const NUMBERS: u64 = 1_000_000;

/// How long the last calls may take once everything is well.
const FINISH: Duration = Duration::from_secs(300);

const ROLE: &str = "[roles.agent]\nallow = [\"*\"]\n";

/// Where the worker listens: its network is its own, so is every port.
const WORKER_PORT: u16 = 7_400;

/// One kind of callers: a process, and what it says.
#[derive(Debug)]
struct Callers {
    who: Who,
    child: Child,
    reader: Option<JoinHandle<()>>,
    ended: Arc<Mutex<Vec<Ended>>>,
    numbers: Vec<(u64, u64)>,
}

/// Everything that a run consists of.
#[derive(Debug)]
pub(super) struct World {
    // In the order in which it ends: callers, then gateways, then the way between them.
    callers: Vec<Callers>,
    pub(super) worker: Gateway,
    pub(super) hub: Gateway,
    pub(super) network: Network,
    /// What the way is, for people.
    pub(super) way: String,
    done: Arc<AtomicU64>,
    folder: Folder,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("fleet: kept {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Where everybody is found.
#[derive(Debug)]
struct Addresses {
    /// The hub on its own machine.
    hub: SocketAddr,
    /// The hub as the other side sees it.
    afar: SocketAddr,
    /// The worker on its own machine.
    worker: SocketAddr,
}

impl World {
    pub(super) fn start(root: &Path, binary: &Path, plan: &Plan) -> Result<Self> {
        let binary = &binary.canonicalize().context("the gateway is not there")?;
        let path = root.join(format!("target/fleet-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let folder = Folder {
            path,
            keep: plan.keep,
        };
        let (network, proxy) = Network::open(root, plan.proxy)?;
        let way = match &proxy {
            None => "worker and plain peers in a network namespace".to_owned(),
            Some(why) => format!("through a proxy, without a network namespace ({why})"),
        };
        let hub_port = process::free_port()?;
        let far = network.hub()?;
        let worker_port = match network {
            Network::Namespace(_) => WORKER_PORT,
            Network::Proxy(_) => process::free_port()?,
        };
        let addresses = Addresses {
            hub: SocketAddr::from(([127, 0, 0, 1], hub_port)),
            afar: network.hub_from_afar(far),
            worker: SocketAddr::from(([127, 0, 0, 1], worker_port)),
        };
        let hub = hub(binary, &folder.path, &[addresses.hub, far])?;
        let worker_token = gateway::token(addresses.hub, &hub.token, "worker", "agent")?;
        let worker = worker(binary, &folder.path, &network, &addresses, &worker_token)?;
        let mut world = Self {
            callers: Vec::new(),
            worker,
            hub,
            network,
            way,
            done: Arc::default(),
            folder,
        };
        world.call(&addresses, plan.calls)?;
        Ok(world)
    }

    /// Starts everybody who calls: two fifths from each side, a fifth by plain peers.
    fn call(&mut self, at: &Addresses, calls: u64) -> Result<()> {
        let (agents, peers) = (calls * 2 / 5 / AGENTS, calls / 5 / PEERS);
        let owner = self.worker.token.clone();
        let local = (0..AGENTS).map(|_| Ok(("agent".to_owned(), owner.clone())));
        let local = local.collect::<Result<Vec<_>>>()?;
        let of_hub = |prefix: &str, count: u64| -> Result<Vec<(String, String)>> {
            let made = (0..count).map(|nth| {
                let name = format!("{prefix}-{nth}");
                let token = gateway::token(at.hub, &self.hub.token, &name, "agent")?;
                Ok((name, token))
            });
            made.collect()
        };
        let (remote, plain) = (of_hub("agent", AGENTS)?, of_hub("peer", PEERS)?);
        self.start_callers(Who::Worker, (at.worker, HERE), agents, &local)?;
        self.start_callers(Who::Hub, (at.hub, THERE), agents, &remote)?;
        self.start_callers(Who::Peers, (at.afar, HERE), peers, &plain)
    }

    fn start_callers(
        &mut self,
        who: Who,
        (address, server): (SocketAddr, &str),
        each: u64,
        names: &[(String, String)],
    ) -> Result<()> {
        let base = (self.callers.len() as u64 + 1) * NUMBERS;
        let numbers: Vec<(u64, u64)> = (0..names.len() as u64)
            .map(|nth| (base + nth * each, each))
            .collect();
        let all = names.iter().zip(&numbers).map(|((name, token), (first, count))| {
            json!({"name": name, "token": token, "first": first, "count": count})
        });
        let plain = who == Who::Peers;
        let all: Vec<Value> = all.collect();
        let what = json!({"address": address, "server": server, "plain": plain, "all": all});
        let own = std::env::current_exe()?;
        let mut command = match who {
            Who::Hub => Command::new(own),
            Who::Worker | Who::Peers => self.network.afar(&own),
        };
        command.args(["fleet", "--child", &what.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("could not start the callers")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let ended = Arc::<Mutex<Vec<Ended>>>::default();
        let (kept, done) = (Arc::clone(&ended), Arc::clone(&self.done));
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match Ended::read(&line) {
                    Ok(one) => kept
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(one),
                    Err(error) => eprintln!("fleet: {error:#}"),
                }
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        self.callers.push(Callers {
            who,
            child,
            reader: Some(reader),
            ended,
            numbers,
        });
        Ok(())
    }

    /// Calls in all.
    pub(super) fn calls(&self) -> u64 {
        let numbers = self.callers.iter().flat_map(|callers| &callers.numbers);
        numbers.map(|(_, count)| count).sum()
    }

    /// Calls that are over.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Waits until so many calls are over; nothing for `stuck` is a failure.
    pub(super) fn wait_for(&mut self, due: u64, stuck: Duration, look: Duration) -> Result<()> {
        let mut seen = (self.done(), process::now());
        while self.done() < due {
            if self.done() > seen.0 {
                seen = (self.done(), process::now());
            }
            if seen.1.elapsed() > stuck {
                bail!("stuck: {} of {} calls are over", seen.0, self.calls());
            }
            if !self.hub.lives() || !self.worker.lives() {
                bail!("the hub or the worker ended by itself");
            }
            thread::sleep(look);
        }
        Ok(())
    }

    /// Lets the last calls end, and counts.
    pub(super) fn finish(&mut self) -> Result<Tally> {
        self.network.heal()?;
        let all = self.calls();
        // Callers that do not end are counted as they are.
        if let Err(error) = self.wait_for(all, FINISH, Duration::from_millis(20)) {
            eprintln!("fleet: {error:#}");
        }
        let mut tally = Tally::default();
        for callers in &mut self.callers {
            callers.end();
        }
        for callers in &self.callers {
            let name = match callers.who {
                Who::Worker | Who::Peers => HERE,
                Who::Hub => THERE,
            };
            let ledger = fs::read_to_string(self.folder.path.join(name)).unwrap_or_default();
            let executed: BTreeMap<u64, u64> = tally::executions(&ledger);
            let wanted = callers
                .numbers
                .iter()
                .flat_map(|(first, count)| *first..first + count);
            let ended = callers.ended.lock().unwrap_or_else(PoisonError::into_inner);
            tally.add(callers.who, wanted, &ended, &executed);
        }
        Ok(tally)
    }

    /// The ends of both logs.
    pub(super) fn last_words(&self) -> String {
        format!("hub:\n{}\nworker:\n{}", self.hub.said(), self.worker.said())
    }
}

impl Callers {
    fn end(&mut self) {
        process::end(&mut self.child, 1);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.end();
    }
}

fn hub(binary: &Path, folder: &Path, listen: &[SocketAddr]) -> Result<Gateway> {
    let mut principals = format!("[principals.worker]\nrole = \"agent\"\noffers = [\"{THERE}\"]\n");
    // The broker is for principals that the configuration names.
    for nth in 0..PEERS_NAMED_MAX {
        principals += &format!("[principals.peer-{nth}]\nrole = \"agent\"\nbroker = true\n");
    }
    let server = gateway::fixture(HERE, binary, &folder.join(HERE));
    let config = folder.join("hub.toml");
    fs::write(&config, [ROLE, &principals, &server].concat())?;
    let mut command = Command::new(binary);
    command.args(["up", "--json", "--config"]).arg(config);
    command.arg("--state").arg(folder.join("hub"));
    for address in listen {
        command.args(["--listen", &address.to_string()]);
    }
    Gateway::start("hub", folder, &command)
}

fn worker(
    binary: &Path,
    folder: &Path,
    network: &Network,
    at: &Addresses,
    token: &str,
) -> Result<Gateway> {
    let config = folder.join("worker.toml");
    let server = gateway::fixture(THERE, binary, &folder.join(THERE));
    fs::write(&config, [ROLE, &server].concat())?;
    let file = folder.join("worker.token");
    let mut options = fs::OpenOptions::new();
    let mut made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)?;
    std::io::Write::write_all(&mut made, token.as_bytes())?;
    let mut command = network.afar(binary);
    command.args(["worker", "join", &format!("http://{}", at.afar), "--json"]);
    // Its network is a namespace of this machine.
    command.arg("--insecure");
    command
        .arg("--token-file")
        .arg(file)
        .args(["--offer", THERE]);
    command
        .args(["--listen", &at.worker.to_string(), "--config"])
        .arg(config);
    command.arg("--state").arg(folder.join("worker"));
    Gateway::start("worker", folder, &command)
}
