//! States of servers of the same era: carried sealed, and given back as they were.

use serde_json::json;

use super::{Caller, answers, state_of, text};
use crate::harness::{Gateway, fixture};

#[test]
fn the_state_of_a_modern_server_is_sealed_on_its_way() {
    let role = "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";
    let gateway = Gateway::up(&(fixture("one", &["--era", "modern"]) + role));
    gateway.wait_for("one", "ready");
    let caller = Caller::of(&gateway, "/mcp");
    let tool = "one__test_input_required_result_request_state";
    let asked = caller.call(tool, &json!({}));
    let state = state_of(&asked);
    let given = answers(&asked["result"], |_, question| {
        // Like every other, it says who asks.
        assert_eq!(question["params"]["_meta"]["dev.bowline/server"], "one");
        json!({"action": "accept", "content": {"ok": true}})
    });
    let done = caller.again(tool, &json!({}), &given, &state);
    assert!(!text(&done).is_empty(), "{done}");
    let made = gateway.cli(&[
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
        caller.again(tool, &json!({}), &given, &format!("{state}-TAMPERED")),
        bob.again(tool, &json!({}), &given, &state),
        caller.again(other, &json!({}), &given, &state),
    ] {
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        assert_eq!(
            refused["error"]["data"]["code"], "input_refused",
            "{refused}"
        );
    }
}
