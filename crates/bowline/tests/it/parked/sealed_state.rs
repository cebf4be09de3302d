//! States of modern servers: sealed for the client, returned to the server unchanged.

use bowline_testkit::gateway::{Gateway, fixture_config};
use serde_json::json;

use super::{StatelessClient, answer_requests, request_state, result_text};

#[test]
fn modern_server_state_is_sealed() {
    let role = "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";
    let gateway = Gateway::start(&(fixture_config("one", &["--era", "modern"]) + role));
    gateway.wait_for_state("one", "ready");
    let caller = StatelessClient::new(&gateway, "/mcp");
    let tool = "one__test_input_required_result_request_state";
    let asked = caller.call_tool(tool, &json!({}));
    let state = request_state(&asked);
    let given = answer_requests(&asked["result"], |_, question| {
        // Every server request contains the server name.
        assert_eq!(question["params"]["_meta"]["dev.bowline/server"], "one");
        json!({"action": "accept", "content": {"ok": true}})
    });
    let done = caller.retry_with_answers(tool, &json!({}), &given, &state);
    assert!(!result_text(&done).is_empty(), "{done}");
    let made = gateway.run_cli(&[
        "token",
        "create",
        "--principal",
        "bob",
        "--role",
        "all",
        "--json",
    ]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let bob = caller.with_token(made["token"].as_str().unwrap());
    let other = "one__test_input_required_result_elicitation";
    for refused in [
        caller.retry_with_answers(tool, &json!({}), &given, &format!("{state}-TAMPERED")),
        bob.retry_with_answers(tool, &json!({}), &given, &state),
        caller.retry_with_answers(other, &json!({}), &given, &state),
    ] {
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        assert_eq!(
            refused["error"]["data"]["code"], "input_refused",
            "{refused}"
        );
    }
}
