//! Queued writes after the return of the server.

use bowline_testkit::gateway::Session;
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::outbox_setup::{OutboxSetup, expect_queued};
use crate::streams::next_event;

/// Queues a write while the server refuses every call.
fn queue_write(world: &OutboxSetup, session: &mut Session, arguments: &Value) -> Value {
    world.set_status("503");
    expect_queued(&session.call("web__write_once", arguments))
}

#[test]
fn transient_statuses_are_retried_on_replay() {
    let world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    let said = queue_write(&world, &mut session, &json!({"number": 1}));
    let plain = ["429", "401", "403", "408", "500"];
    // A proxy, or a failing server, wraps the status in a JSON-RPC error.
    let wrapped = [
        "429 rpc", "401 rpc", "403 rpc", "408 rpc", "500 rpc", "503 rpc",
    ];
    for status in plain.iter().chain(&wrapped) {
        world.set_status(status);
        let before = count_attempts(&world, &said);
        retry_now(&world, &said);
        wait_until(&format!("tried under {status}"), || {
            count_attempts(&world, &said) > before
        });
        wait_until("it waits again", || {
            world.queued_reply_state(&mut session, &said)["state"] == "queued"
        });
    }
    assert_eq!(world.http_ledger(), []);
    world.set_status("");
    retry_now(&world, &said);
    world.wait_until_delivered(&mut session, &said);
    assert_eq!(world.http_ledger().len(), 1);
}

#[test]
fn http_status_with_rpc_error_decides_class() {
    let world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    for status in ["502", "503", "504", "429"] {
        world.set_status(&format!("{status} rpc"));
        expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    }
    for (status, class) in [("401", "auth_required"), ("403", "scope_required")] {
        world.set_status(&format!("{status} rpc"));
        let answer = session.call("web__echo", &json!({"message": "hi"}));
        assert_eq!(answer["error"]["data"]["class"], class, "{answer}");
        assert_eq!(answer["error"]["data"]["execution"], "not_started");
    }
    world.set_status("500 rpc");
    let answer = session.call("web__echo", &json!({"message": "hi"}));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("told to refuse this call"), "{answer}");
    assert_eq!(answer["error"]["data"]["execution"], "unknown", "{answer}");
    // The remaining statuses add nothing to the body.
    world.set_status("422 rpc");
    let answer = session.call("web__echo", &json!({"message": "hi"}));
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
}

fn count_attempts(world: &OutboxSetup, said: &Value) -> u64 {
    let id = said["id"].as_str().unwrap();
    let shown = world.gateway.get_api(&format!("/api/v1/outbox/{id}"));
    shown["entry"]["attempts"].as_u64().unwrap()
}

fn retry_now(world: &OutboxSetup, said: &Value) {
    let id = said["id"].as_str().unwrap();
    let path = format!("/api/v1/outbox/{id}/retry");
    let answer = world.gateway.send_api("POST", &path, &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn refused_replay_becomes_dead_letter_and_notifies() {
    for arguments in [
        json!({"number": 1, "fail": true}),
        json!({"number": 1, "rpc_error": -32602}),
    ] {
        let world = OutboxSetup::new("meta");
        let mut session = world.gateway.open_session("/mcp");
        let said = queue_write(&world, &mut session, &arguments);
        let behind = expect_queued(&session.call("web__write_once", &json!({"number": 2})));
        let uri = super::outbox_setup::queued_call_uri(&said);
        let subscribed = session.request("resources/subscribe", &json!({"uri": uri}));
        assert_eq!(subscribed["result"], json!({}), "{subscribed}");
        let mut stream = session.open_stream();
        world.set_status("");
        retry_now(&world, &said);
        let (mut message, mut updated) = (None, None);
        while message.is_none() || updated.is_none() {
            let Some(data) = next_event(&mut stream).unwrap().data else {
                continue;
            };
            let Ok(told) = serde_json::from_str::<Value>(&data) else {
                continue;
            };
            match told["method"].as_str() {
                Some("notifications/message") if told["params"]["data"]["id"] == said["id"] => {
                    message = Some(told["params"].clone());
                }
                Some("notifications/resources/updated") => updated = Some(told["params"].clone()),
                _ => {}
            }
        }
        assert_eq!(updated.unwrap()["uri"], uri);
        let message = message.unwrap();
        assert_eq!(message["level"], "error");
        assert_eq!(message["data"]["state"], "dead");
        let dead = world.wait_for_call_state(&mut session, &said, "dead");
        assert_ne!(dead["error"], Value::Null, "{dead}");
        // The dead letter does not block the lane.
        world.wait_until_delivered(&mut session, &behind);
        assert_eq!(world.http_ledger().len(), 1);
    }
}

/// A queued write without permission is not delivered, and the agent is told.
#[test]
fn revoked_permission_drops_write_and_notifies() {
    let world = OutboxSetup::new("meta");
    let mut ann = world.open_agent_session("ann");
    let said = queue_write(&world, &mut ann, &json!({"number": 1}));
    let file = world.gateway.dir.path().join("bowline.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let denied = text.replace("allow = [\"*\"]", "allow = [\"pipe.*\"]");
    std::fs::write(&file, denied).unwrap();
    let reloaded = world.gateway.send_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    world.set_status("");
    retry_now(&world, &said);
    let dead = world.wait_for_call_state(&mut ann, &said, "dead");
    assert!(
        dead["error"].as_str().unwrap().contains("may not"),
        "{dead}"
    );
    assert_eq!(world.http_ledger(), []);
    wait_until("it is in the trail", || {
        let page = world.gateway.get_api("/api/v1/audit?kind=dead");
        let mut rows = page["rows"].as_array().unwrap().iter();
        rows.any(|row| row["principal"] == "ann" && row["id"] == said["id"])
    });
}

#[test]
fn revoked_token_writes_become_dead_letters() {
    let world = OutboxSetup::new("meta");
    let (id, token) = world
        .gateway
        .create_token(&json!({"principal": "ann", "role": "agent"}));
    let mut ann = world.gateway.open_session_as(&token, "/mcp");
    let mut bob = world.open_agent_session("bob");
    let of_ann = queue_write(&world, &mut ann, &json!({"number": 1}));
    let of_bob = queue_write(&world, &mut bob, &json!({"number": 2}));
    let path = format!("/api/v1/tokens/{id}");
    let revoked = world.gateway.send_api("DELETE", &path, &json!({}));
    assert_eq!(revoked.json()["withdrawn"], 1, "{}", revoked.text());
    let mut owner = world.gateway.open_session("/mcp");
    world.wait_for_call_state(&mut owner, &of_ann, "dead");
    world.set_status("");
    world.wait_until_delivered(&mut bob, &of_bob);
    assert_eq!(world.http_ledger().len(), 1);
}

#[test]
fn expired_write_becomes_dead_letter() {
    let world = OutboxSetup::with_config("meta", "1s", "");
    let mut session = world.gateway.open_session("/mcp");
    let said = queue_write(&world, &mut session, &json!({"number": 1}));
    let dead = world.wait_for_call_state(&mut session, &said, "dead");
    assert_ne!(dead["error"], Value::Null);
    world.set_status("");
    assert_eq!(world.http_ledger(), []);
}

#[test]
fn queued_write_is_visible_to_author_and_owner() {
    let world = OutboxSetup::new("meta");
    let mut ann = world.open_agent_session("ann");
    let said = queue_write(&world, &mut ann, &json!({"number": 1}));
    let uri = super::outbox_setup::queued_call_uri(&said);
    assert_eq!(world.queued_call_state(&mut ann, &uri)["state"], "queued");
    let mut owner = world.gateway.open_session("/mcp");
    assert_eq!(world.queued_call_state(&mut owner, &uri)["state"], "queued");
    let mut bob = world.open_agent_session("bob");
    for method in ["resources/read", "resources/subscribe"] {
        let theirs = bob.request(method, &json!({"uri": uri}));
        let nobodys = bob.request(method, &json!({"uri": "bowline://outbox/999999"}));
        assert_eq!(theirs["error"]["code"], -32002, "{method}: {theirs}");
        let bare = |answer: &Value, uri: &str| answer["error"].to_string().replace(uri, "");
        let other = bare(&nobodys, "bowline://outbox/999999");
        assert_eq!(
            bare(&theirs, &uri),
            other,
            "{method}: like one that never was"
        );
    }
}
