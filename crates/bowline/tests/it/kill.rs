//! Killing any process leaves no process behind, disturbs no other server, and runs nothing twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, Session, fixture_config};
use bowline_testkit::{is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::{Value, json};

use crate::test_servers::{
    env_number, fork_descendants, fresh_mark, mark_config_line, marked_processes,
};

/// Makes the server fork, detach, and ignore signals.
const STUBBORN_ARGS: [&str; 6] = [
    "--fault",
    "forks",
    "--fault",
    "ignores-term",
    "--fault",
    "ignores-eof",
];

/// Longest life of processes of a killed gateway.
const ORPHANS_LIVE_MAX: Duration = Duration::from_secs(5);

/// Time without a sighting after which all processes count as gone.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// Slack that a busy machine adds to a time limit.
const SLACK: Duration = Duration::from_secs(5);

#[test]
fn no_process_survives_a_killed_gateway() {
    let mark = fresh_mark("killed");
    let one = fixture_config("one", &STUBBORN_ARGS) + &mark_config_line(&mark);
    let two = fixture_config("two", &STUBBORN_ARGS) + &mark_config_line(&mark);
    let mut gateway = Gateway::start(&(one + &two));
    let mut longest = Duration::ZERO;
    let (mut seen, mut survivors) = (0, 0);
    let rounds = env_number("BOWLINE_ROUNDS", 10);
    for round in 0..rounds {
        let mut pids = Vec::new();
        // Every third gateway is killed while its servers are still starting.
        if round % 3 < 2 {
            let mut session = gateway.open_session("/mcp");
            pids.extend(fork_descendants(&mut session, "one__descendants"));
            pids.extend(fork_descendants(&mut session, "two__descendants"));
            assert_eq!(pids.len(), 6, "{pids:?}");
            let all = marked_processes(&mark);
            assert!(pids.iter().all(|pid| all.contains(pid)), "{pids:?} {all:?}");
            // Two reapers, two servers, and the processes of the servers.
            assert!(all.len() >= 10, "{all:?}");
            pids = all;
        }
        gateway.kill();
        let killed = Instant::now();
        seen += pids.len();
        let (gone_after, left) = watch_marked_processes(&mark, killed);
        survivors += left.len();
        assert!(
            left.is_empty(),
            "round {round}: {:?}",
            describe_processes(&left)
        );
        assert!(!pids.iter().any(|pid| is_alive(*pid)), "round {round}");
        longest = longest.max(gone_after);
        gateway.restart_after_kill();
    }
    // The state left by the kills still works, and the gateway stops in order. Its servers are
    // still starting; their reapers end the started processes.
    assert!(gateway.stop());
    let (_, left) = watch_marked_processes(&mark, Instant::now());
    assert_eq!(left, Vec::<u32>::new());
    eprintln!("{rounds} kills, {seen} processes, {survivors} survivors, longest {longest:?}");
}

/// Returns the reapers among processes.
fn filter_reapers(pids: &[u32]) -> Vec<u32> {
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
    let mut gateway =
        Gateway::start(&(fixture_config("one", &STUBBORN_ARGS) + &mark_config_line(&mark)));
    let rounds = env_number("BOWLINE_ROUNDS", 10);
    let (mut orphans, mut survivors) = (0, 0);
    for round in 0..rounds {
        let forked = fork_descendants(&mut gateway.open_session("/mcp"), "one__descendants");
        let all = marked_processes(&mark);
        assert!(forked.iter().all(|pid| all.contains(pid)), "{forked:?}");
        let reapers = filter_reapers(&all);
        assert_eq!(
            reapers.len(),
            1,
            "round {round}: {:?}",
            describe_processes(&all)
        );
        // A stopped gateway cannot notice the death of its reaper.
        send_signal(gateway.pid(), "STOP");
        for reaper in &reapers {
            send_signal(*reaper, "KILL");
        }
        gateway.kill();
        let left: Vec<u32> = all
            .into_iter()
            .filter(|pid| !reapers.contains(pid))
            .collect();
        assert!(left.iter().all(|pid| is_alive(*pid)), "round {round}");
        orphans += left.len();
        gateway.restart_after_kill();
        let still: Vec<u32> = left.into_iter().filter(|pid| is_alive(*pid)).collect();
        survivors += still.len();
        assert!(
            still.is_empty(),
            "round {round}: {:?}",
            describe_processes(&still)
        );
    }
    assert!(gateway.stop());
    let (_, left) = watch_marked_processes(&mark, Instant::now());
    assert_eq!(left, Vec::<u32>::new());
    eprintln!("{rounds} kills of both, {orphans} orphans, {survivors} survivors");
}

#[test]
fn gateway_ends_what_its_killed_reaper_left() {
    let mark = fresh_mark("reaper");
    let gateway =
        Gateway::start(&(fixture_config("one", &STUBBORN_ARGS) + &mark_config_line(&mark)));
    for round in 1..=3 {
        fork_descendants(&mut gateway.open_session("/mcp"), "one__descendants");
        let all = marked_processes(&mark);
        let reapers = filter_reapers(&all);
        assert_eq!(
            reapers.len(),
            1,
            "round {round}: {:?}",
            describe_processes(&all)
        );
        send_signal(reapers[0], "KILL");
        for pid in all {
            wait_process_exit("the end of what the reaper kept", pid);
        }
        wait_until("the server is up again", || {
            let status = gateway.wait_for_state("one", "ready");
            status["generation"] == round + 1
        });
    }
}

/// Command line and state of the remaining processes.
fn describe_processes(pids: &[u32]) -> Vec<String> {
    let read = |pid: u32, file: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.replace('\0', " ")
    };
    pids.iter()
        .map(|pid| format!("{} [{}]", read(*pid, "cmdline"), read(*pid, "stat")))
        .collect()
}

/// Watches until no marked process was seen for `QUIET_TIME`: a process that is just starting
/// carries its mark a moment later. Returns the time of the last sighting, and the remaining
/// processes.
fn watch_marked_processes(mark: &str, since: Instant) -> (Duration, Vec<u32>) {
    let (mut seen, mut left) = (Duration::ZERO, Vec::new());
    wait_until("quiet, or the longest life of orphans", || {
        left = marked_processes(mark);
        let now = since.elapsed();
        if !left.is_empty() {
            seen = now;
        }
        now > seen + QUIET_TIME || now > ORPHANS_LIVE_MAX
    });
    (seen, left)
}

/// Ends the load when dropped.
#[derive(Debug)]
struct LoadGuard<'a>(&'a AtomicBool);

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Outcome of a call with a side effect.
#[derive(Debug)]
struct KeyedCall {
    key: String,
    response: Value,
}

#[test]
fn killed_server_recovers_without_disturbing_others() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--ledger", ledger.to_str().unwrap()];
    let lazy = fixture_config("fresh", &args) + "lazy = true\n";
    let config = [
        fixture_config("victim", &args),
        fixture_config("steady", &[]),
        lazy,
    ]
    .concat();
    let gateway = Gateway::start(&config);
    let mut session = gateway.open_session("/mcp");
    let before = gateway.wait_for_state("victim", "ready");
    gateway.wait_for_state("steady", "ready");
    let started = Instant::now();
    session.call_text("fresh__echo", &json!({"message": "up"}));
    let own_start = started.elapsed();

    let stop = AtomicBool::new(false);
    let steady_calls = AtomicU64::new(0);
    let (outcomes, again) = thread::scope(|scope| {
        // Stops the load even if an assertion fails.
        let done = LoadGuard(&stop);
        let victims: Vec<_> = (0..8)
            .map(|thread| {
                let (stop, mut session) = (&stop, gateway.open_session("/mcp"));
                scope.spawn(move || load_victim(&mut session, thread, stop))
            })
            .collect();
        for _ in 0..4 {
            let (stop, calls, mut session) = (&stop, &steady_calls, gateway.open_session("/mcp"));
            scope.spawn(move || load_steady(&mut session, calls, stop));
        }
        wait_until("the load is on", || {
            gateway.server_status("victim")["in_flight"].as_u64() >= Some(6)
        });
        let pid = before["pid"].as_u64().unwrap();
        send_signal(u32::try_from(pid).unwrap(), "KILL");
        let killed = Instant::now();
        wait_until("the victim serves again", || {
            let answer = session.call("victim__echo", &json!({"message": "again"}));
            answer["result"].is_object() && gateway.server_status("victim")["generation"] == 2
        });
        let again = killed.elapsed();
        // All callers are served, not only the caller that waited for the restart.
        for _ in 0..20 {
            let said = session.call_text("victim__echo", &json!({"message": "well"}));
            assert_eq!(said, "well");
        }
        let steady_then = steady_calls.load(Ordering::Relaxed);
        wait_until("the load goes on", || {
            steady_calls.load(Ordering::Relaxed) > steady_then + 20
        });
        drop(done);
        let outcomes: Vec<KeyedCall> = victims
            .into_iter()
            .flat_map(|victim| victim.join().unwrap())
            .collect();
        (outcomes, again)
    });

    let unknown = assert_matches_ledger(&outcomes, &std::fs::read_to_string(&ledger).unwrap());
    assert!(unknown > 0, "no call was in flight when the server died");
    assert_eq!(gateway.server_status("steady")["errors"], 0);
    assert_eq!(gateway.server_status("steady")["generation"], 1);
    eprintln!(
        "served again after {again:?}; own start {own_start:?}; {} calls, {unknown} unknown",
        outcomes.len()
    );
    assert!(
        again < Duration::from_millis(500) + own_start + SLACK,
        "{again:?}"
    );
}

fn load_victim(session: &mut Session, thread: usize, stop: &AtomicBool) -> Vec<KeyedCall> {
    let mut ended = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{thread}-{}", ended.len());
        let answer = session.call("victim__effect", &json!({"key": key, "ms": 100}));
        ended.push(KeyedCall {
            key,
            response: answer,
        });
    }
    ended
}

fn load_steady(session: &mut Session, calls: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let said = session.call_text("steady__echo", &json!({"message": "still here"}));
        assert_eq!(said, "still here");
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Compares reported outcomes with the ledger of executions, and counts unknown outcomes.
fn assert_matches_ledger(outcomes: &[KeyedCall], ledger: &str) -> usize {
    let mut runs: HashMap<&str, usize> = HashMap::new();
    for key in ledger.lines() {
        *runs.entry(key).or_default() += 1;
    }
    let mut unknown = 0;
    for KeyedCall {
        key,
        response: answer,
    } in outcomes
    {
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
fn hundred_clients_with_equal_ids_never_cross() {
    let gateway =
        Gateway::start(&[fixture_config("one", &[]), fixture_config("two", &[])].concat());
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("two", "ready");
    let end = Instant::now() + Duration::from_secs(env_number("BOWLINE_SECONDS", 3));
    let (calls, crossings) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in 0..100 {
            let (gateway, calls, crossings) = (&gateway, &calls, &crossings);
            scope.spawn(move || {
                let mut session = gateway.open_session("/mcp");
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
fn orderly_stop_ends_in_time_without_leftovers() {
    let mark = fresh_mark("stopped");
    let config: String = [
        ("plain", &[][..]),
        ("deaf", &STUBBORN_ARGS[2..4]),
        ("stuck", &STUBBORN_ARGS[4..]),
        ("stubborn", &STUBBORN_ARGS[..]),
    ]
    .iter()
    .map(|(name, args)| fixture_config(name, args) + &mark_config_line(&mark))
    .collect();
    // One more server is still starting when the stop comes.
    let config =
        config + &fixture_config("hung", &["--fault", "hang-at-start"]) + &mark_config_line(&mark);
    let mut gateway = Gateway::start(&config);
    let mut calls = Vec::new();
    for server in ["plain", "deaf", "stuck", "stubborn"] {
        gateway.wait_for_state(server, "ready");
        let mut session = gateway.open_session(&format!("/servers/{server}/mcp"));
        session.send_call(7, "slow", &json!({"ms": 60_000, "message": "late"}));
        wait_until("the call is under way", || {
            gateway.server_status(server)["in_flight"] == 1
        });
        calls.push((server, session));
    }
    assert!(marked_processes(&mark).len() >= 8);
    send_signal(gateway.pid(), "TERM");
    let told = Instant::now();
    let code = gateway.wait_for_exit_code();
    let took = told.elapsed();
    eprintln!("stopped after {took:?}");
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(6) + SLACK, "{took:?}");
    assert_eq!(marked_processes(&mark), Vec::<u32>::new());
    assert!(!gateway.state_dir().join("run.json").exists());
    for (server, mut session) in calls {
        let answer = session.http.read_response().json();
        assert_eq!(answer["id"], 7, "{server}: {answer}");
        let data = &answer["error"]["data"];
        assert_eq!(data["execution"], "unknown", "{server}: {answer}");
        assert!(session.http.is_closed(), "{server}");
    }
}

#[test]
fn second_signal_forces_stop() {
    let mark = fresh_mark("twice");
    let mut gateway =
        Gateway::start(&(fixture_config("one", &STUBBORN_ARGS) + &mark_config_line(&mark)));
    gateway.wait_for_state("one", "ready");
    send_signal(gateway.pid(), "TERM");
    wait_until("the stop is under way", || {
        // New connections are refused during the stop.
        std::net::TcpStream::connect(gateway.address).is_err()
    });
    send_signal(gateway.pid(), "TERM");
    let told = Instant::now();
    assert_eq!(gateway.wait_for_exit_code(), Some(0));
    let took = told.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (_, left) = watch_marked_processes(&mark, told);
    assert_eq!(left, Vec::<u32>::new());
}
