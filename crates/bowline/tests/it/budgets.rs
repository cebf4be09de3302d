//! Budgets over real sockets and real servers.

use serde_json::{Value, json};

use crate::harness::{Gateway, Response, Session, eventually, fixture, signal};

fn config(calls: u32) -> String {
    format!(
        "[roles.r]\nallow = [\"one.*\"]\nbudget = {{ calls = {calls}, per = \"1h\" }}\n{}\
         [servers.one.tools.slow]\neffect = \"read\"\n",
        fixture("one", &[])
    )
}

fn up(calls: u32) -> (Gateway, Session) {
    let gateway = Gateway::up(&config(calls));
    gateway.wait_for("one", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let session = gateway.session_as(&token, "/mcp");
    (gateway, session)
}

fn post(session: &mut Session, tool: &str, arguments: &Value) -> Response {
    session.post(&json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }))
}

fn echo(session: &mut Session) -> Response {
    post(session, "one__echo", &json!({"message": "hi"}))
}

fn is_spent(answer: &Response, allowed: u64) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&after), "{after}");
    let error = &answer.json()["error"];
    assert_eq!(error["data"]["code"], "budget_exceeded", "{error}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains(&format!("of {allowed} calls")), "{said}");
}

#[test]
fn a_call_that_is_repeated_on_another_process_costs_one_unit() {
    let (gateway, mut session) = up(2);
    let slow = json!({"ms": 1_500, "message": "late"});
    session.send_call(7, "one__slow", &slow);
    eventually("the call is under way", || {
        gateway.status("one")["in_flight"] == 1
    });
    let pid = gateway.status("one")["pid"].as_u64().unwrap();
    signal(u32::try_from(pid).unwrap(), "KILL");
    let answer = session.http.read().json();
    assert_eq!(answer["result"]["content"][0]["text"], "late", "{answer}");
    assert_ne!(gateway.status("one")["pid"].as_u64(), Some(pid));
    assert_eq!(echo(&mut session).status, 200, "one unit is left");
    is_spent(&echo(&mut session), 2);
}

#[test]
fn a_reload_keeps_what_was_spent_and_the_owner_spends_nothing() {
    let (gateway, mut session) = up(3);
    for _ in 0..3 {
        assert_eq!(echo(&mut session).status, 200);
    }
    is_spent(&echo(&mut session), 3);
    std::fs::write(gateway.dir.path().join("bowline.toml"), config(4)).unwrap();
    eventually("the new budget is in force", || {
        echo(&mut session).status == 200
    });
    is_spent(&echo(&mut session), 4);
    let mut owner = gateway.session("/mcp");
    for _ in 0..10 {
        assert_eq!(echo(&mut owner).status, 200);
    }
    // Looking costs nothing.
    assert!(!session.tools().is_empty());
}

/// Whether the journal on the disk holds these bytes.
fn is_on_disk(gateway: &Gateway, bytes: &[u8]) -> bool {
    let files = std::fs::read_dir(gateway.state()).unwrap();
    let names = files.map(|entry| entry.unwrap());
    let journal = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("state.db"));
    let mut texts = journal.filter_map(|entry| std::fs::read(entry.path()).ok());
    texts.any(|text| text.windows(bytes.len()).any(|window| window == bytes))
}

#[test]
fn restart_does_not_give_budget_back() {
    let mut gateway = Gateway::up(&config(3));
    gateway.wait_for("one", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let mut session = gateway.session_as(&token, "/mcp");
    assert_eq!(echo(&mut session).status, 200);
    assert!(gateway.stop(), "it ends in order");

    gateway.restart();
    gateway.wait_for("one", "ready");
    let mut session = gateway.session_as(&token, "/mcp");
    for _ in 0..2 {
        assert_eq!(echo(&mut session).status, 200);
    }
    is_spent(&echo(&mut session), 3);
    eventually("all that was spent is written", || {
        is_on_disk(&gateway, b"\"spent\":3")
    });

    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    let mut session = gateway.session_as(&token, "/mcp");
    is_spent(&echo(&mut session), 3);
}
