//! Executors that listen, and are dialled by the gateway.

use serde_json::json;

use super::allow;
use crate::harness::executor::{Executor, fails, through};
use crate::harness::served::Served;
use crate::harness::{Gateway, Http};

const TOKEN: &str = "a-token-of-an-executor-that-listens";

/// The entry of an executor that is dialled.
fn entry(executor: &Executor, token: &str, more: &str) -> String {
    let address = executor.address();
    format!("[executors.office]\nurl = \"ws://{address}\"\ntoken = \"{token}\"\n{more}")
}

fn says_hi(gateway: &Gateway) {
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/servers/far/mcp");
    assert_eq!(session.text("echo", &json!({"message": "hi"})), "hi");
    assert_eq!(
        session.text("big", &json!({"bytes": 2_000_000})).len(),
        2_000_000
    );
}

#[test]
fn a_server_is_called_through_an_executor_that_the_gateway_dials() {
    let served = Served::start(&[]);
    let [flag, place] = allow(&served);
    let mut executor = Executor::listen(Some(TOKEN), "", &[&flag, &place]);
    assert_eq!(executor.ready["event"], "ready", "{}", executor.ready);
    let config = through("far", &served, "office") + &entry(&executor, TOKEN, "");
    let gateway = Gateway::up(&config);
    says_hi(&gateway);
    let shown = gateway.executor("office");
    assert_eq!(shown["via"], "dialled", "{shown}");
    // It comes back where it was.
    executor.kill();
    gateway.until_executor("office", false);
    executor.restart();
    gateway.until_executor("office", true);
    says_hi(&gateway);
    assert!(executor.stop());
    gateway.until_executor("office", false);
    let lost = gateway.executor("office")["lost"].to_string();
    // A close in order; what is dialled from then on is refused by nobody there.
    assert!(lost.contains("1001") || lost.contains("refused"), "{lost}");
}

#[test]
fn a_gateway_without_the_executors_token_is_not_let_in() {
    let served = Served::start(&[]);
    let [flag, place] = allow(&served);
    let executor = Executor::listen(Some(TOKEN), "", &[&flag, &place]);
    let config = through("far", &served, "office") + &entry(&executor, "another", "");
    let gateway = Gateway::up(&config);
    crate::harness::eventually("it is told why", || {
        let lost = gateway.executor("office")["lost"].to_string();
        lost.contains("401")
    });
    assert_eq!(gateway.executor("office")["connected"], false);
    // A page in a browser is refused whatever it has.
    let mut http = Http::connect(executor.address());
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Origin", "http://evil.example"),
    ];
    assert_eq!(http.get("/executor", &headers).status, 403);
    assert_eq!(
        Http::connect(executor.address()).get("/readyz", &[]).status,
        200
    );
    assert_eq!(
        Http::connect(executor.address())
            .get("/executor", &[])
            .status,
        401
    );
}

#[test]
fn an_executor_without_a_token_listens_on_this_machine_only() {
    let (exit, error) = fails(None, &["listen", "127.0.0.1:0"]);
    assert_eq!(
        (exit, &error["code"]),
        (Some(2), &json!("usage")),
        "{error}"
    );
    let (exit, error) = fails(None, &["listen", "0.0.0.0:0", "--insecure-no-auth"]);
    assert_eq!(
        (exit, &error["code"]),
        (Some(2), &json!("usage")),
        "{error}"
    );
    let (exit, _) = fails(
        Some(TOKEN),
        &["listen", "127.0.0.1:0", "--insecure-no-auth"],
    );
    assert_eq!(exit, Some(2));

    let served = Served::start(&[]);
    let [flag, place] = allow(&served);
    let executor = Executor::listen(None, "", &["--insecure-no-auth", &flag, &place]);
    let address = executor.address();
    let config = format!("[executors.office]\nurl = \"ws://{address}\"\n");
    says_hi(&Gateway::up(&(through("far", &served, "office") + &config)));
}

#[test]
fn executors_of_a_changed_config_are_dialled_and_others_are_hung_up() {
    let served = Served::start(&[]);
    let [flag, place] = allow(&served);
    let executor = Executor::listen(Some(TOKEN), "", &[&flag, &place]);
    let server = through("far", &served, "office");
    let gateway = Gateway::up(&server);
    assert_eq!(gateway.executor("office")["connected"], false);
    let with = server.clone() + &entry(&executor, TOKEN, "");
    gateway.reconfigure(&with);
    gateway.until_executor("office", true);
    says_hi(&gateway);
    gateway.reconfigure(&server);
    gateway.until_executor("office", false);
    gateway.reconfigure(&with);
    gateway.until_executor("office", true);
    says_hi(&gateway);
}

#[test]
fn a_name_that_is_dialled_cannot_be_joined_under() {
    let executor = Executor::listen(Some(TOKEN), "", &[]);
    let gateway = Gateway::up(&entry(&executor, TOKEN, super::ROLE));
    gateway.until_executor("office", true);
    let url = format!("http://{}", gateway.address);
    let token = gateway.token.clone();
    let (exit, error) = fails(Some(&token), &["join", &url, "--name", "office"]);
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
    assert_eq!(gateway.executor("office")["connected"], true);
}

#[test]
fn an_executor_that_speaks_as_an_exec_server_is_dialled_as_one() {
    let served = Served::start(&[]);
    let [flag, place] = allow(&served);
    let args = ["--protocol", "exec-server", &flag, &place];
    let executor = Executor::listen(Some(TOKEN), "", &args);
    let more = "protocol = \"exec-server\"\n";
    let config = through("far", &served, "office") + &entry(&executor, TOKEN, more);
    let gateway = Gateway::up(&config);
    says_hi(&gateway);
    let shown = gateway.executor("office");
    assert_eq!(shown["protocol"], "exec-server", "{shown}");
    let table = String::from_utf8(gateway.cli(&["executor", "ls"]).stdout).unwrap();
    assert!(table.contains("dialled (exec-server)"), "{table}");
}
