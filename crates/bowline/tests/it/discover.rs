//! Discovery lists all tools of all servers concurrently.

use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, fixture_config};
use serde_json::{Value, json};

fn discover_entries(gateway: &Gateway, query: &str) -> Vec<Value> {
    let answer = gateway.get_api(&format!("/api/v1/discover{query}"));
    assert_eq!(answer["v"], 1, "{answer}");
    answer["entries"].as_array().unwrap().clone()
}

fn entries_of_server<'a>(entries: &'a [Value], server: &str) -> Vec<&'a Value> {
    let own = entries.iter().filter(|entry| entry["server"] == server);
    own.collect()
}

#[test]
fn discover_reports_failing_servers_without_delay() {
    let config = [
        fixture_config("paged", &["--fault", "pages=2"]),
        fixture_config("plain", &[]),
        fixture_config("hung", &["--fault", "hang-at-start"]),
        fixture_config("hung-too", &["--fault", "hang-at-start"]),
        fixture_config("dead", &["--fault", "exit-at-start=3"]),
        "restart = { backoff = \"30s..60s\" }\n".to_owned(),
        fixture_config("off", &[]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("plain", "ready");
    gateway.wait_for_state("paged", "ready");
    gateway.wait_for_state("dead", "backoff");
    gateway.wait_for_state("off", "ready");
    gateway.control_server("off", "stop");
    let asked = Instant::now();
    let all = discover_entries(&gateway, "?timeout_ms=700");
    let took = asked.elapsed();
    // Two hanging servers in sequence would take twice as long.
    assert!(took >= Duration::from_millis(700), "{took:?}");
    assert!(took < Duration::from_millis(1_400), "{took:?}");

    let plain = entries_of_server(&all, "plain");
    assert!(plain.len() >= 5, "{plain:?}");
    assert_eq!(
        entries_of_server(&all, "paged").len(),
        plain.len(),
        "all pages"
    );
    let echo = plain.iter().find(|entry| entry["tool"] == "echo").unwrap();
    assert_eq!(echo["schema"]["type"], "object", "{echo}");
    assert!(echo.get("error").is_none(), "{echo}");
    for (server, class, part) in [
        ("hung", "unavailable", "`hung` did not start in time"),
        ("hung-too", "unavailable", "did not start in time"),
        ("dead", "connect_failed", "exit code 3"),
        ("off", "unavailable", "stopped"),
    ] {
        let found = entries_of_server(&all, server);
        assert_eq!(found.len(), 1, "{server}: {found:?}");
        let error = &found[0]["error"];
        assert_eq!(error["class"], class, "{server}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{server}: {message}");
        assert!(found[0].get("tool").is_none());
    }
}

#[test]
fn discover_starts_lazy_server_without_known_tools() {
    let mut gateway = Gateway::start(&(fixture_config("one", &[]) + "lazy = true\n"));
    assert_eq!(gateway.server_status("one")["generation"], 0);
    let first = discover_entries(&gateway, "");
    assert!(entries_of_server(&first, "one").len() >= 5, "{first:?}");
    assert_eq!(gateway.server_status("one")["generation"], 1);
    assert!(gateway.stop());
    gateway.restart();
    assert_eq!(discover_entries(&gateway, ""), first);
    let one = gateway.server_status("one");
    assert_eq!(
        (&one["state"], &one["generation"]),
        (&json!("idle"), &json!(0))
    );
    assert_eq!(one["manifest"], "last_known");
}
