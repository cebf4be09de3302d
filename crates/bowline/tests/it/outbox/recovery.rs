//! An outage under load, and ways to servers that are away: what agents are told, and how soon.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::world::queued;
use crate::harness::executor::{Executor, through};
use crate::harness::network::{Network, Weather};
use crate::harness::served::Served;
use crate::harness::{Gateway, PATIENCE, eventually, last};

/// Sessions of one principal that write at the same time.
const SESSIONS: u64 = 19;

/// How often each of them writes: 95 writes a second together.
const PACE: Duration = Duration::from_millis(200);

/// Numbers of one session.
const NUMBERS: u64 = 1_000_000;

/// An outage has ended when nothing was queued for so long.
const STEADY: Duration = Duration::from_secs(3);

/// A gateway, and a server behind a network that can break. Calls may take long, so that only the
/// network fails them.
#[derive(Debug)]
struct Load {
    gateway: Gateway,
    network: Network,
    ledger: PathBuf,
    _served: Served,
    _dir: TempDir,
}

impl Load {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let ledger = dir.path().join("ledger");
        let path = ledger.display().to_string();
        let served = Served::start(&["--toolset", "writes", "--ledger", &path]);
        let network = Network::to(served.address());
        let config = format!(
            "[roles.none]\nallow = []\n[servers.web]\nurl = \"http://{}/mcp\"\ntimeout = \"20s\"\n\
             ping = \"off\"\n[servers.web.tools.write_once]\nqueue = \"1h\"\n\
             idempotency = \"header:Idempotency-Key\"\n",
            network.address
        );
        let gateway = Gateway::up(&config);
        gateway.wait_for("web", "ready");
        Self {
            gateway,
            network,
            ledger,
            _served: served,
            _dir: dir,
        }
    }

    /// The numbers that were written, in order.
    fn written(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(&self.ledger).unwrap_or_default();
        let lines = text.lines().map(|line| line.split('\t').nth(1).unwrap());
        lines.map(|number| number.parse().unwrap()).collect()
    }
}

/// What the sessions of a load know together.
#[derive(Debug, Default)]
struct Progress {
    ends: AtomicBool,
    writes: AtomicUsize,
    /// When each write was answered as queued.
    queued: Mutex<Vec<Instant>>,
}

/// Writes at its pace until it is told to end.
fn work(load: &Load, nth: u64, progress: &Progress) {
    let mut session = load.gateway.session("/mcp");
    let mut number = nth * NUMBERS;
    while !progress.ends.load(Ordering::SeqCst) {
        let next = Instant::now() + PACE;
        let arguments = json!({"number": number, "ms": 20});
        let answer = session.call("web__write_once", &arguments);
        let said = &answer["result"]["structuredContent"];
        match said["queued"] == true {
            true => progress.queued.lock().unwrap().push(Instant::now()),
            false => assert_eq!(said["number"], number, "{answer}"),
        }
        progress.writes.fetch_add(1, Ordering::SeqCst);
        number += 1;
        last(next.saturating_duration_since(Instant::now()));
    }
}

/// The load goes on until nothing was queued for [`STEADY`]; how soon that is depends on the machine
/// here, and is held to 5 s on a clock of its own by `outage_under_load_ends_for_many_sessions`.
#[test]
fn outage_of_one_second_under_load_ends() {
    let load = Load::new();
    let progress = Progress::default();
    let last_queued = || progress.queued.lock().unwrap().last().copied();
    let back = std::thread::scope(|scope| {
        for nth in 0..SESSIONS {
            let (load, progress) = (&load, &progress);
            scope.spawn(move || work(load, nth, progress));
        }
        last(Duration::from_secs(2));
        load.network.turn(Weather::Down);
        last(Duration::from_secs(1));
        load.network.turn(Weather::Fair);
        let back = Instant::now();
        let end = back + PATIENCE;
        while last_queued().unwrap_or(back).max(back).elapsed() < STEADY && Instant::now() < end {
            last(Duration::from_millis(50));
        }
        progress.ends.store(true, Ordering::SeqCst);
        back
    });
    let all = progress.writes.load(Ordering::SeqCst);
    let queued = progress.queued.lock().unwrap();
    let late = queued.last().map(|at| at.saturating_duration_since(back));
    let late = late.expect("there was an outage");
    eprintln!(
        "{all} writes, {} queued, the last {late:?} after the server was back",
        queued.len()
    );
    assert!(late < PATIENCE, "it never ended");
    eventually("nothing waits", || {
        load.gateway.api("/api/v1/outbox")["entries"] == json!([])
    });
    let ledger = load.written();
    assert_eq!(ledger.len(), all, "none is lost, none is twice");
    for nth in 0..SESSIONS {
        let own = ledger.iter().filter(|number| **number / NUMBERS == nth);
        assert!(own.is_sorted(), "order of session {nth}");
    }
}

#[test]
fn queued_write_with_executor_away_is_answered_at_once() {
    let dir = TempDir::new().unwrap();
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
