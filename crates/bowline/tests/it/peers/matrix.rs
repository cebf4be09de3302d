//! Every client to every server through one gateway; here each once, in `cargo xtask peers
//! matrix` all with all.

mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Peers;
use super::afar::Walls;
use super::world::World;
use run::Street;

/// Which clients and servers there are, how they are started and what they have.
#[derive(Debug, Clone, Deserialize)]
struct Matrix {
    clients: Vec<Client>,
    servers: Vec<Server>,
    plans: BTreeMap<String, Map<String, Value>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Client {
    name: String,
    program: String,
    args: Vec<String>,
    /// The one it speaks, if it does not find out.
    era: Option<Era>,
    /// What it can check beyond connecting, listing and calling.
    has: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Server {
    name: String,
    program: String,
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Where it serves, if not over its pipes.
    url: Option<String>,
    /// Through what it is reached, if not by the gateway itself.
    via: Option<Via>,
    /// The one the gateway is to speak with it, if it is not to find out.
    era: Option<Era>,
    plan: String,
}

/// Of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Era {
    Legacy,
    Modern,
}

impl Era {
    /// What the gateway calls it, in its configuration and in what it says of servers.
    fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// An executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Via {
    /// Ours, joined.
    Executor,
    /// The exec-server of Codex.
    Codex,
}

/// How one client fared with one server.
#[derive(Debug, Clone, Serialize)]
struct Cell {
    client: String,
    server: String,
    green: bool,
    checks: Vec<Check>,
    ms: u128,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Check {
    check: String,
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Matrix {
    fn load() -> Self {
        serde_json::from_slice(&std::fs::read(scripts().join("matrix.json")).unwrap()).unwrap()
    }

    /// What this client checks of this server: what both have.
    fn plan(&self, client: &Client, server: &Server) -> Map<String, Value> {
        let mut plan = self.plans[&server.plan].clone();
        plan.retain(|check, _| {
            matches!(check.as_str(), "tools" | "call") || client.has.contains(check)
        });
        plan
    }

    /// Every client and every server at least once; which meet is the order in the file.
    fn diagonal(&self) -> Vec<(&Client, &Server)> {
        let clients = self.clients.iter().cycle();
        self.servers
            .iter()
            .zip(clients)
            .map(|(server, client)| (client, server))
            .collect()
    }

    /// All cells that a pattern such as `python-1/*` names.
    fn cells(&self, only: &str) -> Vec<(&Client, &Server)> {
        let (client, server) = only.split_once('/').unwrap_or((only, "*"));
        let is = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        let clients = self.clients.iter().filter(|one| is(client, &one.name));
        // Neighbours have different servers, since those who walk at once are neighbours.
        clients
            .flat_map(|client| {
                let servers = self.servers.iter().filter(|one| is(server, &one.name));
                servers.map(move |server| (client, server))
            })
            .collect()
    }
}

/// Where the clients and servers of the matrix are.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/matrix")
}

const NEEDED: &[&str] = &[
    "/python1",
    "/python2",
    "/fastmcp",
    "/clients/sdk",
    "/clients/client",
    "/clients/mcporter",
    "/inspector",
    "/servers/sequential-thinking",
    "/servers/typescript-2",
    "/agents/codex",
];

/// The two SDKs, both generations of each.
const SDKS: [&str; 4] = ["python-1", "python-2", "typescript-1", "typescript-2"];

#[test]
fn each_client_and_each_server_works_through_the_gateway() {
    let test = "each_client_and_each_server_works_through_the_gateway";
    let Some(peers) = Peers::of(test, NEEDED) else {
        return;
    };
    let matrix = Matrix::load();
    let world = World::new(peers);
    let cells = matrix.diagonal();
    assert!(cells.len() >= matrix.clients.len());
    let street = Street::open(&world, &cells);
    each_era_meets_each(&matrix, &street, &cells);
    let walked = street.walk(&matrix, &cells);
    let red: Vec<_> = walked.iter().flat_map(faults).collect();
    assert!(red.is_empty(), "{}", red.join("\n"));
}

/// Among those that meet, and whose servers ask, is every pair of eras.
fn each_era_meets_each(matrix: &Matrix, street: &Street<'_>, cells: &[(&Client, &Server)]) {
    let asking = cells
        .iter()
        .filter(|(client, server)| matrix.plan(client, server).contains_key("elicitation"));
    let met: BTreeSet<_> = asking
        .filter_map(|(client, server)| Some((client.era?, street.era(server))))
        .collect();
    let eras = [Era::Legacy, Era::Modern];
    let all = eras
        .iter()
        .flat_map(|client| eras.map(|server| (*client, server)));
    assert_eq!(met, all.collect());
}

/// Its SDK asks on the stream that all calls of a session share, so that nobody can say which of
/// two callers it means. It is refused once; from then on each has a session of its own.
#[test]
fn a_server_that_asks_beside_its_calls_is_refused_at_most_once() {
    const ROUNDS: usize = 5;
    let test = "a_server_that_asks_beside_its_calls_is_refused_at_most_once";
    let Some(peers) = Peers::of(test, NEEDED) else {
        return;
    };
    let matrix = Matrix::load();
    let world = World::new(peers);
    let cells = matrix.cells("typescript-2/typescript-2");
    let (client, server) = cells[0];
    let street = Street::open(&world, &cells);
    let mut plan = matrix.plan(client, server);
    plan.retain(|check, _| check == "elicitation");
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let walked = street.walk_at_once(client, server, &plan, 3);
            walked.iter().flat_map(faults).collect::<Vec<_>>()
        })
        .collect();
    let red = rounds.iter().filter(|faults| !faults.is_empty()).count();
    assert!(red <= 1, "{rounds:?}");
}

#[test]
fn server_everything_is_called_through_a_codex_exec_server_by_both_sdks() {
    let test = "server_everything_is_called_through_a_codex_exec_server_by_both_sdks";
    both_sdks(test, &["everything-codex"]);
}

#[test]
fn server_everything_is_called_through_an_executor_by_both_sdks() {
    let test = "server_everything_is_called_through_an_executor_by_both_sdks";
    both_sdks(test, &["everything-executor", "everything-there"]);
}

/// Asked for by `cargo xtask apart`, which puts up the walls.
#[test]
fn server_everything_is_called_where_nothing_but_an_executor_reaches_it() {
    let test = "server_everything_is_called_where_nothing_but_an_executor_reaches_it";
    if Walls::standing().is_some() {
        both_sdks(test, &["everything-executor", "everything-there"]);
    }
}

fn both_sdks(test: &str, servers: &[&str]) {
    let Some(peers) = Peers::of(test, NEEDED) else {
        return;
    };
    let matrix = Matrix::load();
    let world = World::new(peers);
    let pairs = servers
        .iter()
        .flat_map(|server| SDKS.map(|client| format!("{client}/{server}")));
    let pairs: Vec<String> = pairs.collect();
    let cells: Vec<_> = pairs.iter().flat_map(|pair| matrix.cells(pair)).collect();
    assert_eq!(cells.len(), SDKS.len() * servers.len());
    let street = Street::open(&world, &cells);
    let walked = street.walk(&matrix, &cells);
    let red: Vec<_> = walked.iter().flat_map(faults).collect();
    assert!(red.is_empty(), "{}", red.join("\n"));
}

/// The checks of a cell that failed.
fn faults(cell: &Cell) -> Vec<String> {
    let failed = cell.checks.iter().filter(|check| !check.ok);
    failed
        .map(|check| {
            let why = check.why.as_deref().unwrap_or_default();
            format!("{}/{} {}: {why}", cell.client, cell.server, check.check)
        })
        .collect()
}

/// Asked for by `cargo xtask peers matrix`, which says where the result goes and judges it.
#[test]
fn the_whole_matrix_is_walked_when_asked_for() {
    let Some(file) = std::env::var_os("BOWLINE_MATRIX") else {
        return;
    };
    let only = std::env::var("BOWLINE_MATRIX_ONLY").unwrap_or_else(|_| "*/*".to_owned());
    let test = "the_whole_matrix_is_walked_when_asked_for";
    let peers = Peers::of(test, NEEDED).expect("run `cargo xtask peers`");
    let matrix = Matrix::load();
    let world = World::new(peers);
    let cells = matrix.cells(&only);
    assert!(!cells.is_empty(), "no cell is called {only}");
    let street = Street::open(&world, &cells);
    let walked = street.walk(&matrix, &cells);
    std::fs::write(file, serde_json::to_vec_pretty(&walked).unwrap()).unwrap();
}
