//! Every client against every server through one gateway: each once here, all pairs in `cargo xtask
//! peers matrix`.

mod matrix_run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::PeerManifest;
use super::official_servers::OfficialServers;
use super::remote_network::NetworkSplit;
use matrix_run::MatrixGateway;

/// The clients and servers, with commands and features.
#[derive(Debug, Clone, Deserialize)]
struct Matrix {
    clients: Vec<MatrixClient>,
    servers: Vec<MatrixServer>,
    plans: BTreeMap<String, Map<String, Value>>,
}

#[derive(Debug, Clone, Deserialize)]
struct MatrixClient {
    name: String,
    program: String,
    args: Vec<String>,
    /// The fixed era, if the client does not negotiate.
    era: Option<MatrixEra>,
    /// Checks beyond connecting, listing and calling.
    has: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct MatrixServer {
    name: String,
    program: String,
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Its URL, if not stdio.
    url: Option<String>,
    /// The executor, if any.
    via: Option<MatrixExecutor>,
    /// The configured era, if the gateway does not negotiate.
    era: Option<MatrixEra>,
    plan: String,
}

/// A protocol era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MatrixEra {
    Legacy,
    Modern,
}

impl MatrixEra {
    /// The name in the gateway's configuration and status.
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
enum MatrixExecutor {
    /// Ours, joined.
    Executor,
    /// The exec-server of Codex.
    Codex,
}

/// The outcome of a client with one server.
#[derive(Debug, Clone, Serialize)]
struct MatrixCell {
    client: String,
    server: String,
    green: bool,
    checks: Vec<MatrixCheck>,
    ms: u128,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct MatrixCheck {
    check: String,
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Matrix {
    fn load() -> Self {
        serde_json::from_slice(&std::fs::read(scripts_dir().join("matrix.json")).unwrap()).unwrap()
    }

    /// The checks that both this client and this server support.
    fn shared_checks(&self, client: &MatrixClient, server: &MatrixServer) -> Map<String, Value> {
        let mut plan = self.plans[&server.plan].clone();
        plan.retain(|check, _| {
            matches!(check.as_str(), "tools" | "call") || client.has.contains(check)
        });
        plan
    }

    /// Pairs with every client and every server at least once, in file order.
    fn minimal_cells(&self) -> Vec<(&MatrixClient, &MatrixServer)> {
        let clients = self.clients.iter().cycle();
        self.servers
            .iter()
            .zip(clients)
            .map(|(server, client)| (client, server))
            .collect()
    }

    /// All cells of a pattern such as `python-1/*`.
    fn matching_cells(&self, only: &str) -> Vec<(&MatrixClient, &MatrixServer)> {
        let (client, server) = only.split_once('/').unwrap_or((only, "*"));
        let is = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        let clients = self.clients.iter().filter(|one| is(client, &one.name));
        // Neighbouring cells have different servers, because neighbours run concurrently.
        clients
            .flat_map(|client| {
                let servers = self.servers.iter().filter(|one| is(server, &one.name));
                servers.map(move |server| (client, server))
            })
            .collect()
    }
}

/// The folder of the matrix clients and servers.
fn scripts_dir() -> PathBuf {
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
fn each_client_and_server_works_through_gateway() {
    let test = "each_client_and_server_works_through_gateway";
    let Some(peers) = PeerManifest::load(test, NEEDED) else {
        return;
    };
    let matrix = Matrix::load();
    let world = OfficialServers::new(peers);
    let cells = matrix.minimal_cells();
    assert!(cells.len() >= matrix.clients.len());
    let street = MatrixGateway::start(&world, &cells);
    assert_all_era_pairs(&matrix, &street, &cells);
    let walked = street.run_cells(&matrix, &cells);
    let red: Vec<_> = walked.iter().flat_map(failed_checks).collect();
    assert!(red.is_empty(), "{}", red.join("\n"));
}

/// Every pair of eras occurs among the cells whose servers send requests.
fn assert_all_era_pairs(
    matrix: &Matrix,
    street: &MatrixGateway<'_>,
    cells: &[(&MatrixClient, &MatrixServer)],
) {
    let asking = cells.iter().filter(|(client, server)| {
        matrix
            .shared_checks(client, server)
            .contains_key("elicitation")
    });
    let met: BTreeSet<_> = asking
        .filter_map(|(client, server)| Some((client.era?, street.negotiated_era(server))))
        .collect();
    let eras = [MatrixEra::Legacy, MatrixEra::Modern];
    let all = eras
        .iter()
        .flat_map(|client| eras.map(|server| (*client, server)));
    assert_eq!(met, all.collect());
}

/// The server's SDK sends requests on the shared stream of a session, so the caller is ambiguous
/// between two calls. The request is refused once; from then on each caller has a separate session.
#[test]
fn unattributed_server_request_is_refused_once() {
    const ROUNDS: usize = 5;
    let test = "unattributed_server_request_is_refused_once";
    let Some(peers) = PeerManifest::load(test, NEEDED) else {
        return;
    };
    let matrix = Matrix::load();
    let world = OfficialServers::new(peers);
    let cells = matrix.matching_cells("typescript-2/typescript-2");
    let (client, server) = cells[0];
    let street = MatrixGateway::start(&world, &cells);
    let mut plan = matrix.shared_checks(client, server);
    plan.retain(|check, _| check == "elicitation");
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let walked = street.run_concurrently(client, server, &plan, 3);
            walked.iter().flat_map(failed_checks).collect::<Vec<_>>()
        })
        .collect();
    let red = rounds.iter().filter(|faults| !faults.is_empty()).count();
    assert!(red <= 1, "{rounds:?}");
}

#[test]
fn both_sdks_call_everything_server_through_codex() {
    let test = "both_sdks_call_everything_server_through_codex";
    assert_both_sdks_pass(test, &["everything-codex"]);
}

#[test]
fn both_sdks_call_everything_server_through_executor() {
    let test = "both_sdks_call_everything_server_through_executor";
    assert_both_sdks_pass(test, &["everything-executor", "everything-there"]);
}

/// Requested by `cargo xtask netns`, which sets up the network split.
#[test]
fn everything_server_is_reached_by_executor_only() {
    let test = "everything_server_is_reached_by_executor_only";
    if NetworkSplit::from_env().is_some() {
        assert_both_sdks_pass(test, &["everything-executor", "everything-there"]);
    }
}

fn assert_both_sdks_pass(test: &str, servers: &[&str]) {
    let Some(peers) = PeerManifest::load(test, NEEDED) else {
        return;
    };
    let matrix = Matrix::load();
    let world = OfficialServers::new(peers);
    let pairs = servers
        .iter()
        .flat_map(|server| SDKS.map(|client| format!("{client}/{server}")));
    let pairs: Vec<String> = pairs.collect();
    let cells: Vec<_> = pairs
        .iter()
        .flat_map(|pair| matrix.matching_cells(pair))
        .collect();
    assert_eq!(cells.len(), SDKS.len() * servers.len());
    let street = MatrixGateway::start(&world, &cells);
    let walked = street.run_cells(&matrix, &cells);
    let red: Vec<_> = walked.iter().flat_map(failed_checks).collect();
    assert!(red.is_empty(), "{}", red.join("\n"));
}

/// The failed checks of a cell.
fn failed_checks(cell: &MatrixCell) -> Vec<String> {
    let failed = cell.checks.iter().filter(|check| !check.ok);
    failed
        .map(|check| {
            let why = check.why.as_deref().unwrap_or_default();
            format!("{}/{} {}: {why}", cell.client, cell.server, check.check)
        })
        .collect()
}

/// Requested by `cargo xtask peers matrix`, which sets the output path and evaluates the result.
#[test]
fn whole_matrix_passes_when_requested() {
    let Some(file) = std::env::var_os("BOWLINE_MATRIX") else {
        return;
    };
    let only = std::env::var("BOWLINE_MATRIX_ONLY").unwrap_or_else(|_| "*/*".to_owned());
    let test = "whole_matrix_passes_when_requested";
    let peers = PeerManifest::load(test, NEEDED).expect("run `cargo xtask peers`");
    let matrix = Matrix::load();
    let world = OfficialServers::new(peers);
    let cells = matrix.matching_cells(&only);
    assert!(!cells.is_empty(), "no cell is called {only}");
    let street = MatrixGateway::start(&world, &cells);
    let walked = street.run_cells(&matrix, &cells);
    std::fs::write(file, serde_json::to_vec_pretty(&walked).unwrap()).unwrap();
}
