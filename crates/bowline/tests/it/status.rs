//! Status of servers for people and programs, while some of them fail.

use std::fs;

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use bowline_testkit::{is_alive, resident_bytes, send_signal, wait_until};
use serde_json::{Value, json};

use crate::test_servers::{env_number, fork_descendants};

/// A server with a large restart budget and a short backoff.
const FAST_RETRY: &str = "restart = { budget = 1000, window = \"5m\", backoff = \"1ms..5ms\" }\n";

fn failing_server(name: &str) -> String {
    fixture_config(name, &["--fault", "exit-at-start=3"]) + "restart = { backoff = \"30s..60s\" }\n"
}

fn get_readyz(gateway: &Gateway) -> (u16, Value) {
    let token = format!("Bearer {}", gateway.token);
    let response =
        HttpConnection::connect(gateway.address).get("/readyz", &[("Authorization", &token)]);
    (response.status, response.json())
}

#[test]
fn status_shows_all_server_fields() {
    let config = fixture_config("one", &["--fault", "forks"]) + "limits = { memory = \"2GiB\" }\n";
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    for _ in 0..20 {
        session.call_text("one__echo", &json!({"message": "hi"}));
    }
    assert_eq!(fork_descendants(&mut session, "one__descendants").len(), 3);
    let one = gateway.get_api("/api/v1/servers/one")["server"].clone();
    for (name, value) in [
        ("name", json!("one")),
        ("state", json!("ready")),
        ("active", json!(true)),
        ("lazy", json!(false)),
        ("ref_count", json!(0)),
        ("restart_count", json!(0)),
        ("consecutive_failures", json!(0)),
        ("circuit", json!("closed")),
        ("ejected", json!(false)),
        ("cache_entries", json!(0)),
        ("generation", json!(1)),
        ("manifest", json!("live")),
        ("calls", json!(21)),
        ("errors", json!(0)),
        ("error_rate", json!(0.0)),
        ("queued", json!(0)),
        ("sheds", json!(0)),
        ("url", Value::Null),
        ("last_error", Value::Null),
        ("retry_after_ms", Value::Null),
    ] {
        assert_eq!(one.get(name), Some(&value), "{name}: {one}");
    }
    // The server and three descendants, the last reparented.
    assert_eq!(one["processes"], 4, "{one}");
    let own = resident_bytes(u32::try_from(one["pid"].as_u64().unwrap()).unwrap()) as u64;
    let tree = one["memory_bytes"].as_u64().unwrap();
    assert!(tree > own / 2 && tree < 1 << 30, "{own} {tree}");
    let (p50, p99) = (
        one["p50_us"].as_u64().unwrap(),
        one["p99_us"].as_u64().unwrap(),
    );
    assert!(p50 > 0 && p50 <= p99, "{one}");
    let limits = &one["limits"];
    assert_eq!(limits["memory_bytes_max"], 2_u64 << 30);
    assert_eq!(limits["processes_max"], 512);
    assert_eq!(limits["calls_max"], 256);
    assert_eq!(limits["call_timeout_ms"], 300_000);
    let listed = gateway.server_status("one");
    assert_eq!(listed["processes"], 4);
}

#[test]
fn failing_server_is_named_alone() {
    let unset = "[servers.unset]\ncommand = \"${BOWLINE_TEST_UNSET}\"\n";
    let config = [
        fixture_config("good", &[]),
        failing_server("bad"),
        unset.to_owned(),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("good", "ready");
    let bad = gateway.wait_for_state("bad", "backoff");
    assert_eq!(bad["last_error"]["class"], "connect_failed");
    assert!(bad["last_error"]["age_ms"].is_u64());
    assert!(bad["retry_after_ms"].as_u64() > Some(0));
    assert_eq!(bad["manifest"], "none");
    let said = gateway
        .open_session("/mcp")
        .call_text("good__echo", &json!({"message": "hi"}));
    assert_eq!(said, "hi");

    // Taking the gateway out of rotation would take the good server with it.
    let (code, body) = get_readyz(&gateway);
    assert_eq!(code, 200);
    let degraded = json!({"status": "degraded", "servers": {"bad": "backoff", "unset": "broken"}});
    assert_eq!(body, degraded);

    let shown = gateway.run_cli(&["status"]);
    assert_eq!(shown.status.code(), Some(0));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("2 problems"), "{shown}");
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap();
    for part in [
        "✗ backoff",
        "connect_failed: ",
        "exit code 3",
        "ago)",
        "see: bowline logs bad",
    ] {
        assert!(line("bad").contains(part), "{part}: {shown}");
    }
    assert!(line("good").contains("● ready"), "{shown}");
    assert!(line("unset").contains("bowline check"), "{shown}");
    assert!(
        !shown.contains('\u{1b}'),
        "colour without a terminal: {shown:?}"
    );
    let listed = String::from_utf8(gateway.run_cli(&["ls"]).stdout).unwrap();
    for part in [
        "good",
        "bad",
        "connect_failed",
        "unset",
        "BOWLINE_TEST_UNSET",
    ] {
        assert!(listed.contains(part), "{listed}");
    }
    let detail = gateway.run_cli(&["status", "bad"]);
    let detail = String::from_utf8(detail.stdout).unwrap();
    for part in [
        "backoff",
        "last error",
        "next try",
        "limits",
        "512 processes",
    ] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let wrong = gateway.run_cli(&["status", "god"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8(wrong.stderr)
            .unwrap()
            .contains("did you mean good?")
    );
}

#[test]
fn gateway_with_healthy_servers_is_ready() {
    let gateway = Gateway::start(
        &(fixture_config("one", &[]) + &fixture_config("idle", &[]) + "lazy = true\n"),
    );
    gateway.wait_for_state("one", "ready");
    assert_eq!(
        get_readyz(&gateway),
        (200, json!({"status": "ok", "servers": {}}))
    );
}

#[test]
fn in_flight_counts_include_waiting_callers() {
    let gateway = Gateway::start(&(fixture_config("one", &[]) + "max_calls = 1\nqueue = 4\n"));
    gateway.wait_for_state("one", "ready");
    let mut calls = Vec::new();
    for id in 1..=3 {
        let mut session = gateway.open_session("/mcp");
        session.send_call(id, "one__slow", &json!({"ms": 60_000, "message": "late"}));
        calls.push(session);
    }
    wait_until("one call is under way and two wait", || {
        let one = gateway.server_status("one");
        one["ref_count"] == 3 && one["queued"] == 2 && one["in_flight"] == 1
    });
    drop(calls);
    wait_until("who went away holds nothing", || {
        gateway.server_status("one")["ref_count"] == 0
    });
}

#[test]
fn server_reload_completes_call_in_flight() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    session.send_call(7, "one__slow", &json!({"ms": 300, "message": "done"}));
    wait_until("the call is under way", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    let after = gateway.control_server("one", "reload");
    assert_eq!(after["server"]["state"], "ready", "{after}");
    assert_eq!(after["server"]["generation"], 2, "{after}");
    let answer = session.http.read_response().json();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    let unknown = gateway.control_server("two", "reload");
    assert_eq!(unknown["error"]["code"], "server_not_found");
}

/// Number of descriptors, children and zombies of a process.
fn count_process_resources(pid: u32) -> (usize, usize, usize) {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let children: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .flat_map(|task| {
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids: Vec<u32> = list.split_whitespace().flat_map(str::parse).collect();
            pids
        })
        .collect();
    let zombies = children.iter().filter(|pid| !is_alive(**pid)).count();
    (files, children.len(), zombies)
}

#[test]
fn fifty_crashes_leave_no_zombie_or_descriptor() {
    let gateway = Gateway::start(&[fixture_config("one", &[]), FAST_RETRY.to_owned()].concat());
    gateway.wait_for_state("one", "ready");
    // The first crash may allocate lasting resources, such as a handle created once.
    let crash = |expected: u64| {
        let pid = gateway.server_status("one")["pid"].as_u64().unwrap();
        send_signal(u32::try_from(pid).unwrap(), "KILL");
        wait_until("it serves again", || {
            let one = gateway.server_status("one");
            one["generation"] == expected && one["state"] == "ready"
        });
    };
    crash(2);
    let quiet = || {
        let (files, children, zombies) = count_process_resources(gateway.pid());
        (children == 1 && zombies == 0).then_some(files)
    };
    let mut before = None;
    wait_until("one reaper and no zombie", || {
        before = quiet();
        before.is_some()
    });
    let rounds = env_number("BOWLINE_ROUNDS", 50);
    for round in 0..rounds {
        crash(3 + round);
    }
    wait_until(
        "as many descriptors as before, one reaper, no zombie",
        || quiet().is_some_and(|files| files <= before.unwrap()),
    );
}
