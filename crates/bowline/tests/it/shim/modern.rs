//! Sessionless clients behind `bowline stdio`.

use bowline_testkit::gateway::{Gateway, fixture_config, request_meta};
use bowline_testkit::{send_signal, wait_process_exit, wait_until};
use serde_json::{Value, json};

use super::{ShimClient, StandaloneDir};

const TOOLS: &str = "notifications/tools/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const ID: &str = "io.modelcontextprotocol/subscriptionId";
const WATCHED: &str = "test://watched-resource";

impl ShimClient {
    /// Sends a self-contained request.
    fn send_modern(&mut self, id: u64, method: &str, params: &Value) {
        let mut params = params.clone();
        let own = params["_meta"].take();
        params["_meta"] = request_meta(&json!({}));
        for (key, value) in own.as_object().into_iter().flatten() {
            params["_meta"][key] = value.clone();
        }
        self.send_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn modern_response(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send_modern(id, method, params);
        self.wait_for_response(id)
    }

    fn call_modern(&mut self, id: u64, tool: &str, arguments: &Value) -> Value {
        self.modern_response(
            id,
            "tools/call",
            &json!({"name": tool, "arguments": arguments}),
        )
    }

    fn send_cancel(&mut self, id: u64) {
        let params = json!({"requestId": id});
        self.send_message(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
        }));
    }

    /// Waits for a message on one stream.
    fn wait_for_stream_message(&mut self, id: u64, method: &str) -> Value {
        self.wait_for_message(|told| told["method"] == method && told["params"]["_meta"][ID] == id)
    }
}

#[test]
fn discovering_client_stays_modern_or_opens_session() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut shim = ShimClient::start(&gateway.state_dir(), &[]);
    let found = shim.modern_response(1, "server/discover", &json!({}));
    let found = &found["result"];
    assert_eq!(found["supportedVersions"][0], "2026-07-28", "{found}");
    let tools = shim.modern_response(2, "tools/list", &json!({}));
    assert_eq!(tools["result"]["resultType"], "complete");
    let name = json!({"name": "one__echo", "arguments": {"message": "hi"}});
    let answer = shim.modern_response(3, "tools/call", &name);
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    assert_eq!(answer["result"]["resultType"], "complete");
    // Progress belongs to the request and precedes the response.
    let counted = json!({
        "name": "one__test_tool_with_progress", "arguments": {},
        "_meta": {"progressToken": "p"},
    });
    shim.send_modern(4, "tools/call", &counted);
    let progress = shim.wait_for_method("notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "p");
    shim.wait_for_response(4);
    let unknown = shim.modern_response(5, "ping", &json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    let odd = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}});
    let odd = shim.modern_response(6, "tools/list", &odd);
    assert_eq!(odd["error"]["code"], -32022, "{odd}");
    assert_eq!(odd["error"]["data"]["requested"], "2030-01-01");
    assert_eq!(gateway.get_api("/api/v1/status")["sessions"], 0);
    // A client that rejects the discover response falls back to `initialize` on the same pipe.
    shim.initialize(&json!({}));
    shim.send_call(7, "one__echo", &json!({"message": "old"}));
    let answer = shim.wait_for_response(7);
    assert_eq!(answer["result"]["content"][0]["text"], "old");
    assert!(answer["result"]["resultType"].is_null());
    assert_eq!(gateway.get_api("/api/v1/status")["sessions"], 1);
}

#[test]
fn listen_streams_share_pipe_and_end_separately() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut shim = ShimClient::start(&gateway.state_dir(), &["--server", "one"]);
    let listen = |filter: Value| json!({"notifications": filter});
    let tools = json!({"toolsListChanged": true});
    let watched = json!({"resourceSubscriptions": [WATCHED]});
    for (id, filter) in [(1, &tools), (2, &tools), (3, &watched)] {
        shim.send_modern(id, "subscriptions/listen", &listen(filter.clone()));
        let told = shim.wait_for_stream_message(id, ACKNOWLEDGED);
        assert_eq!(told["params"]["notifications"], *filter);
    }
    shim.call_modern(4, "test_trigger_tool_change", &json!({}));
    shim.wait_for_stream_message(1, TOOLS);
    shim.wait_for_stream_message(2, TOOLS);
    shim.call_modern(5, "touch", &json!({}));
    assert_eq!(
        shim.wait_for_stream_message(3, UPDATED)["params"]["uri"],
        WATCHED
    );
    shim.send_cancel(2);
    let streams = |want: u64| gateway.get_api("/api/v1/status")["streams"] == want;
    wait_until("its stream is closed", || streams(2));
    shim.call_modern(6, "test_trigger_tool_change", &json!({}));
    shim.wait_for_stream_message(1, TOOLS);
    let stray = shim
        .pending_messages
        .iter()
        .find(|told| told["params"]["_meta"][ID] == 2);
    assert_eq!(stray, None);
}

#[test]
fn cancelled_shim_call_ends_unanswered() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut shim = ShimClient::start(&gateway.state_dir(), &[]);
    let slow = json!({"name": "one__slow", "arguments": {"ms": 600_000, "message": "never"}});
    shim.send_modern(7, "tools/call", &slow);
    let busy = |count: u64| gateway.server_status("one")["in_flight"] == count;
    wait_until("it runs", || busy(1));
    shim.send_cancel(7);
    wait_until("it is over", || busy(0));
    shim.call_modern(8, "one__echo", &json!({"message": "hi"}));
    assert!(shim.pending_messages.iter().all(|told| told["id"] != 7));
}

#[test]
fn gateway_death_keeps_listen_streams() {
    let alone = StandaloneDir::new();
    let mut shim = alone.start_shim();
    let filter = json!({"toolsListChanged": true});
    shim.send_modern(1, "subscriptions/listen", &json!({"notifications": filter}));
    shim.wait_for_stream_message(1, ACKNOWLEDGED);
    let slow = json!({"name": "one__slow", "arguments": {"ms": 600_000, "message": "never"}});
    shim.send_modern(2, "tools/call", &slow);
    // The earlier request has arrived: a later one is answered.
    shim.call_modern(3, "one__echo", &json!({"message": "hi"}));
    let first = alone.gateway_pid().unwrap();
    send_signal(first, "KILL");
    wait_process_exit("the death of the gateway", first);
    let lost = shim.wait_for_response(2);
    assert_eq!(lost["error"]["data"]["execution"], "unknown", "{lost}");
    // The next gateway is found, and intermediate changes are announced.
    let answer = shim.call_modern(4, "one__echo", &json!({"message": "hi"}));
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    shim.wait_for_stream_message(1, TOOLS);
    shim.call_modern(5, "one__test_trigger_tool_change", &json!({}));
    shim.wait_for_stream_message(1, TOOLS);
    let again = shim
        .pending_messages
        .iter()
        .filter(|told| told["method"] == ACKNOWLEDGED);
    assert_eq!(again.count(), 0, "a promise is told once");
}
