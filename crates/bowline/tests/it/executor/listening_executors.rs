//! Executors that listen and are dialled by the gateway.

use bowline_testkit::gateway::{
    Executor, FixtureServer, Gateway, HttpConnection, executor_server_config, run_failing_executor,
};
use bowline_testkit::wait_until;
use serde_json::json;

use super::allow_arguments;

const TOKEN: &str = "a-token-of-an-executor-that-listens";

/// The entry of a dialled executor.
fn executor_entry(executor: &Executor, token: &str, more: &str) -> String {
    let address = executor.address();
    format!("[executors.office]\nurl = \"ws://{address}\"\ntoken = \"{token}\"\n{more}")
}

fn assert_call_works(gateway: &Gateway) {
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/servers/far/mcp");
    assert_eq!(session.call_text("echo", &json!({"message": "hi"})), "hi");
    assert_eq!(
        session.call_text("big", &json!({"bytes": 2_000_000})).len(),
        2_000_000
    );
}

#[test]
fn dialled_executor_calls_server() {
    let served = FixtureServer::start(&[]);
    let [flag, place] = allow_arguments(&served);
    let mut executor = Executor::listen(Some(TOKEN), "", &[&flag, &place]);
    assert_eq!(executor.ready["event"], "ready", "{}", executor.ready);
    let config =
        executor_server_config("far", &served, "office") + &executor_entry(&executor, TOKEN, "");
    let gateway = Gateway::start(&config);
    assert_call_works(&gateway);
    let shown = gateway.executor_status("office");
    assert_eq!(shown["via"], "dialled", "{shown}");
    // The executor restarts at the same address.
    executor.kill();
    gateway.wait_for_executor("office", false);
    executor.restart();
    gateway.wait_for_executor("office", true);
    assert_call_works(&gateway);
    assert!(executor.stop());
    gateway.wait_for_executor("office", false);
    let lost = gateway.executor_status("office")["lost"].to_string();
    // An orderly close, or a refused connection to the closed port.
    assert!(lost.contains("1001") || lost.contains("refused"), "{lost}");
}

#[test]
fn listening_executor_refuses_gateway_without_token() {
    let served = FixtureServer::start(&[]);
    let [flag, place] = allow_arguments(&served);
    let executor = Executor::listen(Some(TOKEN), "", &[&flag, &place]);
    let config = executor_server_config("far", &served, "office")
        + &executor_entry(&executor, "another", "");
    let gateway = Gateway::start(&config);
    wait_until("it is told why", || {
        let lost = gateway.executor_status("office")["lost"].to_string();
        lost.contains("401")
    });
    assert_eq!(gateway.executor_status("office")["connected"], false);
    // A browser origin is refused with any credential.
    let mut http = HttpConnection::connect(executor.address());
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", &bearer[..]),
        ("Origin", "http://evil.example"),
    ];
    assert_eq!(http.get("/executor", &headers).status, 403);
    assert_eq!(
        HttpConnection::connect(executor.address())
            .get("/readyz", &[])
            .status,
        200
    );
    assert_eq!(
        HttpConnection::connect(executor.address())
            .get("/executor", &[])
            .status,
        401
    );
}

#[test]
fn executor_without_token_listens_on_loopback_only() {
    let (exit, error) = run_failing_executor(None, &["listen", "127.0.0.1:0"]);
    assert_eq!(
        (exit, &error["code"]),
        (Some(2), &json!("usage")),
        "{error}"
    );
    let (exit, error) = run_failing_executor(None, &["listen", "0.0.0.0:0", "--insecure-no-auth"]);
    assert_eq!(
        (exit, &error["code"]),
        (Some(2), &json!("usage")),
        "{error}"
    );
    let (exit, _) = run_failing_executor(
        Some(TOKEN),
        &["listen", "127.0.0.1:0", "--insecure-no-auth"],
    );
    assert_eq!(exit, Some(2));

    let served = FixtureServer::start(&[]);
    let [flag, place] = allow_arguments(&served);
    let executor = Executor::listen(None, "", &["--insecure-no-auth", &flag, &place]);
    let address = executor.address();
    let config = format!("[executors.office]\nurl = \"ws://{address}\"\n");
    assert_call_works(&Gateway::start(
        &(executor_server_config("far", &served, "office") + &config),
    ));
}

/// After a config change the gateway dials new executors and disconnects removed ones.
#[test]
fn config_change_dials_and_drops_executors() {
    let served = FixtureServer::start(&[]);
    let [flag, place] = allow_arguments(&served);
    let executor = Executor::listen(Some(TOKEN), "", &[&flag, &place]);
    let server = executor_server_config("far", &served, "office");
    let gateway = Gateway::start(&server);
    assert_eq!(gateway.executor_status("office")["connected"], false);
    let with = server.clone() + &executor_entry(&executor, TOKEN, "");
    gateway.reconfigure(&with);
    gateway.wait_for_executor("office", true);
    assert_call_works(&gateway);
    gateway.reconfigure(&server);
    gateway.wait_for_executor("office", false);
    gateway.reconfigure(&with);
    gateway.wait_for_executor("office", true);
    assert_call_works(&gateway);
}

#[test]
fn dialled_executor_name_cannot_join() {
    let executor = Executor::listen(Some(TOKEN), "", &[]);
    let gateway = Gateway::start(&executor_entry(&executor, TOKEN, super::ROLE));
    gateway.wait_for_executor("office", true);
    let url = format!("http://{}", gateway.address);
    let token = gateway.token.clone();
    let (exit, error) = run_failing_executor(Some(&token), &["join", &url, "--name", "office"]);
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
    assert_eq!(gateway.executor_status("office")["connected"], true);
}

#[test]
fn exec_server_mode_executor_is_dialled() {
    let served = FixtureServer::start(&[]);
    let [flag, place] = allow_arguments(&served);
    let args = ["--protocol", "exec-server", &flag, &place];
    let executor = Executor::listen(Some(TOKEN), "", &args);
    let more = "protocol = \"exec-server\"\n";
    let config =
        executor_server_config("far", &served, "office") + &executor_entry(&executor, TOKEN, more);
    let gateway = Gateway::start(&config);
    assert_call_works(&gateway);
    let shown = gateway.executor_status("office");
    assert_eq!(shown["protocol"], "exec-server", "{shown}");
    let table = String::from_utf8(gateway.run_cli(&["executor", "ls"]).stdout).unwrap();
    assert!(table.contains("dialled (exec-server)"), "{table}");
}
