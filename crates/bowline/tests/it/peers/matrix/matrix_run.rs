//! Starts the servers of the matrix behind one gateway, and runs the clients.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, bowline_binary, server_config};
use bowline_testkit::wait_until;
use serde_json::{Map, Value, json};

use super::super::official_servers::OfficialServers;
use super::super::remote_network::{
    EXECUTOR_NAME, NetworkSplit, RemoteCodex, RemoteExecutor, remote_command,
};
use super::{
    Matrix, MatrixCell, MatrixCheck, MatrixClient, MatrixEra, MatrixExecutor, MatrixServer,
    scripts_dir,
};

/// Time limit of a cell.
const CELL_TIME_MAX: Duration = Duration::from_secs(180);
/// Time limit for connection attempts through the network split.
const SPLIT_TIME_MAX: Duration = Duration::from_millis(500);
/// Number of concurrent clients.
const CONCURRENT_CLIENTS: usize = 2;

/// A gateway and all servers of the matrix.
pub(super) struct MatrixGateway<'a> {
    servers_data: &'a OfficialServers,
    gateway: Gateway,
    /// A lock per server, because a cell tests a single pair. If a server sends requests on a
    /// shared stream, a request during two concurrent calls is refused once, before each caller
    /// gets a dedicated link. A separate test covers the later behaviour.
    server_locks: BTreeMap<String, Mutex<()>>,
    /// Unavailable servers, with the reason.
    unavailable: BTreeMap<String, String>,
    // Ends with the gateway: executors, then servers with their own address.
    _executor: Option<RemoteExecutor>,
    _codex: Option<RemoteCodex>,
    _servers: Vec<SpawnedServer>,
}

/// A server started beside the gateway, or beside its executor.
struct SpawnedServer {
    child: Child,
    port: u16,
}

impl SpawnedServer {
    /// The server runs, but is unreachable from here.
    fn assert_out_of_reach(&self, walls: &NetworkSplit) {
        for address in [walls.far_address, [127, 0, 0, 1].into()] {
            let at = SocketAddr::new(address, self.port);
            let reached = TcpStream::connect_timeout(&at, SPLIT_TIME_MAX);
            assert!(reached.is_err(), "{at} is within reach");
        }
    }
}

impl Drop for SpawnedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> MatrixGateway<'a> {
    /// Starts the servers of the given cells, and the gateway in front.
    pub(super) fn start(
        servers_data: &'a OfficialServers,
        cells: &[(&MatrixClient, &MatrixServer)],
    ) -> Self {
        let mut servers: Vec<&MatrixServer> = cells.iter().map(|(_, server)| *server).collect();
        servers.sort_by_key(|server| &server.name);
        servers.dedup_by_key(|server| &server.name);
        let server_locks = servers
            .iter()
            .map(|server| (server.name.clone(), Mutex::new(())))
            .collect();
        let walls = NetworkSplit::from_env();
        let is = |via| servers.iter().any(|server| server.via == Some(via));
        let codex = is(MatrixExecutor::Codex).then(|| RemoteCodex::start(&servers_data.peers));
        let joins = is(MatrixExecutor::Executor);
        let (mut config, mut offered) = (String::new(), String::new());
        let (mut houses, mut unavailable, mut allow) = (Vec::new(), BTreeMap::new(), Vec::new());
        for server in servers {
            let port = server.url.is_some().then(free_port);
            let block = server_block(servers_data, server, port);
            if let Err(why) = check_config(servers_data, &block) {
                unavailable.insert(server.name.clone(), why);
                continue;
            }
            houses
                .extend(port.map(|port| start_server(servers_data, server, port, walls.as_ref())));
            match (server.via, port) {
                (Some(MatrixExecutor::Executor), Some(port)) => {
                    allow.push(format!("127.0.0.1:{port}"))
                }
                (Some(MatrixExecutor::Executor), None) => {
                    offered += &command_block(servers_data, server, port)
                }
                (Some(MatrixExecutor::Codex) | None, _) => {}
            }
            config += &block;
        }
        config.extend(codex.iter().map(|codex| codex.executor_config("codex")));
        let gateway = Gateway::start_with_command(&config, |command| {
            let also = walls.iter().map(|walls| walls.gateway_address.to_string());
            command.args(also.flat_map(|near| ["--listen".to_owned(), near]));
        });
        let office =
            joins.then(|| RemoteExecutor::join(&gateway, walls.as_ref(), &allow, &offered));
        for status in gateway.get_api("/api/v1/servers")["servers"]
            .as_array()
            .unwrap()
        {
            gateway.wait_for_state(status["name"].as_str().unwrap(), "ready");
        }
        if let Some(walls) = &walls {
            houses
                .iter()
                .for_each(|house| house.assert_out_of_reach(walls));
        }
        Self {
            servers_data,
            gateway,
            server_locks,
            unavailable,
            _executor: office,
            _codex: codex,
            _servers: houses,
        }
    }

    /// The era between gateway and server.
    pub(super) fn negotiated_era(&self, server: &MatrixServer) -> MatrixEra {
        let status = self.gateway.wait_for_state(&server.name, "ready");
        let eras = [MatrixEra::Legacy, MatrixEra::Modern];
        let era = eras.into_iter().find(|era| status["era"] == era.as_str());
        era.unwrap_or_else(|| panic!("{status}"))
    }

    /// Runs all cells, a few at a time, and returns their outcomes.
    pub(super) fn run_cells(
        &self,
        matrix: &Matrix,
        cells: &[(&MatrixClient, &MatrixServer)],
    ) -> Vec<MatrixCell> {
        let queue: Mutex<VecDeque<_>> = Mutex::new(cells.iter().enumerate().collect());
        let walked = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..CONCURRENT_CLIENTS {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().unwrap().pop_front();
                        let Some((at, (client, server))) = next else {
                            break;
                        };
                        let cell = self.run_cell(matrix, client, server);
                        print_cell(&cell);
                        walked.lock().unwrap().push((at, cell));
                    }
                });
            }
        });
        let mut walked = walked.into_inner().unwrap();
        walked.sort_by_key(|(at, _)| *at);
        walked.into_iter().map(|(_, cell)| cell).collect()
    }

    fn run_cell(
        &self,
        matrix: &Matrix,
        client: &MatrixClient,
        server: &MatrixServer,
    ) -> MatrixCell {
        let _door = self.server_locks[&server.name].lock().unwrap();
        self.run_plan(client, server, &matrix.shared_checks(client, server))
    }

    /// Runs several instances of a client against a server concurrently.
    pub(super) fn run_concurrently(
        &self,
        client: &MatrixClient,
        server: &MatrixServer,
        plan: &Map<String, Value>,
        clients: usize,
    ) -> Vec<MatrixCell> {
        std::thread::scope(|scope| {
            let walkers: Vec<_> = (0..clients)
                .map(|_| scope.spawn(|| self.run_plan(client, server, plan)))
                .collect();
            let cells = walkers.into_iter().map(|walker| walker.join().unwrap());
            cells.inspect(print_cell).collect()
        })
    }

    fn run_plan(
        &self,
        client: &MatrixClient,
        server: &MatrixServer,
        plan: &Map<String, Value>,
    ) -> MatrixCell {
        let begun = Instant::now();
        let wanted: Vec<_> = std::iter::once("connect")
            .chain(plan.keys().map(String::as_str))
            .collect();
        let (said, words) = match self.unavailable.get(&server.name) {
            Some(why) => (Vec::new(), why.clone()),
            None => self.run_client(client, server, &json!(plan)),
        };
        let checks: Vec<_> = wanted
            .iter()
            .map(|check| {
                let found = said.iter().find(|line| line.check == **check);
                found.cloned().unwrap_or_else(|| MatrixCheck {
                    check: (*check).to_owned(),
                    ok: false,
                    why: Some(format!("not said: {words}")),
                })
            })
            .collect();
        MatrixCell {
            client: client.name.clone(),
            server: server.name.clone(),
            green: checks.iter().all(|check| check.ok),
            checks,
            ms: begun.elapsed().as_millis(),
        }
    }

    /// Runs a client; returns the checks line by line, and the stderr.
    fn run_client(
        &self,
        client: &MatrixClient,
        server: &MatrixServer,
        plan: &Value,
    ) -> (Vec<MatrixCheck>, String) {
        let url = format!(
            "http://{}/servers/{}/mcp",
            self.gateway.address, server.name
        );
        let filled =
            |text: &str| fill_placeholders(self.servers_data, text, &[("client", &client.name)]);
        let child = Command::new(filled(&client.program))
            .args(client.args.iter().map(|arg| filled(arg)))
            .args(["--url", &url, "--token", &self.gateway.token])
            .args(["--plan", &filled(&plan.to_string())])
            .env("MATRIX_HOME", self.servers_data.base_dir())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Some clients start programs of their own; the whole group is killed at the time
            // limit.
            .process_group(0)
            .spawn()
            .unwrap();
        let group = child.id();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        let Ok(output) = receiver.recv_timeout(CELL_TIME_MAX) else {
            let _ = Command::new("kill")
                .args(["-KILL", "--", &format!("-{group}")])
                .status();
            return (Vec::new(), format!("no end after {CELL_TIME_MAX:?}"));
        };
        let output = output.unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let said = stdout
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.lines().rev().take(5).collect::<Vec<_>>().join(" ");
        (said, words)
    }
}

/// Prints a progress line.
fn print_cell(cell: &MatrixCell) {
    let failed: Vec<_> = cell.checks.iter().filter(|check| !check.ok).collect();
    let names: Vec<_> = failed.iter().map(|check| check.check.as_str()).collect();
    let colour = if cell.green { "green" } else { "red" };
    let (client, server, ms) = (&cell.client, &cell.server, cell.ms);
    eprintln!(
        "{colour:<5} {client}/{server} ({ms} ms) {}",
        names.join(", ")
    );
}

/// Replaces peer paths (`{/node}`) and the placeholders of the test data and of the caller.
fn fill_placeholders(world: &OfficialServers, text: &str, more: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    let files = world.files_dir();
    let repository = world.repository_dir();
    let memory = world.base_dir().join("matrix.jsonl");
    let scripts = scripts_dir();
    let paths = [
        ("files", files.to_str()),
        ("repository", repository.to_str()),
        ("memory", memory.to_str()),
        ("scripts", scripts.to_str()),
    ];
    let all = paths.iter().map(|(key, path)| (*key, path.unwrap()));
    for (key, value) in all.chain(more.iter().copied()) {
        text = text.replace(&format!("{{{key}}}"), value);
    }
    if let Some(key) = text.strip_prefix("{/").and_then(|it| it.strip_suffix('}')) {
        text = world
            .peers
            .peer_path(&format!("/{key}"))
            .display()
            .to_string();
    }
    text
}

/// A currently free port; the servers cannot report a port of their own choice.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The config entry of this server.
fn server_block(world: &OfficialServers, server: &MatrixServer, port: Option<u16>) -> String {
    let name = &server.name;
    let port_text = port.unwrap_or_default().to_string();
    let mut block = match (&server.url, server.via) {
        (Some(url), _) => {
            let url = fill_placeholders(world, url, &[("port", &port_text)]);
            format!("[servers.{name}]\nurl = {}\n", json!(url))
        }
        (None, None) => command_block(world, server, port),
        (None, Some(_)) => format!("[servers.{name}]\n"),
    };
    match server.via {
        Some(MatrixExecutor::Executor) => block += &format!("via = \"executor:{EXECUTOR_NAME}\"\n"),
        Some(MatrixExecutor::Codex) => block += "via = \"executor:codex\"\n",
        None => {}
    }
    if let Some(era) = server.era {
        block += &format!("era = \"{}\"\n", era.as_str());
    }
    block
}

/// The start command of a server as configuration.
fn command_block(world: &OfficialServers, server: &MatrixServer, port: Option<u16>) -> String {
    let filled = |text: &str| {
        let port = port.unwrap_or_default().to_string();
        fill_placeholders(world, text, &[("port", &port)])
    };
    let args: Vec<_> = server.args.iter().map(|arg| filled(arg)).collect();
    let mut block = server_config(
        &server.name,
        filled(&server.program).as_ref(),
        &args.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    if server.name == "git" {
        // Calls name the repository as an argument; the sandbox must allow reading it.
        block += &format!("fs = [{}]\n", json!(world.base_dir()));
    }
    for (key, value) in &server.env {
        block += &format!("env = {{ {key} = {} }}\n", json!(filled(value)));
    }
    block
}

/// Checks a configuration with the gateway.
fn check_config(world: &OfficialServers, block: &str) -> Result<(), String> {
    let file = world.base_dir().join("part.toml");
    std::fs::write(&file, block).unwrap();
    let output = Command::new(bowline_binary())
        .arg("--config")
        .arg(&file)
        .arg("check")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(words.lines().next().unwrap_or_default().to_owned())
}

/// Starts a server with an address, and waits for a connection.
fn start_server(
    world: &OfficialServers,
    server: &MatrixServer,
    port: u16,
    walls: Option<&NetworkSplit>,
) -> SpawnedServer {
    let filled = |text: &str| fill_placeholders(world, text, &[("port", &port.to_string())]);
    let log = File::create(world.base_dir().join(format!("{}.log", server.name))).unwrap();
    let child = remote_command(filled(&server.program), walls)
        .args(server.args.iter().map(|arg| filled(arg)))
        .envs(server.env.iter().map(|(key, value)| (key, filled(value))))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let house = SpawnedServer { child, port };
    // With a network split only the executor reaches it, and the gateway retries until then.
    if walls.is_none() {
        wait_until(&format!("{} listens", server.name), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }
    house
}
