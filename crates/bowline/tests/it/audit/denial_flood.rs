//! A denial flood cannot flush the trail: refusals are counted separately and evict no call rows.

use super::*;
use crate::metrics::scrape_metrics;

/// Denied calls of the flood; `BOWLINE_DENIALS=1000000` for a realistic attack.
const DENIALS: u64 = 20_000;

/// Calls in one batch.
const BATCH: u64 = 100;

/// Number of refusals represented by the rows.
fn count_denials(rows: &[Value]) -> u64 {
    let counts = rows.iter().map(|row| row["count"].as_u64().unwrap_or(1));
    counts.sum()
}

/// Opens a session of the revision with batches.
fn open_batch_session(gateway: &Gateway, token: &str) -> (HttpConnection, String, String) {
    let bearer = format!("Bearer {token}");
    let mut http = HttpConnection::connect(gateway.address);
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {"protocolVersion": "2025-03-26", "capabilities": {}},
    });
    let opened = http.post(
        "/mcp",
        &[("Authorization", &bearer)],
        hello.to_string().as_bytes(),
    );
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    (http, bearer, id)
}

#[test]
fn sec_95_denials_evict_no_call_rows() {
    let denials = std::env::var("BOWLINE_DENIALS").ok();
    let denials = denials.map_or(DENIALS, |number| number.parse().unwrap());
    // The smallest possible trail, so a flood of rows would fill it.
    let gateway = start_audited("[audit]\nmax_bytes = \"1MiB\"\nkeep = 1\nmin_age = \"1ms\"\n");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    call_tool(&mut gateway.open_session_as(&token, "/mcp"), "one__echo");
    let (mut http, bearer, id) = open_batch_session(&gateway, &token);
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Mcp-Session-Id", id.as_str()),
    ];
    let long = "x".repeat(1_000);
    for batch in 0..denials / BATCH {
        let calls = (0..BATCH).map(|nth| {
            // Half are denied by a rule, half name nonexistent tools, each a different name.
            let name = match nth % 2 {
                0 => "one__add".to_owned(),
                _ => format!("one__{batch}-{nth}-{long}"),
            };
            json!({"jsonrpc": "2.0", "id": nth, "method": "tools/call", "params": {"name": name}})
        });
        let calls: Vec<_> = calls.collect();
        let answer = http.post("/mcp", &headers, json!(calls).to_string().as_bytes());
        assert_eq!(answer.status, 200);
    }
    let rows = export_rows(&gateway);
    let anns = rows_of_principal(&rows, "ann");
    let deed = anns.iter().filter(|row| row["outcome"] == "ok");
    assert_eq!(deed.count(), 1, "the deed is still there");
    let refused: Vec<Value> = anns
        .iter()
        .filter(|row| row["ring"] == "denials")
        .map(|row| (*row).clone())
        .collect();
    assert_eq!(count_denials(&refused), denials, "every one is counted");
    let (verdict, code) = verify_trail(&gateway);
    assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
    let merged = refused.iter().filter(|row| row["count"].is_u64());
    let coalesced: u64 = merged.map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(verdict["denials"]["coalesced"], coalesced, "{verdict}");
    assert_eq!(
        (&verdict["let_go"], &verdict["first"]),
        (&json!(0), &json!(1))
    );
    let told = gateway.run_cli(&["audit", "verify"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("denials coalesced: "), "{told}");
    assert!(refused.len() < 500, "{} rows", refused.len());
    assert!(refused.iter().all(|row| row.to_string().len() < 1_500));
}

#[test]
fn sec_95_verify_reports_coalesced_and_evicted_rows() {
    let gateway = start_audited("[audit]\nmax_bytes = \"1MiB\"\nkeep = 1\nmin_age = \"1ms\"\n");
    let mut session = gateway.open_session("/mcp");
    let page = |gateway: &Gateway| gateway.get_api("/api/v1/audit/verify");
    wait_until("rows are let go", || {
        for _ in 0..200 {
            call_tool(&mut session, "one__echo");
        }
        page(&gateway)["let_go"].as_u64() > Some(0)
    });
    let seen = page(&gateway);
    let first = seen["first"].as_u64().unwrap();
    assert_eq!(seen["let_go"], first - 1, "{seen}");
    assert_eq!(seen["denials"]["let_go"], 0, "{seen}");
    let told = gateway.run_cli(&["audit", "verify"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("let go: "), "{told}");
}

#[test]
fn sec_96_failed_authentication_is_counted_and_recorded() {
    let gateway = start_audited("");
    let mut http = HttpConnection::connect(gateway.address);
    let wrong = [("Authorization", "Bearer wrong")];
    for _ in 0..100 {
        assert_eq!(http.get("/api/v1/status", &wrong).status, 401);
        assert_eq!(http.get("/mcp", &[]).status, 401);
    }
    assert_eq!(http.get("/metrics?token=x", &[]).status, 400);
    let page = scrape_metrics(&gateway);
    for (labels, count) in [
        (r#"reason="wrong",route="api""#, 100),
        (r#"reason="missing",route="mcp""#, 100),
        (r#"reason="query",route="metrics""#, 1),
        (r#"reason="host",route="none""#, 0),
    ] {
        let line = format!("bowline_auth_failures_total{{{labels}}} {count}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
    let rows = export_rows(&gateway);
    let unproven = rows
        .into_iter()
        .filter(|row| row["kind"] == "unauthenticated");
    let unproven: Vec<_> = unproven.collect();
    assert_eq!(count_denials(&unproven), 201, "{unproven:#?}");
    let local = http.stream.get_ref().local_addr().unwrap().to_string();
    assert!(unproven.iter().all(|row| row["peer"] == local.as_str()));
    assert!(
        unproven
            .iter()
            .any(|row| row["reason"] == "wrong" && row["name"] == "api")
    );
}

#[test]
fn sec_96_every_row_has_source_address() {
    let gateway = start_audited("");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let mut ann = gateway.open_session_as(&token, "/mcp");
    call_tool(&mut ann, "one__echo");
    call_tool(&mut ann, "one__add");
    send_request(
        &mut ann,
        "resources/subscribe",
        &json!({"uri": "bowline://one/x%3Ay"}),
    );
    // The same session over another connection.
    let mut other = HttpConnection::connect(gateway.address);
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Mcp-Session-Id", ann.id.as_str()),
    ];
    let echo = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "one__echo", "arguments": {"message": "hi"}}});
    other.post("/mcp", &headers, echo.to_string().as_bytes());
    assert_eq!(other.get("/api/v1/tokens", &headers).status, 403);
    gateway.run_cli(&["call", "one.echo", "message=hi"]);
    let rows = export_rows(&gateway);
    let asked = rows.iter().filter(|row| row["principal"].is_string());
    let asked: Vec<_> = asked.collect();
    assert!(asked.len() >= 6, "{asked:#?}");
    let from = |row: &&&Value| {
        row["peer"]
            .as_str()
            .is_some_and(|it| it.starts_with("127.0.0.1:"))
    };
    let without: Vec<_> = asked.iter().filter(|row| !from(row)).collect();
    assert!(without.is_empty(), "{without:#?}");
    let local = other.stream.get_ref().local_addr().unwrap().to_string();
    let others = asked.iter().filter(|row| row["peer"] == local.as_str());
    assert_eq!(
        others.count(),
        2,
        "the call and what the API denied: {asked:#?}"
    );
}
