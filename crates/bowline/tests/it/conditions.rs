//! Conditions on arguments, over real sockets.

use bowline_testkit::gateway::{Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

/// Returns the configuration of a role `r` with `one.echo` allowed under this condition.
pub(crate) fn condition_config(condition: &str) -> String {
    format!(
        "[roles.r]\nallow = [\"one.*\"]\nwhen = [{{ on = \"one.echo\", if = {} }}]\n{}",
        json!(condition),
        fixture_config("one", &[])
    )
}

/// Starts a gateway with this condition, and opens a session of `ann` in the role `r`.
pub(crate) fn start_with_condition(condition: &str) -> (Gateway, Session) {
    let gateway = Gateway::start(&condition_config(condition));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let session = gateway.open_session_as(&token, "/mcp");
    (gateway, session)
}

fn denial_reason(answer: &Value) -> String {
    assert_eq!(answer["error"]["data"]["code"], "policy_denied", "{answer}");
    assert_eq!(answer["error"]["data"]["execution"], "not_started");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn condition_denies_calls_and_hides_nothing() {
    let (gateway, mut session) =
        start_with_condition("args.message.startsWith('/srv/') && principal == 'ann'");
    let all = session.list_tool_names();
    assert!(all.contains(&"one__echo".to_owned()) && all.len() > 2);
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "/srv/a"})),
        "/srv/a"
    );
    let denied = denial_reason(&session.call("one__echo", &json!({"message": "/etc/a"})));
    assert!(denied.contains("only when"), "{denied}");
    for arguments in [json!({}), json!({"message": 3}), json!({"other": "/srv/a"})] {
        let denied = denial_reason(&session.call("one__echo", &arguments));
        assert!(denied.contains("cannot be decided"), "{denied}");
    }
    // The condition does not apply to another tool.
    assert_eq!(session.call_text("one__add", &json!({"a": 1, "b": 2})), "3");
    assert_eq!(
        gateway.server_status("one")["calls"],
        2,
        "what was refused did not reach the server"
    );
}

#[test]
fn condition_refuses_duplicate_members() {
    let (_gateway, mut session) = start_with_condition("args.message == 'good'");
    for inside in [
        r#"{"message":"good","message":"bad"}"#,
        r#"{"message":"bad","message":"good"}"#,
        r#"{"message":"good","\u006dessage":"bad"}"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"one__echo","arguments":{inside}}}}}"#
        );
        let answer = session.post_raw(body.as_bytes()).json();
        assert!(answer["error"].is_object(), "{answer}");
    }
}

#[test]
fn invalid_condition_keeps_previous_one() {
    let (gateway, mut session) = start_with_condition("args.message == 'good'");
    let file = gateway.dir.path().join("bowline.toml");
    std::fs::write(&file, condition_config("args.message ==")).unwrap();
    wait_until("the file is refused", || {
        gateway.get_api("/api/v1/status")["config_error"].is_string()
    });
    denial_reason(&session.call("one__echo", &json!({"message": "bad"})));
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "good"})),
        "good"
    );
    let checked = gateway.run_cli(&["check", "--config", file.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(2));
    let shown = String::from_utf8(checked.stderr).unwrap();
    assert!(shown.contains("`if` is no condition"), "{shown}");
    std::fs::write(&file, condition_config("args.message == 'bad'")).unwrap();
    wait_until("the new one counts", || {
        session.call("one__echo", &json!({"message": "bad"}))["result"].is_object()
    });
}
