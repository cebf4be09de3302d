//! `/metrics` for a scraper.

use bowline_testkit::gateway::{Gateway, HttpConnection, Response, fixture_config};
use serde_json::json;

fn scrape_as(gateway: &Gateway, token: Option<&str>) -> Response {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer
        .iter()
        .map(|bearer| ("Authorization", bearer.as_str()))
        .collect();
    HttpConnection::connect(gateway.address).get("/metrics", &headers)
}

pub(crate) fn scrape_metrics(gateway: &Gateway) -> String {
    let response = scrape_as(gateway, Some(&gateway.token));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(
        response.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    response.text()
}

/// The value of a series.
fn series_value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{page}"));
    line.trim().parse().unwrap()
}

#[test]
fn scrape_shows_server_state_and_call_outcomes() {
    let config = [
        fixture_config("up", &[]),
        fixture_config("down", &["--fault", "exit-at-start=3"]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("up", "ready");
    let mut session = gateway.open_session("/servers/up/mcp");
    for _ in 0..3 {
        session.call_text("echo", &json!({"message": "hi"}));
    }
    session.call("rpc_error", &json!({"code": -32000, "message": "no"}));
    let page = scrape_metrics(&gateway);
    for (series, want) in [
        (r#"bowline_server_up{server="up"}"#, 1.0),
        (r#"bowline_server_up{server="down"}"#, 0.0),
        (r#"bowline_server_state{server="up",state="ready"}"#, 1.0),
        (r#"bowline_server_state{server="up",state="ejected"}"#, 0.0),
        (r#"bowline_server_state{server="down",state="ready"}"#, 0.0),
        (r#"bowline_server_generation{server="up"}"#, 1.0),
        (r#"bowline_server_in_flight{server="up"}"#, 0.0),
        (r#"bowline_server_queued{server="up"}"#, 0.0),
        (r#"bowline_calls_total{server="up",outcome="ok"}"#, 3.0),
        (
            r#"bowline_calls_total{server="up",outcome="rpc_error"}"#,
            1.0,
        ),
        (r#"bowline_calls_shed_total{server="up"}"#, 0.0),
        (r#"bowline_calls_retried_total{server="up"}"#, 0.0),
        (r#"bowline_cache_entries{server="up"}"#, 0.0),
        (r#"bowline_cache_hits_total{server="up"}"#, 0.0),
        (r#"bowline_cache_misses_total{server="up"}"#, 0.0),
        (r#"bowline_call_duration_seconds_count{server="up"}"#, 4.0),
        (
            r#"bowline_call_duration_seconds_bucket{le="+Inf",server="up"}"#,
            4.0,
        ),
        (r#"bowline_circuit_open{server="up"}"#, 0.0),
        ("bowline_sessions", 1.0),
    ] {
        assert_eq!(series_value(&page, series), want, "{series}");
    }
    assert!(series_value(&page, "bowline_uptime_seconds") > 0.0);
    assert!(series_value(&page, r#"bowline_call_duration_seconds_sum{server="up"}"#) > 0.0);
    let mut last = 0.0;
    for line in page.lines() {
        let prefix = "bowline_call_duration_seconds_bucket";
        if line.starts_with(prefix) && line.contains(r#"server="up""#) {
            let (_, count) = line.rsplit_once(' ').unwrap();
            let count = count.parse().unwrap();
            assert!(
                last <= count,
                "buckets hold what those below them hold: {line}"
            );
            last = count;
        }
    }
    assert!(series_value(&page, r#"bowline_server_memory_bytes{server="up"}"#) > 1e5);
    assert!(series_value(&page, "process_resident_memory_bytes") > 1e6);
    assert!(series_value(&page, "process_open_fds") > 3.0);
    assert!(page.contains("bowline_build_info{version="), "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");
}

/// The metadata that a scraper needs, and the label rule: only server names and words from a fixed
/// set.
#[test]
fn metric_families_have_types_and_known_labels() {
    let gateway = Gateway::start(&fixture_config("s", &[]));
    gateway.wait_for_state("s", "ready");
    let mut session = gateway.open_session("/mcp");
    session.call_text("s__echo", &json!({"message": "a-message"}));
    session.call("s__no-such-tool", &json!({}));
    let page = scrape_metrics(&gateway);
    let mut family = String::new();
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            assert!(page.contains(&format!("# HELP {name} ")), "{name}");
            assert!(["counter", "gauge", "histogram", "info"].contains(&kind));
            family = name.to_owned();
        }
        if line.starts_with('#') {
            continue;
        }
        assert!(line.starts_with(&family), "{line} is not of {family}");
        let labels = line.split_once('{').map_or("", |(_, rest)| rest);
        let labels = labels.split_once('}').map_or("", |(labels, _)| labels);
        for (key, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
            let value = value.trim_matches('"');
            let known = match key {
                "server" => value == "s",
                "version" | "le" => true,
                "state" | "outcome" | "rule" | "event" | "way" | "resource" | "reason"
                | "route" => value.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                _ => false,
            };
            assert!(known, "{line}");
        }
    }
    for told in ["a-message", "no-such-tool", &session.id, &gateway.token] {
        assert!(!page.contains(told), "{told} in\n{page}");
    }
}

#[test]
fn metrics_need_owner_token() {
    let gateway = Gateway::start_with_args("", &["--insecure-no-auth"]);
    assert_eq!(scrape_as(&gateway, None).status, 401);
    assert_eq!(scrape_as(&gateway, Some("wrong")).status, 401);
    let bearer = format!("Bearer {}", gateway.token);
    let headers = [("Authorization", bearer.as_str())];
    let posted = HttpConnection::connect(gateway.address).post("/metrics", &headers, b"{}");
    assert_eq!(posted.status, 405, "{}", posted.text());
    scrape_metrics(&gateway);
}
