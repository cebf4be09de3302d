//! From a question to the answer, over every kind of server of the era with sessions.

use serde_json::{Value, json};

use super::{Caller, answers, said, state_of, text};
use crate::harness::served::Served;
use crate::harness::{Gateway, eventually, fixture};
use crate::streams::next_event;

/// Does what every caller can do with a server named `one`.
fn walk(gateway: &Gateway) {
    gateway.wait_for("one", "ready");
    let caller = Caller::of(gateway, "/mcp");
    forms(&caller);
    addresses(&caller);
    samples(&caller);
    several_rounds(&caller);
}

fn forms(caller: &Caller) {
    let arguments = json!({"message": "who?"});
    let asked = caller.call("one__test_elicitation", &arguments);
    let state = state_of(&asked);
    let questions = asked["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(questions.len(), 1, "{asked}");
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "who?");
    assert_eq!(question["params"]["_meta"]["dev.bowline/server"], "one");
    assert!(question.get("id").is_none() && question.get("jsonrpc").is_none());
    let content = json!({"username": "u", "email": "e"});
    // What was not asked for is ignored.
    let given = json!({
        key: {"action": "accept", "content": content}, "other": {"action": "cancel"},
    });
    let done = caller.again("one__test_elicitation", &arguments, &given, &state);
    assert!(text(&done).contains("action=accept"), "{done}");
    assert!(text(&done).contains("\"u\""), "{done}");
    let info = &done["result"]["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(info["name"], "bowline", "{done}");
}

fn addresses(caller: &Caller) {
    let asked = caller.call("one__test_elicitation_url", &json!({}));
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, question| {
        assert_eq!(question["params"]["mode"], "url", "{question}");
        assert!(question["params"]["url"].is_string(), "{question}");
        assert!(question["params"].get("elicitationId").is_none());
        json!({"action": "accept"})
    });
    let done = caller.again("one__test_elicitation_url", &json!({}), &given, &state);
    assert!(text(&done).contains("accept"), "{done}");
    // An error that sends the user somewhere is a question as well, with nothing to go on from.
    let asked = caller.call("one__test_elicitation_url_required", &json!({}));
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    assert!(asked["result"].get("requestState").is_none(), "{asked}");
    answers(&asked["result"], |_, question| {
        assert_eq!(question["params"]["mode"], "url", "{question}");
        json!({})
    });
}

fn samples(caller: &Caller) {
    let arguments = json!({"prompt": "say"});
    let asked = caller.call("one__test_sampling", &arguments);
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, question| {
        assert_eq!(question["method"], "sampling/createMessage");
        json!({
            "role": "assistant", "model": "m",
            "content": {"type": "text", "text": "the model spoke"},
        })
    });
    let done = caller.again("one__test_sampling", &arguments, &given, &state);
    assert_eq!(text(&done), "LLM response: the model spoke");
    let asked = caller.call("one__test_roots", &json!({}));
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, question| {
        assert_eq!(question["method"], "roots/list");
        json!({"roots": [{"uri": "file:///the/root"}]})
    });
    let done = caller.again("one__test_roots", &json!({}), &given, &state);
    assert!(text(&done).contains("/the/root"), "{done}");
}

fn several_rounds(caller: &Caller) {
    let mut caller = caller.clone();
    let arguments = json!({"key": "rounds", "questions": 3});
    let mut asked = caller.call("one__effect_asked", &arguments);
    for nth in 1..=3 {
        // Each round has a token of its own.
        let token = format!("t{nth}");
        caller.meta = json!({ "progressToken": token });
        let state = state_of(&asked);
        let given = answers(&asked["result"], |_, question| {
            assert_eq!(question["params"]["message"], format!("Question {nth}"));
            said(&format!("answer {nth}"))
        });
        asked = caller.again("one__effect_asked", &arguments, &given, &state);
    }
    let heard: Vec<Value> = serde_json::from_str(text(&asked)).unwrap();
    let heard: Vec<_> = heard.iter().map(|one| &one["content"]["answer"]).collect();
    assert_eq!(json!(heard), json!(["answer 1", "answer 2", "answer 3"]));
    let ran = caller.call("one__executions", &json!({"key": "rounds"}));
    assert!(
        text(&ran).contains('1') && !text(&ran).contains('2'),
        "{ran}"
    );
}

#[test]
fn a_stdio_server_asks_a_caller_without_a_session() {
    walk(&Gateway::up(&fixture("one", &["--era", "legacy"])));
}

#[test]
fn a_server_over_http_asks_a_caller_without_a_session() {
    let served = Served::start(&["--era", "legacy"]);
    let config = format!("[servers.one]\nurl = {}\n", json!(served.url));
    walk(&Gateway::up(&config));
}

#[test]
fn what_a_server_asks_at_once_is_asked_at_once() {
    let gateway = Gateway::up(&fixture("one", &["--era", "legacy"]));
    gateway.wait_for("one", "ready");
    let caller = Caller::of(&gateway, "/mcp");
    let asked = caller.call("one__multi_input", &json!({}));
    let questions = asked["result"]["inputRequests"].as_object().unwrap();
    // Under the names that its server gave them.
    let keys: Vec<_> = questions.keys().map(String::as_str).collect();
    assert_eq!(keys, ["first", "second"], "{asked}");
    // One of them is answered; the other is asked again.
    let given = json!({"second": said("two")});
    let again = caller.again("one__multi_input", &json!({}), &given, &state_of(&asked));
    let left = again["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(left.keys().collect::<Vec<_>>(), ["first"], "{again}");
    let given = json!({"first": said("one"), "second": said("three")});
    let done = caller.again("one__multi_input", &json!({}), &given, &state_of(&again));
    let heard = text(&done);
    assert!(
        heard.contains("one") && heard.contains("two") && !heard.contains("three"),
        "{heard}"
    );
}

#[test]
fn what_was_not_answered_is_asked_again() {
    let gateway = Gateway::up(&fixture("one", &["--era", "legacy"]));
    gateway.wait_for("one", "ready");
    let caller = Caller::of(&gateway, "/servers/one/mcp");
    let arguments = json!({"key": "again"});
    let asked = caller.call("effect_asked", &arguments);
    let first = state_of(&asked);
    let again = caller.again("effect_asked", &arguments, &json!({"wrong": {}}), &first);
    let second = state_of(&again);
    assert_ne!(first, second, "a state is good for one round");
    assert_eq!(
        asked["result"]["inputRequests"],
        again["result"]["inputRequests"]
    );
    let given = answers(&again["result"], |_, _| said("at last"));
    let done = caller.again("effect_asked", &arguments, &given, &second);
    assert!(text(&done).contains("at last"), "{done}");
}

#[test]
fn a_caller_that_cannot_be_asked_is_told_what_is_missing() {
    let gateway = Gateway::up(&fixture("one", &["--era", "legacy"]));
    gateway.wait_for("one", "ready");
    let mut caller = Caller::of(&gateway, "/mcp");
    caller.capabilities = json!({"elicitation": {"form": {}}});
    let params = json!({"name": "one__test_sampling", "arguments": {"prompt": "say"}});
    let response = caller.ask(&json!(1), "tools/call", params);
    assert_eq!(response.status, 400, "{}", response.text());
    let error = &response.json()["error"];
    assert_eq!(error["code"], -32021, "{error}");
    let needed = &error["data"]["requiredCapabilities"];
    assert_eq!(*needed, json!({"sampling": {}}), "{error}");
    let params = json!({"name": "one__test_elicitation_url_required", "arguments": {}});
    let response = caller.ask(&json!(2), "tools/call", params);
    assert_eq!(response.json()["error"]["code"], -32021);
}

#[test]
fn who_closes_the_stream_takes_the_call_back() {
    let gateway = Gateway::up(&fixture("one", &["--era", "legacy"]));
    gateway.wait_for("one", "ready");
    let mut caller = Caller::of(&gateway, "/mcp");
    caller.meta = json!({"progressToken": "t"});
    // In the first round, and in one that brings answers.
    let params = json!({"name": "one__slow", "arguments": {"ms": 600_000}});
    let http = caller.send(&json!(1), "tools/call", params);
    eventually("it runs", || gateway.status("one")["in_flight"] == 1);
    drop(http);
    eventually("it is over", || gateway.status("one")["in_flight"] == 0);
    let arguments = json!({"key": "left", "ms": 600_000});
    let asked = caller.call("one__effect_asked", &arguments);
    let state = state_of(&asked);
    assert_eq!(gateway.status("one")["in_flight"], 1, "it waits");
    let given = answers(&asked["result"], |_, _| said("x"));
    let params = json!({
        "name": "one__effect_asked", "arguments": arguments,
        "inputResponses": given, "requestState": state,
    });
    let mut http = caller.send(&json!(2), "tools/call", params);
    // It says that it goes on, so the answers were taken.
    let head = http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    let told = next_event(&mut http).unwrap().json();
    assert_eq!(told["params"]["progress"], 2, "{told}");
    drop(http);
    eventually("it is over too", || gateway.status("one")["in_flight"] == 0);
}
