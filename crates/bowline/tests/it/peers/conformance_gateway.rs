//! The official conformance suite through the gateway, in front of the fixture on every road.

mod proxy;

use super::Peers;
use super::afar::{Codex, OFFICE, Office};
use super::conformance::conforms;
use crate::harness::served::Served;
use crate::harness::worker::Worker;
use crate::harness::{Gateway, eventually, fixture};
pub(super) use proxy::Proxy;

/// Where the suite meets the one server of the gateway, whose names stay as they are there.
const PATH: &str = "/servers/fixture/mcp";

/// What lets a worker bring the fixture, and use nothing.
pub(super) const OFFERS: &str =
    "[roles.worker]\nallow = []\n[principals.worker]\noffers = [\"fixture\"]\n";

/// How the gateway reaches the fixture.
enum Road {
    Stdio,
    Http,
    /// Our executor starts it.
    StdioThere,
    /// Our executor performs the requests.
    HttpThere,
    /// Codex does.
    Codex,
    /// A worker has it.
    Worker,
}

/// Who may call the gateway.
enum Auth {
    Nobody,
    Token,
}

#[test]
fn the_suite_passes_over_stdio_without_auth() {
    let test = "the_suite_passes_over_stdio_without_auth";
    through(test, &Road::Stdio, &Auth::Nobody);
}

#[test]
fn the_suite_passes_over_http_without_auth() {
    let test = "the_suite_passes_over_http_without_auth";
    through(test, &Road::Http, &Auth::Nobody);
}

#[test]
fn the_suite_passes_over_stdio_with_auth() {
    let test = "the_suite_passes_over_stdio_with_auth";
    through(test, &Road::Stdio, &Auth::Token);
}

#[test]
fn the_suite_passes_over_http_with_auth() {
    let test = "the_suite_passes_over_http_with_auth";
    through(test, &Road::Http, &Auth::Token);
}

#[test]
fn the_suite_passes_over_http_through_an_executor() {
    let test = "the_suite_passes_over_http_through_an_executor";
    through(test, &Road::HttpThere, &Auth::Token);
}

#[test]
fn the_suite_passes_over_stdio_on_an_executor() {
    let test = "the_suite_passes_over_stdio_on_an_executor";
    through(test, &Road::StdioThere, &Auth::Token);
}

#[test]
fn the_suite_passes_over_http_through_a_codex_exec_server() {
    let test = "the_suite_passes_over_http_through_a_codex_exec_server";
    through(test, &Road::Codex, &Auth::Token);
}

#[test]
fn the_suite_passes_through_a_worker() {
    let test = "the_suite_passes_through_a_worker";
    through(test, &Road::Worker, &Auth::Token);
}

fn through(test: &str, road: &Road, auth: &Auth) {
    let needed: &[&str] = match road {
        Road::Codex => &["/conformance", "/agents/codex"],
        _ => &["/conformance"],
    };
    let Some(peers) = Peers::of(test, needed) else {
        return;
    };
    let served = match road {
        Road::Stdio | Road::StdioThere | Road::Worker => None,
        Road::Http | Road::HttpThere | Road::Codex => Some(Served::start(&[])),
    };
    let codex = matches!(road, Road::Codex).then(|| Codex::start(&peers));
    let mut config = match (&served, road) {
        (Some(served), _) => format!("[servers.fixture]\nurl = {:?}\n", served.url),
        (None, Road::StdioThere) => "[servers.fixture]\n".to_owned(),
        (None, Road::Worker) => OFFERS.to_owned(),
        (None, _) => fixture("fixture", &[]),
    };
    match (&codex, road) {
        (Some(codex), _) => {
            config += &format!("via = \"executor:codex\"\n{}", codex.config("codex"))
        }
        (None, Road::StdioThere | Road::HttpThere) => {
            config += &format!("via = \"executor:{OFFICE}\"\n");
        }
        (None, _) => {}
    }
    let args: &[&str] = match auth {
        Auth::Nobody => &["--insecure-no-auth"],
        Auth::Token => &[],
    };
    let gateway = Gateway::up_with(&config, args);
    let _office = match road {
        Road::StdioThere => Some(Office::join(&gateway, None, &[], &fixture("fixture", &[]))),
        Road::HttpThere => {
            let allow = served.iter().map(|served| served.address().to_string());
            Some(Office::join(&gateway, None, &allow.collect::<Vec<_>>(), ""))
        }
        Road::Stdio | Road::Http | Road::Codex | Road::Worker => None,
    };
    let _worker = matches!(road, Road::Worker).then(|| {
        let token = gateway.token_for("worker", "worker");
        let own = fixture("fixture", &["--era", "legacy"]);
        let worker = Worker::join(&gateway, &token, &own, &["--offer", "*"]);
        eventually("the server is in the hub", || {
            let servers = gateway.api("/api/v1/servers");
            servers["servers"] != serde_json::json!([])
        });
        worker
    });
    gateway.wait_for("fixture", "ready");
    match auth {
        Auth::Nobody => conforms(&peers, &format!("http://{}{PATH}", gateway.address)),
        Auth::Token => {
            // The suite sends no token, so something before the gateway does.
            let proxy = Proxy::start(gateway.address, &gateway.token);
            conforms(&peers, &format!("http://{}{PATH}", proxy.address));
        }
    }
}
