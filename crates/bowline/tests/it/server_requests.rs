//! The calling client answers server requests.

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

use crate::streams::next_event;

/// A server request goes to the calling client, and the answer returns to the server.
#[test]
fn server_request_is_answered_by_its_caller() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session_with_capabilities(&json!({"elicitation": {}}));
    let mut stranger = gateway.open_session_with_capabilities(&json!({"elicitation": {}}));
    let mut caller = session.clone_on_new_connection();
    caller.send_call(7, "one__test_elicitation", &json!({"message": "who?"}));
    let head = caller.http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        next_event(&mut caller.http).unwrap().data.as_deref(),
        Some("")
    );
    let question = next_event(&mut caller.http).unwrap().data_json();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["message"], "who?");
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"],
        "result": {"action": "accept", "content": {"username": "u", "email": "e"}},
    });
    // Another session cannot answer; an answer to an unknown request is no error.
    let mut other = answer.clone();
    other["result"]["content"]["username"] = json!("stranger");
    assert_eq!(stranger.post(&other).status, 202);
    other["id"] = json!("nothing");
    assert_eq!(session.post(&other).status, 202);
    assert_eq!(session.post(&answer).status, 202);
    let result = next_event(&mut caller.http).unwrap().data_json();
    assert_eq!(result["id"], 7, "{result}");
    let text = result["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("action=accept") && !text.contains("stranger"),
        "{text}"
    );
    assert!(text.contains("\"u\""), "{text}");
    assert_eq!(next_event(&mut caller.http), None);
    // A second answer is ignored.
    assert_eq!(session.post(&answer).status, 202);
}

#[test]
fn server_request_skips_client_without_capability() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session_with_capabilities(&json!({"sampling": {}}));
    let answer = session.call("one__test_elicitation", &json!({"message": "who?"}));
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let mut caller = session.clone_on_new_connection();
    caller.send_call(8, "one__test_sampling", &json!({"prompt": "say"}));
    caller.http.read_head();
    next_event(&mut caller.http).unwrap();
    let question = next_event(&mut caller.http).unwrap().data_json();
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    // Ending the session refuses open server requests, so the server does not wait forever.
    session.end_session();
    wait_until("the server is free", || {
        gateway.server_status("one")["in_flight"] == 0
    });
}
