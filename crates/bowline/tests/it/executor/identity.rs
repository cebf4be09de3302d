//! Who may be which executor.

use serde_json::{Value, json};

use super::{ROLE, allow, office};
use crate::events::Watcher;
use crate::harness::executor::{Executor, fails, through};
use crate::harness::served::Served;
use crate::harness::worker::write_private;
use crate::harness::{Gateway, Http, eventually};

/// Rights of a principal that may be some executors.
const LAB: &str = "[principals.lab]\nexecutors = [\"lab-*\", \"attic\"]\n";

/// A principal that may be the executor of its own name.
const OTHER: &str = "[principals.other]\nexecutors = [\"other\"]\n";

const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn join(gateway: &Gateway, name: &str, token: &str) -> (Option<i32>, Value) {
    let url = format!("http://{}", gateway.address);
    fails(Some(token), &["join", &url, "--name", name])
}

#[test]
fn a_principal_is_the_executor_of_its_own_name_or_of_one_that_the_config_gives_it() {
    let gateway = Gateway::up(&format!("{ROLE}{LAB}{OTHER}"));
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
        let executor = Executor::join(&gateway, (name, token), "", &[]);
        assert_eq!(executor.ready["connected"], true, "{name}");
    }
    let mut watcher = Watcher::start(&gateway);
    for (name, token) in [("office", &lab), ("lab-1", &other), ("attics", &lab)] {
        let (exit, error) = join(&gateway, name, token);
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
        let told = watcher.until(|told| told.name == "executor" && told.data["state"] == "refused");
        assert_eq!(told.data["name"], name, "{told:?}");
    }
    eventually("each left a row", || {
        let rows = gateway.api("/api/v1/audit?kind=denied&limit=100");
        let rows = rows["rows"].as_array().unwrap().clone();
        let ours = rows
            .iter()
            .filter(|row| row.to_string().contains("executor.hello"));
        ours.count() == 3
    });
}

#[test]
fn names_that_are_none_are_refused_before_anything_is_dialled() {
    for name in ["", "Office", "a_b", "../x", "-a", &"a".repeat(33)] {
        let (exit, error) = fails(Some("t"), &["join", "http://127.0.0.1:1", "--name", name]);
        assert_eq!(exit, Some(2), "{name}: {error}");
    }
    let (exit, error) = fails(Some("t"), &["join", "ftp://h", "--name", "a"]);
    assert_eq!(exit, Some(2), "{error}");
    let (exit, error) = fails(None, &["join", "http://127.0.0.1:1", "--name", "a"]);
    assert_eq!(exit, Some(2), "{error}");
    let args = [
        "join",
        "http://127.0.0.1:1",
        "--name",
        "a",
        "--allow",
        "https://h/",
    ];
    let (exit, error) = fails(Some("t"), &args);
    assert_eq!(exit, Some(2), "{error}");
    assert!(
        error["message"].as_str().unwrap().contains("HOST:PORT"),
        "{error}"
    );
}

#[test]
fn only_a_whole_handshake_with_a_credential_in_its_header_comes_in() {
    let gateway = Gateway::up(ROLE);
    let status = |path: &str, headers: &[(&str, &str)]| {
        let mut http = Http::connect(gateway.address);
        http.send("GET", path, headers, b"");
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
    let (exit, error) = join(&gateway, "a", "no-such-token");
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
}

#[test]
fn a_revoked_token_cuts_its_executor_off_and_a_new_one_in_its_file_brings_it_back() {
    let served = Served::start(&[]);
    let gateway = Gateway::up(&(through("far", &served, "office") + ROLE));
    let wanted = json!({"principal": "office", "kind": "executor"});
    let (id, token) = gateway.token_of(&wanted);
    let [flag, place] = allow(&served);
    let executor = Executor::join(&gateway, ("office", &token), "", &[&flag, &place]);
    gateway.wait_for("far", "ready");
    let revoked = gateway.cli(&["token", "revoke", &id]);
    assert!(revoked.status.success(), "{revoked:?}");
    gateway.until_executor("office", false);
    let lost = gateway.executor("office");
    let next = gateway.executor_token("office");
    write_private(&executor.token_file(), &next);
    gateway.until_executor("office", true);
    assert!(lost["lost"].is_string(), "{lost}");
    eventually("it is called again", || {
        let mut session = gateway.session("/servers/far/mcp");
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
}

#[test]
fn an_executor_whose_name_is_taken_from_its_principal_is_cut_off_and_others_stay() {
    let gateway = Gateway::up(&format!("{ROLE}{LAB}"));
    let lab = gateway.executor_token("lab");
    let _attic = Executor::join(&gateway, ("attic", &lab), "", &[]);
    let _one = Executor::join(&gateway, ("lab-1", &lab), "", &[]);
    gateway.reconfigure(&format!("{ROLE}{}", LAB.replace("attic", "cellar")));
    gateway.until_executor("attic", false);
    assert_eq!(gateway.executor("lab-1")["connected"], true);
    gateway.reconfigure(&format!("{ROLE}{LAB}"));
    gateway.until_executor("attic", true);
}

#[test]
fn of_two_executors_with_one_name_the_newer_serves_and_the_older_ends() {
    let (served, gateway, mut first) = office();
    gateway.wait_for("far", "ready");
    let token = gateway.executor_token("office");
    let [flag, place] = allow(&served);
    let _second = Executor::join(&gateway, ("office", &token), "", &[&flag, &place]);
    assert_eq!(first.wait().code(), Some(1));
    // The older is let go before the newer is taken in.
    gateway.until_executor("office", true);
    eventually("it is called through the newer", || {
        let mut session = gateway.session("/servers/far/mcp");
        let answer = session.call("echo", &json!({"message": "hi"}));
        answer["result"]["content"][0]["text"] == "hi"
    });
}
