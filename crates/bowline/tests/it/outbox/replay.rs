//! What becomes of queued writes when their server is back.

use serde_json::{Value, json};

use super::world::{World, queued};
use crate::harness::eventually;
use crate::streams::next_event;

/// Queues one write while the server refuses everything.
fn queue(world: &World, session: &mut crate::harness::Session, arguments: &Value) -> Value {
    world.status("503");
    queued(&session.call("web__write_once", arguments))
}

#[test]
fn statuses_that_pass_are_waited_out_on_replay() {
    let world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    let said = queue(&world, &mut session, &json!({"number": 1}));
    let plain = ["429", "401", "403", "408", "500"];
    // A proxy, or a server with its last strength, wraps the same in an error of JSON-RPC.
    let wrapped = [
        "429 rpc", "401 rpc", "403 rpc", "408 rpc", "500 rpc", "503 rpc",
    ];
    for status in plain.iter().chain(&wrapped) {
        world.status(status);
        let before = attempts(&world, &said);
        hurry(&world, &said);
        eventually(&format!("tried under {status}"), || {
            attempts(&world, &said) > before
        });
        eventually("it waits again", || {
            world.state_of_said(&mut session, &said)["state"] == "queued"
        });
    }
    assert_eq!(world.ledger(), []);
    world.status("");
    hurry(&world, &said);
    world.delivered(&mut session, &said);
    assert_eq!(world.ledger().len(), 1);
}

#[test]
fn http_status_with_rpc_error_decides_class() {
    let world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    for status in ["502", "503", "504", "429"] {
        world.status(&format!("{status} rpc"));
        queued(&session.call("web__write_once", &json!({"number": 1})));
    }
    for (status, class) in [("401", "auth_required"), ("403", "scope_required")] {
        world.status(&format!("{status} rpc"));
        let answer = session.call("web__echo", &json!({"message": "hi"}));
        assert_eq!(answer["error"]["data"]["class"], class, "{answer}");
        assert_eq!(answer["error"]["data"]["execution"], "not_started");
    }
    world.status("500 rpc");
    let answer = session.call("web__echo", &json!({"message": "hi"}));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("told to refuse this call"), "{answer}");
    assert_eq!(answer["error"]["data"]["execution"], "unknown", "{answer}");
    // Other statuses say nothing that the body does not say.
    world.status("422 rpc");
    let answer = session.call("web__echo", &json!({"message": "hi"}));
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
}

fn attempts(world: &World, said: &Value) -> u64 {
    let id = said["id"].as_str().unwrap();
    let shown = world.gateway.api(&format!("/api/v1/outbox/{id}"));
    shown["entry"]["attempts"].as_u64().unwrap()
}

fn hurry(world: &World, said: &Value) {
    let id = said["id"].as_str().unwrap();
    let path = format!("/api/v1/outbox/{id}/retry");
    let answer = world.gateway.ask_api("POST", &path, &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_write_that_its_server_refuses_on_replay_is_a_dead_letter_and_its_agent_is_told() {
    for arguments in [
        json!({"number": 1, "fail": true}),
        json!({"number": 1, "rpc_error": -32602}),
    ] {
        let world = World::new("meta");
        let mut session = world.gateway.session("/mcp");
        let said = queue(&world, &mut session, &arguments);
        let behind = queued(&session.call("web__write_once", &json!({"number": 2})));
        let uri = super::world::uri(&said);
        let subscribed = session.request("resources/subscribe", &json!({"uri": uri}));
        assert_eq!(subscribed["result"], json!({}), "{subscribed}");
        let mut stream = session.listen();
        world.status("");
        hurry(&world, &said);
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
        let dead = world.becomes(&mut session, &said, "dead");
        assert_ne!(dead["error"], Value::Null, "{dead}");
        // It stands in nobody's way.
        world.delivered(&mut session, &behind);
        assert_eq!(world.ledger().len(), 1);
    }
}

#[test]
fn a_write_whose_permission_was_taken_is_not_delivered_and_its_agent_is_told() {
    let world = World::new("meta");
    let mut ann = world.agent("ann");
    let said = queue(&world, &mut ann, &json!({"number": 1}));
    let file = world.gateway.dir.path().join("bowline.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let denied = text.replace("allow = [\"*\"]", "allow = [\"pipe.*\"]");
    std::fs::write(&file, denied).unwrap();
    let reloaded = world.gateway.ask_api("POST", "/api/v1/reload", &json!({}));
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    world.status("");
    hurry(&world, &said);
    let dead = world.becomes(&mut ann, &said, "dead");
    assert!(
        dead["error"].as_str().unwrap().contains("may not"),
        "{dead}"
    );
    assert_eq!(world.ledger(), []);
    eventually("it is in the trail", || {
        let page = world.gateway.api("/api/v1/audit?kind=dead");
        let mut rows = page["rows"].as_array().unwrap().iter();
        rows.any(|row| row["principal"] == "ann" && row["id"] == said["id"])
    });
}

#[test]
fn writes_of_a_revoked_token_become_dead_letters() {
    let world = World::new("meta");
    let (id, token) = world
        .gateway
        .token_of(&json!({"principal": "ann", "role": "agent"}));
    let mut ann = world.gateway.session_as(&token, "/mcp");
    let mut bob = world.agent("bob");
    let of_ann = queue(&world, &mut ann, &json!({"number": 1}));
    let of_bob = queue(&world, &mut bob, &json!({"number": 2}));
    let path = format!("/api/v1/tokens/{id}");
    let revoked = world.gateway.ask_api("DELETE", &path, &json!({}));
    assert_eq!(revoked.json()["withdrawn"], 1, "{}", revoked.text());
    let mut owner = world.gateway.session("/mcp");
    world.becomes(&mut owner, &of_ann, "dead");
    world.status("");
    world.delivered(&mut bob, &of_bob);
    assert_eq!(world.ledger().len(), 1);
}

#[test]
fn a_write_that_is_not_worth_delivering_any_more_is_a_dead_letter() {
    let world = World::with("meta", "1s", "");
    let mut session = world.gateway.session("/mcp");
    let said = queue(&world, &mut session, &json!({"number": 1}));
    let dead = world.becomes(&mut session, &said, "dead");
    assert_ne!(dead["error"], Value::Null);
    world.status("");
    assert_eq!(world.ledger(), []);
}

#[test]
fn only_who_queued_a_write_and_the_owner_may_read_of_it() {
    let world = World::new("meta");
    let mut ann = world.agent("ann");
    let said = queue(&world, &mut ann, &json!({"number": 1}));
    let uri = super::world::uri(&said);
    assert_eq!(world.state_of(&mut ann, &uri)["state"], "queued");
    let mut owner = world.gateway.session("/mcp");
    assert_eq!(world.state_of(&mut owner, &uri)["state"], "queued");
    let mut bob = world.agent("bob");
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
