//! What people and programs can see of servers, while some of them fail.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, eventually, fixture, lives, signal};
use crate::props::{descendants, number};

/// A server that can be tried again and again, and soon.
const PATIENT: &str = "restart = { budget = 1000, window = \"5m\", backoff = \"1ms..5ms\" }\n";

fn failing(name: &str) -> String {
    fixture(name, &["--fault", "exit-at-start=3"]) + "restart = { backoff = \"30s..60s\" }\n"
}

fn readyz(gateway: &Gateway) -> (u16, Value) {
    let token = format!("Bearer {}", gateway.token);
    let response = Http::connect(gateway.address).get("/readyz", &[("Authorization", &token)]);
    (response.status, response.json())
}

#[test]
fn status_names_all_that_is_known_of_a_server() {
    let config = fixture("one", &["--fault", "forks"]) + "limits = { memory = \"2GiB\" }\n";
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    for _ in 0..20 {
        session.text("one__echo", &json!({"message": "hi"}));
    }
    assert_eq!(descendants(&mut session, "one__descendants").len(), 3);
    let one = gateway.api("/api/v1/servers/one")["server"].clone();
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
    // The server, and three processes that it started, one of them nobody's child any more.
    assert_eq!(one["processes"], 4, "{one}");
    let own = crate::harness::memory(u32::try_from(one["pid"].as_u64().unwrap()).unwrap()) as u64;
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
    let listed = gateway.status("one");
    assert_eq!(listed["processes"], 4);
}

#[test]
fn one_failing_server_is_named_and_fails_nothing_else() {
    let unset = "[servers.unset]\ncommand = \"${BOWLINE_TEST_UNSET}\"\n";
    let config = [fixture("good", &[]), failing("bad"), unset.to_owned()].concat();
    let gateway = Gateway::up(&config);
    gateway.wait_for("good", "ready");
    let bad = gateway.wait_for("bad", "backoff");
    assert_eq!(bad["last_error"]["class"], "connect_failed");
    assert!(bad["last_error"]["age_ms"].is_u64());
    assert!(bad["retry_after_ms"].as_u64() > Some(0));
    assert_eq!(bad["manifest"], "none");
    let said = gateway
        .session("/mcp")
        .text("good__echo", &json!({"message": "hi"}));
    assert_eq!(said, "hi");

    // Taking the gateway out of rotation would take the good server with it.
    let (code, body) = readyz(&gateway);
    assert_eq!(code, 200);
    let degraded = json!({"status": "degraded", "servers": {"bad": "backoff", "unset": "broken"}});
    assert_eq!(body, degraded);

    let shown = gateway.cli(&["status"]);
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
    let listed = String::from_utf8(gateway.cli(&["ls"]).stdout).unwrap();
    for part in [
        "good",
        "bad",
        "connect_failed",
        "unset",
        "BOWLINE_TEST_UNSET",
    ] {
        assert!(listed.contains(part), "{listed}");
    }
    let detail = gateway.cli(&["status", "bad"]);
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
    let wrong = gateway.cli(&["status", "god"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8(wrong.stderr)
            .unwrap()
            .contains("did you mean good?")
    );
}

#[test]
fn a_gateway_whose_servers_are_well_is_ready_and_says_so() {
    let gateway = Gateway::up(&(fixture("one", &[]) + &fixture("idle", &[]) + "lazy = true\n"));
    gateway.wait_for("one", "ready");
    assert_eq!(
        readyz(&gateway),
        (200, json!({"status": "ok", "servers": {}}))
    );
}

#[test]
fn callers_that_hold_a_server_are_counted_also_those_that_wait() {
    let gateway = Gateway::up(&(fixture("one", &[]) + "max_calls = 1\nqueue = 4\n"));
    gateway.wait_for("one", "ready");
    let mut calls = Vec::new();
    for id in 1..=3 {
        let mut session = gateway.session("/mcp");
        session.send_call(id, "one__slow", &json!({"ms": 60_000, "message": "late"}));
        calls.push(session);
    }
    eventually("one call is under way and two wait", || {
        let one = gateway.status("one");
        one["ref_count"] == 3 && one["queued"] == 2 && one["in_flight"] == 1
    });
    drop(calls);
    eventually("who went away holds nothing", || {
        gateway.status("one")["ref_count"] == 0
    });
}

#[test]
fn a_server_is_reloaded_by_order_and_its_call_in_flight_ends() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    session.send_call(7, "one__slow", &json!({"ms": 300, "message": "done"}));
    eventually("the call is under way", || {
        gateway.status("one")["in_flight"] == 1
    });
    let after = gateway.order("one", "reload");
    assert_eq!(after["server"]["state"], "ready", "{after}");
    assert_eq!(after["server"]["generation"], 2, "{after}");
    let answer = session.http.read().json();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    let unknown = gateway.order("two", "reload");
    assert_eq!(unknown["error"]["code"], "server_not_found");
}

/// Descriptors and children of a process; of the latter, those that nobody has waited for.
fn held(pid: u32) -> (usize, usize, usize) {
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
    let zombies = children.iter().filter(|pid| !lives(**pid)).count();
    (files, children.len(), zombies)
}

#[test]
fn fifty_crashes_leave_no_zombie_and_no_descriptor() {
    let gateway = Gateway::up(&[fixture("one", &[]), PATIENT.to_owned()].concat());
    gateway.wait_for("one", "ready");
    // The first crash may bring what stays, such as a handle that is made once.
    let crash = |expected: u64| {
        let pid = gateway.status("one")["pid"].as_u64().unwrap();
        signal(u32::try_from(pid).unwrap(), "KILL");
        eventually("it serves again", || {
            let one = gateway.status("one");
            one["generation"] == expected && one["state"] == "ready"
        });
    };
    crash(2);
    let quiet = || {
        let (files, children, zombies) = held(gateway.pid());
        (children == 1 && zombies == 0).then_some(files)
    };
    let mut before = None;
    eventually("one reaper and no zombie", || {
        before = quiet();
        before.is_some()
    });
    let rounds = number("BOWLINE_ROUNDS", 50);
    for round in 0..rounds {
        crash(3 + round);
    }
    eventually(
        "as many descriptors as before, one reaper, no zombie",
        || quiet().is_some_and(|files| files <= before.unwrap()),
    );
}
