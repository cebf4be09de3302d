//! Time until a remote server is called again after an outage.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{FaultyNetwork, FixtureServer, Gateway, NetworkState, Session};
use bowline_testkit::wait_until;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::executor::start_office;
use crate::stimulus::sleep_as_stimulus;

/// Calls in flight when a connection is lost; more than open a breaker.
const CALLS: usize = 8;

fn start_gateway_for(url: &str) -> Gateway {
    let gateway = Gateway::start(&format!("[servers.s]\nurl = {}\n", json!(url)));
    gateway.wait_for_state("s", "ready");
    gateway
}

/// Starts writes that outlast the test; returns the outcomes.
fn start_slow_writes(gateway: &Gateway, path: &str, tool: &str) -> Vec<thread::JoinHandle<Value>> {
    let running = (0..CALLS).map(|nth| {
        let (mut session, tool) = (gateway.open_session(path), tool.to_owned());
        let arguments = json!({"ms": 600_000, "key": nth.to_string()});
        thread::spawn(move || session.call(&tool, &arguments))
    });
    running.collect()
}

/// Waits until the server itself has counted all writes: a call that the gateway counts as in
/// flight may not have a connection yet.
fn wait_writes_running(session: &mut Session, counter: &str) {
    wait_until("all writes run", || {
        let counts = session.call(counter, &json!({}));
        counts["result"]["structuredContent"]["by_tool"]["effect"] == CALLS
    });
}

fn call_echo(session: &mut Session) -> Value {
    session.call("echo", &json!({"message": "hi"}))
}

/// Calls until a call succeeds; returns how long calls were refused.
fn measure_refusals(session: &mut Session) -> Duration {
    let (back, mut refused) = (Instant::now(), Duration::ZERO);
    wait_until("it is called again", || {
        let is_answered = call_echo(session)["result"].is_object();
        if !is_answered {
            refused = back.elapsed();
        }
        is_answered
    });
    eprintln!("refused for {refused:?}");
    refused
}

#[test]
fn restarted_server_is_called_within_a_second() {
    let mut served = FixtureServer::start(&[]);
    let gateway = start_gateway_for(&served.url);
    let running = start_slow_writes(&gateway, "/servers/s/mcp", "effect");
    let mut other = gateway.open_session("/servers/s/mcp");
    wait_writes_running(&mut other, "counter");
    served.kill();
    for call in running {
        let data = call.join().unwrap()["error"]["data"].clone();
        assert_eq!(data["execution"], "unknown", "{data}");
    }
    served.restart();
    let refused = measure_refusals(&mut other);
    assert!(refused <= Duration::from_secs(1), "{refused:?}");
}

#[test]
fn cut_of_many_calls_leaves_breaker_closed() {
    let served = FixtureServer::start(&[]);
    let network = FaultyNetwork::start(served.address());
    let gateway = start_gateway_for(&format!("http://{}/mcp", network.address));
    let running = start_slow_writes(&gateway, "/servers/s/mcp", "effect");
    let mut other = gateway.open_session("/servers/s/mcp");
    wait_writes_running(&mut other, "counter");
    network.cut_connections();
    for call in running {
        let error = call.join().unwrap()["error"].clone();
        assert_eq!(error["data"]["code"], "connection_lost", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(!message.contains("closed its streams"), "{message}");
    }
    let status = gateway.server_status("s");
    assert_eq!(status["circuit"], "closed", "{status}");
    assert!(
        status["consecutive_failures"].as_u64() <= Some(1),
        "{status}"
    );
    assert!(call_echo(&mut other)["result"].is_object());
}

#[test]
fn killed_executor_leaves_breaker_closed() {
    let (_served, gateway, mut executor) = start_office();
    gateway.wait_for_state("far", "ready");
    let running = start_slow_writes(&gateway, "/mcp", "far__effect");
    let mut other = gateway.open_session("/mcp");
    wait_writes_running(&mut other, "far__counter");
    executor.kill();
    for call in running {
        let data = call.join().unwrap()["error"]["data"].clone();
        assert_eq!(data["execution"], "unknown", "{data}");
    }
    let status = gateway.server_status("far");
    assert_eq!(status["circuit"], "closed", "{status}");
    executor.restart();
    gateway.wait_for_executor("office", true);
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("far__echo", &json!({"message": "hi"})),
        "hi"
    );
}

#[test]
fn server_down_seven_times_is_never_ejected() {
    let mut served = FixtureServer::start(&[]);
    let gateway = start_gateway_for(&served.url);
    let mut session = gateway.open_session("/servers/s/mcp");
    for _ in 0..7 {
        served.kill();
        wait_until("its end is seen", || {
            call_echo(&mut session);
            gateway.server_status("s")["state"] != "ready"
        });
        let status = gateway.server_status("s");
        assert_eq!(status["ejected"], false, "{status}");
        served.restart();
        gateway.wait_for_state("s", "ready");
    }
    let status = gateway.server_status("s");
    assert_eq!(status["restart_count"], 0, "{status}");
    assert!(measure_refusals(&mut session) <= Duration::from_secs(1));
}

#[test]
fn unreachable_server_is_called_soon_after() {
    let served = FixtureServer::start(&[]);
    let network = FaultyNetwork::start(served.address());
    let gateway = start_gateway_for(&format!("http://{}/mcp", network.address));
    let mut session = gateway.open_session("/servers/s/mcp");
    network.set_state(NetworkState::Down);
    let outage = Instant::now();
    while outage.elapsed() < Duration::from_secs(6) {
        let answer = call_echo(&mut session);
        assert!(answer["error"].is_object(), "{answer}");
        sleep_as_stimulus(Duration::from_millis(20));
    }
    network.set_state(NetworkState::Up);
    let refused = measure_refusals(&mut session);
    assert!(refused <= Duration::from_secs(3), "{refused:?}");
}

#[test]
fn unavailable_server_is_called_soon_after() {
    let dir = TempDir::new().unwrap();
    let status_file = dir.path().join("status");
    let fault = format!("status-file={}", status_file.display());
    let served = FixtureServer::start(&["--fault", &fault]);
    let gateway = start_gateway_for(&served.url);
    let mut session = gateway.open_session("/servers/s/mcp");
    fs::write(&status_file, "503").unwrap();
    wait_until("its breaker opens", || {
        call_echo(&mut session)["error"]["data"]["code"] == "circuit_open"
    });
    fs::remove_file(&status_file).unwrap();
    let refused = measure_refusals(&mut session);
    assert!(refused <= Duration::from_secs(3), "{refused:?}");
}
