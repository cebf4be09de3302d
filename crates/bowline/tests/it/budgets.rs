//! Budgets over real sockets and real servers.

use bowline_testkit::gateway::{Gateway, Response, Session, fixture_config};
use bowline_testkit::{send_signal, wait_until};
use serde_json::{Value, json};

fn budget_config(calls: u32) -> String {
    format!(
        "[roles.r]\nallow = [\"one.*\"]\nbudget = {{ calls = {calls}, per = \"1h\" }}\n{}\
         [servers.one.tools.slow]\neffect = \"read\"\n",
        fixture_config("one", &[])
    )
}

fn start_budgeted(calls: u32) -> (Gateway, Session) {
    let gateway = Gateway::start(&budget_config(calls));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let session = gateway.open_session_as(&token, "/mcp");
    (gateway, session)
}

fn post_call(session: &mut Session, tool: &str, arguments: &Value) -> Response {
    session.post(&json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }))
}

fn call_echo(session: &mut Session) -> Response {
    post_call(session, "one__echo", &json!({"message": "hi"}))
}

fn assert_budget_spent(answer: &Response, allowed: u64) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&after), "{after}");
    let error = &answer.json()["error"];
    assert_eq!(error["data"]["code"], "budget_exceeded", "{error}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains(&format!("of {allowed} calls")), "{said}");
}

#[test]
fn retried_call_costs_one_budget_unit() {
    let (gateway, mut session) = start_budgeted(2);
    let slow = json!({"ms": 1_500, "message": "late"});
    session.send_call(7, "one__slow", &slow);
    wait_until("the call is under way", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    let pid = gateway.server_status("one")["pid"].as_u64().unwrap();
    send_signal(u32::try_from(pid).unwrap(), "KILL");
    let answer = session.http.read_response().json();
    assert_eq!(answer["result"]["content"][0]["text"], "late", "{answer}");
    assert_ne!(gateway.server_status("one")["pid"].as_u64(), Some(pid));
    assert_eq!(call_echo(&mut session).status, 200, "one unit is left");
    assert_budget_spent(&call_echo(&mut session), 2);
}

/// A reload keeps the spent budget; the owner is not charged.
#[test]
fn reload_keeps_spent_budget() {
    let (gateway, mut session) = start_budgeted(3);
    for _ in 0..3 {
        assert_eq!(call_echo(&mut session).status, 200);
    }
    assert_budget_spent(&call_echo(&mut session), 3);
    std::fs::write(gateway.dir.path().join("bowline.toml"), budget_config(4)).unwrap();
    wait_until("the new budget is in force", || {
        call_echo(&mut session).status == 200
    });
    assert_budget_spent(&call_echo(&mut session), 4);
    let mut owner = gateway.open_session("/mcp");
    for _ in 0..10 {
        assert_eq!(call_echo(&mut owner).status, 200);
    }
    // Listing is not charged.
    assert!(!session.list_tool_names().is_empty());
}

/// Whether the journal on disk contains the given bytes.
fn journal_contains(gateway: &Gateway, bytes: &[u8]) -> bool {
    let files = std::fs::read_dir(gateway.state_dir()).unwrap();
    let names = files.map(|entry| entry.unwrap());
    let journal = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("state.db"));
    let mut texts = journal.filter_map(|entry| std::fs::read(entry.path()).ok());
    texts.any(|text| text.windows(bytes.len()).any(|window| window == bytes))
}

#[test]
fn restart_does_not_give_budget_back() {
    let mut gateway = Gateway::start(&budget_config(3));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let mut session = gateway.open_session_as(&token, "/mcp");
    assert_eq!(call_echo(&mut session).status, 200);
    assert!(gateway.stop(), "it ends in order");

    gateway.restart();
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session_as(&token, "/mcp");
    for _ in 0..2 {
        assert_eq!(call_echo(&mut session).status, 200);
    }
    assert_budget_spent(&call_echo(&mut session), 3);
    wait_until("all that was spent is written", || {
        journal_contains(&gateway, b"\"spent\":3")
    });

    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session_as(&token, "/mcp");
    assert_budget_spent(&call_echo(&mut session), 3);
}
