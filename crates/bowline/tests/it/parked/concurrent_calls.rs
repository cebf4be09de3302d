//! Concurrent parked calls of a client: server requests are not mixed up.

use bowline_testkit::gateway::{Gateway, fixture_config};
use serde_json::{Value, json};

use super::{StatelessClient, accept_answer, answer_requests, request_state, result_text};

/// Concurrent parked calls.
const CALLS: usize = 3;

/// Elicitations of each call, in sequence.
const ELICITATIONS: usize = 2;

#[test]
fn concurrent_calls_get_own_elicitations() {
    let gateway = Gateway::start(&fixture_config("one", &["--era", "legacy"]));
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(&gateway, "/mcp");
    // The server becomes known as interactive.
    let asked = caller.call_tool("one__test_elicitation", &json!({"message": "first"}));
    let given = answer_requests(&asked["result"], |_, _| json!({"action": "decline"}));
    let arguments = json!({"message": "first"});
    caller.retry_with_answers(
        "one__test_elicitation",
        &arguments,
        &given,
        &request_state(&asked),
    );

    let arguments = |nth: usize| json!({"key": format!("call {nth}"), "questions": ELICITATIONS});
    let mut waiting: Vec<Value> = (0..CALLS)
        .map(|nth| caller.call_tool("one__effect_asked", &arguments(nth)))
        .collect();
    for question in 1..=ELICITATIONS {
        for (nth, asked) in waiting.iter_mut().enumerate() {
            let state = request_state(asked);
            let given = answer_requests(&asked["result"], |_, asks| {
                let words = format!("Question {question}");
                assert_eq!(asks["params"]["message"], words, "call {nth}: {asks}");
                accept_answer(&format!("{nth}.{question}"))
            });
            *asked =
                caller.retry_with_answers("one__effect_asked", &arguments(nth), &given, &state);
        }
    }
    for (nth, done) in waiting.iter().enumerate() {
        let heard: Vec<Value> = serde_json::from_str(result_text(done)).unwrap();
        let heard: Vec<_> = heard.iter().map(|one| &one["content"]["answer"]).collect();
        assert_eq!(
            json!(heard),
            json!([format!("{nth}.1"), format!("{nth}.2")])
        );
    }
    // In sequence, the calls need only a single process.
    let links = |gateway: &Gateway| gateway.server_status("one")["own_links"].clone();
    let before = links(&gateway);
    assert_eq!(before, json!(CALLS), "{before}");
    let asked = caller.call_tool("one__effect_asked", &json!({"key": "later"}));
    assert_eq!(links(&gateway), before, "{asked}");
}
