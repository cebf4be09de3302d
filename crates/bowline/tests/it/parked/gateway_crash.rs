//! A gateway that dies between two rounds: the client gets an error, and nothing runs twice.

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

use super::{StatelessClient, accept_answer, answer_requests, request_state, result_text};

#[test]
fn parked_call_is_lost_with_killed_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--era", "legacy", "--ledger", ledger.to_str().unwrap()];
    let mut gateway = Gateway::start(&fixture_config("one", &args));
    gateway.wait_for_state("one", "ready");
    let arguments = json!({"key": "once"});
    let asked = StatelessClient::new(&gateway, "/mcp").call_tool("one__effect_asked", &arguments);
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, _| accept_answer("too late"));
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(&gateway, "/mcp");
    for _ in 0..3 {
        let answer = caller.retry_with_answers("one__effect_asked", &arguments, &given, &state);
        let data = &answer["error"]["data"];
        assert_eq!(data["code"], "input_lost", "{answer}");
        assert_eq!(data["execution"], "unknown", "{answer}");
        assert_eq!(data["retry"], "never", "{answer}");
    }
    let ran = std::fs::read_to_string(&ledger).unwrap();
    let times = ran.lines().filter(|line| line.contains("once")).count();
    assert_eq!(times, 1, "{ran}");
    // A client that wants another attempt sends a new request.
    let asked = caller.call_tool("one__effect_asked", &arguments);
    let given = answer_requests(&asked["result"], |_, _| accept_answer("in time"));
    let done = caller.retry_with_answers(
        "one__effect_asked",
        &arguments,
        &given,
        &request_state(&asked),
    );
    assert!(result_text(&done).contains("in time"), "{done}");
    let ran = std::fs::read_to_string(&ledger).unwrap();
    assert_eq!(ran.lines().filter(|line| line.contains("once")).count(), 2);
}

#[test]
fn parked_queued_write_resends_after_kill() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--era", "legacy", "--ledger", ledger.to_str().unwrap()];
    let queued = "[servers.one.tools.effect_asked]\nqueue = \"1h\"\n\
                  idempotency = \"argument:key\"\n";
    let mut gateway = Gateway::start(&(fixture_config("one", &args) + queued));
    gateway.wait_for_state("one", "ready");
    let arguments = json!({"key": "once"});
    let asked = StatelessClient::new(&gateway, "/mcp").call_tool("one__effect_asked", &arguments);
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, _| accept_answer("too late"));
    gateway.restart_after_kill();
    let caller = StatelessClient::new(&gateway, "/mcp");
    let answer = caller.retry_with_answers("one__effect_asked", &arguments, &given, &state);
    assert_eq!(answer["error"]["data"]["code"], "input_lost", "{answer}");
    // The server asks again, gets a refusal without a client, and does not act.
    let mut letters = json!([]);
    wait_until("it is a dead letter", || {
        letters = gateway.get_api("/api/v1/outbox")["entries"].clone();
        letters[0]["state"] == "dead"
    });
    assert_eq!(letters[0]["tool"], "effect_asked", "{letters}");
    // The server sees the same key both times, bound to the principal.
    let ran = std::fs::read_to_string(&ledger).unwrap();
    let keys: Vec<&str> = ran.lines().collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{ran}");
    // The key identifies the call: a repeated request gets its outcome.
    let again = caller.call_tool("one__effect_asked", &arguments);
    assert_eq!(again["error"]["data"]["code"], "not_stored", "{again}");
    assert_eq!(std::fs::read_to_string(&ledger).unwrap(), ran);
}
