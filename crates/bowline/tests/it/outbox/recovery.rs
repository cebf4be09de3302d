//! Ways to servers that are away: what agents are told, and how soon.

use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::world::queued;
use crate::harness::executor::{Executor, through};
use crate::harness::served::Served;
use crate::harness::{Gateway, eventually};

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
