//! What a session wants of a server besides calls, where it has the server to itself; and what is
//! left of it when it ends.

use serde_json::{Value, json};

use crate::harness::{Gateway, Session, eventually, fixture};
use crate::props::{fresh_mark, mark_line, marked};
use crate::streams::next_event;

const STATE: &str = "one__test_client_state";
const WATCHED: &str = "test://watched-resource";

fn isolated(isolation: &str) -> Gateway {
    let config = format!("{}isolation = \"{isolation}\"\n", fixture("one", &[]));
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    gateway
}

/// What the server that serves this session knows of its client.
fn state(session: &mut Session) -> Value {
    session.call(STATE, &json!({}))["result"]["structuredContent"].clone()
}

/// The same for the link that all share: a call of the command line belongs to no session.
fn shared_state(gateway: &Gateway) -> Value {
    let said = gateway.cli(&["call", "one.test_client_state", "--json"]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    said["result"]["structuredContent"].clone()
}

fn set_level(session: &mut Session, level: &str) {
    let answer = session.request("logging/setLevel", &json!({"level": level}));
    assert_eq!(answer["result"], json!({}));
}

#[test]
fn a_session_with_a_link_of_its_own_has_its_log_level_there() {
    let gateway = isolated("session");
    let (mut a, mut b) = (gateway.session("/mcp"), gateway.session("/mcp"));
    // Before there is a link, and again while there is one.
    set_level(&mut a, "error");
    assert_eq!(state(&mut a)["level"], "error");
    assert_eq!(state(&mut b)["level"], "debug", "as the server began");
    for level in ["info", "alert"] {
        set_level(&mut a, level);
        assert_eq!(state(&mut a)["level"], level);
    }
    assert_eq!(state(&mut b)["level"], "debug");
    set_level(&mut b, "notice");
    assert_eq!(state(&mut b)["level"], "notice");
    assert_eq!(state(&mut a)["level"], "alert");
    assert_eq!(
        shared_state(&gateway)["level"],
        "notice",
        "the most verbose"
    );
}

#[test]
fn changed_roots_are_told_on_a_link_of_ones_own_and_nowhere_else() {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    let gateway = isolated("session");
    let (mut a, mut b) = (gateway.session("/mcp"), gateway.session("/mcp"));
    for session in [&mut a, &mut b] {
        assert_eq!(state(session)["roots_changes"], 0);
    }
    for times in 1..=2 {
        assert_eq!(a.post(&changed).status, 202);
        assert_eq!(state(&mut a)["roots_changes"], times);
    }
    assert_eq!(state(&mut b)["roots_changes"], 0);
    assert_eq!(shared_state(&gateway)["roots_changes"], 0);
    let gateway = isolated("shared");
    let mut a = gateway.session("/mcp");
    assert_eq!(a.post(&changed).status, 202);
    assert_eq!(state(&mut a)["roots_changes"], 0);
}

#[test]
fn a_task_is_listed_and_asked_for_at_the_link_that_made_it() {
    let gateway = isolated("session");
    let (mut a, mut b) = (gateway.session("/mcp"), gateway.session("/mcp"));
    let params = json!({
        "name": "one__test_task", "arguments": {"ms": 600_000}, "task": {"ttl": 600_000},
    });
    let made = [&mut a, &mut b].map(|session| {
        let made = session.request("tools/call", &params);
        made["result"]["task"]["taskId"]
            .as_str()
            .unwrap()
            .to_owned()
    });
    // Both are of one principal, so each session sees both.
    for session in [&mut a, &mut b] {
        let list = session.request("tasks/list", &json!({}));
        let list = list["result"]["tasks"].as_array().unwrap();
        let mut ids: Vec<_> = list
            .iter()
            .map(|task| task["taskId"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        let mut want: Vec<_> = made.iter().map(String::as_str).collect();
        want.sort_unstable();
        assert_eq!(ids, want);
        for id in &made {
            let task = session.request("tasks/get", &json!({"taskId": id}));
            assert_eq!(task["result"]["status"], "working", "{task}");
        }
    }
    assert_eq!(gateway.status("one")["own_links"], 2);
}

#[test]
fn a_log_line_that_may_be_anybodys_is_for_those_who_look_after_the_server() {
    let gateway = isolated("auto");
    let (mut a, mut b) = (gateway.session("/mcp"), gateway.session("/mcp"));
    let mut busy = a.twin();
    busy.send_call(9, "one__slow", &json!({"ms": 600_000, "message": "late"}));
    eventually("the call is in flight", || {
        gateway.status("one")["in_flight"] == 1
    });
    let call = json!({"name": "one__test_tool_with_logging", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": call});
    let answer = b.post(&call);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let logs = || String::from_utf8(gateway.cli(&["logs", "one"]).stdout).unwrap();
    eventually("the log has all three", || {
        logs().matches("one | [info] fixture: Tool").count() == 3
    });
    // Alone, the session hears them itself, and they are nobody else's.
    a.delete();
    eventually("the call is over", || {
        gateway.status("one")["in_flight"] == 0
    });
    assert_eq!(b.post(&call).events().len(), 4);
    assert_eq!(logs().matches("[info]").count(), 3);
}

#[test]
fn a_session_that_ends_leaves_nothing_at_a_server() {
    let mark = fresh_mark("own-links-end");
    let config = format!("{}isolation = \"session\"\n", fixture("one", &[]));
    let gateway = Gateway::up(&format!("{config}{}", mark_line(&mark)));
    gateway.wait_for("one", "ready");
    let shared = marked(&mark);
    let mut session = gateway.able(&json!({"elicitation": {}}));
    let mut other = gateway.session("/mcp");
    for session in [&mut session, &mut other] {
        session.request("resources/subscribe", &json!({"uri": "test://static-text"}));
    }
    session.request("resources/subscribe", &json!({"uri": WATCHED}));
    let subscriptions = || shared_state(&gateway)["subscriptions"].clone();
    assert_eq!(subscriptions(), json!(["test://static-text", WATCHED]));
    let mut caller = session.twin();
    let asks = json!({"message": "who?"});
    caller.send_call(7, "one__test_elicitation", &asks);
    caller.http.read_head();
    next_event(&mut caller.http).unwrap();
    assert_eq!(
        next_event(&mut caller.http).unwrap().json()["method"],
        "elicitation/create"
    );
    assert_eq!(marked(&mark).len(), 2 * shared.len());
    session.delete();
    assert_eq!(next_event(&mut caller.http), None);
    eventually("its process is gone", || marked(&mark) == shared);
    let status = gateway.status("one");
    assert_eq!(
        (&status["own_links"], &status["in_flight"]),
        (&json!(0), &json!(0))
    );
    eventually("only the other's subscription is left", || {
        subscriptions() == json!(["test://static-text"])
    });
    assert_eq!(
        session
            .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
            .status,
        404
    );
}
