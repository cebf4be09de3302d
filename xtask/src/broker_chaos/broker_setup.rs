//! Setup of broker-chaos: hub, worker, the network between both, and caller processes.

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
    BrokerChaosPlan,
    broker_tally::{self, BrokerCallRecord, BrokerTally, CallerGroup},
    hub_network::HubNetwork,
    restartable_gateway::{self, RestartableGateway},
};
use crate::process;

/// Broker principals in the hub's configuration; more than any plan uses.
const PEERS_NAMED_MAX: usize = 64;

/// The hub's server, and the server that the worker offers.
const HUB_SERVER: &str = "here";
const WORKER_SERVER: &str = "there";

/// Agents of each side, and plain peers.
const AGENTS_PER_SIDE: u64 = 8;
const PLAIN_PEERS: u64 = 4;

/// Size of each group's range of numbers, so that numbers are unique.
const NUMBERS_PER_GROUP: u64 = 1_000_000;

/// Time limit for the last calls after the last fault.
const FINISH_TIMEOUT: Duration = Duration::from_secs(300);

const AGENT_ROLE: &str = "[roles.agent]\nallow = [\"*\"]\n";

/// Listen port of the worker in a namespace, where every port is free.
const WORKER_PORT: u16 = 7_400;

/// A child process with one group of callers, and its records.
#[derive(Debug)]
struct CallerProcess {
    group: CallerGroup,
    child: Child,
    reader: Option<JoinHandle<()>>,
    finished_calls: Arc<Mutex<Vec<BrokerCallRecord>>>,
    numbers: Vec<(u64, u64)>,
}

/// All processes of a run.
#[derive(Debug)]
pub(super) struct BrokerChaosSetup {
    // Fields drop in this order: callers, gateways, network.
    callers: Vec<CallerProcess>,
    pub(super) worker: RestartableGateway,
    pub(super) hub: RestartableGateway,
    pub(super) network: HubNetwork,
    /// Description of the network, for the output.
    pub(super) network_note: String,
    finished_calls: Arc<AtomicU64>,
    folder: BrokerFolder,
}

#[derive(Debug)]
struct BrokerFolder {
    path: PathBuf,
    keep_files: bool,
}

impl Drop for BrokerFolder {
    fn drop(&mut self) {
        if self.keep_files {
            eprintln!("broker-chaos: kept {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Addresses of hub and worker.
#[derive(Debug)]
struct GatewayAddresses {
    /// The hub from its own side.
    hub: SocketAddr,
    /// The hub from the worker side.
    hub_remote: SocketAddr,
    /// The worker from its own side.
    worker: SocketAddr,
}

impl BrokerChaosSetup {
    pub(super) fn start(root: &Path, binary: &Path, plan: &BrokerChaosPlan) -> Result<Self> {
        let binary = &binary.canonicalize().context("the gateway is not there")?;
        let path = root.join(format!("target/broker-chaos-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let folder = BrokerFolder {
            path,
            keep_files: plan.keep,
        };
        let (network, proxy) = HubNetwork::open(root, plan.proxy)?;
        let way = match &proxy {
            None => "worker and plain peers in a network namespace".to_owned(),
            Some(why) => format!("through a proxy, without a network namespace ({why})"),
        };
        let hub_port = process::free_port()?;
        let far = network.hub_listen_address()?;
        let worker_port = match network {
            HubNetwork::Namespace(_) => WORKER_PORT,
            HubNetwork::Proxy(_) => process::free_port()?,
        };
        let addresses = GatewayAddresses {
            hub: SocketAddr::from(([127, 0, 0, 1], hub_port)),
            hub_remote: network.hub_remote_address(far),
            worker: SocketAddr::from(([127, 0, 0, 1], worker_port)),
        };
        let hub = start_hub(binary, &folder.path, &[addresses.hub, far])?;
        let worker_token =
            restartable_gateway::create_token(addresses.hub, &hub.token, "worker", "agent")?;
        let worker = start_worker(binary, &folder.path, &network, &addresses, &worker_token)?;
        let mut world = Self {
            callers: Vec::new(),
            worker,
            hub,
            network,
            network_note: way,
            finished_calls: Arc::default(),
            folder,
        };
        world.start_all_callers(&addresses, plan.calls)?;
        Ok(world)
    }

    /// Starts all callers: two fifths of the calls from each side, one fifth from plain peers.
    fn start_all_callers(&mut self, at: &GatewayAddresses, calls: u64) -> Result<()> {
        let (agents, peers) = (calls * 2 / 5 / AGENTS_PER_SIDE, calls / 5 / PLAIN_PEERS);
        let owner = self.worker.token.clone();
        let local = (0..AGENTS_PER_SIDE).map(|_| Ok(("agent".to_owned(), owner.clone())));
        let local = local.collect::<Result<Vec<_>>>()?;
        let of_hub = |prefix: &str, count: u64| -> Result<Vec<(String, String)>> {
            let made = (0..count).map(|nth| {
                let name = format!("{prefix}-{nth}");
                let token =
                    restartable_gateway::create_token(at.hub, &self.hub.token, &name, "agent")?;
                Ok((name, token))
            });
            made.collect()
        };
        let (remote, plain) = (
            of_hub("agent", AGENTS_PER_SIDE)?,
            of_hub("peer", PLAIN_PEERS)?,
        );
        self.start_callers(CallerGroup::Worker, at.worker, HUB_SERVER, agents, &local)?;
        self.start_callers(CallerGroup::Hub, at.hub, WORKER_SERVER, agents, &remote)?;
        self.start_callers(CallerGroup::Peers, at.hub_remote, HUB_SERVER, peers, &plain)
    }

    fn start_callers(
        &mut self,
        who: CallerGroup,
        address: SocketAddr,
        server: &str,
        each: u64,
        names: &[(String, String)],
    ) -> Result<()> {
        let base = (self.callers.len() as u64 + 1) * NUMBERS_PER_GROUP;
        let numbers: Vec<(u64, u64)> = (0..names.len() as u64)
            .map(|nth| (base + nth * each, each))
            .collect();
        let all = names.iter().zip(&numbers).map(|((name, token), (first, count))| {
            json!({"name": name, "token": token, "first": first, "count": count})
        });
        let plain = who == CallerGroup::Peers;
        let all: Vec<Value> = all.collect();
        let spec = json!({"address": address, "server": server, "plain": plain, "all": all});
        let own = std::env::current_exe()?;
        let mut command = match who {
            CallerGroup::Hub => Command::new(own),
            CallerGroup::Worker | CallerGroup::Peers => self.network.worker_side_command(&own),
        };
        command.args(["broker-chaos", "--child", &spec.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("could not start the callers")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let ended = Arc::<Mutex<Vec<BrokerCallRecord>>>::default();
        let (kept, done) = (Arc::clone(&ended), Arc::clone(&self.finished_calls));
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match BrokerCallRecord::parse_line(&line) {
                    Ok(one) => kept
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(one),
                    Err(error) => eprintln!("broker-chaos: {error:#}"),
                }
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        self.callers.push(CallerProcess {
            group: who,
            child,
            reader: Some(reader),
            finished_calls: ended,
            numbers,
        });
        Ok(())
    }

    /// Returns the number of planned calls.
    pub(super) fn call_count(&self) -> u64 {
        let numbers = self.callers.iter().flat_map(|callers| &callers.numbers);
        numbers.map(|(_, count)| count).sum()
    }

    /// Returns the number of finished calls.
    pub(super) fn finished_count(&self) -> u64 {
        self.finished_calls.load(Ordering::SeqCst)
    }

    /// Waits until `due` calls are finished; fails without progress for `stuck`.
    pub(super) fn wait_for_calls(
        &mut self,
        due: u64,
        stuck: Duration,
        look: Duration,
    ) -> Result<()> {
        let mut seen = (self.finished_count(), process::now());
        while self.finished_count() < due {
            if self.finished_count() > seen.0 {
                seen = (self.finished_count(), process::now());
            }
            if seen.1.elapsed() > stuck {
                bail!("stuck: {} of {} calls are over", seen.0, self.call_count());
            }
            if !self.hub.is_running() || !self.worker.is_running() {
                bail!("the hub or the worker ended by itself");
            }
            thread::sleep(look);
        }
        Ok(())
    }

    /// Waits for the last calls and returns the tally.
    pub(super) fn finish(&mut self) -> Result<BrokerTally> {
        self.network.restore()?;
        let all = self.call_count();
        // Unfinished callers are counted as they are.
        if let Err(error) = self.wait_for_calls(all, FINISH_TIMEOUT, Duration::from_millis(20)) {
            eprintln!("broker-chaos: {error:#}");
        }
        let mut tally = BrokerTally::default();
        for callers in &mut self.callers {
            callers.terminate();
        }
        for callers in &self.callers {
            let name = match callers.group {
                CallerGroup::Worker | CallerGroup::Peers => HUB_SERVER,
                CallerGroup::Hub => WORKER_SERVER,
            };
            let ledger = fs::read_to_string(self.folder.path.join(name)).unwrap_or_default();
            let executed: BTreeMap<u64, u64> = broker_tally::count_executions(&ledger);
            let wanted = callers
                .numbers
                .iter()
                .flat_map(|(first, count)| *first..first + count);
            let ended = callers
                .finished_calls
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            tally.add_group(callers.group, wanted, &ended, &executed);
        }
        Ok(tally)
    }

    /// Returns the last lines of both logs.
    pub(super) fn log_tails(&self) -> String {
        format!(
            "hub:\n{}\nworker:\n{}",
            self.hub.log_tail(),
            self.worker.log_tail()
        )
    }
}

impl CallerProcess {
    fn terminate(&mut self) {
        process::terminate(&mut self.child, 1);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for CallerProcess {
    fn drop(&mut self) {
        self.terminate();
    }
}

fn start_hub(binary: &Path, folder: &Path, listen: &[SocketAddr]) -> Result<RestartableGateway> {
    let mut principals =
        format!("[principals.worker]\nrole = \"agent\"\noffers = [\"{WORKER_SERVER}\"]\n");
    // The broker admits only principals named in the configuration.
    for nth in 0..PEERS_NAMED_MAX {
        principals += &format!("[principals.peer-{nth}]\nrole = \"agent\"\nbroker = true\n");
    }
    let server = restartable_gateway::fixture_config(HUB_SERVER, binary, &folder.join(HUB_SERVER));
    let config = folder.join("hub.toml");
    fs::write(&config, [AGENT_ROLE, &principals, &server].concat())?;
    let mut command = Command::new(binary);
    command.args(["up", "--json", "--config"]).arg(config);
    command.arg("--state").arg(folder.join("hub"));
    for address in listen {
        command.args(["--listen", &address.to_string()]);
    }
    RestartableGateway::start("hub", folder, &command)
}

fn start_worker(
    binary: &Path,
    folder: &Path,
    network: &HubNetwork,
    at: &GatewayAddresses,
    token: &str,
) -> Result<RestartableGateway> {
    let config = folder.join("worker.toml");
    let server =
        restartable_gateway::fixture_config(WORKER_SERVER, binary, &folder.join(WORKER_SERVER));
    fs::write(&config, [AGENT_ROLE, &server].concat())?;
    let file = folder.join("worker.token");
    let mut options = fs::OpenOptions::new();
    let mut made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)?;
    std::io::Write::write_all(&mut made, token.as_bytes())?;
    let mut command = network.worker_side_command(binary);
    command.args([
        "worker",
        "join",
        &format!("http://{}", at.hub_remote),
        "--json",
    ]);
    // The worker's network is a namespace of this machine, so plain HTTP is safe.
    command.arg("--insecure");
    command
        .arg("--token-file")
        .arg(file)
        .args(["--offer", WORKER_SERVER]);
    command
        .args(["--listen", &at.worker.to_string(), "--config"])
        .arg(config);
    command.arg("--state").arg(folder.join("worker"));
    RestartableGateway::start("worker", folder, &command)
}
