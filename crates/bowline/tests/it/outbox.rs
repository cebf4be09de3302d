//! Queued writes end to end: stored during an outage, delivered in order, never lost silently.

mod commands;
mod damaged_row;
mod deleted_state;
mod journal_open_errors;
mod outbox_setup;
mod queued_visibility;
mod replay;
mod restart;
mod scoped_keys;
mod unreachable_servers;

use bowline_testkit::gateway::{Gateway, NetworkState, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use self::outbox_setup::{OutboxSetup, expect_queued};
use crate::streams::next_event;

#[test]
fn outage_write_is_queued_and_later_delivered() {
    let mut world = OutboxSetup::new("header:Idempotency-Key");
    let mut session = world.gateway.open_session("/mcp");
    let mut stream = session.open_stream();
    world.http_server.kill();
    let first = session.call("web__write_once", &json!({"number": 1}));
    let said = expect_queued(&first);
    assert_eq!(
        (&said["queued"], &said["position"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(said["tool"], "write_once");
    assert_ne!(said["idempotencyKey"], "");
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    assert!(said["note"].as_str().unwrap().contains(&uri), "{said}");
    // Text and structured content agree, and neither says that the call failed.
    let text = first["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), said);
    assert_eq!(first["result"]["isError"], Value::Null);
    let second = expect_queued(&session.call("web__write_once", &json!({"number": 2})));
    assert_eq!(second["position"], 2);
    // A delivery attempt may be in flight at this moment.
    world.wait_for_call_state(&mut session, &said, "queued");
    assert_eq!(world.http_ledger(), [] as [(u64, String); 0]);
    world.http_server.restart();
    wait_until("both are written", || world.http_ledger().len() == 2);
    let keys = [&said, &second].map(|said| said["idempotencyKey"].as_str().unwrap().to_owned());
    // The server sees keys that are bound to the principal.
    let (numbers, sent): (Vec<_>, Vec<_>) = world.http_ledger().into_iter().unzip();
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
            break event.data_json();
        }
    };
    assert_eq!(told["method"], "notifications/message");
    assert_eq!(told["params"]["level"], "info");
    assert_eq!(told["params"]["data"]["state"], "delivered");
    let state = world.queued_call_state(&mut session, &uri);
    assert_eq!(
        (&state["state"], &state["tool"]),
        (&json!("delivered"), &json!("write_once"))
    );
    assert_eq!(state["result"]["structuredContent"]["number"], 1);
    assert_eq!(told["params"]["data"], state, "both say the same");
    let other = format!("bowline://outbox/{}", second["id"].as_str().unwrap());
    wait_until("the second is settled, too", || {
        world.queued_call_state(&mut session, &other)["state"] == "delivered"
    });
    // The queue is empty, so the next write is live.
    let live = session.call("web__write_once", &json!({"number": 3}));
    assert_eq!(live["result"]["structuredContent"]["order"], 3);
}

#[test]
fn first_attempt_carries_idempotency_key() {
    for channel in ["argument:idempotencyKey", "header:Idempotency-Key", "meta"] {
        let world = OutboxSetup::new(channel);
        let mut session = world.gateway.open_session("/mcp");
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
        let ledger = world.http_ledger();
        assert_eq!(ledger.len(), 2, "{channel}: {ledger:?}");
        // The server sees each key bound to its principal, never the caller's own.
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
    let world = OutboxSetup::new("argument:idempotencyKey");
    let mut session = world.gateway.open_session("/mcp");
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
    assert_eq!(world.http_ledger().len(), 0);
    let plain = json!({"number": 1, "idempotencyKey": "mine"});
    let taken = session.call("web__write_once", &plain);
    assert_eq!(taken["result"]["structuredContent"]["order"], 1, "{taken}");
}

#[test]
fn lost_response_write_retries_and_runs_once() {
    let world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.network.set_state(NetworkState::ResponsesLost);
    // The write runs but the response is lost; at the deadline the write is queued.
    let said = expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    assert_eq!(world.http_ledger().len(), 1);
    world.network.cut_connections();
    world.network.set_state(NetworkState::Up);
    world.wait_until_delivered(&mut session, &said);
    assert_eq!(world.http_ledger().len(), 1, "known again by its key");
    let state = world.queued_reply_state(&mut session, &said);
    assert_eq!(state["result"]["structuredContent"]["repeated"], true);
    // The same over pipes: the server dies after the write.
    let crash = json!({"number": 2, "crash": true});
    let answer = session.call("pipe__write_once", &crash);
    let mut said = answer["result"]["structuredContent"].clone();
    // The key allows a retry while the caller still waits.
    if said["queued"] == true {
        world.wait_until_delivered(&mut session, &said);
        said = world.queued_reply_state(&mut session, &said)["result"]["structuredContent"].clone();
    }
    assert_eq!(said["repeated"], true, "{answer}");
    assert_eq!(world.ledger_of("pipe").len(), 1);
}

#[test]
fn lanes_keep_order_and_never_block_others() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.http_server.kill();
    expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    // Another server, and another principal on a separate lane.
    let other = session.call("pipe__write_once", &json!({"number": 1}));
    assert_eq!(other["result"]["structuredContent"]["order"], 1);
    let mut ann = world.open_agent_session("ann");
    let said = expect_queued(&ann.call("web__write_once", &json!({"number": 100})));
    assert_eq!(said["position"], 1, "a lane of its own");
    world.set_status("503");
    world.http_server.restart();
    // The server is up but refuses: a new write waits behind the queued ones.
    let said = expect_queued(&session.call("web__write_once", &json!({"number": 2})));
    assert_eq!(said["position"], 2);
    world.set_status("");
    wait_until("all are written", || world.http_ledger().len() == 3);
    let own: Vec<_> = world
        .http_ledger()
        .iter()
        .map(|(number, _)| *number)
        .collect();
    let own: Vec<_> = own.into_iter().filter(|number| *number < 100).collect();
    assert_eq!(own, [1, 2]);
}

#[test]
fn unqueueable_calls_fail_typed_in_outage() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.http_server.kill();
    for tool in ["web__write_again", "web__counter"] {
        let answer = session.call(tool, &json!({"number": 1}));
        let execution = answer["error"]["data"]["execution"].as_str();
        assert!(
            matches!(execution, Some("not_started" | "unknown")),
            "{answer}"
        );
    }
    assert_eq!(
        world.gateway.get_api("/api/v1/outbox")["entries"],
        json!([])
    );
}

#[test]
fn only_outages_queue_writes() {
    let world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
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
        world.set_status(status);
        let told = call(json!({"number": 1}));
        assert_eq!(told["error"]["data"]["code"], code, "{status}: {told}");
    }
    assert_eq!(
        world.gateway.get_api("/api/v1/outbox")["entries"],
        json!([])
    );
    for (at, status) in [(1, "503"), (2, "429")] {
        world.set_status(status);
        assert_eq!(
            expect_queued(&call(json!({"number": at})))["position"],
            at,
            "{status}"
        );
    }
}

/// A queued tool with an output schema is listed with a schema that also allows the queued reply.
#[test]
fn listed_output_schema_includes_queued_variant() {
    let world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
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
fn invalid_idempotency_key_is_refused_unsent() {
    let world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    let params = json!({"name": "web__write_once", "arguments": {"number": 1},
        "_meta": {"dev.bowline/idempotencyKey": 7}});
    let refused = session.request("tools/call", &params);
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let body = json!({"server": "web", "tool": "write_once", "arguments": {"number": 1},
        "idempotency_key": "a b"});
    assert_eq!(
        world.gateway.send_api("POST", "/api/v1/call", &body).status,
        400
    );
    assert_eq!(world.http_ledger().len(), 0);
}

#[test]
fn memory_engine_writes_no_files() {
    let config = "[journal]\nengine = \"memory\"\n".to_owned() + &fixture_config("one", &[]);
    let mut gateway = Gateway::start(&config);
    let journal = gateway.get_api("/api/v1/status")["journal"].clone();
    assert_eq!(
        (&journal["engine"], &journal["health"]),
        (&json!("memory"), &json!("good"))
    );
    assert!(gateway.stop());
    assert!(!gateway.state_dir().join("state.db").exists());
}
