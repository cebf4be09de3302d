//! Queued writes of a run that ends before the delivery.

use bowline_testkit::gateway::{FixtureServer, Gateway};
use bowline_testkit::wait_until;
use serde_json::json;
use tempfile::TempDir;

use super::{ClientRun, list_tokens};

/// Queued writes of a run are delivered after the end of the run, but not after a revocation of the
/// run's token.
#[test]
fn queued_writes_of_run_outlive_it_unless_revoked() {
    let dir = TempDir::new().unwrap();
    let ledger = dir.path().join("ledger").display().to_string();
    let mut web = FixtureServer::start(&["--toolset", "writes", "--ledger", &ledger]);
    let config = format!(
        "[servers.web]\nurl = \"{}\"\nping = \"off\"\n\
         restart = {{ budget = 1000, window = \"1m\", backoff = \"10ms..100ms\" }}\n\
         breaker = {{ failures = 5, rest = \"100ms\" }}\n\
         [servers.web.tools.write_once]\nqueue = \"1h\"\nidempotency = \"header:Idempotency-Key\"\n",
        web.url
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("web", "ready");
    let mut ended = ClientRun::start(&gateway, &["claude"], |_| {});
    let mut revoked = ClientRun::start(&gateway, &["codex"], |_| {});
    let mut sessions = [&ended, &revoked].map(|run| gateway.open_session_as(&run.token, "/mcp"));
    web.kill();
    for (number, session) in (1..).zip(&mut sessions) {
        let said = session.call("web__write_once", &json!({"number": number}));
        assert_eq!(
            said["result"]["structuredContent"]["queued"], true,
            "{said}"
        );
    }
    assert_eq!(ended.end_client(0), Some(0));
    wait_until("its token is gone", || list_tokens(&gateway).len() == 1);
    let id = list_tokens(&gateway)[0]["id"].as_str().unwrap().to_owned();
    assert!(gateway.run_cli(&["token", "revoke", &id]).status.success());
    web.restart();
    let written = || std::fs::read_to_string(&ledger).unwrap_or_default();
    wait_until("the one is written", || written().lines().count() == 1);
    let waiting = gateway.get_api("/api/v1/outbox");
    assert!(
        !waiting.to_string().contains("\"state\":\"queued\""),
        "{waiting}"
    );
    assert_eq!(
        written().lines().count(),
        1,
        "the other is not: {}",
        written()
    );
    revoked.end_client(0);
}
