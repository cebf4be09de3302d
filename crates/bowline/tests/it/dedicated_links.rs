//! Dedicated links: log level, roots and tasks of a session, and cleanup at the end.

use bowline_testkit::gateway::{Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::streams::next_event;
use crate::test_servers::{fresh_mark, mark_config_line, marked_processes};

const STATE: &str = "one__test_client_state";
const WATCHED: &str = "test://watched-resource";

fn start_isolated(isolation: &str) -> Gateway {
    let config = format!(
        "{}isolation = \"{isolation}\"\n",
        fixture_config("one", &[])
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    gateway
}

/// The server's view of this session's client.
fn client_state(session: &mut Session) -> Value {
    session.call(STATE, &json!({}))["result"]["structuredContent"].clone()
}

/// The same for the shared link: a CLI call belongs to no session.
fn shared_client_state(gateway: &Gateway) -> Value {
    let said = gateway.run_cli(&["call", "one.test_client_state", "--json"]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    said["result"]["structuredContent"].clone()
}

fn set_log_level(session: &mut Session, level: &str) {
    let answer = session.request("logging/setLevel", &json!({"level": level}));
    assert_eq!(answer["result"], json!({}));
}

#[test]
fn dedicated_link_has_session_log_level() {
    let gateway = start_isolated("session");
    let (mut a, mut b) = (gateway.open_session("/mcp"), gateway.open_session("/mcp"));
    // Set before the link exists, and again while it exists.
    set_log_level(&mut a, "error");
    assert_eq!(client_state(&mut a)["level"], "error");
    assert_eq!(
        client_state(&mut b)["level"],
        "debug",
        "as the server began"
    );
    for level in ["info", "alert"] {
        set_log_level(&mut a, level);
        assert_eq!(client_state(&mut a)["level"], level);
    }
    assert_eq!(client_state(&mut b)["level"], "debug");
    set_log_level(&mut b, "notice");
    assert_eq!(client_state(&mut b)["level"], "notice");
    assert_eq!(client_state(&mut a)["level"], "alert");
    assert_eq!(
        shared_client_state(&gateway)["level"],
        "notice",
        "the most verbose"
    );
}

#[test]
fn roots_change_reaches_only_dedicated_link() {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    let gateway = start_isolated("session");
    let (mut a, mut b) = (gateway.open_session("/mcp"), gateway.open_session("/mcp"));
    for session in [&mut a, &mut b] {
        assert_eq!(client_state(session)["roots_changes"], 0);
    }
    for times in 1..=2 {
        assert_eq!(a.post(&changed).status, 202);
        assert_eq!(client_state(&mut a)["roots_changes"], times);
    }
    assert_eq!(client_state(&mut b)["roots_changes"], 0);
    assert_eq!(shared_client_state(&gateway)["roots_changes"], 0);
    let gateway = start_isolated("shared");
    let mut a = gateway.open_session("/mcp");
    assert_eq!(a.post(&changed).status, 202);
    assert_eq!(client_state(&mut a)["roots_changes"], 0);
}

#[test]
fn task_requests_use_creating_link() {
    let gateway = start_isolated("session");
    let (mut a, mut b) = (gateway.open_session("/mcp"), gateway.open_session("/mcp"));
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
    // Both sessions belong to one principal, so each sees both tasks.
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
    assert_eq!(gateway.server_status("one")["own_links"], 2);
}

/// A log line without an attributable session reaches only `bowline logs`.
#[test]
fn unattributed_log_line_stays_with_operator() {
    let gateway = start_isolated("auto");
    let (mut a, mut b) = (gateway.open_session("/mcp"), gateway.open_session("/mcp"));
    let mut busy = a.clone_on_new_connection();
    busy.send_call(9, "one__slow", &json!({"ms": 600_000, "message": "late"}));
    wait_until("the call is in flight", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    let call = json!({"name": "one__test_tool_with_logging", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": call});
    let answer = b.post(&call);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let logs = || String::from_utf8(gateway.run_cli(&["logs", "one"]).stdout).unwrap();
    wait_until("the log has all three", || {
        logs().matches("one | [info] fixture: Tool").count() == 3
    });
    // As the only session, `b` receives the log lines itself, and the server log does not.
    a.end_session();
    wait_until("the call is over", || {
        gateway.server_status("one")["in_flight"] == 0
    });
    assert_eq!(b.post(&call).events().len(), 4);
    assert_eq!(logs().matches("[info]").count(), 3);
}

#[test]
fn ended_session_leaves_nothing_at_server() {
    let mark = fresh_mark("own-links-end");
    let config = format!("{}isolation = \"session\"\n", fixture_config("one", &[]));
    let gateway = Gateway::start(&format!("{config}{}", mark_config_line(&mark)));
    gateway.wait_for_state("one", "ready");
    let shared = marked_processes(&mark);
    let mut session = gateway.open_session_with_capabilities(&json!({"elicitation": {}}));
    let mut other = gateway.open_session("/mcp");
    for session in [&mut session, &mut other] {
        session.request("resources/subscribe", &json!({"uri": "test://static-text"}));
    }
    session.request("resources/subscribe", &json!({"uri": WATCHED}));
    let subscriptions = || shared_client_state(&gateway)["subscriptions"].clone();
    assert_eq!(subscriptions(), json!(["test://static-text", WATCHED]));
    let mut caller = session.clone_on_new_connection();
    let asks = json!({"message": "who?"});
    caller.send_call(7, "one__test_elicitation", &asks);
    caller.http.read_head();
    next_event(&mut caller.http).unwrap();
    assert_eq!(
        next_event(&mut caller.http).unwrap().data_json()["method"],
        "elicitation/create"
    );
    assert_eq!(marked_processes(&mark).len(), 2 * shared.len());
    session.end_session();
    assert_eq!(next_event(&mut caller.http), None);
    wait_until("its process is gone", || marked_processes(&mark) == shared);
    let status = gateway.server_status("one");
    assert_eq!(
        (&status["own_links"], &status["in_flight"]),
        (&json!(0), &json!(0))
    );
    wait_until("only the other's subscription is left", || {
        subscriptions() == json!(["test://static-text"])
    });
    assert_eq!(
        session
            .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
            .status,
        404
    );
}
