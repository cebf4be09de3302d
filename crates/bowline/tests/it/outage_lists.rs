//! Lists shown to agents while servers are down or refuse.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bowline_testkit::gateway::{
    Gateway, HttpConnection, ReceivedRequest, Session, StubResponse, StubServer, fixture_binary,
};
use bowline_testkit::{send_signal, wait_until};
use serde_json::{Value, json};

use crate::streams::next_event;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// A server without automatic retries that cannot start while a file exists.
fn switchable_server(switch: &Path) -> String {
    let program = fixture_binary();
    let script = format!(
        "test ! -e {} && exec {}",
        switch.display(),
        program.display()
    );
    format!(
        "[servers.fix]\ncommand = \"sh\"\nargs = [\"-c\", {}]\n\
         restart = {{ budget = 9, backoff = \"10m..10m\" }}\n\
         [context.less]\nhide = [\"fix.echo\"]\n",
        json!(script)
    )
}

/// Number of listed tools, and number of tools marked as stale.
fn count_marked_tools(session: &mut Session) -> (usize, usize) {
    let list = session.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap().clone();
    let stale = |tool: &&Value| tool["_meta"]["dev.bowline/stale"] == true;
    (tools.len(), tools.iter().filter(stale).count())
}

/// Opens the stream of a session and skips its first event.
fn open_stream(session: &Session) -> HttpConnection {
    let mut stream = session.open_stream();
    stream.read_chunk().unwrap();
    stream
}

fn kill_server(gateway: &Gateway) {
    let pid = gateway.server_status("fix")["pid"].as_u64().unwrap();
    send_signal(u32::try_from(pid).unwrap(), "KILL");
}

#[test]
fn blip_serves_stale_list_without_notification() {
    let dir = tempfile::TempDir::new().unwrap();
    let switch = dir.path().join("down");
    let mut gateway = Gateway::start(&switchable_server(&switch));
    gateway.wait_for_state("fix", "ready");
    let mut session = gateway.open_session("/mcp");
    let (all, marked) = count_marked_tools(&mut session);
    assert!(all > 3 && marked == 0);
    let mut stream = open_stream(&session);

    std::fs::write(&switch, "").unwrap();
    kill_server(&gateway);
    gateway.wait_for_state("fix", "backoff");
    assert_eq!(count_marked_tools(&mut session), (all, all));
    assert_eq!(gateway.server_status("fix")["stale"], true);
    let listed = gateway.get_api("/api/v1/tools");
    assert_eq!(listed["tools"][0]["stale"], true);
    assert_eq!(listed["unlisted"], json!([]));
    let shown = String::from_utf8(gateway.run_cli(&["ls"]).stdout).unwrap();
    assert!(shown.contains(&format!("{all} stale")), "{shown}");
    // A session can start in the outage, and gets the same list.
    let mut late = gateway.open_session("/mcp");
    assert_eq!(count_marked_tools(&mut late), (all, all));

    std::fs::remove_file(&switch).unwrap();
    gateway.control_server("fix", "start");
    gateway.wait_for_state("fix", "ready");
    assert_eq!(count_marked_tools(&mut session), (all, 0));
    // Only real changes are announced, of tools alone; the blip would have announced all lists.
    for (contexts, seen) in [(json!(["less"]), all - 1), (json!([]), all)] {
        let path = format!("/api/v1/sessions/{}/context", session.id);
        gateway.send_api("PUT", &path, &json!({"contexts": contexts}));
        let event = next_event(&mut stream).unwrap();
        assert_eq!(event.data_json()["method"], TOOLS_CHANGED);
        assert_eq!(count_marked_tools(&mut session), (seen, 0));
    }

    // The same after a restart of the gateway, with the server down throughout.
    std::fs::write(&switch, "").unwrap();
    gateway.restart_after_kill();
    gateway.wait_for_state("fix", "backoff");
    assert_eq!(
        count_marked_tools(&mut gateway.open_session("/mcp")),
        (all, all)
    );
    assert_eq!(
        count_marked_tools(&mut gateway.open_session("/servers/fix/mcp")),
        (all, all)
    );
}

#[test]
fn cold_start_in_outage_lists_nothing_with_reason() {
    let dir = tempfile::TempDir::new().unwrap();
    let switch = dir.path().join("down");
    std::fs::write(&switch, "").unwrap();
    let gateway = Gateway::start(&switchable_server(&switch));
    gateway.wait_for_state("fix", "backoff");
    for path in ["/mcp", "/servers/fix/mcp"] {
        let mut session = gateway.open_session(path);
        session.id.clear();
        let hello = session.request(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {},
                    "clientInfo": {"name": "it", "version": "1"}}),
        );
        let told = &hello["result"]["capabilities"]["tools"]["listChanged"];
        assert_eq!(told, &json!(true), "{hello}");
        assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
        assert_eq!(count_marked_tools(&mut gateway.open_session(path)), (0, 0));
    }
    let listed = gateway.get_api("/api/v1/tools");
    assert_eq!(listed["unlisted"][0]["server"], "fix");
    assert_eq!(listed["unlisted"][0]["state"], "backoff");
    assert_eq!(listed["unlisted"][0]["class"], "connect_failed");

    let mut session = gateway.open_session("/mcp");
    let mut stream = open_stream(&session);
    std::fs::remove_file(&switch).unwrap();
    gateway.control_server("fix", "start");
    let event = next_event(&mut stream).unwrap();
    assert_eq!(event.data_json()["method"], TOOLS_CHANGED);
    assert!(count_marked_tools(&mut session).0 > 3);
}

/// A server with this status for list requests, unless 200. A call sends `list_changed`.
fn start_refusing_server() -> (StubServer, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let now = Arc::clone(&status);
    let well = move |asked: &ReceivedRequest| -> StubResponse {
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
    (StubServer::start(well), status)
}

#[test]
fn refused_list_hides_tools_with_reason() {
    for (code, class) in [(401, "auth_required"), (403, "scope_required")] {
        let (listener, status) = start_refusing_server();
        let config = format!("[servers.web]\nurl = \"{}/mcp\"\n", listener.url);
        let mut gateway = Gateway::start(&config);
        gateway.wait_for_state("web", "ready");
        let mut session = gateway.open_session("/mcp");
        assert_eq!(session.list_tool_names(), ["web__look"]);
        let mut stream = open_stream(&session);

        status.store(code, Ordering::SeqCst);
        assert_eq!(session.call_text("web__look", &json!({})), "seen");
        let event = next_event(&mut stream).unwrap();
        assert_eq!(event.data_json()["method"], TOOLS_CHANGED);
        assert!(session.list_tool_names().is_empty(), "{code}");
        wait_until("it says why", || {
            gateway.server_status("web")["last_error"]["class"] == class
        });
        let listed = gateway.get_api("/api/v1/tools");
        assert_eq!(listed["unlisted"][0]["class"], class, "{listed}");
        let refused = session.call("web__look", &json!({}));
        assert_eq!(refused["error"]["data"]["class"], class, "{refused}");
        assert_eq!(refused["error"]["data"]["execution"], "not_started");

        // Nor does the next gateway show the tools before a new list.
        let kept = gateway.state_dir().join("manifests/web.json");
        wait_until("it is forgotten", || !kept.exists());
        gateway.restart_after_kill();
        assert!(gateway.open_session("/mcp").list_tool_names().is_empty());

        status.store(200, Ordering::SeqCst);
        gateway.control_server("web", "start");
        gateway.wait_for_state("web", "ready");
        assert_eq!(
            gateway.open_session("/mcp").list_tool_names(),
            ["web__look"]
        );
    }
}
