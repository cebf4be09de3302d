//! A trail that cannot be washed: refusals are counted beside the calls, and pushed out by nothing.

use super::*;
use crate::metrics::scrape;

/// Denied calls of the flood; `BOWLINE_DENIALS=1000000` for as many as an attacker would make.
const DENIALS: u64 = 20_000;

/// Calls in one batch.
const BATCH: u64 = 100;

/// How many refusals rows stand for.
fn told(rows: &[Value]) -> u64 {
    let counts = rows.iter().map(|row| row["count"].as_u64().unwrap_or(1));
    counts.sum()
}

/// Opens a session of the revision that has batches.
fn batches(gateway: &Gateway, token: &str) -> (Http, String, String) {
    let bearer = format!("Bearer {token}");
    let mut http = Http::connect(gateway.address);
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
fn sec_95_denials_push_no_call_out() {
    let denials = std::env::var("BOWLINE_DENIALS").ok();
    let denials = denials.map_or(DENIALS, |number| number.parse().unwrap());
    // As little room as can be, so that a flood of rows would need all of it.
    let gateway = up("[audit]\nmax_bytes = \"1MiB\"\nkeep = 1\nmin_age = \"1ms\"\n");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    call(&mut gateway.session_as(&token, "/mcp"), "one__echo");
    let (mut http, bearer, id) = batches(&gateway, &token);
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Mcp-Session-Id", id.as_str()),
    ];
    let long = "x".repeat(1_000);
    for batch in 0..denials / BATCH {
        let calls = (0..BATCH).map(|nth| {
            // Half are denied by a rule, half name what nobody has, each another name.
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
    let rows = rows(&gateway);
    let anns = of(&rows, "ann");
    let deed = anns.iter().filter(|row| row["outcome"] == "ok");
    assert_eq!(deed.count(), 1, "the deed is still there");
    let refused: Vec<Value> = anns
        .iter()
        .filter(|row| row["ring"] == "denials")
        .map(|row| (*row).clone())
        .collect();
    assert_eq!(told(&refused), denials, "every one is counted");
    let (verdict, code) = verdict(&gateway);
    assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
    let merged = refused.iter().filter(|row| row["count"].is_u64());
    let coalesced: u64 = merged.map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(verdict["denials"]["coalesced"], coalesced, "{verdict}");
    assert_eq!(
        (&verdict["let_go"], &verdict["first"]),
        (&json!(0), &json!(1))
    );
    let told = gateway.cli(&["audit", "verify"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("denials coalesced: "), "{told}");
    assert!(refused.len() < 500, "{} rows", refused.len());
    assert!(refused.iter().all(|row| row.to_string().len() < 1_500));
}

#[test]
fn sec_95_verify_says_what_was_let_go() {
    let gateway = up("[audit]\nmax_bytes = \"1MiB\"\nkeep = 1\nmin_age = \"1ms\"\n");
    let mut session = gateway.session("/mcp");
    let page = |gateway: &Gateway| gateway.api("/api/v1/audit/verify");
    eventually("rows are let go", || {
        for _ in 0..200 {
            call(&mut session, "one__echo");
        }
        page(&gateway)["let_go"].as_u64() > Some(0)
    });
    let seen = page(&gateway);
    let first = seen["first"].as_u64().unwrap();
    assert_eq!(seen["let_go"], first - 1, "{seen}");
    assert_eq!(seen["denials"]["let_go"], 0, "{seen}");
    let told = gateway.cli(&["audit", "verify"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("let go: "), "{told}");
}

#[test]
fn sec_96_failed_authentication_is_counted_and_has_rows() {
    let gateway = up("");
    let mut http = Http::connect(gateway.address);
    let wrong = [("Authorization", "Bearer wrong")];
    for _ in 0..100 {
        assert_eq!(http.get("/api/v1/status", &wrong).status, 401);
        assert_eq!(http.get("/mcp", &[]).status, 401);
    }
    assert_eq!(http.get("/metrics?token=x", &[]).status, 400);
    let page = scrape(&gateway);
    for (labels, count) in [
        (r#"reason="wrong",route="api""#, 100),
        (r#"reason="missing",route="mcp""#, 100),
        (r#"reason="query",route="metrics""#, 1),
        (r#"reason="host",route="none""#, 0),
    ] {
        let line = format!("bowline_auth_failures_total{{{labels}}} {count}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
    let rows = rows(&gateway);
    let unproven = rows
        .into_iter()
        .filter(|row| row["kind"] == "unauthenticated");
    let unproven: Vec<_> = unproven.collect();
    assert_eq!(told(&unproven), 201, "{unproven:#?}");
    let local = http.stream.get_ref().local_addr().unwrap().to_string();
    assert!(unproven.iter().all(|row| row["peer"] == local.as_str()));
    assert!(
        unproven
            .iter()
            .any(|row| row["reason"] == "wrong" && row["name"] == "api")
    );
}

#[test]
fn sec_96_every_row_has_the_address_it_came_from() {
    let gateway = up("");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let mut ann = gateway.session_as(&token, "/mcp");
    call(&mut ann, "one__echo");
    call(&mut ann, "one__add");
    ask(
        &mut ann,
        "resources/subscribe",
        &json!({"uri": "bowline://one/x%3Ay"}),
    );
    // The same session over another connection.
    let mut other = Http::connect(gateway.address);
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Mcp-Session-Id", ann.id.as_str()),
    ];
    let echo = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "one__echo", "arguments": {"message": "hi"}}});
    other.post("/mcp", &headers, echo.to_string().as_bytes());
    assert_eq!(other.get("/api/v1/tokens", &headers).status, 403);
    gateway.cli(&["call", "one.echo", "message=hi"]);
    let rows = rows(&gateway);
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
