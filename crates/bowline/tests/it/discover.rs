//! All tools of all servers, asked side by side.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, fixture};

fn entries(gateway: &Gateway, query: &str) -> Vec<Value> {
    let answer = gateway.api(&format!("/api/v1/discover{query}"));
    assert_eq!(answer["v"], 1, "{answer}");
    answer["entries"].as_array().unwrap().clone()
}

fn of<'a>(entries: &'a [Value], server: &str) -> Vec<&'a Value> {
    let own = entries.iter().filter(|entry| entry["server"] == server);
    own.collect()
}

#[test]
fn servers_that_hang_or_fail_stand_beside_the_others_and_hold_up_nobody() {
    let config = [
        fixture("paged", &["--fault", "pages=2"]),
        fixture("plain", &[]),
        fixture("hung", &["--fault", "hang-at-start"]),
        fixture("hung-too", &["--fault", "hang-at-start"]),
        fixture("dead", &["--fault", "exit-at-start=3"]),
        "restart = { backoff = \"30s..60s\" }\n".to_owned(),
        fixture("off", &[]),
    ]
    .concat();
    let gateway = Gateway::up(&config);
    gateway.wait_for("plain", "ready");
    gateway.wait_for("paged", "ready");
    gateway.wait_for("dead", "backoff");
    gateway.wait_for("off", "ready");
    gateway.order("off", "stop");
    let asked = Instant::now();
    let all = entries(&gateway, "?timeout_ms=700");
    let took = asked.elapsed();
    // Two that hang, one after the other, would take twice as long.
    assert!(took >= Duration::from_millis(700), "{took:?}");
    assert!(took < Duration::from_millis(1_400), "{took:?}");

    let plain = of(&all, "plain");
    assert!(plain.len() >= 5, "{plain:?}");
    assert_eq!(of(&all, "paged").len(), plain.len(), "all pages");
    let echo = plain.iter().find(|entry| entry["tool"] == "echo").unwrap();
    assert_eq!(echo["schema"]["type"], "object", "{echo}");
    assert!(echo.get("error").is_none(), "{echo}");
    for (server, class, part) in [
        ("hung", "unavailable", "`hung` did not start in time"),
        ("hung-too", "unavailable", "did not start in time"),
        ("dead", "connect_failed", "exit code 3"),
        ("off", "unavailable", "stopped"),
    ] {
        let found = of(&all, server);
        assert_eq!(found.len(), 1, "{server}: {found:?}");
        let error = &found[0]["error"];
        assert_eq!(error["class"], class, "{server}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{server}: {message}");
        assert!(found[0].get("tool").is_none());
    }
}

#[test]
fn a_lazy_server_is_started_only_where_nobody_knows_its_tools() {
    let mut gateway = Gateway::up(&(fixture("one", &[]) + "lazy = true\n"));
    assert_eq!(gateway.status("one")["generation"], 0);
    let first = entries(&gateway, "");
    assert!(of(&first, "one").len() >= 5, "{first:?}");
    assert_eq!(gateway.status("one")["generation"], 1);
    assert!(gateway.stop());
    gateway.restart();
    assert_eq!(entries(&gateway, ""), first);
    let one = gateway.status("one");
    assert_eq!(
        (&one["state"], &one["generation"]),
        (&json!("idle"), &json!(0))
    );
    assert_eq!(one["manifest"], "last_known");
}
