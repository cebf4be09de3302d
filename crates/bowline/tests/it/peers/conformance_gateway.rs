//! The official conformance suite through the gateway, in front of the fixture on every road.

mod proxy;

use super::Peers;
use super::conformance::conforms;
use crate::harness::served::Served;
use crate::harness::{Gateway, fixture};
use proxy::Proxy;

/// Where the suite meets the one server of the gateway, whose names stay as they are there.
const PATH: &str = "/servers/fixture/mcp";

/// How the gateway reaches the fixture.
enum Road {
    Stdio,
    Http,
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

fn through(test: &str, road: &Road, auth: &Auth) {
    let Some(peers) = Peers::of(test, &["/conformance"]) else {
        return;
    };
    let served = match road {
        Road::Stdio => None,
        Road::Http => Some(Served::start(&[])),
    };
    let config = match &served {
        None => fixture("fixture", &[]),
        Some(served) => format!("[servers.fixture]\nurl = {:?}\n", served.url),
    };
    let args: &[&str] = match auth {
        Auth::Nobody => &["--insecure-no-auth"],
        Auth::Token => &[],
    };
    let gateway = Gateway::up_with(&config, args);
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
