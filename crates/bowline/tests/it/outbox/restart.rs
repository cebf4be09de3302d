//! A restart nobody notices: sessions go on, and queued work goes on.

use serde_json::json;

use super::world::{World, queued};
use crate::harness::eventually;

#[test]
fn queued_writes_and_sessions_outlive_a_killed_gateway() {
    let mut world = World::new("header:Idempotency-Key");
    let session = world.gateway.session("/mcp");
    let mut before = session.twin();
    world.web.kill();
    let first = queued(&before.call("web__write_once", &json!({"number": 1})));
    let second = queued(&before.call("web__write_once", &json!({"number": 2})));
    let (id, token) = (before.id.clone(), world.gateway.token.clone());
    world.gateway.restart_after_kill();
    assert_eq!(world.gateway.token, token);
    // The same session, on a connection to the new gateway.
    let mut after = world.gateway.session("/mcp");
    after.id = id;
    let state = world.becomes(&mut after, &first, "queued");
    assert_eq!(state["position"], 1);
    let third = queued(&after.call("web__write_once", &json!({"number": 3})));
    assert_eq!(third["position"], 3, "it does not overtake");
    world.web.restart();
    for said in [&first, &second, &third] {
        world.delivered(&mut after, said);
    }
    let numbers: Vec<_> = world.ledger().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_write_under_way_when_the_gateway_is_killed_is_delivered_by_the_next_one_and_runs_once() {
    let mut world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    // It writes at once, and would answer in half a minute.
    session.send_call(7, "web__write_once", &json!({"number": 1, "ms": 600}));
    eventually("it ran", || world.ledger().len() == 1);
    world.gateway.restart_after_kill();
    let mut owner = world.gateway.session("/mcp");
    eventually("nothing waits", || {
        world.gateway.api("/api/v1/outbox")["entries"] == json!([])
    });
    assert_eq!(world.ledger().len(), 1);
    // The next one is live, or behind it for a last moment.
    owner.call("web__write_once", &json!({"number": 2}));
    eventually("the next one ran", || world.ledger().len() == 2);
}

#[test]
fn an_orderly_stop_leaves_what_waits_for_the_next_gateway() {
    let mut world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    world.web.kill();
    queued(&session.call("web__write_once", &json!({"number": 1})));
    assert!(world.gateway.stop());
    world.gateway.restart();
    assert_eq!(world.gateway.api("/api/v1/status")["outbox"]["queued"], 1);
    world.web.restart();
    eventually("it is delivered", || world.ledger().len() == 1);
}
