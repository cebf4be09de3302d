//! Rounds from server request to result, over every kind of legacy server.

use bowline_testkit::gateway::{FixtureServer, Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::{StatelessClient, accept_answer, answer_requests, request_state, result_text};
use crate::streams::next_event;

/// Runs all kinds of rounds against a server named `one`.
fn assert_all_rounds(gateway: &Gateway) {
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(gateway, "/mcp");
    assert_form_round(&caller);
    assert_url_round(&caller);
    assert_sampling_round(&caller);
    assert_several_rounds(&caller);
}

fn assert_form_round(caller: &StatelessClient) {
    let arguments = json!({"message": "who?"});
    let asked = caller.call_tool("one__test_elicitation", &arguments);
    let state = request_state(&asked);
    let questions = asked["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(questions.len(), 1, "{asked}");
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "who?");
    assert_eq!(question["params"]["_meta"]["dev.bowline/server"], "one");
    assert!(question.get("id").is_none() && question.get("jsonrpc").is_none());
    let content = json!({"username": "u", "email": "e"});
    // Unrequested answers are ignored.
    let given = json!({
        key: {"action": "accept", "content": content}, "other": {"action": "cancel"},
    });
    let done = caller.retry_with_answers("one__test_elicitation", &arguments, &given, &state);
    assert!(result_text(&done).contains("action=accept"), "{done}");
    assert!(result_text(&done).contains("\"u\""), "{done}");
    let info = &done["result"]["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info["name"], "bowline", "{done}");
}

fn assert_url_round(caller: &StatelessClient) {
    let asked = caller.call_tool("one__test_elicitation_url", &json!({}));
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, question| {
        assert_eq!(question["params"]["mode"], "url", "{question}");
        assert!(question["params"]["url"].is_string(), "{question}");
        assert!(question["params"].get("elicitationId").is_none());
        json!({"action": "accept"})
    });
    let done = caller.retry_with_answers("one__test_elicitation_url", &json!({}), &given, &state);
    assert!(result_text(&done).contains("accept"), "{done}");
    // A URL-elicitation error is a server request too, but leaves no call to continue.
    let asked = caller.call_tool("one__test_elicitation_url_required", &json!({}));
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    assert!(asked["result"].get("requestState").is_none(), "{asked}");
    answer_requests(&asked["result"], |_, question| {
        assert_eq!(question["params"]["mode"], "url", "{question}");
        json!({})
    });
}

fn assert_sampling_round(caller: &StatelessClient) {
    let arguments = json!({"prompt": "say"});
    let asked = caller.call_tool("one__test_sampling", &arguments);
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, question| {
        assert_eq!(question["method"], "sampling/createMessage");
        json!({
            "role": "assistant", "model": "m",
            "content": {"type": "text", "text": "the model spoke"},
        })
    });
    let done = caller.retry_with_answers("one__test_sampling", &arguments, &given, &state);
    assert_eq!(result_text(&done), "LLM response: the model spoke");
    let asked = caller.call_tool("one__test_roots", &json!({}));
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, question| {
        assert_eq!(question["method"], "roots/list");
        json!({"roots": [{"uri": "file:///the/root"}]})
    });
    let done = caller.retry_with_answers("one__test_roots", &json!({}), &given, &state);
    assert!(result_text(&done).contains("/the/root"), "{done}");
}

fn assert_several_rounds(caller: &StatelessClient) {
    let mut caller = caller.clone();
    let arguments = json!({"key": "rounds", "questions": 3});
    let mut asked = caller.call_tool("one__effect_asked", &arguments);
    for nth in 1..=3 {
        // Each round has a new progress token.
        let token = format!("t{nth}");
        caller.meta = json!({ "progressToken": token });
        let state = request_state(&asked);
        let given = answer_requests(&asked["result"], |_, question| {
            assert_eq!(question["params"]["message"], format!("Question {nth}"));
            accept_answer(&format!("answer {nth}"))
        });
        asked = caller.retry_with_answers("one__effect_asked", &arguments, &given, &state);
    }
    let heard: Vec<Value> = serde_json::from_str(result_text(&asked)).unwrap();
    let heard: Vec<_> = heard.iter().map(|one| &one["content"]["answer"]).collect();
    assert_eq!(json!(heard), json!(["answer 1", "answer 2", "answer 3"]));
    let ran = caller.call_tool("one__executions", &json!({"key": "rounds"}));
    assert!(
        result_text(&ran).contains('1') && !result_text(&ran).contains('2'),
        "{ran}"
    );
}

#[test]
fn stdio_server_elicits_from_sessionless_client() {
    assert_all_rounds(&Gateway::start(&fixture_config(
        "one",
        &["--era", "legacy"],
    )));
}

#[test]
fn http_server_elicits_from_sessionless_client() {
    let served = FixtureServer::start(&["--era", "legacy"]);
    let config = format!("[servers.one]\nurl = {}\n", json!(served.url));
    assert_all_rounds(&Gateway::start(&config));
}

#[test]
fn concurrent_server_requests_share_one_result() {
    let gateway = Gateway::start(&fixture_config("one", &["--era", "legacy"]));
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(&gateway, "/mcp");
    let asked = caller.call_tool("one__multi_input", &json!({}));
    let questions = asked["result"]["inputRequests"].as_object().unwrap();
    // The keys come from the server.
    let keys: Vec<_> = questions.keys().map(String::as_str).collect();
    assert_eq!(keys, ["first", "second"], "{asked}");
    // The first request stays unanswered and is asked again.
    let given = json!({"second": accept_answer("two")});
    let again = caller.retry_with_answers(
        "one__multi_input",
        &json!({}),
        &given,
        &request_state(&asked),
    );
    let left = again["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(left.keys().collect::<Vec<_>>(), ["first"], "{again}");
    let given = json!({"first": accept_answer("one"), "second": accept_answer("three")});
    let done = caller.retry_with_answers(
        "one__multi_input",
        &json!({}),
        &given,
        &request_state(&again),
    );
    let heard = result_text(&done);
    assert!(
        heard.contains("one") && heard.contains("two") && !heard.contains("three"),
        "{heard}"
    );
}

#[test]
fn unanswered_requests_are_asked_again() {
    let gateway = Gateway::start(&fixture_config("one", &["--era", "legacy"]));
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(&gateway, "/servers/one/mcp");
    let arguments = json!({"key": "again"});
    let asked = caller.call_tool("effect_asked", &arguments);
    let first = request_state(&asked);
    let again =
        caller.retry_with_answers("effect_asked", &arguments, &json!({"wrong": {}}), &first);
    let second = request_state(&again);
    assert_ne!(first, second, "a state is good for one round");
    assert_eq!(
        asked["result"]["inputRequests"],
        again["result"]["inputRequests"]
    );
    let given = answer_requests(&again["result"], |_, _| accept_answer("at last"));
    let done = caller.retry_with_answers("effect_asked", &arguments, &given, &second);
    assert!(result_text(&done).contains("at last"), "{done}");
}

#[test]
fn client_without_capability_gets_missing_list() {
    let gateway = Gateway::start(&fixture_config("one", &["--era", "legacy"]));
    gateway.wait_for_state("one", "ready");
    let mut caller = StatelessClient::new(&gateway, "/mcp");
    caller.capabilities = json!({"elicitation": {"form": {}}});
    let params = json!({"name": "one__test_sampling", "arguments": {"prompt": "say"}});
    let response = caller.send_and_read(&json!(1), "tools/call", params);
    assert_eq!(response.status, 400, "{}", response.text());
    let error = &response.json()["error"];
    assert_eq!(error["code"], -32021, "{error}");
    let needed = &error["data"]["requiredCapabilities"];
    assert_eq!(*needed, json!({"sampling": {}}), "{error}");
    let params = json!({"name": "one__test_elicitation_url_required", "arguments": {}});
    let response = caller.send_and_read(&json!(2), "tools/call", params);
    assert_eq!(response.json()["error"]["code"], -32021);
}

#[test]
fn closing_stream_cancels_call() {
    let gateway = Gateway::start(&fixture_config("one", &["--era", "legacy"]));
    gateway.wait_for_state("one", "ready");
    let mut caller = StatelessClient::new(&gateway, "/mcp");
    caller.meta = json!({"progressToken": "t"});
    // In the first round, and in a round with answers.
    let params = json!({"name": "one__slow", "arguments": {"ms": 600_000}});
    let http = caller.send_request(&json!(1), "tools/call", params);
    wait_until("it runs", || gateway.server_status("one")["in_flight"] == 1);
    drop(http);
    wait_until("it is over", || {
        gateway.server_status("one")["in_flight"] == 0
    });
    let arguments = json!({"key": "left", "ms": 600_000});
    let asked = caller.call_tool("one__effect_asked", &arguments);
    let state = request_state(&asked);
    assert_eq!(gateway.server_status("one")["in_flight"], 1, "it waits");
    let given = answer_requests(&asked["result"], |_, _| accept_answer("x"));
    let params = json!({
        "name": "one__effect_asked", "arguments": arguments,
        "inputResponses": given, "requestState": state,
    });
    let mut http = caller.send_request(&json!(2), "tools/call", params);
    // The response starts as a stream, so the answers were accepted.
    let head = http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    let told = next_event(&mut http).unwrap().data_json();
    assert_eq!(told["params"]["progress"], 2, "{told}");
    drop(http);
    wait_until("it is over too", || {
        gateway.server_status("one")["in_flight"] == 0
    });
}
