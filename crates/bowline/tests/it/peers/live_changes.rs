//! Active clients: concurrent calls, cancelled calls, and tools that change meanwhile.

use std::path::PathBuf;

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config};
use bowline_testkit::{is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::{Value, json};

use super::PeerManifest;
use super::clients::{
    http_target, python_1, python_2, stdio_target, typescript_1, typescript_2, wait_for_success,
};

#[test]
fn clients_call_cancel_and_hear_changes() {
    let test = "clients_call_cancel_and_hear_changes";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = PeerManifest::load(test, &needed) else {
        return;
    };
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let clients = [
        python_1(&peers),
        python_2(&peers, "auto"),
        python_2(&peers, "2026-07-28"),
        typescript_1(&peers),
        typescript_2(&peers, "auto"),
    ];
    for client in clients {
        let work = |mut target: Value| {
            for (key, tool) in [
                ("echo", "one__echo"),
                ("slow", "one__slow"),
                ("counter", "one__counter"),
                ("change", "one__test_trigger_tool_change"),
            ] {
                target[key] = json!(tool);
            }
            (target, json!([]))
        };
        let walked = client.run_targets([
            work(http_target(&gateway, "/mcp")),
            work(stdio_target(&gateway, None)),
        ]);
        // The first client adds a tool, the second removes it.
        for (walked, there) in walked.iter().zip([true, false]) {
            let changed = walked["changed"].as_array().unwrap();
            let found = changed.contains(&json!("one__test_dynamic_tool"));
            assert_eq!(found, there, "{}: {changed:?}", client.name);
        }
        // The cancelled calls ended at the server long before their own end.
        wait_until("nothing is under way", || {
            gateway.wait_for_state("one", "ready")["in_flight"] == 0
        });
    }
}

#[test]
fn clients_behind_shim_outlive_gateway() {
    let test = "clients_behind_shim_outlive_gateway";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = PeerManifest::load(test, &needed) else {
        return;
    };
    // The gateway that a shim starts uses a free port too.
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{}",
        fixture_config("one", &[])
    );
    let gateway = Gateway::start(&config);
    let detached = DetachedGateway(gateway.state_dir());
    let clients = [
        python_1(&peers),
        python_2(&peers, "auto"),
        python_2(&peers, "2026-07-28"),
        typescript_1(&peers),
        typescript_2(&peers, "auto"),
    ];
    for client in clients {
        let at = |what: &str| {
            let name = format!("{}.{what}", client.name);
            gateway.dir.path().join(name)
        };
        let (ready, go) = (at("ready"), at("go"));
        let (config, state) = (gateway.dir.path().join("bowline.toml"), gateway.state_dir());
        let target = json!({
            "command": bowline_binary(),
            "args": ["--config", config, "--state", state, "stdio"],
            "env": {},
            "echo": "one__echo",
            "change": "one__test_trigger_tool_change",
            "pause": {"ready": ready, "go": go},
        });
        let child = client.start_on_targets(&[(target, json!([]))]);
        wait_until("the client pauses", || ready.exists());
        let before = detached.pid();
        send_signal(before, "KILL");
        wait_process_exit("the death of the gateway", before);
        std::fs::write(&go, "").unwrap();
        // The client goes on and receives changes again.
        wait_for_success(client.name, child);
        assert_ne!(detached.pid(), before, "{}", client.name);
    }
}

/// The gateway that runs on this state directory; ends with the test.
struct DetachedGateway(PathBuf);

impl DetachedGateway {
    fn pid(&self) -> u32 {
        let run = std::fs::read(self.0.join("run.json")).unwrap();
        let run: Value = serde_json::from_slice(&run).unwrap();
        run["pid"].as_u64().unwrap().try_into().unwrap()
    }
}

impl Drop for DetachedGateway {
    fn drop(&mut self) {
        let pid = self.pid();
        if is_alive(pid) {
            send_signal(pid, "TERM");
            wait_process_exit("the end of the last gateway", pid);
        }
    }
}

#[test]
fn stream_opened_after_change_reports_it() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    session.request("tools/list", &json!({}));
    let mut other = gateway.open_session("/mcp");
    other.request("tools/list", &json!({}));
    let mut early = other.open_stream();
    early.read_chunk().unwrap();
    other.call("one__test_trigger_tool_change", &json!({}));
    // All listeners are notified together.
    early.read_chunk().unwrap();
    other.request("tools/list", &json!({}));
    let mut late = session.open_stream();
    let mut heard = String::new();
    while !heard.contains("event: message") {
        heard += &String::from_utf8(late.read_chunk().unwrap()).unwrap();
    }
    assert!(
        heard.contains("notifications/tools/list_changed"),
        "{heard:?}"
    );
    // An up-to-date stream gets nothing: its next message is the next change.
    let mut known = other.open_stream();
    known.read_chunk().unwrap();
    session.call("one__test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(known.read_chunk().unwrap()).unwrap();
    assert_eq!(event.matches("list_changed").count(), 1, "{event:?}");
    let listed = other.request("tools/list", &json!({}));
    assert!(
        !listed.to_string().contains("test_dynamic_tool"),
        "{listed}"
    );
}
