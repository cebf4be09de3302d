//! Writes that an agent was told are queued, when its run is over before they are delivered.

use serde_json::json;
use tempfile::TempDir;

use super::{Run, tokens};
use crate::harness::served::Served;
use crate::harness::{Gateway, eventually};

#[test]
fn what_a_run_queued_is_delivered_after_its_end_and_not_after_a_person_took_its_token_back() {
    let dir = TempDir::new().unwrap();
    let ledger = dir.path().join("ledger").display().to_string();
    let mut web = Served::start(&["--toolset", "writes", "--ledger", &ledger]);
    let config = format!(
        "[servers.web]\nurl = \"{}\"\nping = \"off\"\n\
         restart = {{ budget = 1000, window = \"1m\", backoff = \"10ms..100ms\" }}\n\
         breaker = {{ failures = 5, rest = \"100ms\" }}\n\
         [servers.web.tools.write_once]\nqueue = \"1h\"\nidempotency = \"header:Idempotency-Key\"\n",
        web.url
    );
    let gateway = Gateway::up(&config);
    gateway.wait_for("web", "ready");
    let mut ended = Run::start(&gateway, &["claude"], |_| {});
    let mut revoked = Run::start(&gateway, &["codex"], |_| {});
    let mut sessions = [&ended, &revoked].map(|run| gateway.session_as(&run.token, "/mcp"));
    web.kill();
    for (number, session) in (1..).zip(&mut sessions) {
        let said = session.call("web__write_once", &json!({"number": number}));
        assert_eq!(
            said["result"]["structuredContent"]["queued"], true,
            "{said}"
        );
    }
    assert_eq!(ended.end(0), Some(0));
    eventually("its token is gone", || tokens(&gateway).len() == 1);
    let id = tokens(&gateway)[0]["id"].as_str().unwrap().to_owned();
    assert!(gateway.cli(&["token", "revoke", &id]).status.success());
    web.restart();
    let written = || std::fs::read_to_string(&ledger).unwrap_or_default();
    eventually("the one is written", || written().lines().count() == 1);
    let waiting = gateway.api("/api/v1/outbox");
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
    revoked.end(0);
}
