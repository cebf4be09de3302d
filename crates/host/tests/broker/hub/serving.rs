//! Stored requests to the hub itself.

use std::sync::atomic::Ordering;

use bowline_host::broker::ServeLimits;
use serde_json::{Value, json};

use super::hub_rig::{HubRig, HubRigOptions, call, message_json, request};

/// Runs one process lifetime: unfinished work is dropped at the end, as by a kill.
fn life<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

#[tokio::test]
async fn legacy_peer_lists_and_calls_tools() {
    let rig = HubRig::new().await;
    let mut ann = rig.dial_tcp().await;
    ann.hello("ann").await;
    ann.send(json!({"kind": "subscribe"})).await;
    let reply = ann.ask("m1", json!({"op": "manifest"})).await;
    let names: Vec<_> = reply["manifest"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["box__echo", "box__count", "box__wait"]);
    let reply = ann.ask("m2", call("echo", &json!({"a": [1, 2.50]}))).await;
    assert_eq!(reply["result"]["success"], true);
    assert_eq!(reply["result"]["result"], r#"{"a":[1,2.5]}"#);
    let reply = ann.ask("m3", call("nothing", &json!({}))).await;
    assert!(reply.get("result").is_none(), "{reply}");
    assert!(reply["error"].is_string());
    ann.settle().await;
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
}

#[tokio::test]
async fn repeated_request_is_replayed_not_rerun() {
    let rig = HubRig::new().await;
    let mut ann = rig.subscribe("ann").await;
    let first = ann.ask("m1", call("count", &json!({}))).await;
    assert_eq!(first["result"]["result"], "1");
    ann.settle().await;
    // The same frame on another connection, as sent by an eavesdropper.
    let mut again = rig.subscribe("ann").await;
    let reply = again.ask("m1", call("count", &json!({}))).await;
    assert_eq!(reply["result"]["result"], "1");
    again
        .deliver("hub", request("m1", call("echo", &json!({}))))
        .await;
    assert_eq!(again.next_of("error").await["code"], "conflict");
    assert_eq!(rig.counted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn request_ids_are_scoped_to_senders() {
    let rig = HubRig::new().await;
    for (name, want) in [("ann", "1"), ("bob", "2")] {
        let mut peer = rig.subscribe(name).await;
        let reply = peer.ask("m1", call("count", &json!({}))).await;
        assert_eq!(reply["result"]["result"], want);
    }
}

#[test]
fn killed_request_is_unknown_and_not_rerun() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("journal");
    life(async {
        let rig = HubRigOptions::at(&path).start().await;
        let mut ann = rig.subscribe("ann").await;
        // Requests running at the kill have an unknown outcome.
        ann.delivered("hub", request("m1", call("wait", &json!({}))))
            .await;
        rig.wait_begun(1).await;
    });
    life(async {
        let rig = HubRigOptions::at(&path).start().await;
        let mut ann = rig.subscribe("ann").await;
        let reply = ann.reply_to("m1").await;
        assert_eq!(reply["failure"]["code"], "outcome_unknown");
        assert_eq!(reply["failure"]["execution"], "unknown");
        assert_eq!(*rig.waiting.borrow(), 0, "it did not run again");
        let reply = ann.ask("m2", call("count", &json!({}))).await;
        assert_eq!(reply["result"]["result"], "1");
    });
}

#[tokio::test]
async fn cancelled_waiting_request_never_runs() {
    let serve = ServeLimits {
        caller_running_max: 1,
        ..ServeLimits::default()
    };
    let make = HubRigOptions {
        serve,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    let mut ann = rig.subscribe("ann").await;
    ann.delivered("hub", request("m1", call("wait", &json!({}))))
        .await;
    rig.wait_begun(1).await;
    ann.delivered("hub", request("m2", call("count", &json!({}))))
        .await;
    ann.send(json!({"kind": "cancel", "correlation_id": "m2"}))
        .await;
    let reply = ann.reply_to("m2").await;
    assert_eq!(reply["failure"]["code"], "cancelled");
    assert_eq!(reply["failure"]["execution"], "not_started");
    ann.send(json!({"kind": "cancel", "to": "hub", "correlation_id": "m1"}))
        .await;
    let reply = ann.reply_to("m1").await;
    assert_eq!(reply["failure"]["code"], "cancelled");
    assert_eq!(rig.counted.load(Ordering::SeqCst), 0);
    let reply = ann.ask("m3", call("count", &json!({}))).await;
    assert_eq!(reply["result"]["result"], "1");
}

#[tokio::test]
async fn peer_cannot_cancel_foreign_request() {
    let rig = HubRig::new().await;
    let mut ann = rig.subscribe("ann").await;
    ann.delivered("hub", request("m1", call("wait", &json!({}))))
        .await;
    rig.wait_begun(1).await;
    let mut eve = rig.join("eve").await;
    eve.send(json!({"kind": "cancel", "correlation_id": "m1"}))
        .await;
    eve.settle().await;
    rig.gate.add_permits(1);
    let reply = ann.reply_to("m1").await;
    assert_eq!(reply["result"]["result"], "waited");
}

#[tokio::test]
async fn busy_caller_delays_no_other_caller() {
    let serve = ServeLimits {
        caller_running_max: 2,
        ..ServeLimits::default()
    };
    let make = HubRigOptions {
        serve,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    let mut greedy = rig.subscribe("greedy").await;
    for nth in 0..600 {
        let id = format!("g{nth}");
        greedy
            .deliver("hub", request(&id, call("wait", &json!({}))))
            .await;
    }
    for _ in 0..600 {
        greedy.next_of("delivered").await;
    }
    rig.wait_begun(2).await;
    let mut ann = rig.subscribe("ann").await;
    let reply = ann.ask("m1", call("echo", &json!({}))).await;
    assert_eq!(reply["result"]["success"], true);
    rig.gate.add_permits(600);
    for _ in 0..600 {
        let message = greedy.next_of("message").await;
        greedy
            .send(json!({"kind": "ack", "id": message["message"]["id"]}))
            .await;
    }
}

#[tokio::test]
async fn tool_notifications_arrive_live() {
    let rig = HubRig::new().await;
    let mut ann = rig.subscribe("ann").await;
    ann.deliver("hub", request("m1", call("wait", &json!({}))))
        .await;
    let event = ann.next_of("event").await;
    assert_eq!(event["id"], "m1");
    assert_eq!(event["notification"]["method"], "notifications/message");
    rig.gate.add_permits(1);
    assert_eq!(ann.reply_to("m1").await["result"]["result"], "waited");
}

#[tokio::test]
async fn unexpected_reply_becomes_dead_letter() {
    let rig = HubRig::new().await;
    let mut ann = rig.join("ann").await;
    let mut reply = message_json("m1", "mcp_reply", json!({"error": "x"}));
    reply["correlation_id"] = json!("made-up");
    ann.delivered("hub", reply).await;
    let mut bad = message_json("m2", "mcp_reply", json!({"bad": 1}));
    bad["correlation_id"] = Value::from("hub-x");
    ann.delivered("hub", bad).await;
    let dead = rig.wait_dead_letters(2).await;
    assert_eq!((&*dead[0].id, &*dead[1].id), ("m1", "m2"));
}
