//! A request state is valid for a client, a request, and a single use.

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::{StatelessClient, accept_answer, answer_requests, request_state, result_text};

fn assert_refused(answer: &Value, execution: &str) {
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let data = &answer["error"]["data"];
    assert_eq!(data["code"], "input_refused", "{answer}");
    assert_eq!(data["execution"], execution, "{answer}");
}

#[test]
fn tampered_stolen_or_used_state_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let args = ["--era", "legacy", "--ledger", ledger.to_str().unwrap()];
    let role = "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";
    let config = fixture_config("one", &args) + role;
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(&gateway, "/mcp");
    let arguments = json!({"key": "k"});
    let asked = caller.call_tool("one__effect_asked", &arguments);
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, _| accept_answer("yes"));
    let again = |caller: &StatelessClient, arguments: &Value, state: &str| {
        caller.retry_with_answers("one__effect_asked", arguments, &given, state)
    };
    // Changed.
    assert_refused(
        &again(&caller, &arguments, &format!("{state}-TAMPERED")),
        "not_started",
    );
    assert_refused(&again(&caller, &arguments, ""), "not_started");
    let mut other = state.clone().into_bytes();
    other[40] = if other[40] == b'A' { b'B' } else { b'A' };
    let other = String::from_utf8(other).unwrap();
    assert_refused(&again(&caller, &arguments, &other), "not_started");
    // Of another principal, and at another endpoint.
    let made = gateway.run_cli(&[
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
    assert_refused(&again(&bob, &arguments, &state), "not_started");
    let elsewhere = caller.with_path("/servers/one/mcp");
    let answer = elsewhere.retry_with_answers("effect_asked", &arguments, &given, &state);
    assert_refused(&answer, "not_started");
    // For another request.
    assert_refused(&again(&caller, &json!({"key": "l"}), &state), "not_started");
    let answer = caller.retry_with_answers("one__effect", &arguments, &given, &state);
    assert_refused(&answer, "not_started");
    // Malformed answers.
    let answer =
        caller.retry_with_answers("one__effect_asked", &arguments, &json!({"a": 1}), &state);
    assert_refused(&answer, "not_started");
    // None of these used the state up; the first valid answer does.
    let done = again(&caller, &json!({ "key": "\u{6b}" }), &state);
    assert!(result_text(&done).contains("yes"), "{done}");
    assert_refused(&again(&caller, &arguments, &state), "unknown");
    // In any process of the server.
    let ran = std::fs::read_to_string(&ledger).unwrap();
    assert_eq!(ran.lines().count(), 1, "{ran}");
}

#[test]
fn revoked_token_ends_its_parked_calls() {
    let config = fixture_config("one", &["--era", "legacy"])
        + "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let made = gateway.run_cli(&[
        "token",
        "create",
        "--principal",
        "bob",
        "--role",
        "all",
        "--json",
    ]);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let bob = StatelessClient::new(&gateway, "/mcp").with_token(made["token"].as_str().unwrap());
    request_state(&bob.call_tool("one__effect_asked", &json!({"key": "bob"})));
    assert_eq!(gateway.server_status("one")["in_flight"], 1);
    let revoked = gateway.run_cli(&["token", "revoke", "bob"]);
    assert!(revoked.status.success(), "{revoked:?}");
    wait_until("it is over", || {
        gateway.server_status("one")["in_flight"] == 0
    });
}
