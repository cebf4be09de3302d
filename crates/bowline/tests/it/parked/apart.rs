//! Calls of one client that wait at the same time: each is asked what its own server asks.

use serde_json::{Value, json};

use super::{Caller, answers, said, state_of, text};
use crate::harness::{Gateway, fixture};

/// Calls that wait beside each other.
const CALLS: usize = 3;

/// Questions that each of them asks, one after the other.
const QUESTIONS: usize = 2;

#[test]
fn questions_of_calls_that_one_client_makes_at_once_are_not_mixed_up() {
    let gateway = Gateway::up(&fixture("one", &["--era", "legacy"]));
    gateway.wait_for("one", "ready");
    let caller = Caller::of(&gateway, "/mcp");
    // The server is known for one that asks.
    let asked = caller.call("one__test_elicitation", &json!({"message": "first"}));
    let given = answers(&asked["result"], |_, _| json!({"action": "decline"}));
    let arguments = json!({"message": "first"});
    caller.again(
        "one__test_elicitation",
        &arguments,
        &given,
        &state_of(&asked),
    );

    let arguments = |nth: usize| json!({"key": format!("call {nth}"), "questions": QUESTIONS});
    let mut waiting: Vec<Value> = (0..CALLS)
        .map(|nth| caller.call("one__effect_asked", &arguments(nth)))
        .collect();
    for question in 1..=QUESTIONS {
        for (nth, asked) in waiting.iter_mut().enumerate() {
            let state = state_of(asked);
            let given = answers(&asked["result"], |_, asks| {
                let words = format!("Question {question}");
                assert_eq!(asks["params"]["message"], words, "call {nth}: {asks}");
                said(&format!("{nth}.{question}"))
            });
            *asked = caller.again("one__effect_asked", &arguments(nth), &given, &state);
        }
    }
    for (nth, done) in waiting.iter().enumerate() {
        let heard: Vec<Value> = serde_json::from_str(text(done)).unwrap();
        let heard: Vec<_> = heard.iter().map(|one| &one["content"]["answer"]).collect();
        assert_eq!(
            json!(heard),
            json!([format!("{nth}.1"), format!("{nth}.2")])
        );
    }
    // One after the other they need no more than one process.
    let links = |gateway: &Gateway| gateway.status("one")["own_links"].clone();
    let before = links(&gateway);
    assert_eq!(before, json!(CALLS), "{before}");
    let asked = caller.call("one__effect_asked", &json!({"key": "later"}));
    assert_eq!(links(&gateway), before, "{asked}");
}
