//! What agents are shown of servers that are away, and of servers that refuse.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};

use crate::harness::listener::{Answer, Asked, Listener};
use crate::harness::{Gateway, Http, Session, bowline, eventually, signal};
use crate::streams::next_event;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// A server that cannot be started while a file is there, and is not tried again by itself.
fn server(switch: &Path) -> String {
    let program = bowline().display();
    let script = format!("test ! -e {} && exec {program} fixture", switch.display());
    format!(
        "[servers.fix]\ncommand = \"sh\"\nargs = [\"-c\", {}]\n\
         restart = {{ budget = 9, backoff = \"10m..10m\" }}\n\
         [context.less]\nhide = [\"fix.echo\"]\n",
        json!(script)
    )
}

/// The tools that a session is shown, and whether all of them, some or none are marked.
fn marks(session: &mut Session) -> (usize, usize) {
    let list = session.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap().clone();
    let stale = |tool: &&Value| tool["_meta"]["dev.bowline/stale"] == true;
    (tools.len(), tools.iter().filter(stale).count())
}

/// Opens the stream of a session, after its beginning.
fn listen(session: &Session) -> Http {
    let mut stream = session.listen();
    stream.read_chunk().unwrap();
    stream
}

fn kill(gateway: &Gateway) {
    let pid = gateway.status("fix")["pid"].as_u64().unwrap();
    signal(u32::try_from(pid).unwrap(), "KILL");
}

#[test]
fn a_blip_is_served_from_the_last_known_menu_marked_and_nobody_is_told_to_list_again() {
    let dir = tempfile::TempDir::new().unwrap();
    let switch = dir.path().join("down");
    let mut gateway = Gateway::up(&server(&switch));
    gateway.wait_for("fix", "ready");
    let mut session = gateway.session("/mcp");
    let (all, marked) = marks(&mut session);
    assert!(all > 3 && marked == 0);
    let mut stream = listen(&session);

    std::fs::write(&switch, "").unwrap();
    kill(&gateway);
    gateway.wait_for("fix", "backoff");
    assert_eq!(marks(&mut session), (all, all));
    assert_eq!(gateway.status("fix")["stale"], true);
    let listed = gateway.api("/api/v1/tools");
    assert_eq!(listed["tools"][0]["stale"], true);
    assert_eq!(listed["unlisted"], json!([]));
    let shown = String::from_utf8(gateway.cli(&["ls"]).stdout).unwrap();
    assert!(shown.contains(&format!("{all} stale")), "{shown}");
    // A session that begins in the outage begins, and is shown the same.
    let mut late = gateway.session("/mcp");
    assert_eq!(marks(&mut late), (all, all));

    std::fs::remove_file(&switch).unwrap();
    gateway.order("fix", "start");
    gateway.wait_for("fix", "ready");
    assert_eq!(marks(&mut session), (all, 0));
    // All that is told are real changes, of tools alone; the blip would have been of all lists.
    for (contexts, seen) in [(json!(["less"]), all - 1), (json!([]), all)] {
        let path = format!("/api/v1/sessions/{}/context", session.id);
        gateway.ask_api("PUT", &path, &json!({"contexts": contexts}));
        let event = next_event(&mut stream).unwrap();
        assert_eq!(event.json()["method"], TOOLS_CHANGED);
        assert_eq!(marks(&mut session), (seen, 0));
    }

    // And over a restart of the gateway, with the server down all the time.
    std::fs::write(&switch, "").unwrap();
    gateway.restart_after_kill();
    gateway.wait_for("fix", "backoff");
    assert_eq!(marks(&mut gateway.session("/mcp")), (all, all));
    assert_eq!(marks(&mut gateway.session("/servers/fix/mcp")), (all, all));
}

#[test]
fn a_cold_start_in_an_outage_is_an_empty_menu_that_says_why() {
    let dir = tempfile::TempDir::new().unwrap();
    let switch = dir.path().join("down");
    std::fs::write(&switch, "").unwrap();
    let gateway = Gateway::up(&server(&switch));
    gateway.wait_for("fix", "backoff");
    for path in ["/mcp", "/servers/fix/mcp"] {
        let mut session = gateway.session(path);
        session.id.clear();
        let hello = session.request(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {},
                    "clientInfo": {"name": "it", "version": "1"}}),
        );
        let told = &hello["result"]["capabilities"]["tools"]["listChanged"];
        assert_eq!(told, &json!(true), "{hello}");
        assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
        assert_eq!(marks(&mut gateway.session(path)), (0, 0));
    }
    let listed = gateway.api("/api/v1/tools");
    assert_eq!(listed["unlisted"][0]["server"], "fix");
    assert_eq!(listed["unlisted"][0]["state"], "backoff");
    assert_eq!(listed["unlisted"][0]["class"], "connect_failed");

    let mut session = gateway.session("/mcp");
    let mut stream = listen(&session);
    std::fs::remove_file(&switch).unwrap();
    gateway.order("fix", "start");
    let event = next_event(&mut stream).unwrap();
    assert_eq!(event.json()["method"], TOOLS_CHANGED);
    assert!(marks(&mut session).0 > 3);
}

/// A server whose lists are answered with a status, unless that is 200. A call says that the list
/// has changed.
fn refusing() -> (Listener, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let now = Arc::clone(&status);
    let well = move |asked: &Asked| -> Answer {
        let message = asked.json();
        let answer = |result: Value| {
            json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string()
        };
        match message["method"].as_str() {
            Some("initialize") => {
                let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                                   "serverInfo": {"name": "web", "version": "1"}});
                (200, answer(hello))
            }
            Some("tools/list") => match now.load(Ordering::SeqCst) {
                200 => {
                    let tool = json!({"name": "look", "inputSchema": {"type": "object"}});
                    (200, answer(json!({"tools": [tool]})))
                }
                code => (code, "{}".to_owned()),
            },
            Some("tools/call") => {
                let news = json!({"jsonrpc": "2.0", "method": TOOLS_CHANGED});
                let content = json!({"content": [{"type": "text", "text": "seen"}]});
                (
                    200,
                    format!("data: {news}\n\ndata: {}\n\n", answer(content)),
                )
            }
            Some(_) if message["id"].is_null() => (202, String::new()),
            Some(_) => (200, answer(json!({}))),
            None => (405, String::new()),
        }
    };
    (Listener::start(well), status)
}

#[test]
fn a_list_that_is_refused_takes_the_tools_away_and_calls_say_why() {
    for (code, class) in [(401, "auth_required"), (403, "scope_required")] {
        let (listener, status) = refusing();
        let config = format!("[servers.web]\nurl = \"{}/mcp\"\n", listener.url);
        let mut gateway = Gateway::up(&config);
        gateway.wait_for("web", "ready");
        let mut session = gateway.session("/mcp");
        assert_eq!(session.tools(), ["web__look"]);
        let mut stream = listen(&session);

        status.store(code, Ordering::SeqCst);
        assert_eq!(session.text("web__look", &json!({})), "seen");
        let event = next_event(&mut stream).unwrap();
        assert_eq!(event.json()["method"], TOOLS_CHANGED);
        assert!(session.tools().is_empty(), "{code}");
        eventually("it says why", || {
            gateway.status("web")["last_error"]["class"] == class
        });
        let listed = gateway.api("/api/v1/tools");
        assert_eq!(listed["unlisted"][0]["class"], class, "{listed}");
        let refused = session.call("web__look", &json!({}));
        assert_eq!(refused["error"]["data"]["class"], class, "{refused}");
        assert_eq!(refused["error"]["data"]["execution"], "not_started");

        // Nor is it shown by the next life of the gateway, before that knows better.
        let kept = gateway.state().join("manifests/web.json");
        eventually("it is forgotten", || !kept.exists());
        gateway.restart_after_kill();
        assert!(gateway.session("/mcp").tools().is_empty());

        status.store(200, Ordering::SeqCst);
        gateway.order("web", "start");
        gateway.wait_for("web", "ready");
        assert_eq!(gateway.session("/mcp").tools(), ["web__look"]);
    }
}
