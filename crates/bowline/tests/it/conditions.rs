//! Conditions on arguments, over real sockets.

use serde_json::{Value, json};

use crate::harness::condition::{config, up};
use crate::harness::eventually;

fn reason(answer: &Value) -> String {
    assert_eq!(answer["error"]["data"]["code"], "policy_denied", "{answer}");
    assert_eq!(answer["error"]["data"]["execution"], "not_started");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_condition_decides_about_calls_and_hides_nothing() {
    let (gateway, mut session) = up("args.message.startsWith('/srv/') && principal == 'ann'");
    let all = session.tools();
    assert!(all.contains(&"one__echo".to_owned()) && all.len() > 2);
    assert_eq!(
        session.text("one__echo", &json!({"message": "/srv/a"})),
        "/srv/a"
    );
    let denied = reason(&session.call("one__echo", &json!({"message": "/etc/a"})));
    assert!(denied.contains("only when"), "{denied}");
    for arguments in [json!({}), json!({"message": 3}), json!({"other": "/srv/a"})] {
        let denied = reason(&session.call("one__echo", &arguments));
        assert!(denied.contains("cannot be decided"), "{denied}");
    }
    // Another tool is not its business.
    assert_eq!(session.text("one__add", &json!({"a": 1, "b": 2})), "3");
    assert_eq!(
        gateway.status("one")["calls"],
        2,
        "what was refused did not reach the server"
    );
}

#[test]
fn of_two_equal_members_a_condition_believes_neither() {
    let (_gateway, mut session) = up("args.message == 'good'");
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
fn a_condition_that_cannot_be_read_leaves_the_one_in_force() {
    let (gateway, mut session) = up("args.message == 'good'");
    let file = gateway.dir.path().join("bowline.toml");
    std::fs::write(&file, config("args.message ==")).unwrap();
    eventually("the file is refused", || {
        gateway.api("/api/v1/status")["config_error"].is_string()
    });
    reason(&session.call("one__echo", &json!({"message": "bad"})));
    assert_eq!(
        session.text("one__echo", &json!({"message": "good"})),
        "good"
    );
    let checked = gateway.cli(&["check", "--config", file.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(2));
    let shown = String::from_utf8(checked.stderr).unwrap();
    assert!(shown.contains("`if` is no condition"), "{shown}");
    std::fs::write(&file, config("args.message == 'bad'")).unwrap();
    eventually("the new one counts", || {
        session.call("one__echo", &json!({"message": "bad"}))["result"].is_object()
    });
}
