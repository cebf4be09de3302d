//! Questions of servers, answered by the caller whose call made them ask.

use serde_json::json;

use crate::harness::{Gateway, fixture};
use crate::streams::next_event;

#[test]
fn a_server_asks_the_caller_of_its_call_and_gets_the_answer() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.able(&json!({"elicitation": {}}));
    let mut stranger = gateway.able(&json!({"elicitation": {}}));
    let mut caller = session.twin();
    caller.send_call(7, "one__test_elicitation", &json!({"message": "who?"}));
    let head = caller.http.read_head();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        next_event(&mut caller.http).unwrap().data.as_deref(),
        Some("")
    );
    let question = next_event(&mut caller.http).unwrap().json();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["message"], "who?");
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"],
        "result": {"action": "accept", "content": {"username": "u", "email": "e"}},
    });
    // Nobody else can answer it, and an answer to nothing is no fault.
    let mut other = answer.clone();
    other["result"]["content"]["username"] = json!("stranger");
    assert_eq!(stranger.post(&other).status, 202);
    other["id"] = json!("nothing");
    assert_eq!(session.post(&other).status, 202);
    assert_eq!(session.post(&answer).status, 202);
    let result = next_event(&mut caller.http).unwrap().json();
    assert_eq!(result["id"], 7, "{result}");
    let text = result["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("action=accept") && !text.contains("stranger"),
        "{text}"
    );
    assert!(text.contains("\"u\""), "{text}");
    assert_eq!(next_event(&mut caller.http), None);
    // Answered twice is answered once.
    assert_eq!(session.post(&answer).status, 202);
}

#[test]
fn a_caller_that_cannot_be_asked_is_not() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.able(&json!({"sampling": {}}));
    let answer = session.call("one__test_elicitation", &json!({"message": "who?"}));
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let mut caller = session.twin();
    caller.send_call(8, "one__test_sampling", &json!({"prompt": "say"}));
    caller.http.read_head();
    next_event(&mut caller.http).unwrap();
    let question = next_event(&mut caller.http).unwrap().json();
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    // The end of the session refuses what is open, so that the server does not wait for ever.
    session.delete();
    crate::harness::eventually("the server is free", || {
        gateway.status("one")["in_flight"] == 0
    });
}
