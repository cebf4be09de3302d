//! Kill anything: no process is left behind, nobody else notices, nothing runs twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, Session, eventually, fixture, lives, signal};
use crate::props::{descendants, fresh_mark, mark_line, marked, number};

/// Forks, detaches, and listens to nobody.
const STUBBORN: [&str; 6] = [
    "--fault",
    "forks",
    "--fault",
    "ignores-term",
    "--fault",
    "ignores-eof",
];

/// How long what a killed gateway started may live on.
const ORPHANS_LIVE_MAX: Duration = Duration::from_secs(5);

/// How long nothing may be seen before all count as gone.
const QUIET: Duration = Duration::from_millis(500);

/// What a busy machine may add to a bound on time.
const SLACK: Duration = Duration::from_secs(5);

#[test]
fn no_process_survives_a_killed_gateway() {
    let mark = fresh_mark("killed");
    let one = fixture("one", &STUBBORN) + &mark_line(&mark);
    let two = fixture("two", &STUBBORN) + &mark_line(&mark);
    let mut gateway = Gateway::up(&(one + &two));
    let mut longest = Duration::ZERO;
    let (mut seen, mut survivors) = (0, 0);
    let rounds = number("BOWLINE_ROUNDS", 10);
    for round in 0..rounds {
        let mut pids = Vec::new();
        // Every third gateway is killed while its servers are still starting.
        if round % 3 < 2 {
            let mut session = gateway.session("/mcp");
            pids.extend(descendants(&mut session, "one__descendants"));
            pids.extend(descendants(&mut session, "two__descendants"));
            assert_eq!(pids.len(), 6, "{pids:?}");
            let all = marked(&mark);
            assert!(pids.iter().all(|pid| all.contains(pid)), "{pids:?} {all:?}");
            // Two reapers, two servers, and what the servers started.
            assert!(all.len() >= 10, "{all:?}");
            pids = all;
        }
        gateway.kill();
        let killed = Instant::now();
        seen += pids.len();
        let (gone_after, left) = watch_out(&mark, killed);
        survivors += left.len();
        assert!(left.is_empty(), "round {round}: {:?}", shown(&left));
        assert!(!pids.iter().any(|pid| lives(*pid)), "round {round}");
        longest = longest.max(gone_after);
        gateway.restart_after_kill();
    }
    // What the kills left of the state serves, and is given up in order.
    // Its servers are still starting; their reapers end what was begun.
    assert!(gateway.stop());
    let (_, left) = watch_out(&mark, Instant::now());
    assert_eq!(left, Vec::<u32>::new());
    eprintln!("{rounds} kills, {seen} processes, {survivors} survivors, longest {longest:?}");
}

/// Returns the reapers among processes.
fn reapers(pids: &[u32]) -> Vec<u32> {
    let is_reaper = |pid: &&u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == b"__reaper")
    };
    pids.iter().filter(is_reaper).copied().collect()
}

#[test]
fn next_gateway_ends_what_killed_reapers_left() {
    let mark = fresh_mark("reapers");
    let mut gateway = Gateway::up(&(fixture("one", &STUBBORN) + &mark_line(&mark)));
    let rounds = number("BOWLINE_ROUNDS", 10);
    let (mut orphans, mut survivors) = (0, 0);
    for round in 0..rounds {
        let forked = descendants(&mut gateway.session("/mcp"), "one__descendants");
        let all = marked(&mark);
        assert!(forked.iter().all(|pid| all.contains(pid)), "{forked:?}");
        let reapers = reapers(&all);
        assert_eq!(reapers.len(), 1, "round {round}: {:?}", shown(&all));
        // Stopped, the gateway cannot notice that its reaper dies.
        signal(gateway.pid(), "STOP");
        for reaper in &reapers {
            signal(*reaper, "KILL");
        }
        gateway.kill();
        let left: Vec<u32> = all
            .into_iter()
            .filter(|pid| !reapers.contains(pid))
            .collect();
        assert!(left.iter().all(|pid| lives(*pid)), "round {round}");
        orphans += left.len();
        gateway.restart_after_kill();
        let still: Vec<u32> = left.into_iter().filter(|pid| lives(*pid)).collect();
        survivors += still.len();
        assert!(still.is_empty(), "round {round}: {:?}", shown(&still));
    }
    assert!(gateway.stop());
    let (_, left) = watch_out(&mark, Instant::now());
    assert_eq!(left, Vec::<u32>::new());
    eprintln!("{rounds} kills of both, {orphans} orphans, {survivors} survivors");
}

#[test]
fn gateway_ends_what_its_killed_reaper_left() {
    let mark = fresh_mark("reaper");
    let gateway = Gateway::up(&(fixture("one", &STUBBORN) + &mark_line(&mark)));
    for round in 1..=3 {
        descendants(&mut gateway.session("/mcp"), "one__descendants");
        let all = marked(&mark);
        let reapers = reapers(&all);
        assert_eq!(reapers.len(), 1, "round {round}: {:?}", shown(&all));
        signal(reapers[0], "KILL");
        eventually("all that the reaper kept are gone", || {
            !all.iter().any(|pid| lives(*pid))
        });
        eventually("the server is up again", || {
            let status = gateway.wait_for("one", "ready");
            status["generation"] == round + 1
        });
    }
}

/// What the processes that are left run, and how they stand.
fn shown(pids: &[u32]) -> Vec<String> {
    let read = |pid: u32, file: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.replace('\0', " ")
    };
    pids.iter()
        .map(|pid| format!("{} [{}]", read(*pid, "cmdline"), read(*pid, "stat")))
        .collect()
}

/// Watches until none of the marked processes was seen for a while: one that was just being
/// started carries its mark a moment later. Returns when the last was seen, and who is left.
fn watch_out(mark: &str, since: Instant) -> (Duration, Vec<u32>) {
    let mut seen = Duration::ZERO;
    loop {
        let left = marked(mark);
        let now = since.elapsed();
        if !left.is_empty() {
            seen = now;
        }
        if now > seen + QUIET || now > ORPHANS_LIVE_MAX {
            return (seen, left);
        }
        thread::yield_now();
    }
}

/// Ends the load when it is dropped.
#[derive(Debug)]
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How one call with a side effect ended.
#[derive(Debug)]
struct Ended {
    key: String,
    answer: Value,
}

#[test]
fn a_killed_server_disturbs_no_other_and_serves_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--ledger", ledger.to_str().unwrap()];
    let lazy = fixture("fresh", &args) + "lazy = true\n";
    let config = [fixture("victim", &args), fixture("steady", &[]), lazy].concat();
    let gateway = Gateway::up(&config);
    let mut session = gateway.session("/mcp");
    let before = gateway.wait_for("victim", "ready");
    gateway.wait_for("steady", "ready");
    let started = Instant::now();
    session.text("fresh__echo", &json!({"message": "up"}));
    let own_start = started.elapsed();

    let stop = AtomicBool::new(false);
    let steady_calls = AtomicU64::new(0);
    let (outcomes, again) = thread::scope(|scope| {
        // Also when an assertion fails: the load would go on for ever.
        let done = Done(&stop);
        let victims: Vec<_> = (0..8)
            .map(|thread| {
                let (stop, mut session) = (&stop, gateway.session("/mcp"));
                scope.spawn(move || load_victim(&mut session, thread, stop))
            })
            .collect();
        for _ in 0..4 {
            let (stop, calls, mut session) = (&stop, &steady_calls, gateway.session("/mcp"));
            scope.spawn(move || load_steady(&mut session, calls, stop));
        }
        eventually("the load is on", || {
            gateway.status("victim")["in_flight"].as_u64() >= Some(6)
        });
        let pid = before["pid"].as_u64().unwrap();
        signal(u32::try_from(pid).unwrap(), "KILL");
        let killed = Instant::now();
        eventually("the victim serves again", || {
            let answer = session.call("victim__echo", &json!({"message": "again"}));
            answer["result"].is_object() && gateway.status("victim")["generation"] == 2
        });
        let again = killed.elapsed();
        // Not only whoever waited for the restart: everybody.
        for _ in 0..20 {
            let said = session.text("victim__echo", &json!({"message": "well"}));
            assert_eq!(said, "well");
        }
        let steady_then = steady_calls.load(Ordering::Relaxed);
        eventually("the load goes on", || {
            steady_calls.load(Ordering::Relaxed) > steady_then + 20
        });
        drop(done);
        let outcomes: Vec<Ended> = victims
            .into_iter()
            .flat_map(|victim| victim.join().unwrap())
            .collect();
        (outcomes, again)
    });

    let unknown = check_against_ledger(&outcomes, &std::fs::read_to_string(&ledger).unwrap());
    assert!(unknown > 0, "no call was in flight when the server died");
    assert_eq!(gateway.status("steady")["errors"], 0);
    assert_eq!(gateway.status("steady")["generation"], 1);
    eprintln!(
        "served again after {again:?}; own start {own_start:?}; {} calls, {unknown} unknown",
        outcomes.len()
    );
    assert!(
        again < Duration::from_millis(500) + own_start + SLACK,
        "{again:?}"
    );
}

fn load_victim(session: &mut Session, thread: usize, stop: &AtomicBool) -> Vec<Ended> {
    let mut ended = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{thread}-{}", ended.len());
        let answer = session.call("victim__effect", &json!({"key": key, "ms": 100}));
        ended.push(Ended { key, answer });
    }
    ended
}

fn load_steady(session: &mut Session, calls: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let said = session.text("steady__echo", &json!({"message": "still here"}));
        assert_eq!(said, "still here");
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Compares what callers were told with what really ran, and counts the unknown outcomes.
fn check_against_ledger(outcomes: &[Ended], ledger: &str) -> usize {
    let mut runs: HashMap<&str, usize> = HashMap::new();
    for key in ledger.lines() {
        *runs.entry(key).or_default() += 1;
    }
    let mut unknown = 0;
    for Ended { key, answer } in outcomes {
        let ran = runs.get(key.as_str()).copied().unwrap_or_default();
        let execution = answer["error"]["data"]["execution"].as_str();
        match (answer["result"].is_object(), execution) {
            (true, None) => assert_eq!(ran, 1, "{key}: {answer}"),
            (false, Some("unknown")) => {
                assert!(ran <= 1, "{key} ran {ran} times");
                assert_eq!(answer["error"]["data"]["code"], "connection_lost");
                unknown += 1;
            }
            (false, Some("not_started")) => assert_eq!(ran, 0, "{key}: {answer}"),
            _ => panic!("{key} ended in no known way: {answer}"),
        }
    }
    unknown
}

#[test]
fn a_hundred_clients_with_colliding_ids_never_cross() {
    let gateway = Gateway::up(&[fixture("one", &[]), fixture("two", &[])].concat());
    gateway.wait_for("one", "ready");
    gateway.wait_for("two", "ready");
    let end = Instant::now() + Duration::from_secs(number("BOWLINE_SECONDS", 3));
    let (calls, crossings) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in 0..100 {
            let (gateway, calls, crossings) = (&gateway, &calls, &crossings);
            scope.spawn(move || {
                let mut session = gateway.session("/mcp");
                for id in 1_u64.. {
                    if Instant::now() > end {
                        return;
                    }
                    let tool = ["one__echo", "two__echo"][(client + id as usize) % 2];
                    let said = format!("client {client} request {id}");
                    let answer = session.post(&json!({
                        "jsonrpc": "2.0", "id": id, "method": "tools/call",
                        "params": {"name": tool, "arguments": {"message": said}},
                    }));
                    let answer = answer.json();
                    let text = &answer["result"]["content"][0]["text"];
                    if answer["id"] != id || *text != said.as_str() {
                        eprintln!("client {client} request {id} got {answer}");
                        crossings.fetch_add(1, Ordering::Relaxed);
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    eprintln!("{calls:?} calls, {crossings:?} crossings");
    assert_eq!(crossings.into_inner(), 0);
    assert!(calls.into_inner() >= 100);
}

#[test]
fn an_orderly_stop_ends_in_time_and_leaves_nothing_behind() {
    let mark = fresh_mark("stopped");
    let config: String = [
        ("plain", &[][..]),
        ("deaf", &STUBBORN[2..4]),
        ("stuck", &STUBBORN[4..]),
        ("stubborn", &STUBBORN[..]),
    ]
    .iter()
    .map(|(name, args)| fixture(name, args) + &mark_line(&mark))
    .collect();
    // One more is still starting when the stop comes.
    let config = config + &fixture("hung", &["--fault", "hang-at-start"]) + &mark_line(&mark);
    let mut gateway = Gateway::up(&config);
    let mut calls = Vec::new();
    for server in ["plain", "deaf", "stuck", "stubborn"] {
        gateway.wait_for(server, "ready");
        let mut session = gateway.session(&format!("/servers/{server}/mcp"));
        session.send_call(7, "slow", &json!({"ms": 60_000, "message": "late"}));
        eventually("the call is under way", || {
            gateway.status(server)["in_flight"] == 1
        });
        calls.push((server, session));
    }
    assert!(marked(&mark).len() >= 8);
    signal(gateway.pid(), "TERM");
    let told = Instant::now();
    let code = gateway.exit_code();
    let took = told.elapsed();
    eprintln!("stopped after {took:?}");
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(6) + SLACK, "{took:?}");
    assert_eq!(marked(&mark), Vec::<u32>::new());
    assert!(!gateway.state().join("run.json").exists());
    for (server, mut session) in calls {
        let answer = session.http.read().json();
        assert_eq!(answer["id"], 7, "{server}: {answer}");
        let data = &answer["error"]["data"];
        assert_eq!(data["execution"], "unknown", "{server}: {answer}");
        assert!(session.http.is_closed(), "{server}");
    }
}

#[test]
fn a_second_signal_ends_the_stop_at_once() {
    let mark = fresh_mark("twice");
    let mut gateway = Gateway::up(&(fixture("one", &STUBBORN) + &mark_line(&mark)));
    gateway.wait_for("one", "ready");
    signal(gateway.pid(), "TERM");
    eventually("the stop is under way", || {
        // New connections are refused from then on.
        std::net::TcpStream::connect(gateway.address).is_err()
    });
    signal(gateway.pid(), "TERM");
    let told = Instant::now();
    assert_eq!(gateway.exit_code(), Some(0));
    let took = told.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (_, left) = watch_out(&mark, told);
    assert_eq!(left, Vec::<u32>::new());
}
