//! An outage under load, and ways to servers that are away: what agents are told, and how soon.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::world::{World, queued};
use crate::harness::executor::{Executor, through};
use crate::harness::network::Weather;
use crate::harness::served::Served;
use crate::harness::{Gateway, eventually, last};

/// Sessions of one principal that write at the same time.
const SESSIONS: u64 = 19;

/// How often each of them writes: 95 writes a second together.
const PACE: Duration = Duration::from_millis(200);

/// Numbers of one session.
const NUMBERS: u64 = 1_000_000;

/// Live answers are back so long after the server is.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

/// Writes until it is told to end; returns when each write was answered, and whether live.
fn work(world: &World, nth: u64, ends: &AtomicBool) -> Vec<(Instant, bool)> {
    let mut session = world.gateway.session("/mcp");
    let mut answers = Vec::new();
    let mut number = nth * NUMBERS;
    while !ends.load(Ordering::SeqCst) {
        let next = Instant::now() + PACE;
        let arguments = json!({"number": number, "ms": 20});
        let answer = session.call("web__write_once", &arguments);
        let said = &answer["result"]["structuredContent"];
        let is_queued = said["queued"] == true;
        assert!(is_queued || said["number"] == number, "{answer}");
        answers.push((Instant::now(), !is_queued));
        number += 1;
        last(next.saturating_duration_since(Instant::now()));
    }
    answers
}

#[test]
fn outage_of_one_second_under_load_ends() {
    let world = World::new("header:Idempotency-Key");
    let ends = AtomicBool::new(false);
    let answers = Mutex::new(Vec::new());
    let back = std::thread::scope(|scope| {
        for nth in 0..SESSIONS {
            let (world, ends, answers) = (&world, &ends, &answers);
            scope.spawn(move || {
                let own = work(world, nth, ends);
                answers.lock().unwrap().push(own);
            });
        }
        last(Duration::from_secs(2));
        world.network.turn(Weather::Down);
        last(Duration::from_secs(1));
        world.network.turn(Weather::Fair);
        let back = Instant::now();
        last(RECOVERY_MAX + Duration::from_secs(3));
        ends.store(true, Ordering::SeqCst);
        back
    });
    let answers = answers.into_inner().unwrap();
    let all: usize = answers.iter().map(Vec::len).sum();
    let queued = answers.iter().flatten().filter(|(_, live)| !live);
    let late = queued
        .clone()
        .map(|(at, _)| at.saturating_duration_since(back));
    let late = late.max().unwrap_or_default();
    let count = queued.count();
    eprintln!("{all} writes, {count} queued, the last {late:?} after the server was back");
    assert!(count > 0, "there was an outage");
    assert!(
        late <= RECOVERY_MAX,
        "queued {late:?} after the server was back"
    );
    eventually("nothing waits", || {
        world.gateway.api("/api/v1/outbox")["entries"] == json!([])
    });
    let ledger: Vec<u64> = world
        .ledger()
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert_eq!(ledger.len(), all, "none is lost, none is twice");
    for (nth, own) in (0..SESSIONS).map(|nth| {
        let own = ledger.iter().filter(|number| **number / NUMBERS == nth);
        (nth, own.copied().collect::<Vec<_>>())
    }) {
        assert!(own.is_sorted(), "order of session {nth}: {own:?}");
    }
}

#[test]
fn queued_write_with_executor_away_is_answered_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("far").display().to_string();
    let served = Served::start(&["--toolset", "writes", "--ledger", &ledger]);
    let config = through("far", &served, "office")
        + "[servers.far.tools.write_once]\nqueue = \"1h\"\nidempotency = \"meta\"\n\
           [roles.none]\nallow = []\n";
    let gateway = Gateway::up(&config);
    let mut session = gateway.session("/mcp");
    // Nobody has ever seen the server: the config knows the tool.
    let before = Instant::now();
    let first = queued(&session.call("far__write_once", &json!({"number": 1})));
    let note = first["note"].as_str().unwrap();
    assert!(note.contains("not reachable"), "{note}");
    let waited = before.elapsed();
    assert!(waited < Duration::from_secs(3), "unseen: {waited:?}");
    let token = gateway.executor_token("office");
    let place = served.address().to_string();
    let office = ("office", token.as_str());
    let mut executor = Executor::join(&gateway, office, "", &["--allow", &place]);
    let written = || std::fs::read_to_string(&ledger).unwrap_or_default();
    eventually("the first is written", || written().lines().count() == 1);
    gateway.wait_for("far", "ready");
    eventually("writes are live", || {
        let answer = session.call("far__write_once", &json!({"number": 2}));
        answer["result"]["structuredContent"]["number"] == 2
    });
    let count = written().lines().count();
    executor.kill();
    gateway.until_executor("office", false);
    let before = Instant::now();
    queued(&session.call("far__write_once", &json!({"number": 3})));
    let waited = before.elapsed();
    eprintln!("answered {waited:?} after the executor was lost");
    assert!(waited < Duration::from_secs(3), "away: {waited:?}");
    executor.restart();
    eventually("the last is written", || {
        written().lines().count() == count + 1
    });
}
