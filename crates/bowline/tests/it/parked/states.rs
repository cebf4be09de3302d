//! A state is good for who got it, for the request it was given for, and once.

use serde_json::{Value, json};

use super::{Caller, answers, said, state_of, text};
use crate::harness::{Gateway, fixture};

fn refused(answer: &Value, execution: &str) {
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let data = &answer["error"]["data"];
    assert_eq!(data["code"], "input_refused", "{answer}");
    assert_eq!(data["execution"], execution, "{answer}");
}

#[test]
fn a_state_that_was_changed_stolen_or_used_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--era", "legacy", "--ledger", ledger.to_str().unwrap()];
    let role = "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";
    let config = fixture("one", &args) + role;
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let caller = Caller::of(&gateway, "/mcp");
    let arguments = json!({"key": "k"});
    let asked = caller.call("one__effect_asked", &arguments);
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, _| said("yes"));
    let again = |caller: &Caller, arguments: &Value, state: &str| {
        caller.again("one__effect_asked", arguments, &given, state)
    };
    // Changed.
    refused(
        &again(&caller, &arguments, &format!("{state}-TAMPERED")),
        "not_started",
    );
    refused(&again(&caller, &arguments, ""), "not_started");
    let mut other = state.clone().into_bytes();
    other[40] = if other[40] == b'A' { b'B' } else { b'A' };
    let other = String::from_utf8(other).unwrap();
    refused(&again(&caller, &arguments, &other), "not_started");
    // Of somebody else, and elsewhere.
    let made = gateway.cli(&[
        "token",
        "create",
        "--principal",
        "bob",
        "--role",
        "all",
        "--json",
    ]);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let bob = caller.with_token(made["token"].as_str().unwrap());
    refused(&again(&bob, &arguments, &state), "not_started");
    let elsewhere = caller.at("/servers/one/mcp");
    let answer = elsewhere.again("effect_asked", &arguments, &given, &state);
    refused(&answer, "not_started");
    // For another request.
    refused(&again(&caller, &json!({"key": "l"}), &state), "not_started");
    let answer = caller.again("one__effect", &arguments, &given, &state);
    refused(&answer, "not_started");
    // Not an answer at all.
    let answer = caller.again("one__effect_asked", &arguments, &json!({"a": 1}), &state);
    refused(&answer, "not_started");
    // None of these used it up; the first good answer does.
    let done = again(&caller, &json!({ "key": "\u{6b}" }), &state);
    assert!(text(&done).contains("yes"), "{done}");
    refused(&again(&caller, &arguments, &state), "unknown");
    // Whichever process of the server it ran in.
    let ran = std::fs::read_to_string(&ledger).unwrap();
    assert_eq!(ran.lines().count(), 1, "{ran}");
}

#[test]
fn a_revoked_token_takes_its_waiting_calls_with_it() {
    let config = fixture("one", &["--era", "legacy"])
        + "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let made = gateway.cli(&[
        "token",
        "create",
        "--principal",
        "bob",
        "--role",
        "all",
        "--json",
    ]);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let bob = Caller::of(&gateway, "/mcp").with_token(made["token"].as_str().unwrap());
    state_of(&bob.call("one__effect_asked", &json!({"key": "bob"})));
    assert_eq!(gateway.status("one")["in_flight"], 1);
    let revoked = gateway.cli(&["token", "revoke", "bob"]);
    assert!(revoked.status.success(), "{revoked:?}");
    crate::harness::eventually("it is over", || gateway.status("one")["in_flight"] == 0);
}
