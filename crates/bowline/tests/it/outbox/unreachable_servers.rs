//! Calls to unreachable servers: the reply, and the delay.

use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Executor, FixtureServer, Gateway, executor_server_config};
use bowline_testkit::wait_until;
use serde_json::json;
use tempfile::TempDir;

use super::outbox_setup::expect_queued;

#[test]
fn queued_write_without_executor_is_answered_at_once() {
    let dir = TempDir::new().unwrap();
    let ledger = dir.path().join("far").display().to_string();
    let served = FixtureServer::start(&["--toolset", "writes", "--ledger", &ledger]);
    let config = executor_server_config("far", &served, "office")
        + "[servers.far.tools.write_once]\nqueue = \"1h\"\nidempotency = \"meta\"\n\
           [roles.none]\nallow = []\n";
    let gateway = Gateway::start(&config);
    let mut session = gateway.open_session("/mcp");
    // The server was never seen; the config declares the tool.
    let before = Instant::now();
    let first = expect_queued(&session.call("far__write_once", &json!({"number": 1})));
    let note = first["note"].as_str().unwrap();
    assert!(note.contains("not reachable"), "{note}");
    let waited = before.elapsed();
    assert!(waited < Duration::from_secs(3), "unseen: {waited:?}");
    let token = gateway.executor_token("office");
    let place = served.address().to_string();
    let mut executor = Executor::join(&gateway, "office", &token, "", &["--allow", &place]);
    let written = || std::fs::read_to_string(&ledger).unwrap_or_default();
    wait_until("the first is written", || written().lines().count() == 1);
    gateway.wait_for_state("far", "ready");
    wait_until("writes are live", || {
        let answer = session.call("far__write_once", &json!({"number": 2}));
        answer["result"]["structuredContent"]["number"] == 2
    });
    let count = written().lines().count();
    executor.kill();
    gateway.wait_for_executor("office", false);
    let before = Instant::now();
    expect_queued(&session.call("far__write_once", &json!({"number": 3})));
    let waited = before.elapsed();
    eprintln!("answered {waited:?} after the executor was lost");
    assert!(waited < Duration::from_secs(3), "away: {waited:?}");
    executor.restart();
    wait_until("the last is written", || {
        written().lines().count() == count + 1
    });
}
