//! The official conformance suite through the gateway, with clients and servers of either era.

mod exemptions;

use super::PeerManifest;
use super::conformance::{ProtocolEra, assert_suite_passes};
use super::conformance_gateway::{OFFERS, TokenProxy};
use super::remote_network::{EXECUTOR_NAME, RemoteExecutor};
use bowline_testkit::gateway::{FixtureServer, Gateway, Worker, fixture_config};
use bowline_testkit::{wait_until, workspace_root};
use exemptions::EraPair;

/// The endpoint of the single server, with unprefixed names.
const PATH: &str = "/servers/fixture/mcp";

/// How the gateway reaches the fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LegTransport {
    Stdio,
    Http,
    /// An executor starts the fixture.
    StdioOnExecutor,
    /// An executor performs the requests.
    HttpThroughExecutor,
    /// A worker has the fixture.
    Worker,
}

#[test]
fn legacy_client_to_modern_server_over_stdio() {
    let test = "legacy_client_to_modern_server_over_stdio";
    assert_leg_passes(test, EraPair::LEGACY_TO_MODERN, LegTransport::Stdio);
}

#[test]
fn legacy_client_to_modern_server_over_http() {
    let test = "legacy_client_to_modern_server_over_http";
    assert_leg_passes(test, EraPair::LEGACY_TO_MODERN, LegTransport::Http);
}

#[test]
fn modern_client_to_legacy_server_over_stdio() {
    let test = "modern_client_to_legacy_server_over_stdio";
    assert_leg_passes(test, EraPair::MODERN_TO_LEGACY, LegTransport::Stdio);
}

#[test]
fn modern_client_to_legacy_server_over_http() {
    let test = "modern_client_to_legacy_server_over_http";
    assert_leg_passes(test, EraPair::MODERN_TO_LEGACY, LegTransport::Http);
}

#[test]
fn modern_client_to_modern_server_over_stdio() {
    let test = "modern_client_to_modern_server_over_stdio";
    assert_leg_passes(test, EraPair::MODERN_TO_MODERN, LegTransport::Stdio);
}

#[test]
fn modern_client_to_modern_server_over_http() {
    let test = "modern_client_to_modern_server_over_http";
    assert_leg_passes(test, EraPair::MODERN_TO_MODERN, LegTransport::Http);
}

#[test]
fn modern_client_to_executor_started_modern_server() {
    let test = "modern_client_to_executor_started_modern_server";
    assert_leg_passes(
        test,
        EraPair::MODERN_TO_MODERN,
        LegTransport::StdioOnExecutor,
    );
}

#[test]
fn modern_client_to_modern_server_through_executor() {
    let test = "modern_client_to_modern_server_through_executor";
    assert_leg_passes(
        test,
        EraPair::MODERN_TO_MODERN,
        LegTransport::HttpThroughExecutor,
    );
}

#[test]
fn modern_client_to_modern_server_through_worker() {
    let test = "modern_client_to_modern_server_through_worker";
    assert_leg_passes(test, EraPair::MODERN_TO_MODERN, LegTransport::Worker);
}

fn assert_leg_passes(test: &str, leg: EraPair, road: LegTransport) {
    let Some(peers) = PeerManifest::load(test, &["/conformance"]) else {
        return;
    };
    let era = match leg.server {
        ProtocolEra::Legacy => "legacy",
        ProtocolEra::Modern => "modern",
    };
    let started = fixture_config("fixture", &["--era", era]);
    let served = matches!(road, LegTransport::Http | LegTransport::HttpThroughExecutor)
        .then(|| FixtureServer::start(&["--era", era]));
    let mut config = match (&served, road) {
        (Some(served), _) => format!("[servers.fixture]\nurl = {:?}\n", served.url),
        (None, LegTransport::StdioOnExecutor) => "[servers.fixture]\n".to_owned(),
        (None, LegTransport::Worker) => OFFERS.to_owned(),
        (None, _) => started.clone(),
    };
    if matches!(
        road,
        LegTransport::StdioOnExecutor | LegTransport::HttpThroughExecutor
    ) {
        config += &format!("via = \"executor:{EXECUTOR_NAME}\"\n");
    }
    let gateway = Gateway::start(&config);
    let _office = match road {
        LegTransport::StdioOnExecutor => Some(RemoteExecutor::join(&gateway, None, &[], &started)),
        LegTransport::HttpThroughExecutor => {
            let allow = served.iter().map(|served| served.address().to_string());
            Some(RemoteExecutor::join(
                &gateway,
                None,
                &allow.collect::<Vec<_>>(),
                "",
            ))
        }
        LegTransport::Stdio | LegTransport::Http | LegTransport::Worker => None,
    };
    let _worker = (road == LegTransport::Worker).then(|| {
        let token = gateway.create_role_token("worker", "worker");
        let worker = Worker::join(&gateway, &token, &started, &["--offer", "*"]);
        wait_until("the server is in the hub", || {
            let servers = gateway.get_api("/api/v1/servers");
            servers["servers"] != serde_json::json!([])
        });
        worker
    });
    gateway.wait_for_state("fixture", "ready");
    // The suite sends no token, so a proxy adds it.
    let proxy = TokenProxy::start(gateway.address, &gateway.token);
    let url = format!("http://{}{PATH}", proxy.address);
    let leaves_out = |scenario: &str| leg.is_skipped(scenario);
    assert_suite_passes(&peers, &url, leg.client, &leg.exemptions(), leaves_out);
}

#[test]
fn page_of_conformance_matches_exemption_table() {
    let page = workspace_root().join("docs/conformance.md");
    let written = exemptions::conformance_page();
    if std::env::var_os("BOWLINE_WRITE_PAGES").is_some() {
        std::fs::write(&page, &written).unwrap();
    }
    let there = std::fs::read_to_string(&page).unwrap();
    assert_eq!(there, written, "set BOWLINE_WRITE_PAGES to write it");
}
