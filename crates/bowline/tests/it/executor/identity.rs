//! Identity of executors: principals and executor names.

use bowline_testkit::gateway::{
    Executor, FixtureServer, Gateway, HttpConnection, executor_server_config, run_failing_executor,
    write_private_file,
};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::{ROLE, allow_arguments, start_office};
use crate::events::EventWatcher;

/// Rights of a principal with several executor names.
const LAB: &str = "[principals.lab]\nexecutors = [\"lab-*\", \"attic\"]\n";

/// A principal with the executor of the same name.
const OTHER: &str = "[principals.other]\nexecutors = [\"other\"]\n";

const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn try_join(gateway: &Gateway, name: &str, token: &str) -> (Option<i32>, Value) {
    let url = format!("http://{}", gateway.address);
    run_failing_executor(Some(token), &["join", &url, "--name", name])
}

#[test]
fn executor_name_comes_from_principal_or_config() {
    let gateway = Gateway::start(&format!("{ROLE}{LAB}{OTHER}"));
    let lab = gateway.executor_token("lab");
    let other = gateway.executor_token("other");
    let owner = gateway.token.clone();
    for (name, token) in [
        ("lab", &lab),
        ("lab-1", &lab),
        ("attic", &lab),
        ("other", &other),
        ("any", &owner),
    ] {
        let executor = Executor::join(&gateway, name, token, "", &[]);
        assert_eq!(executor.ready["connected"], true, "{name}");
    }
    let mut watcher = EventWatcher::start(&gateway);
    for (name, token) in [("office", &lab), ("lab-1", &other), ("attics", &lab)] {
        let (exit, error) = try_join(&gateway, name, token);
        assert_eq!(
            (exit, &error["code"]),
            (Some(3), &json!("auth")),
            "{name}: {error}"
        );
        let said = error["message"].as_str().unwrap();
        assert!(
            said.contains("the credential does not allow this"),
            "{said}"
        );
        let told = watcher
            .next_matching(|told| told.name == "executor" && told.data["state"] == "refused");
        assert_eq!(told.data["name"], name, "{told:?}");
    }
    wait_until("each left a row", || {
        let rows = gateway.get_api("/api/v1/audit?kind=denied&limit=100");
        let rows = rows["rows"].as_array().unwrap().clone();
        let ours = rows
            .iter()
            .filter(|row| row.to_string().contains("executor.hello"));
        ours.count() == 3
    });
}

#[test]
fn invalid_executor_names_are_refused_before_dialling() {
    for name in ["", "Office", "a_b", "../x", "-a", &"a".repeat(33)] {
        let (exit, error) =
            run_failing_executor(Some("t"), &["join", "http://127.0.0.1:1", "--name", name]);
        assert_eq!(exit, Some(2), "{name}: {error}");
    }
    let (exit, error) = run_failing_executor(Some("t"), &["join", "ftp://h", "--name", "a"]);
    assert_eq!(exit, Some(2), "{error}");
    let (exit, error) = run_failing_executor(None, &["join", "http://127.0.0.1:1", "--name", "a"]);
    assert_eq!(exit, Some(2), "{error}");
    let args = [
        "join",
        "http://127.0.0.1:1",
        "--name",
        "a",
        "--allow",
        "https://h/",
    ];
    let (exit, error) = run_failing_executor(Some("t"), &args);
    assert_eq!(exit, Some(2), "{error}");
    assert!(
        error["message"].as_str().unwrap().contains("HOST:PORT"),
        "{error}"
    );
}

/// Only a complete WebSocket handshake with a credential in its header is accepted.
#[test]
fn executor_handshake_needs_header_credential() {
    let gateway = Gateway::start(ROLE);
    let status = |path: &str, headers: &[(&str, &str)]| {
        let mut http = HttpConnection::connect(gateway.address);
        http.send_request("GET", path, headers, b"");
        http.read_head().status
    };
    let bearer = format!("Bearer {}", gateway.token);
    let with = |more: &[(&'static str, &str)]| {
        let mut headers = HANDSHAKE.to_vec();
        headers.extend_from_slice(more);
        status("/executor", &headers)
    };
    assert_eq!(with(&[("Authorization", &bearer)]), 101);
    assert_eq!(with(&[]), 401);
    assert_eq!(with(&[("Authorization", "Bearer no")]), 401);
    assert_eq!(
        with(&[
            ("Authorization", &bearer),
            ("Origin", "http://evil.example")
        ]),
        403
    );
    assert_eq!(
        with(&[("Authorization", &bearer), ("Host", "evil.example")]),
        403
    );
    assert_eq!(status("/executor", &[("Authorization", &bearer)]), 426);
    assert_eq!(status("/executor?token=x", &HANDSHAKE), 400);
    assert_eq!(status("/executor/", &HANDSHAKE), 404);
    let (exit, error) = try_join(&gateway, "a", "no-such-token");
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
}

#[test]
fn revoked_executor_returns_with_new_token() {
    let served = FixtureServer::start(&[]);
    let gateway = Gateway::start(&(executor_server_config("far", &served, "office") + ROLE));
    let wanted = json!({"principal": "office", "kind": "executor"});
    let (id, token) = gateway.create_token(&wanted);
    let [flag, place] = allow_arguments(&served);
    let executor = Executor::join(&gateway, "office", &token, "", &[&flag, &place]);
    gateway.wait_for_state("far", "ready");
    let revoked = gateway.run_cli(&["token", "revoke", &id]);
    assert!(revoked.status.success(), "{revoked:?}");
    gateway.wait_for_executor("office", false);
    let lost = gateway.executor_status("office");
    let next = gateway.executor_token("office");
    write_private_file(&executor.token_file(), &next);
    gateway.wait_for_executor("office", true);
    assert!(lost["lost"].is_string(), "{lost}");
    wait_until("it is called again", || {
        let mut session = gateway.open_session("/servers/far/mcp");
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
}

/// An executor is disconnected when the principal loses the name; unrelated executors stay.
#[test]
fn executor_that_lost_name_is_disconnected() {
    let gateway = Gateway::start(&format!("{ROLE}{LAB}"));
    let lab = gateway.executor_token("lab");
    let _attic = Executor::join(&gateway, "attic", &lab, "", &[]);
    let _one = Executor::join(&gateway, "lab-1", &lab, "", &[]);
    gateway.reconfigure(&format!("{ROLE}{}", LAB.replace("attic", "cellar")));
    gateway.wait_for_executor("attic", false);
    assert_eq!(gateway.executor_status("lab-1")["connected"], true);
    gateway.reconfigure(&format!("{ROLE}{LAB}"));
    gateway.wait_for_executor("attic", true);
}

#[test]
fn newer_executor_replaces_older_of_same_name() {
    let (served, gateway, mut first) = start_office();
    gateway.wait_for_state("far", "ready");
    let token = gateway.executor_token("office");
    let [flag, place] = allow_arguments(&served);
    let _second = Executor::join(&gateway, "office", &token, "", &[&flag, &place]);
    assert_eq!(first.wait_for_exit().code(), Some(1));
    // The older executor is disconnected before the newer is registered.
    gateway.wait_for_executor("office", true);
    wait_until("it is called through the newer", || {
        let mut session = gateway.open_session("/servers/far/mcp");
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
}
