//! The official conformance suite through the gateway, with clients and servers of either era.

mod cannot;

use super::Peers;
use super::afar::{OFFICE, Office};
use super::conformance::{Wire, passes};
use super::conformance_gateway::{OFFERS, Proxy};
use crate::harness::served::Served;
use crate::harness::worker::Worker;
use crate::harness::{Gateway, eventually, fixture};
use cannot::Leg;

/// Where the suite meets the one server, whose names stay as they are there.
const PATH: &str = "/servers/fixture/mcp";

/// How the gateway reaches the fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Road {
    Stdio,
    Http,
    /// An executor starts it.
    StdioThere,
    /// An executor performs the requests.
    HttpThere,
    /// A worker has it.
    Worker,
}

#[test]
fn a_legacy_client_reaches_a_modern_server_over_stdio() {
    let test = "a_legacy_client_reaches_a_modern_server_over_stdio";
    walk(test, Leg::LEGACY_TO_MODERN, Road::Stdio);
}

#[test]
fn a_legacy_client_reaches_a_modern_server_over_http() {
    let test = "a_legacy_client_reaches_a_modern_server_over_http";
    walk(test, Leg::LEGACY_TO_MODERN, Road::Http);
}

#[test]
fn a_modern_client_reaches_a_legacy_server_over_stdio() {
    let test = "a_modern_client_reaches_a_legacy_server_over_stdio";
    walk(test, Leg::MODERN_TO_LEGACY, Road::Stdio);
}

#[test]
fn a_modern_client_reaches_a_legacy_server_over_http() {
    let test = "a_modern_client_reaches_a_legacy_server_over_http";
    walk(test, Leg::MODERN_TO_LEGACY, Road::Http);
}

#[test]
fn a_modern_client_reaches_a_modern_server_over_stdio() {
    let test = "a_modern_client_reaches_a_modern_server_over_stdio";
    walk(test, Leg::MODERN_TO_MODERN, Road::Stdio);
}

#[test]
fn a_modern_client_reaches_a_modern_server_over_http() {
    let test = "a_modern_client_reaches_a_modern_server_over_http";
    walk(test, Leg::MODERN_TO_MODERN, Road::Http);
}

#[test]
fn a_modern_client_reaches_a_modern_server_that_an_executor_starts() {
    let test = "a_modern_client_reaches_a_modern_server_that_an_executor_starts";
    walk(test, Leg::MODERN_TO_MODERN, Road::StdioThere);
}

#[test]
fn a_modern_client_reaches_a_modern_server_over_http_through_an_executor() {
    let test = "a_modern_client_reaches_a_modern_server_over_http_through_an_executor";
    walk(test, Leg::MODERN_TO_MODERN, Road::HttpThere);
}

#[test]
fn a_modern_client_reaches_a_modern_server_through_a_worker() {
    let test = "a_modern_client_reaches_a_modern_server_through_a_worker";
    walk(test, Leg::MODERN_TO_MODERN, Road::Worker);
}

fn walk(test: &str, leg: Leg, road: Road) {
    let Some(peers) = Peers::of(test, &["/conformance"]) else {
        return;
    };
    let era = match leg.server {
        Wire::Legacy => "legacy",
        Wire::Modern => "modern",
    };
    let started = fixture("fixture", &["--era", era]);
    let served =
        matches!(road, Road::Http | Road::HttpThere).then(|| Served::start(&["--era", era]));
    let mut config = match (&served, road) {
        (Some(served), _) => format!("[servers.fixture]\nurl = {:?}\n", served.url),
        (None, Road::StdioThere) => "[servers.fixture]\n".to_owned(),
        (None, Road::Worker) => OFFERS.to_owned(),
        (None, _) => started.clone(),
    };
    if matches!(road, Road::StdioThere | Road::HttpThere) {
        config += &format!("via = \"executor:{OFFICE}\"\n");
    }
    let gateway = Gateway::up(&config);
    let _office = match road {
        Road::StdioThere => Some(Office::join(&gateway, None, &[], &started)),
        Road::HttpThere => {
            let allow = served.iter().map(|served| served.address().to_string());
            Some(Office::join(&gateway, None, &allow.collect::<Vec<_>>(), ""))
        }
        Road::Stdio | Road::Http | Road::Worker => None,
    };
    let _worker = (road == Road::Worker).then(|| {
        let token = gateway.token_for("worker", "worker");
        let worker = Worker::join(&gateway, &token, &started, &["--offer", "*"]);
        eventually("the server is in the hub", || {
            let servers = gateway.api("/api/v1/servers");
            servers["servers"] != serde_json::json!([])
        });
        worker
    });
    gateway.wait_for("fixture", "ready");
    // The suite sends no token, so something before the gateway does.
    let proxy = Proxy::start(gateway.address, &gateway.token);
    let url = format!("http://{}{PATH}", proxy.address);
    let leaves_out = |scenario: &str| leg.leaves_out(scenario);
    passes(&peers, &url, leg.client, &leg.cannot(), leaves_out);
}

#[test]
fn the_page_of_conformance_is_written_from_the_table() {
    let page = super::root().join("docs/conformance.md");
    let written = cannot::page();
    if std::env::var_os("BOWLINE_WRITE_PAGES").is_some() {
        std::fs::write(&page, &written).unwrap();
    }
    let there = std::fs::read_to_string(&page).unwrap();
    assert_eq!(there, written, "set BOWLINE_WRITE_PAGES to write it");
}
