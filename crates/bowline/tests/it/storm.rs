//! Many servers that fail at once, and the effect on the healthy ones.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

/// Restarts of each failing server within the test.
const BUDGET: u64 = 2;

/// Limit of concurrent starts.
const STARTS: usize = 8;

/// Calls of healthy servers during the crashes and hangs.
const CALLS: u64 = 2_000;

/// Kills meanwhile.
const KILLS: u64 = 20;

/// Servers of the storm; a thousand in the long form.
fn storm_size() -> usize {
    let told = std::env::var("BOWLINE_STORM_SERVERS").ok();
    told.map_or(200, |told| told.parse().unwrap())
}

/// Sets the stop flag when dropped, also if the test fails early.
#[derive(Debug)]
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same for loops that end after a number of calls.
#[derive(Debug)]
struct StopCallsOnDrop<'a>(&'a AtomicU64);

impl Drop for StopCallsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_max(CALLS, Ordering::Relaxed);
    }
}

/// Children of a process, each with whether it is a zombie.
fn child_zombie_flags(of: u32) -> Vec<bool> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        let mut words = rest.split_whitespace();
        let zombie = words.next() == Some("Z");
        if words.next() == Some(&of.to_string()) {
            found.push(zombie);
        }
    }
    found
}

fn server_statuses(gateway: &Gateway) -> BTreeMap<String, Value> {
    let servers = gateway.get_api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap().iter();
    servers
        .map(|status| (status["name"].as_str().unwrap().to_owned(), status.clone()))
        .collect()
}

#[test]
fn exiting_servers_are_started_within_budget() {
    let count = storm_size();
    let mut config = format!("[limits]\nstarts = {STARTS}\n");
    config.push_str(&fixture_config("well", &[]));
    for nth in 0..count {
        config.push_str(&fixture_config(
            &format!("bad-{nth}"),
            &["--fault", "exit-at-start=1"],
        ));
        config.push_str(&format!(
            "restart = {{ budget = {BUDGET}, window = \"1h\", backoff = \"10ms..50ms\" }}\n"
        ));
    }
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("well", "ready");
    let over = AtomicBool::new(false);
    let (answered, most) = thread::scope(|scope| {
        let callers = scope.spawn(|| {
            let mut session = gateway.open_session("/mcp");
            let mut answered = 0_u64;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(
                    session.call_text("well__echo", &json!({"message": "x"})),
                    "x"
                );
                answered += 1;
            }
            answered
        });
        let over = StopOnDrop(&over);
        let mut most = 0;
        for nth in 0..count {
            // One by one, so the wait tracks progress and tolerates a slow machine.
            wait_until(&format!("bad-{nth} has had its starts"), || {
                most = most.max(child_zombie_flags(gateway.pid()).len());
                let all = server_statuses(&gateway);
                let starts = |status: &Value| status["generation"].as_u64().unwrap();
                assert!(all.values().all(|status| starts(status) <= BUDGET + 1));
                let status = &all[&format!("bad-{nth}")];
                starts(status) == BUDGET + 1 && status["state"] != "starting"
            });
        }
        drop(over);
        (callers.join().unwrap(), most)
    });
    assert!(answered > 10, "{answered} calls in all that time");
    // The healthy server is included; an ejected server may still be exiting.
    assert!(most <= 2 * STARTS + 1, "{most} processes at once");
    for (name, status) in server_statuses(&gateway) {
        let limit = if name == "well" { 1 } else { BUDGET + 1 };
        assert!(status["generation"].as_u64().unwrap() <= limit, "{status}");
    }
    wait_until("nothing is left of them", || {
        child_zombie_flags(gateway.pid()).len() == 1
    });
}

/// Kills the process of a running server; `false` if none runs.
fn kill_server(gateway: &Gateway, server: &str) -> bool {
    let status = gateway.server_status(server);
    let Some(pid) = status["pid"].as_u64().filter(|_| status["active"] == true) else {
        return false;
    };
    // The process may have exited by itself in the meantime.
    let kill = std::process::Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
    kill.is_ok_and(|status| status.success())
}

fn count_descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

/// Calls a faulty server until the test is over; every call must end.
fn call_faulty_server(gateway: &Gateway, server: &str, over: impl Fn() -> bool) {
    let mut session = gateway.open_session("/mcp");
    while !over() {
        let (tool, arguments) = match server {
            "hang" => ("slow", json!({"ms": 5_000, "message": "x"})),
            _ => ("echo", json!({"message": "x"})),
        };
        let answer = session.call(&format!("{server}__{tool}"), &arguments);
        let known = answer["error"]["data"]["class"].is_string();
        assert!(known || answer["result"].is_object(), "{answer}");
    }
    session.end_session();
}

/// Calls a healthy server until the test is over; every call must succeed.
fn call_healthy_server(gateway: &Gateway, nth: u64, made: &AtomicU64, over: impl Fn() -> bool) {
    let mut session = gateway.open_session("/mcp");
    let tool = ["well-a__echo", "well-b__echo"][usize::try_from(nth % 2).unwrap()];
    while !over() {
        let said = format!("{nth}");
        assert_eq!(session.call_text(tool, &json!({"message": said})), said);
        made.fetch_add(1, Ordering::Relaxed);
    }
    session.end_session();
}

#[test]
fn healthy_servers_are_unaffected_by_failing_ones() {
    let treatment = "timeout = \"1s\"\n\
        restart = { budget = 1000, window = \"5m\", backoff = \"1ms..20ms\" }\n\
        breaker = { failures = 5, rest = \"100ms\" }\n";
    let faulty: [(&str, &[&str]); 3] = [
        ("crash", &["--fault", "crash-after=20"]),
        ("hang", &[]),
        ("babble", &["--fault", "noise", "--fault", "late-answers"]),
    ];
    let mut config = fixture_config("well-a", &[]) + &fixture_config("well-b", &[]);
    for (name, args) in faulty {
        config.push_str(&(fixture_config(name, args) + treatment));
    }
    let gateway = Gateway::start(&config);
    for name in ["well-a", "well-b", "crash", "hang", "babble"] {
        gateway.wait_for_state(name, "ready");
    }
    // The first ended session opens the file of ended sessions, which stays open.
    gateway.open_session("/mcp").end_session();
    let (processes, before) = (
        child_zombie_flags(gateway.pid()).len(),
        count_descriptors(gateway.pid()),
    );
    let made = AtomicU64::new(0);
    let over = || made.load(Ordering::Relaxed) >= CALLS;
    thread::scope(|scope| {
        for nth in 0..4_u64 {
            let (gateway, made, over) = (&gateway, &made, &over);
            scope.spawn(move || call_healthy_server(gateway, nth, made, over));
        }
        for (server, _) in faulty {
            let (gateway, over) = (&gateway, &over);
            scope.spawn(move || call_faulty_server(gateway, server, over));
        }
        let guard = StopCallsOnDrop(&made);
        let mut turn = faulty.into_iter().cycle();
        for nth in 1..=KILLS {
            wait_until("the next crash is due", || {
                made.load(Ordering::Relaxed) >= CALLS * nth / (KILLS + 1)
            });
            let (server, _) = turn.next().unwrap();
            wait_until("a server could be killed", || {
                over() || kill_server(&gateway, server)
            });
        }
        wait_until("every call was made", over);
        drop(guard);
    });
    for (name, _) in faulty {
        gateway.control_server(name, "restart");
        gateway.wait_for_state(name, "ready");
    }
    wait_until("no process is left over", || {
        let now = child_zombie_flags(gateway.pid());
        now.len() == processes && !now.contains(&true)
    });
    wait_until("no descriptor is left over", || {
        count_descriptors(gateway.pid()) <= before
    });
    for name in ["well-a", "well-b"] {
        let status = gateway.server_status(name);
        assert_eq!(status["generation"], 1, "{status}");
        assert_eq!(status["errors"], 0, "{status}");
    }
}
