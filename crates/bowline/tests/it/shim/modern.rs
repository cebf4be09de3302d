//! Clients without a session behind `bowline stdio`.

use serde_json::{Value, json};

use super::{Alone, Shim};
use crate::harness::modern::meta;
use crate::harness::{Gateway, eventually, fixture, lives, signal};

const TOOLS: &str = "notifications/tools/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const ID: &str = "io.modelcontextprotocol/subscriptionId";
const WATCHED: &str = "test://watched-resource";

impl Shim {
    /// Sends a request that says all it needs.
    fn ask(&mut self, id: u64, method: &str, params: &Value) {
        let mut params = params.clone();
        let own = params["_meta"].take();
        params["_meta"] = meta(&json!({}));
        for (key, value) in own.as_object().into_iter().flatten() {
            params["_meta"][key] = value.clone();
        }
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn asked(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.ask(id, method, params);
        self.answer(id)
    }

    fn calls(&mut self, id: u64, tool: &str, arguments: &Value) -> Value {
        self.asked(
            id,
            "tools/call",
            &json!({"name": tool, "arguments": arguments}),
        )
    }

    fn cancel(&mut self, id: u64) {
        let params = json!({"requestId": id});
        self.send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
        }));
    }

    /// Waits for news on one stream.
    fn hear_on(&mut self, id: u64, method: &str) -> Value {
        self.wait(|told| told["method"] == method && told["params"]["_meta"][ID] == id)
    }
}

#[test]
fn a_client_that_asks_first_stays_modern_or_opens_a_session() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut shim = Shim::start(&gateway.state(), &[]);
    let found = shim.asked(1, "server/discover", &json!({}));
    let found = &found["result"];
    assert_eq!(found["supportedVersions"][0], "2026-07-28", "{found}");
    let tools = shim.asked(2, "tools/list", &json!({}));
    assert_eq!(tools["result"]["resultType"], "complete");
    let name = json!({"name": "one__echo", "arguments": {"message": "hi"}});
    let answer = shim.asked(3, "tools/call", &name);
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    assert_eq!(answer["result"]["resultType"], "complete");
    // Progress belongs to the request and comes before its answer.
    let counted = json!({
        "name": "one__test_tool_with_progress", "arguments": {},
        "_meta": {"progressToken": "p"},
    });
    shim.ask(4, "tools/call", &counted);
    let progress = shim.hear("notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "p");
    shim.answer(4);
    let unknown = shim.asked(5, "ping", &json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    let odd = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}});
    let odd = shim.asked(6, "tools/list", &odd);
    assert_eq!(odd["error"]["code"], -32022, "{odd}");
    assert_eq!(odd["error"]["data"]["requested"], "2030-01-01");
    assert_eq!(gateway.api("/api/v1/status")["sessions"], 0);
    // One that does not like what it hears falls back, on the same pipe.
    shim.greet(&json!({}));
    shim.send_call(7, "one__echo", &json!({"message": "old"}));
    let answer = shim.answer(7);
    assert_eq!(answer["result"]["content"][0]["text"], "old");
    assert!(answer["result"]["resultType"].is_null());
    assert_eq!(gateway.api("/api/v1/status")["sessions"], 1);
}

#[test]
fn several_streams_of_changes_share_the_pipe_and_each_ends_when_it_is_not_wanted() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut shim = Shim::start(&gateway.state(), &["--server", "one"]);
    let listen = |filter: Value| json!({"notifications": filter});
    let tools = json!({"toolsListChanged": true});
    let watched = json!({"resourceSubscriptions": [WATCHED]});
    for (id, filter) in [(1, &tools), (2, &tools), (3, &watched)] {
        shim.ask(id, "subscriptions/listen", &listen(filter.clone()));
        let told = shim.hear_on(id, ACKNOWLEDGED);
        assert_eq!(told["params"]["notifications"], *filter);
    }
    shim.calls(4, "test_trigger_tool_change", &json!({}));
    shim.hear_on(1, TOOLS);
    shim.hear_on(2, TOOLS);
    shim.calls(5, "touch", &json!({}));
    assert_eq!(shim.hear_on(3, UPDATED)["params"]["uri"], WATCHED);
    shim.cancel(2);
    let streams = |want: u64| gateway.api("/api/v1/status")["streams"] == want;
    eventually("its stream is closed", || streams(2));
    shim.calls(6, "test_trigger_tool_change", &json!({}));
    shim.hear_on(1, TOOLS);
    let stray = shim
        .unread
        .iter()
        .find(|told| told["params"]["_meta"][ID] == 2);
    assert_eq!(stray, None);
}

#[test]
fn a_call_that_is_no_longer_wanted_ends_at_its_server_and_is_never_answered() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut shim = Shim::start(&gateway.state(), &[]);
    let slow = json!({"name": "one__slow", "arguments": {"ms": 600_000, "message": "never"}});
    shim.ask(7, "tools/call", &slow);
    let busy = |count: u64| gateway.status("one")["in_flight"] == count;
    eventually("it runs", || busy(1));
    shim.cancel(7);
    eventually("it is over", || busy(0));
    shim.calls(8, "one__echo", &json!({"message": "hi"}));
    assert!(shim.unread.iter().all(|told| told["id"] != 7));
}

#[test]
fn a_gateway_that_dies_loses_calls_and_no_streams_of_changes() {
    let alone = Alone::new();
    let mut shim = alone.shim();
    let filter = json!({"toolsListChanged": true});
    shim.ask(1, "subscriptions/listen", &json!({"notifications": filter}));
    shim.hear_on(1, ACKNOWLEDGED);
    let slow = json!({"name": "one__slow", "arguments": {"ms": 600_000, "message": "never"}});
    shim.ask(2, "tools/call", &slow);
    // It has arrived: what was sent later is answered.
    shim.calls(3, "one__echo", &json!({"message": "hi"}));
    let first = alone.gateway().unwrap();
    signal(first, "KILL");
    eventually("the gateway is dead", || !lives(first));
    let lost = shim.answer(2);
    assert_eq!(lost["error"]["data"]["execution"], "unknown", "{lost}");
    // The next one is found, and whatever changed in between is told.
    let answer = shim.calls(4, "one__echo", &json!({"message": "hi"}));
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    shim.hear_on(1, TOOLS);
    shim.calls(5, "one__test_trigger_tool_change", &json!({}));
    shim.hear_on(1, TOOLS);
    let again = shim
        .unread
        .iter()
        .filter(|told| told["method"] == ACKNOWLEDGED);
    assert_eq!(again.count(), 0, "a promise is told once");
}
