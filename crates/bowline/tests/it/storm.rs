//! Many servers that fail at once, and what becomes of those that do not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{Gateway, eventually, fixture};

/// Restarts that each failing server has within the time of the test.
const BUDGET: u64 = 2;

/// Servers that may be started at the same time.
const STARTS: usize = 8;

/// Calls of healthy servers while others crash and hang.
const CALLS: u64 = 2_000;

/// Processes that are killed meanwhile.
const KILLS: u64 = 20;

/// Servers of the storm; all thousand where the machine has the time.
fn servers() -> usize {
    let told = std::env::var("BOWLINE_STORM_SERVERS").ok();
    told.map_or(200, |told| told.parse().unwrap())
}

/// Ends those who go on until something is over, also when a test fails before it is.
#[derive(Debug)]
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same for those who go on until enough calls were made.
#[derive(Debug)]
struct Enough<'a>(&'a AtomicU64);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.fetch_max(CALLS, Ordering::Relaxed);
    }
}

/// Processes whose parent is this one, with whether each is a zombie.
fn children(of: u32) -> Vec<bool> {
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

fn statuses(gateway: &Gateway) -> BTreeMap<String, Value> {
    let servers = gateway.api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap().iter();
    servers
        .map(|status| (status["name"].as_str().unwrap().to_owned(), status.clone()))
        .collect()
}

#[test]
fn servers_that_exit_at_once_are_started_within_their_budget() {
    let count = servers();
    let mut config = format!("[limits]\nstarts = {STARTS}\n");
    config.push_str(&fixture("well", &[]));
    for nth in 0..count {
        config.push_str(&fixture(
            &format!("bad-{nth}"),
            &["--fault", "exit-at-start=1"],
        ));
        config.push_str(&format!(
            "restart = {{ budget = {BUDGET}, window = \"1h\", backoff = \"10ms..50ms\" }}\n"
        ));
    }
    let gateway = Gateway::up(&config);
    gateway.wait_for("well", "ready");
    let over = AtomicBool::new(false);
    let (answered, most) = thread::scope(|scope| {
        let callers = scope.spawn(|| {
            let mut session = gateway.session("/mcp");
            let mut answered = 0_u64;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(session.text("well__echo", &json!({"message": "x"})), "x");
                answered += 1;
            }
            answered
        });
        let over = Over(&over);
        let mut most = 0;
        for nth in 0..count {
            // One by one, so that the wait is for progress and not for a slow machine.
            eventually(&format!("bad-{nth} has had its starts"), || {
                most = most.max(children(gateway.pid()).len());
                let all = statuses(&gateway);
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
    // One of them is the healthy server; one that was given up may still be on its way out.
    assert!(most <= 2 * STARTS + 1, "{most} processes at once");
    for (name, status) in statuses(&gateway) {
        let limit = if name == "well" { 1 } else { BUDGET + 1 };
        assert!(status["generation"].as_u64().unwrap() <= limit, "{status}");
    }
    eventually("nothing is left of them", || {
        children(gateway.pid()).len() == 1
    });
}

/// Kills the process of a server that serves; `false` when none does just now.
fn crash(gateway: &Gateway, server: &str) -> bool {
    let status = gateway.status(server);
    let Some(pid) = status["pid"].as_u64().filter(|_| status["active"] == true) else {
        return false;
    };
    // It may have gone by itself in the meantime, which is as good.
    let kill = std::process::Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
    kill.is_ok_and(|status| status.success())
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

/// Calls a faulty server until enough was seen; however a call ends, it ends.
fn call_badly(gateway: &Gateway, server: &str, over: impl Fn() -> bool) {
    let mut session = gateway.session("/mcp");
    while !over() {
        let (tool, arguments) = match server {
            "hang" => ("slow", json!({"ms": 5_000, "message": "x"})),
            _ => ("echo", json!({"message": "x"})),
        };
        let answer = session.call(&format!("{server}__{tool}"), &arguments);
        let known = answer["error"]["data"]["class"].is_string();
        assert!(known || answer["result"].is_object(), "{answer}");
    }
    session.delete();
}

#[test]
fn healthy_servers_do_not_notice_servers_that_crash_hang_and_babble() {
    let treatment = "timeout = \"1s\"\n\
        restart = { budget = 1000, window = \"5m\", backoff = \"1ms..20ms\" }\n\
        breaker = { failures = 5, rest = \"100ms\" }\n";
    let faulty: [(&str, &[&str]); 3] = [
        ("crash", &["--fault", "crash-after=20"]),
        ("hang", &[]),
        ("babble", &["--fault", "noise", "--fault", "late-answers"]),
    ];
    let mut config = fixture("well-a", &[]) + &fixture("well-b", &[]);
    for (name, args) in faulty {
        config.push_str(&(fixture(name, args) + treatment));
    }
    let gateway = Gateway::up(&config);
    for name in ["well-a", "well-b", "crash", "hang", "babble"] {
        gateway.wait_for(name, "ready");
    }
    // The first session that ends opens the file of ended sessions, which stays open.
    gateway.session("/mcp").delete();
    let (processes, before) = (children(gateway.pid()).len(), descriptors(gateway.pid()));
    let made = AtomicU64::new(0);
    let over = || made.load(Ordering::Relaxed) >= CALLS;
    thread::scope(|scope| {
        for nth in 0..4_u64 {
            let (gateway, made, over) = (&gateway, &made, &over);
            scope.spawn(move || {
                let mut session = gateway.session("/mcp");
                let tool = ["well-a__echo", "well-b__echo"][usize::try_from(nth % 2).unwrap()];
                while !over() {
                    let said = format!("{nth}");
                    assert_eq!(session.text(tool, &json!({"message": said})), said);
                    made.fetch_add(1, Ordering::Relaxed);
                }
                session.delete();
            });
        }
        for (server, _) in faulty {
            let (gateway, over) = (&gateway, &over);
            scope.spawn(move || call_badly(gateway, server, over));
        }
        let guard = Enough(&made);
        let mut turn = faulty.into_iter().cycle();
        for nth in 1..=KILLS {
            eventually("the next crash is due", || {
                made.load(Ordering::Relaxed) >= CALLS * nth / (KILLS + 1)
            });
            let (server, _) = turn.next().unwrap();
            eventually("a server could be killed", || {
                over() || crash(&gateway, server)
            });
        }
        eventually("every call was made", over);
        drop(guard);
    });
    for (name, _) in faulty {
        gateway.order(name, "restart");
        gateway.wait_for(name, "ready");
    }
    eventually("no process is left over", || {
        let now = children(gateway.pid());
        now.len() == processes && !now.contains(&true)
    });
    eventually("no descriptor is left over", || {
        descriptors(gateway.pid()) <= before
    });
    for name in ["well-a", "well-b"] {
        let status = gateway.status(name);
        assert_eq!(status["generation"], 1, "{status}");
        assert_eq!(status["errors"], 0, "{status}");
    }
}
