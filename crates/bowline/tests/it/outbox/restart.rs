//! A restart of the gateway: sessions and queued writes go on.

use bowline_testkit::wait_until;
use serde_json::json;

use super::outbox_setup::{OutboxSetup, expect_queued};

#[test]
fn queued_writes_and_sessions_survive_gateway_kill() {
    let mut world = OutboxSetup::new("header:Idempotency-Key");
    let session = world.gateway.open_session("/mcp");
    let mut before = session.clone_on_new_connection();
    world.http_server.kill();
    let first = expect_queued(&before.call("web__write_once", &json!({"number": 1})));
    let second = expect_queued(&before.call("web__write_once", &json!({"number": 2})));
    let (id, token) = (before.id.clone(), world.gateway.token.clone());
    world.gateway.restart_after_kill();
    assert_eq!(world.gateway.token, token);
    // The same session, on a connection to the new gateway.
    let mut after = world.gateway.open_session("/mcp");
    after.id = id;
    let state = world.wait_for_call_state(&mut after, &first, "queued");
    assert_eq!(state["position"], 1);
    let third = expect_queued(&after.call("web__write_once", &json!({"number": 3})));
    assert_eq!(third["position"], 3, "it does not overtake");
    world.http_server.restart();
    for said in [&first, &second, &third] {
        world.wait_until_delivered(&mut after, said);
    }
    let numbers: Vec<_> = world
        .http_ledger()
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn in_flight_write_survives_kill_and_runs_once() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    // The server writes at once, and would respond 600 ms later.
    session.send_call(7, "web__write_once", &json!({"number": 1, "ms": 600}));
    wait_until("it ran", || world.http_ledger().len() == 1);
    world.gateway.restart_after_kill();
    let mut owner = world.gateway.open_session("/mcp");
    wait_until("nothing waits", || {
        world.gateway.get_api("/api/v1/outbox")["entries"] == json!([])
    });
    assert_eq!(world.http_ledger().len(), 1);
    // The next write is live, or briefly behind the queued one.
    owner.call("web__write_once", &json!({"number": 2}));
    wait_until("the next one ran", || world.http_ledger().len() == 2);
}

#[test]
fn orderly_stop_keeps_queued_writes() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.http_server.kill();
    expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    assert!(world.gateway.stop());
    world.gateway.restart();
    assert_eq!(
        world.gateway.get_api("/api/v1/status")["outbox"]["queued"],
        1
    );
    world.http_server.restart();
    wait_until("it is delivered", || world.http_ledger().len() == 1);
}
