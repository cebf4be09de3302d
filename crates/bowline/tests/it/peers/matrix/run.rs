//! Starts what the matrix names, all behind one gateway, and lets clients walk it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::super::afar::{Codex, OFFICE, Office, Walls, there};
use super::super::world::World;
use super::{Cell, Check, Client, Era, Matrix, Server, Via, scripts};
use crate::harness::{Gateway, bowline, eventually};

/// Longest one client may walk one server.
const CELL_TIME_MAX: Duration = Duration::from_secs(180);
/// How long a way through the walls is looked for.
const WALL_TIME_MAX: Duration = Duration::from_millis(500);
/// Clients that walk at the same time.
const WALKERS: usize = 2;

/// One gateway and all servers behind it.
pub(super) struct Street<'a> {
    world: &'a World,
    gateway: Gateway,
    /// One client at a time: a cell is about two, and where a server asks on a stream that all
    /// calls share, a question that comes while two call is refused once before each has a link
    /// of its own. What comes after that has a test of its own.
    doors: BTreeMap<String, Mutex<()>>,
    /// Servers that are not there, and why.
    closed: BTreeMap<String, String>,
    // What ends with the street: executors, then servers with an address of their own.
    _office: Option<Office>,
    _codex: Option<Codex>,
    _houses: Vec<House>,
}

/// A server that was started beside the gateway, or where its executor is.
struct House {
    child: Child,
    port: u16,
}

impl House {
    /// It serves, and yet there is no way to it from here.
    fn is_out_of_reach(&self, walls: &Walls) {
        for address in [walls.beyond, [127, 0, 0, 1].into()] {
            let at = SocketAddr::new(address, self.port);
            let reached = TcpStream::connect_timeout(&at, WALL_TIME_MAX);
            assert!(reached.is_err(), "{at} is within reach");
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Street<'a> {
    /// Starts the servers of these cells, and the gateway in front of them.
    pub(super) fn open(world: &'a World, cells: &[(&Client, &Server)]) -> Self {
        let mut servers: Vec<&Server> = cells.iter().map(|(_, server)| *server).collect();
        servers.sort_by_key(|server| &server.name);
        servers.dedup_by_key(|server| &server.name);
        let doors = servers
            .iter()
            .map(|server| (server.name.clone(), Mutex::new(())))
            .collect();
        let walls = Walls::standing();
        let is = |via| servers.iter().any(|server| server.via == Some(via));
        let codex = is(Via::Codex).then(|| Codex::start(&world.peers));
        let joins = is(Via::Executor);
        let (mut config, mut offered) = (String::new(), String::new());
        let (mut houses, mut closed, mut allow) = (Vec::new(), BTreeMap::new(), Vec::new());
        for server in servers {
            let port = server.url.is_some().then(free_port);
            let block = block(world, server, port);
            if let Err(why) = accepted(world, &block) {
                closed.insert(server.name.clone(), why);
                continue;
            }
            houses.extend(port.map(|port| start(world, server, port, walls.as_ref())));
            match (server.via, port) {
                (Some(Via::Executor), Some(port)) => allow.push(format!("127.0.0.1:{port}")),
                (Some(Via::Executor), None) => offered += &command_block(world, server, port),
                (Some(Via::Codex) | None, _) => {}
            }
            config += &block;
        }
        config.extend(codex.iter().map(|codex| codex.config("codex")));
        let gateway = Gateway::up_as(&config, |command| {
            let also = walls.iter().map(|walls| walls.near.to_string());
            command.args(also.flat_map(|near| ["--listen".to_owned(), near]));
        });
        let office = joins.then(|| Office::join(&gateway, walls.as_ref(), &allow, &offered));
        for status in gateway.api("/api/v1/servers")["servers"]
            .as_array()
            .unwrap()
        {
            gateway.wait_for(status["name"].as_str().unwrap(), "ready");
        }
        if let Some(walls) = &walls {
            houses.iter().for_each(|house| house.is_out_of_reach(walls));
        }
        Self {
            world,
            gateway,
            doors,
            closed,
            _office: office,
            _codex: codex,
            _houses: houses,
        }
    }

    /// The era that the gateway speaks with a server.
    pub(super) fn era(&self, server: &Server) -> Era {
        let status = self.gateway.wait_for(&server.name, "ready");
        let eras = [Era::Legacy, Era::Modern];
        let era = eras.into_iter().find(|era| status["era"] == era.as_str());
        era.unwrap_or_else(|| panic!("{status}"))
    }

    /// Walks all cells, a few at a time, and says how each went.
    pub(super) fn walk(&self, matrix: &Matrix, cells: &[(&Client, &Server)]) -> Vec<Cell> {
        let queue: Mutex<VecDeque<_>> = Mutex::new(cells.iter().enumerate().collect());
        let walked = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..WALKERS {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().unwrap().pop_front();
                        let Some((at, (client, server))) = next else {
                            break;
                        };
                        let cell = self.walk_one(matrix, client, server);
                        tell(&cell);
                        walked.lock().unwrap().push((at, cell));
                    }
                });
            }
        });
        let mut walked = walked.into_inner().unwrap();
        walked.sort_by_key(|(at, _)| *at);
        walked.into_iter().map(|(_, cell)| cell).collect()
    }

    fn walk_one(&self, matrix: &Matrix, client: &Client, server: &Server) -> Cell {
        let _door = self.doors[&server.name].lock().unwrap();
        self.walk_plan(client, server, &matrix.plan(client, server))
    }

    /// Walks one server with several of the same client at the same time.
    pub(super) fn walk_at_once(
        &self,
        client: &Client,
        server: &Server,
        plan: &Map<String, Value>,
        clients: usize,
    ) -> Vec<Cell> {
        std::thread::scope(|scope| {
            let walkers: Vec<_> = (0..clients)
                .map(|_| scope.spawn(|| self.walk_plan(client, server, plan)))
                .collect();
            let cells = walkers.into_iter().map(|walker| walker.join().unwrap());
            cells.inspect(tell).collect()
        })
    }

    fn walk_plan(&self, client: &Client, server: &Server, plan: &Map<String, Value>) -> Cell {
        let begun = Instant::now();
        let wanted: Vec<_> = std::iter::once("connect")
            .chain(plan.keys().map(String::as_str))
            .collect();
        let (said, words) = match self.closed.get(&server.name) {
            Some(why) => (Vec::new(), why.clone()),
            None => self.run(client, server, &json!(plan)),
        };
        let checks: Vec<_> = wanted
            .iter()
            .map(|check| {
                let found = said.iter().find(|line| line.check == **check);
                found.cloned().unwrap_or_else(|| Check {
                    check: (*check).to_owned(),
                    ok: false,
                    why: Some(format!("not said: {words}")),
                })
            })
            .collect();
        Cell {
            client: client.name.clone(),
            server: server.name.clone(),
            green: checks.iter().all(|check| check.ok),
            checks,
            ms: begun.elapsed().as_millis(),
        }
    }

    /// Runs a client; returns what it said line by line, and its other words.
    fn run(&self, client: &Client, server: &Server, plan: &Value) -> (Vec<Check>, String) {
        let url = format!(
            "http://{}/servers/{}/mcp",
            self.gateway.address, server.name
        );
        let filled = |text: &str| fill(self.world, text, &[("client", &client.name)]);
        let child = Command::new(filled(&client.program))
            .args(client.args.iter().map(|arg| filled(arg)))
            .args(["--url", &url, "--token", &self.gateway.token])
            .args(["--plan", &filled(&plan.to_string())])
            .env("MATRIX_HOME", self.world.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Some clients start programs of their own; the whole group ends when time is up.
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

/// One line for whoever watches.
fn tell(cell: &Cell) {
    let failed: Vec<_> = cell.checks.iter().filter(|check| !check.ok).collect();
    let names: Vec<_> = failed.iter().map(|check| check.check.as_str()).collect();
    let colour = if cell.green { "green" } else { "red" };
    let (client, server, ms) = (&cell.client, &cell.server, cell.ms);
    eprintln!(
        "{colour:<5} {client}/{server} ({ms} ms) {}",
        names.join(", ")
    );
}

/// Fills in the places of peers (`{/node}`), and what the world and the caller name.
fn fill(world: &World, text: &str, more: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    let files = world.files();
    let repository = world.repository();
    let memory = world.path().join("matrix.jsonl");
    let scripts = scripts();
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
        text = world.peers.path(&format!("/{key}")).display().to_string();
    }
    text
}

/// A port that is free at the moment; the servers cannot be asked which one they took.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The part of the gateway's configuration that is this server's.
fn block(world: &World, server: &Server, port: Option<u16>) -> String {
    let name = &server.name;
    let port_text = port.unwrap_or_default().to_string();
    let mut block = match (&server.url, server.via) {
        (Some(url), _) => {
            let url = fill(world, url, &[("port", &port_text)]);
            format!("[servers.{name}]\nurl = {}\n", json!(url))
        }
        (None, None) => command_block(world, server, port),
        (None, Some(_)) => format!("[servers.{name}]\n"),
    };
    match server.via {
        Some(Via::Executor) => block += &format!("via = \"executor:{OFFICE}\"\n"),
        Some(Via::Codex) => block += "via = \"executor:codex\"\n",
        None => {}
    }
    if let Some(era) = server.era {
        block += &format!("era = \"{}\"\n", era.as_str());
    }
    block
}

/// How a server is started, for whoever starts it.
fn command_block(world: &World, server: &Server, port: Option<u16>) -> String {
    let filled = |text: &str| {
        let port = port.unwrap_or_default().to_string();
        fill(world, text, &[("port", &port)])
    };
    let args: Vec<_> = server.args.iter().map(|arg| filled(arg)).collect();
    let mut block = crate::harness::server(
        &server.name,
        filled(&server.program).as_ref(),
        &args.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    if server.name == "git" {
        // Which repository is meant, calls say; the sandbox must let it be read.
        block += &format!("fs = [{}]\n", json!(world.path()));
    }
    for (key, value) in &server.env {
        block += &format!("env = {{ {key} = {} }}\n", json!(filled(value)));
    }
    block
}

/// Whether the gateway can be configured with this.
fn accepted(world: &World, block: &str) -> Result<(), String> {
    let file = world.path().join("part.toml");
    std::fs::write(&file, block).unwrap();
    let output = Command::new(bowline())
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

/// Starts a server that has an address of its own, and waits until it can be reached.
fn start(world: &World, server: &Server, port: u16, walls: Option<&Walls>) -> House {
    let filled = |text: &str| fill(world, text, &[("port", &port.to_string())]);
    let log = File::create(world.path().join(format!("{}.log", server.name))).unwrap();
    let child = there(filled(&server.program), walls)
        .args(server.args.iter().map(|arg| filled(arg)))
        .envs(server.env.iter().map(|(key, value)| (key, filled(value))))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let house = House { child, port };
    // Behind walls only the executor reaches it, and the gateway asks until it does.
    if walls.is_none() {
        eventually(&format!("{} listens", server.name), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }
    house
}
