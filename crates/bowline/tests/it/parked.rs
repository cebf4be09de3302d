//! Sessionless clients get server requests as results; the parked call waits for the retry.

mod concurrent_calls;
mod elicitation_rounds;
mod gateway_crash;
mod request_state;
mod sealed_state;
mod stateless_client;
mod tasks;

use serde_json::{Value, json};

use stateless_client::StatelessClient;

/// Answers every server request of a result, by its key.
fn answer_requests(result: &Value, with: impl Fn(&str, &Value) -> Value) -> Value {
    let asked = result["inputRequests"].as_object().unwrap();
    asked
        .iter()
        .map(|(key, question)| (key.clone(), with(key, question)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// An accepted elicitation with this answer.
fn accept_answer(answer: &str) -> Value {
    json!({"action": "accept", "content": {"answer": answer}})
}

/// The text of a complete result.
fn result_text(answer: &Value) -> &str {
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    answer["result"]["content"][0]["text"].as_str().unwrap()
}

/// Checks an input-required result and returns the state.
fn request_state(answer: &Value) -> String {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let state = result["requestState"].as_str();
    state
        .unwrap_or_else(|| panic!("no state: {answer}"))
        .to_owned()
}
