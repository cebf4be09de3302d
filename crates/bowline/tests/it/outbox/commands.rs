//! `bowline call` and `bowline outbox`, for people and programs.

use std::process::Output;

use bowline_testkit::gateway::HttpConnection;
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::outbox_setup::OutboxSetup;

fn output_text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// `bowline call` exits 7 for a queued call, which the outbox commands can show and drop.
#[test]
fn queued_call_exits_7_and_is_droppable() {
    let mut world = OutboxSetup::new("meta");
    world.http_server.kill();
    let call = |key: &str| {
        let number = format!("number={}", key.len());
        world
            .gateway
            .run_cli(&["call", "web.write_once", &number, "--key", key])
    };
    let output = call("one");
    let (stdout, stderr) = output_text(&output);
    assert_eq!(output.status.code(), Some(7), "{stdout}{stderr}");
    assert!(
        stderr.contains("queued · position 1 · web is away"),
        "{stderr}"
    );
    let shown = stderr.split("bowline outbox show ").nth(1).unwrap();
    let id = shown.split_whitespace().next().unwrap();
    // The same call again is deduplicated.
    assert_eq!(call("one").status.code(), Some(7));
    assert_eq!(call("other").status.code(), Some(7));
    let cli = |args: &[&str]| output_text(&world.gateway.run_cli(args));
    let (list, _) = cli(&["outbox", "ls"]);
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(
        lines[0].starts_with("ID") && lines[1].starts_with(id),
        "{list}"
    );
    assert!(
        lines[1].contains("queued") && lines[1].contains("web.write_once"),
        "{list}"
    );
    assert!(
        lines[1].contains("owner") && lines[1].contains("in 59 m"),
        "{list}"
    );
    let (shown, _) = cli(&["outbox", "show", id]);
    for line in [
        "key        one",
        "tool       web.write_once",
        "position   1 in its lane",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(shown.contains("\"number\": 3"), "{shown}");
    let (dropped, note) = cli(&["outbox", "drop", id]);
    assert!(
        dropped.contains("key        one") && dropped.contains("\"number\": 3"),
        "{dropped}"
    );
    assert!(note.contains("dropped for good"), "{note}");
    let gone = world.gateway.run_cli(&["outbox", "show", id]);
    assert_eq!(gone.status.code(), Some(2), "{:?}", output_text(&gone));
    assert!(
        output_text(&gone).1.contains("bowline outbox ls"),
        "{:?}",
        output_text(&gone)
    );
    let (_, stderr) = cli(&["outbox", "ls", "--server", "wbe"]);
    assert!(stderr.contains("no server named `wbe`"), "{stderr}");
}

/// A queued call can be retried; the same call again is answered from the stored result.
#[test]
fn retried_queued_call_is_deduplicated() {
    let mut world = OutboxSetup::new("meta");
    world.http_server.kill();
    let call = |key: &str| {
        let call = ["call", "web.write_once", "number=5", "--key", key];
        world.gateway.run_cli(&call)
    };
    assert_eq!(call("other").status.code(), Some(7));
    let cli = |args: &[&str]| output_text(&world.gateway.run_cli(args));
    let json = cli(&["outbox", "ls", "--json"]).0;
    let json: Value = serde_json::from_str(&json).unwrap();
    let entries = json["entries"].as_array().unwrap();
    assert_eq!((entries.len(), &entries[0]["key"]), (1, &json!("other")));
    world.http_server.restart();
    let id = entries[0]["id"].as_str().unwrap();
    let retried = world.gateway.run_cli(&["outbox", "retry", id]);
    // The call may have been delivered before the request.
    assert!(
        matches!(retried.status.code(), Some(0 | 2)),
        "{:?}",
        output_text(&retried)
    );
    wait_until("it is delivered", || world.http_ledger().len() == 1);
    // The server sees a key bound to the principal.
    let (number, key) = world.http_ledger().remove(0);
    assert_eq!((number, key.len()), (5, 32), "{key}");
    wait_until("nothing waits", || {
        cli(&["outbox", "ls"]).1.contains("nothing waits")
    });
    let (stdout, stderr) = output_text(&call("other"));
    assert!(stderr.contains("ok, answered before"), "{stdout}{stderr}");
}

#[test]
fn status_and_metrics_show_queued_calls() {
    let mut world = OutboxSetup::new("meta");
    let mut session = world.gateway.open_session("/mcp");
    world.http_server.kill();
    session.call("web__write_once", &json!({"number": 1}));
    session.call("web__write_once", &json!({"number": 2}));
    let status = world.gateway.get_api("/api/v1/status");
    assert_eq!(
        status["journal"],
        json!({
            "engine": "sqlite", "health": "good", "reason": null,
            "stopped": 0, "stopped_lanes": [],
        })
    );
    assert_eq!(
        (&status["outbox"]["queued"], &status["outbox"]["dead"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(status["outbox"]["servers"]["web"]["queued"], 2);
    let (screen, _) = output_text(&world.gateway.run_cli(&["status"]));
    assert!(
        screen.contains("outbox 2 queued, 0 dead · the oldest for "),
        "{screen}"
    );
    let token = format!("Bearer {}", world.gateway.token);
    let page = HttpConnection::connect(world.gateway.address)
        .get("/metrics", &[("Authorization", &token)]);
    let page = page.text();
    for line in [
        "bowline_journal_up 1",
        "bowline_journal_lanes_stopped 0",
        "bowline_outbox_queued{server=\"web\"} 2",
        "bowline_outbox_queued{server=\"pipe\"} 0",
        "bowline_outbox_dead{server=\"web\"} 0",
    ] {
        assert!(page.lines().any(|known| known == line), "{line}: {page}");
    }
    assert!(
        page.contains("bowline_outbox_oldest_seconds{server=\"web\"} "),
        "{page}"
    );
}
