//! Writes that outlive an outage, end to end: queued, delivered in order, never lost in silence.

mod commands;
mod damaged;
mod deleted;
mod ends;
mod recovery;
mod replay;
mod restart;
mod scoped;
mod scopes;
mod world;

use serde_json::{Value, json};

use self::world::{World, queued};
use crate::harness::network::Weather;
use crate::harness::{Gateway, eventually, fixture};
use crate::streams::next_event;

#[test]
fn a_write_in_an_outage_is_answered_at_once_and_delivered_when_the_server_is_back() {
    let mut world = World::new("header:Idempotency-Key");
    let mut session = world.gateway.session("/mcp");
    let mut stream = session.listen();
    world.web.kill();
    let first = session.call("web__write_once", &json!({"number": 1}));
    let said = queued(&first);
    assert_eq!(
        (&said["queued"], &said["position"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(said["tool"], "write_once");
    assert_ne!(said["idempotencyKey"], "");
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    assert!(said["note"].as_str().unwrap().contains(&uri), "{said}");
    // Text and structure say the same, and nothing says that it failed.
    let text = first["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), said);
    assert_eq!(first["result"]["isError"], Value::Null);
    let second = queued(&session.call("web__write_once", &json!({"number": 2})));
    assert_eq!(second["position"], 2);
    // It may be on its way, in vain, at the very moment.
    world.becomes(&mut session, &said, "queued");
    assert_eq!(world.ledger(), [] as [(u64, String); 0]);
    world.web.restart();
    eventually("both are written", || world.ledger().len() == 2);
    let keys = [&said, &second].map(|said| said["idempotencyKey"].as_str().unwrap().to_owned());
    // The server knows them by keys of its own, which say who asked.
    let (numbers, sent): (Vec<_>, Vec<_>) = world.ledger().into_iter().unzip();
    assert_eq!(numbers, [1, 2]);
    assert!(
        sent[0] != sent[1]
            && sent
                .iter()
                .all(|key| key.len() == 32 && !keys.contains(key))
    );
    let told = loop {
        let event = next_event(&mut stream).unwrap();
        if event
            .data
            .as_ref()
            .is_some_and(|data| data.contains("bowline.outbox"))
        {
            break event.json();
        }
    };
    assert_eq!(told["method"], "notifications/message");
    assert_eq!(told["params"]["level"], "info");
    assert_eq!(told["params"]["data"]["state"], "delivered");
    let state = world.state_of(&mut session, &uri);
    assert_eq!(
        (&state["state"], &state["tool"]),
        (&json!("delivered"), &json!("write_once"))
    );
    assert_eq!(state["result"]["structuredContent"]["number"], 1);
    assert_eq!(told["params"]["data"], state, "both say the same");
    let other = format!("bowline://outbox/{}", second["id"].as_str().unwrap());
    eventually("the second is settled, too", || {
        world.state_of(&mut session, &other)["state"] == "delivered"
    });
    // Nothing waits any more, so the next one is live.
    let live = session.call("web__write_once", &json!({"number": 3}));
    assert_eq!(live["result"]["structuredContent"]["order"], 3);
}

#[test]
fn the_first_attempt_carries_the_key_in_the_channel_of_its_tool() {
    for channel in ["argument:idempotencyKey", "header:Idempotency-Key", "meta"] {
        let world = World::new(channel);
        let mut session = world.gateway.session("/mcp");
        let minted = session.call("web__write_once", &json!({"number": 1}));
        assert_eq!(
            minted["result"]["structuredContent"]["order"], 1,
            "{minted}"
        );
        let params = |number| {
            json!({"name": "web__write_once", "arguments": {"number": number},
                "_meta": {"dev.bowline/idempotencyKey": "mine"}})
        };
        let mine = session.request("tools/call", &params(2));
        let again = session.request("tools/call", &params(2));
        assert_eq!(
            again["result"], mine["result"],
            "{channel}: the recorded answer"
        );
        let ledger = world.ledger();
        assert_eq!(ledger.len(), 2, "{channel}: {ledger:?}");
        // The server sees each key bound to its principal, and never the caller's own.
        let sent = [&ledger[0].1, &ledger[1].1];
        assert!(sent.iter().all(|key| key.len() == 32), "{ledger:?}");
        assert_eq!((ledger[1].0, sent[0] != sent[1]), (2, true), "{channel}");
        let other = session.request("tools/call", &params(3));
        assert_eq!(
            other["error"]["data"]["code"], "idempotency_conflict",
            "{other}"
        );
    }
}

#[test]
fn sec_60_key_argument_has_one_spelling() {
    let world = World::new("argument:idempotencyKey");
    let mut session = world.gateway.session("/mcp");
    for name in ["IdempotencyKey", "idempotencykey", "idempotency\u{212a}ey"] {
        for arguments in [
            json!({"number": 1, name: "x"}),
            json!({"number": 1, "idempotencyKey": "mine", name: "x"}),
        ] {
            let refused = session.call("web__write_once", &arguments);
            let error = &refused["error"];
            assert_eq!(error["data"]["code"], "ambiguous_names", "{refused}");
            assert_eq!(error["data"]["execution"], "not_started", "{refused}");
            assert_eq!(error["code"], -32_602, "{refused}");
        }
    }
    assert_eq!(world.ledger().len(), 0);
    let plain = json!({"number": 1, "idempotencyKey": "mine"});
    let taken = session.call("web__write_once", &plain);
    assert_eq!(taken["result"]["structuredContent"]["order"], 1, "{taken}");
}

#[test]
fn a_write_whose_answer_was_lost_is_repeated_under_its_key_and_runs_once() {
    let world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    world.network.turn(Weather::Mute);
    // It runs, and nobody hears of it: at its deadline it is queued.
    let said = queued(&session.call("web__write_once", &json!({"number": 1})));
    assert_eq!(world.ledger().len(), 1);
    world.network.cut();
    world.network.turn(Weather::Fair);
    world.delivered(&mut session, &said);
    assert_eq!(world.ledger().len(), 1, "known again by its key");
    let state = world.state_of_said(&mut session, &said);
    assert_eq!(state["result"]["structuredContent"]["repeated"], true);
    // Over pipes the same: the server dies after it wrote.
    let crash = json!({"number": 2, "crash": true});
    let answer = session.call("pipe__write_once", &crash);
    let mut said = answer["result"]["structuredContent"].clone();
    // Known by its key, it may be repeated while its caller still waits.
    if said["queued"] == true {
        world.delivered(&mut session, &said);
        said = world.state_of_said(&mut session, &said)["result"]["structuredContent"].clone();
    }
    assert_eq!(said["repeated"], true, "{answer}");
    assert_eq!(world.ledger_of("pipe").len(), 1);
}

#[test]
fn a_new_write_does_not_overtake_and_lanes_do_not_block_each_other() {
    let mut world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    world.web.kill();
    queued(&session.call("web__write_once", &json!({"number": 1})));
    // Another server, and another principal on its own lane.
    let other = session.call("pipe__write_once", &json!({"number": 1}));
    assert_eq!(other["result"]["structuredContent"]["order"], 1);
    let mut ann = world.agent("ann");
    let said = queued(&ann.call("web__write_once", &json!({"number": 100})));
    assert_eq!(said["position"], 1, "a lane of its own");
    world.status("503");
    world.web.restart();
    // The server is there and refuses: what comes now waits behind what waits.
    let said = queued(&session.call("web__write_once", &json!({"number": 2})));
    assert_eq!(said["position"], 2);
    world.status("");
    eventually("all are written", || world.ledger().len() == 3);
    let own: Vec<_> = world.ledger().iter().map(|(number, _)| *number).collect();
    let own: Vec<_> = own.into_iter().filter(|number| *number < 100).collect();
    assert_eq!(own, [1, 2]);
}

#[test]
fn a_tool_without_queue_fails_with_a_typed_error_and_reads_are_never_queued() {
    let mut world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    world.web.kill();
    for tool in ["web__write_again", "web__counter"] {
        let answer = session.call(tool, &json!({"number": 1}));
        let execution = answer["error"]["data"]["execution"].as_str();
        assert!(
            matches!(execution, Some("not_started" | "unknown")),
            "{answer}"
        );
    }
    assert_eq!(world.gateway.api("/api/v1/outbox")["entries"], json!([]));
}

#[test]
fn what_a_server_answers_is_told_and_only_an_outage_is_queued() {
    let world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    let mut call = |arguments: Value| session.call("web__write_once", &arguments);
    assert_eq!(
        call(json!({"number": 1, "fail": true}))["result"]["isError"],
        true
    );
    let refused = call(json!({"number": 1, "rpc_error": -32000}));
    assert_eq!(refused["error"]["code"], -32000);
    for (status, code) in [
        ("401", "auth_required"),
        ("403", "scope_required"),
        ("400", "http_status"),
        ("500", "http_status"),
    ] {
        world.status(status);
        let told = call(json!({"number": 1}));
        assert_eq!(told["error"]["data"]["code"], code, "{status}: {told}");
    }
    assert_eq!(world.gateway.api("/api/v1/outbox")["entries"], json!([]));
    for (at, status) in [(1, "503"), (2, "429")] {
        world.status(status);
        assert_eq!(
            queued(&call(json!({"number": at})))["position"],
            at,
            "{status}"
        );
    }
}

#[test]
fn a_tool_with_an_output_schema_is_listed_with_what_a_queued_call_answers() {
    let world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    let list = session.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap();
    let tool = tools
        .iter()
        .find(|tool| tool["name"] == "web__write_once")
        .unwrap();
    let schema = &tool["outputSchema"];
    assert_eq!(schema["type"], "object");
    let [own, queued] = schema["anyOf"].as_array().unwrap().as_slice() else {
        panic!("{schema}");
    };
    assert_eq!(own["properties"]["number"]["$ref"], "#/anyOf/0/$defs/count");
    assert!(queued["properties"]["queued"].is_object(), "{queued}");
    let again = tools
        .iter()
        .find(|tool| tool["name"] == "web__write_again")
        .unwrap();
    assert_eq!(again["outputSchema"], Value::Null);
}

#[test]
fn a_key_that_is_none_is_refused_before_anything_is_sent() {
    let world = World::new("meta");
    let mut session = world.gateway.session("/mcp");
    let params = json!({"name": "web__write_once", "arguments": {"number": 1},
        "_meta": {"dev.bowline/idempotencyKey": 7}});
    let refused = session.request("tools/call", &params);
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let body = json!({"server": "web", "tool": "write_once", "arguments": {"number": 1},
        "idempotency_key": "a b"});
    assert_eq!(
        world.gateway.ask_api("POST", "/api/v1/call", &body).status,
        400
    );
    assert_eq!(world.ledger().len(), 0);
}

#[test]
fn an_engine_of_memory_leaves_nothing_on_the_disk() {
    let config = "[journal]\nengine = \"memory\"\n".to_owned() + &fixture("one", &[]);
    let mut gateway = Gateway::up(&config);
    let journal = gateway.api("/api/v1/status")["journal"].clone();
    assert_eq!(
        (&journal["engine"], &journal["health"]),
        (&json!("memory"), &json!("good"))
    );
    assert!(gateway.stop());
    assert!(!gateway.state().join("state.db").exists());
}
