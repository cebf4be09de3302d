//! How soon a server that runs elsewhere is called again after it was away.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::executor::office;
use crate::harness::network::{Network, Weather};
use crate::harness::served::Served;
use crate::harness::{Gateway, Session, eventually, last};

/// Calls in flight when a connection is lost; more than open a breaker.
const CALLS: usize = 8;

fn gateway_to(url: &str) -> Gateway {
    let gateway = Gateway::up(&format!("[servers.s]\nurl = {}\n", json!(url)));
    gateway.wait_for("s", "ready");
    gateway
}

/// Begins writes that take longer than the test; returns what becomes of them.
fn begin_writes(gateway: &Gateway, path: &str, tool: &str) -> Vec<thread::JoinHandle<Value>> {
    let running = (0..CALLS).map(|nth| {
        let (mut session, tool) = (gateway.session(path), tool.to_owned());
        let arguments = json!({"ms": 600_000, "key": nth.to_string()});
        thread::spawn(move || session.call(&tool, &arguments))
    });
    running.collect()
}

fn echo(session: &mut Session) -> Value {
    session.call("echo", &json!({"message": "hi"}))
}

/// Calls until a call is answered; returns how long calls were refused.
fn refused_for(session: &mut Session) -> Duration {
    let (back, mut refused) = (Instant::now(), Duration::ZERO);
    eventually("it is called again", || {
        let is_answered = echo(session)["result"].is_object();
        if !is_answered {
            refused = back.elapsed();
        }
        is_answered
    });
    eprintln!("refused for {refused:?}");
    refused
}

#[test]
fn server_restarted_under_calls_is_called_within_a_second() {
    let mut served = Served::start(&[]);
    let gateway = gateway_to(&served.url);
    let running = begin_writes(&gateway, "/servers/s/mcp", "effect");
    let mut other = gateway.session("/servers/s/mcp");
    eventually("all run", || gateway.status("s")["in_flight"] == CALLS);
    served.kill();
    for call in running {
        let data = call.join().unwrap()["error"]["data"].clone();
        assert_eq!(data["execution"], "unknown", "{data}");
    }
    served.restart();
    let refused = refused_for(&mut other);
    assert!(refused <= Duration::from_secs(1), "{refused:?}");
}

#[test]
fn cut_of_many_calls_leaves_breaker_closed() {
    let served = Served::start(&[]);
    let network = Network::to(served.address());
    let gateway = gateway_to(&format!("http://{}/mcp", network.address));
    let running = begin_writes(&gateway, "/servers/s/mcp", "effect");
    eventually("all run", || gateway.status("s")["in_flight"] == CALLS);
    network.cut();
    for call in running {
        let error = call.join().unwrap()["error"].clone();
        assert_eq!(error["data"]["code"], "connection_lost", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(!message.contains("closed its streams"), "{message}");
    }
    let status = gateway.status("s");
    assert_eq!(status["circuit"], "closed", "{status}");
    assert!(
        status["consecutive_failures"].as_u64() <= Some(1),
        "{status}"
    );
    let mut other = gateway.session("/servers/s/mcp");
    assert!(echo(&mut other)["result"].is_object());
}

#[test]
fn killed_executor_leaves_breaker_closed() {
    let (_served, gateway, mut executor) = office();
    gateway.wait_for("far", "ready");
    let running = begin_writes(&gateway, "/mcp", "far__effect");
    eventually("all run", || gateway.status("far")["in_flight"] == CALLS);
    executor.kill();
    for call in running {
        let data = call.join().unwrap()["error"]["data"].clone();
        assert_eq!(data["execution"], "unknown", "{data}");
    }
    let status = gateway.status("far");
    assert_eq!(status["circuit"], "closed", "{status}");
    executor.restart();
    gateway.until_executor("office", true);
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("far__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn server_down_seven_times_is_never_ejected() {
    let mut served = Served::start(&[]);
    let gateway = gateway_to(&served.url);
    let mut session = gateway.session("/servers/s/mcp");
    for _ in 0..7 {
        served.kill();
        eventually("its end is seen", || {
            echo(&mut session);
            gateway.status("s")["state"] != "ready"
        });
        let status = gateway.status("s");
        assert_eq!(status["ejected"], false, "{status}");
        served.restart();
        gateway.wait_for("s", "ready");
    }
    let status = gateway.status("s");
    assert_eq!(status["restart_count"], 0, "{status}");
    assert!(refused_for(&mut session) <= Duration::from_secs(1));
}

#[test]
fn server_out_of_reach_is_called_soon_after() {
    let served = Served::start(&[]);
    let network = Network::to(served.address());
    let gateway = gateway_to(&format!("http://{}/mcp", network.address));
    let mut session = gateway.session("/servers/s/mcp");
    network.turn(Weather::Down);
    let outage = Instant::now();
    while outage.elapsed() < Duration::from_secs(6) {
        let answer = echo(&mut session);
        assert!(answer["error"].is_object(), "{answer}");
        last(Duration::from_millis(20));
    }
    network.turn(Weather::Fair);
    let refused = refused_for(&mut session);
    assert!(refused <= Duration::from_secs(3), "{refused:?}");
}

#[test]
fn server_that_was_unavailable_is_called_soon_after() {
    let dir = TempDir::new().unwrap();
    let status_file = dir.path().join("status");
    let fault = format!("status-file={}", status_file.display());
    let served = Served::start(&["--fault", &fault]);
    let gateway = gateway_to(&served.url);
    let mut session = gateway.session("/servers/s/mcp");
    fs::write(&status_file, "503").unwrap();
    eventually("its breaker opens", || {
        echo(&mut session)["error"]["data"]["code"] == "server_resting"
    });
    fs::remove_file(&status_file).unwrap();
    let refused = refused_for(&mut session);
    assert!(refused <= Duration::from_secs(3), "{refused:?}");
}
