//! A gateway that dies between two rounds: the caller is told, and nothing runs twice.

use serde_json::json;

use super::{Caller, answers, said, state_of, text};
use crate::harness::{Gateway, eventually, fixture};

#[test]
fn a_call_that_waited_in_a_killed_gateway_is_lost_and_never_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--era", "legacy", "--ledger", ledger.to_str().unwrap()];
    let mut gateway = Gateway::up(&fixture("one", &args));
    gateway.wait_for("one", "ready");
    let arguments = json!({"key": "once"});
    let asked = Caller::of(&gateway, "/mcp").call("one__effect_asked", &arguments);
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, _| said("too late"));
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    let caller = Caller::of(&gateway, "/mcp");
    for _ in 0..3 {
        let answer = caller.again("one__effect_asked", &arguments, &given, &state);
        let data = &answer["error"]["data"];
        assert_eq!(data["code"], "input_lost", "{answer}");
        assert_eq!(data["execution"], "unknown", "{answer}");
        assert_eq!(data["retry"], "never", "{answer}");
    }
    let ran = std::fs::read_to_string(&ledger).unwrap();
    let times = ran.lines().filter(|line| line.contains("once")).count();
    assert_eq!(times, 1, "{ran}");
    // Whoever wants it again says so, with a request of its own.
    let asked = caller.call("one__effect_asked", &arguments);
    let given = answers(&asked["result"], |_, _| said("in time"));
    let done = caller.again("one__effect_asked", &arguments, &given, &state_of(&asked));
    assert!(text(&done).contains("in time"), "{done}");
    let ran = std::fs::read_to_string(&ledger).unwrap();
    assert_eq!(ran.lines().filter(|line| line.contains("once")).count(), 2);
}

#[test]
fn a_queued_write_that_waited_in_a_killed_gateway_is_sent_again_under_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--era", "legacy", "--ledger", ledger.to_str().unwrap()];
    let queued = "[servers.one.tools.effect_asked]\nqueue = \"1h\"\n\
                  idempotency = \"argument:key\"\n";
    let mut gateway = Gateway::up(&(fixture("one", &args) + queued));
    gateway.wait_for("one", "ready");
    let arguments = json!({"key": "once"});
    let asked = Caller::of(&gateway, "/mcp").call("one__effect_asked", &arguments);
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, _| said("too late"));
    gateway.restart_after_kill();
    let caller = Caller::of(&gateway, "/mcp");
    let answer = caller.again("one__effect_asked", &arguments, &given, &state);
    assert_eq!(answer["error"]["data"]["code"], "input_lost", "{answer}");
    // The server asks again, is told that nobody is there, and does not do it.
    let mut letters = json!([]);
    eventually("it is a dead letter", || {
        letters = gateway.api("/api/v1/outbox")["entries"].clone();
        letters[0]["state"] == "dead"
    });
    assert_eq!(letters[0]["tool"], "effect_asked", "{letters}");
    // The server knows it by a key that is bound to the principal, the same both times.
    let ran = std::fs::read_to_string(&ledger).unwrap();
    let keys: Vec<&str> = ran.lines().collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{ran}");
    // The key stands for that call: whoever comes with it is told how it ended.
    let again = caller.call("one__effect_asked", &arguments);
    assert_eq!(again["error"]["data"]["code"], "not_stored", "{again}");
    assert_eq!(std::fs::read_to_string(&ledger).unwrap(), ran);
}
