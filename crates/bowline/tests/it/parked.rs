//! Callers without a session are asked by results: the call waits here until they come back.

mod apart;
mod caller;
mod lost;
mod rounds;
mod states;
mod tasks;
mod wrapped;

use serde_json::{Value, json};

use caller::Caller;

/// Answers every question of a result in this way, by its key.
fn answers(result: &Value, with: impl Fn(&str, &Value) -> Value) -> Value {
    let asked = result["inputRequests"].as_object().unwrap();
    asked
        .iter()
        .map(|(key, question)| (key.clone(), with(key, question)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The user says this.
fn said(answer: &str) -> Value {
    json!({"action": "accept", "content": {"answer": answer}})
}

/// The text of a complete result.
fn text(answer: &Value) -> &str {
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    answer["result"]["content"][0]["text"].as_str().unwrap()
}

/// Checks a result that asks, and returns its state.
fn state_of(answer: &Value) -> String {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let state = result["requestState"].as_str();
    state
        .unwrap_or_else(|| panic!("no state: {answer}"))
        .to_owned()
}
