//! The official conformance suite through the gateway, in front of the fixture on every transport.

mod proxy;

use bowline_testkit::gateway::{FixtureServer, Gateway, Worker, fixture_config};
use bowline_testkit::wait_until;

use super::PeerManifest;
use super::conformance::assert_conforms;
use super::remote_network::{EXECUTOR_NAME, RemoteCodex, RemoteExecutor};
pub(super) use proxy::TokenProxy;

/// The endpoint of the single server, with unprefixed names.
const PATH: &str = "/servers/fixture/mcp";

/// Rights of a worker that offers the fixture, and may use nothing.
pub(super) const OFFERS: &str =
    "[roles.worker]\nallow = []\n[principals.worker]\noffers = [\"fixture\"]\n";

/// How the gateway reaches the fixture.
enum FixtureTransport {
    Stdio,
    Http,
    /// Our executor starts the fixture.
    StdioOnExecutor,
    /// Our executor performs the requests.
    HttpThroughExecutor,
    /// Codex performs the requests.
    Codex,
    /// A worker has the fixture.
    Worker,
}

/// The authentication of the gateway.
enum GatewayAuth {
    NoAuth,
    Token,
}

#[test]
fn suite_passes_over_stdio_without_auth() {
    let test = "suite_passes_over_stdio_without_auth";
    assert_suite_through(test, &FixtureTransport::Stdio, &GatewayAuth::NoAuth);
}

#[test]
fn suite_passes_over_http_without_auth() {
    let test = "suite_passes_over_http_without_auth";
    assert_suite_through(test, &FixtureTransport::Http, &GatewayAuth::NoAuth);
}

#[test]
fn suite_passes_over_stdio_with_auth() {
    let test = "suite_passes_over_stdio_with_auth";
    assert_suite_through(test, &FixtureTransport::Stdio, &GatewayAuth::Token);
}

#[test]
fn suite_passes_over_http_with_auth() {
    let test = "suite_passes_over_http_with_auth";
    assert_suite_through(test, &FixtureTransport::Http, &GatewayAuth::Token);
}

#[test]
fn suite_passes_over_http_through_executor() {
    let test = "suite_passes_over_http_through_executor";
    assert_suite_through(
        test,
        &FixtureTransport::HttpThroughExecutor,
        &GatewayAuth::Token,
    );
}

#[test]
fn suite_passes_over_stdio_on_executor() {
    let test = "suite_passes_over_stdio_on_executor";
    assert_suite_through(
        test,
        &FixtureTransport::StdioOnExecutor,
        &GatewayAuth::Token,
    );
}

#[test]
fn suite_passes_over_http_through_codex() {
    let test = "suite_passes_over_http_through_codex";
    assert_suite_through(test, &FixtureTransport::Codex, &GatewayAuth::Token);
}

#[test]
fn suite_passes_through_worker() {
    let test = "suite_passes_through_worker";
    assert_suite_through(test, &FixtureTransport::Worker, &GatewayAuth::Token);
}

fn assert_suite_through(test: &str, road: &FixtureTransport, auth: &GatewayAuth) {
    let needed: &[&str] = match road {
        FixtureTransport::Codex => &["/conformance", "/agents/codex"],
        _ => &["/conformance"],
    };
    let Some(peers) = PeerManifest::load(test, needed) else {
        return;
    };
    let served = match road {
        FixtureTransport::Stdio | FixtureTransport::StdioOnExecutor | FixtureTransport::Worker => {
            None
        }
        FixtureTransport::Http
        | FixtureTransport::HttpThroughExecutor
        | FixtureTransport::Codex => Some(FixtureServer::start(&[])),
    };
    let codex = matches!(road, FixtureTransport::Codex).then(|| RemoteCodex::start(&peers));
    let config = gateway_config(road, served.as_ref(), codex.as_ref());
    let args: &[&str] = match auth {
        GatewayAuth::NoAuth => &["--insecure-no-auth"],
        GatewayAuth::Token => &[],
    };
    let gateway = Gateway::start_with_args(&config, args);
    let _office = join_executor(&gateway, road, served.as_ref());
    let _worker = matches!(road, FixtureTransport::Worker).then(|| {
        let token = gateway.create_role_token("worker", "worker");
        let own = fixture_config("fixture", &["--era", "legacy"]);
        let worker = Worker::join(&gateway, &token, &own, &["--offer", "*"]);
        wait_until("the server is in the hub", || {
            let servers = gateway.get_api("/api/v1/servers");
            servers["servers"] != serde_json::json!([])
        });
        worker
    });
    gateway.wait_for_state("fixture", "ready");
    match auth {
        GatewayAuth::NoAuth => {
            assert_conforms(&peers, &format!("http://{}{PATH}", gateway.address))
        }
        GatewayAuth::Token => {
            // The suite sends no token, so a proxy adds it.
            let proxy = TokenProxy::start(gateway.address, &gateway.token);
            assert_conforms(&peers, &format!("http://{}{PATH}", proxy.address));
        }
    }
}

/// Configuration of the gateway that reaches the fixture this way.
fn gateway_config(
    road: &FixtureTransport,
    served: Option<&FixtureServer>,
    codex: Option<&RemoteCodex>,
) -> String {
    let mut config = match (served, road) {
        (Some(served), _) => format!("[servers.fixture]\nurl = {:?}\n", served.url),
        (None, FixtureTransport::StdioOnExecutor) => "[servers.fixture]\n".to_owned(),
        (None, FixtureTransport::Worker) => OFFERS.to_owned(),
        (None, _) => fixture_config("fixture", &[]),
    };
    match (codex, road) {
        (Some(codex), _) => {
            config += &format!(
                "via = \"executor:codex\"\n{}",
                codex.executor_config("codex")
            )
        }
        (None, FixtureTransport::StdioOnExecutor | FixtureTransport::HttpThroughExecutor) => {
            config += &format!("via = \"executor:{EXECUTOR_NAME}\"\n");
        }
        (None, _) => {}
    }
    config
}

/// Starts our executor, where the fixture is reached through one.
fn join_executor(
    gateway: &Gateway,
    road: &FixtureTransport,
    served: Option<&FixtureServer>,
) -> Option<RemoteExecutor> {
    match road {
        FixtureTransport::StdioOnExecutor => Some(RemoteExecutor::join(
            gateway,
            None,
            &[],
            &fixture_config("fixture", &[]),
        )),
        FixtureTransport::HttpThroughExecutor => {
            let allow = served.iter().map(|served| served.address().to_string());
            Some(RemoteExecutor::join(
                gateway,
                None,
                &allow.collect::<Vec<_>>(),
                "",
            ))
        }
        FixtureTransport::Stdio
        | FixtureTransport::Http
        | FixtureTransport::Codex
        | FixtureTransport::Worker => None,
    }
}
