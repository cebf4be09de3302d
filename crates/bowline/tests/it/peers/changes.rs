//! Clients at work: many calls at once, calls given up, and tools that change meanwhile.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::Peers;
use super::clients::{
    finish, over_http, over_stdio, python_1, python_2, typescript_1, typescript_2,
};
use crate::harness::{Gateway, bowline, eventually, fixture, lives, signal};

#[test]
fn clients_call_at_once_give_up_and_hear_of_changes() {
    let test = "clients_call_at_once_give_up_and_hear_of_changes";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = Peers::of(test, &needed) else {
        return;
    };
    let gateway = Gateway::up(&fixture("one", &[]));
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
        let walked = client.walk([
            work(over_http(&gateway, "/mcp")),
            work(over_stdio(&gateway, None)),
        ]);
        // The first adds a tool, the second takes it away.
        for (walked, there) in walked.iter().zip([true, false]) {
            let changed = walked["changed"].as_array().unwrap();
            let found = changed.contains(&json!("one__test_dynamic_tool"));
            assert_eq!(found, there, "{}: {changed:?}", client.name);
        }
        // The calls that were given up ended at the server, long before they would have.
        eventually("nothing is under way", || {
            gateway.wait_for("one", "ready")["in_flight"] == 0
        });
    }
}

#[test]
fn clients_behind_the_shim_outlive_the_gateway() {
    let test = "clients_behind_the_shim_outlive_the_gateway";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = Peers::of(test, &needed) else {
        return;
    };
    // The one that a shim starts takes a free port as well.
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{}",
        fixture("one", &[])
    );
    let gateway = Gateway::up(&config);
    let detached = Detached(gateway.state());
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
        let (config, state) = (gateway.dir.path().join("bowline.toml"), gateway.state());
        let target = json!({
            "command": bowline(),
            "args": ["--config", config, "--state", state, "stdio"],
            "env": {},
            "echo": "one__echo",
            "change": "one__test_trigger_tool_change",
            "pause": {"ready": ready, "go": go},
        });
        let child = client.start(&[(target, json!([]))]);
        eventually("the client pauses", || ready.exists());
        let before = detached.pid();
        signal(before, "KILL");
        eventually("the gateway is dead", || !lives(before));
        std::fs::write(&go, "").unwrap();
        // It goes on as if nothing had been, and hears of changes again.
        finish(client.name, child);
        assert_ne!(detached.pid(), before, "{}", client.name);
    }
}

/// Whatever gateway runs on this state, which ends with the test.
struct Detached(PathBuf);

impl Detached {
    fn pid(&self) -> u32 {
        let run = std::fs::read(self.0.join("run.json")).unwrap();
        let run: Value = serde_json::from_slice(&run).unwrap();
        run["pid"].as_u64().unwrap().try_into().unwrap()
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        let pid = self.pid();
        if lives(pid) {
            signal(pid, "TERM");
            eventually("the last gateway ends", || !lives(pid));
        }
    }
}

#[test]
fn a_stream_opened_after_a_change_tells_of_it() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let mut session = gateway.session("/mcp");
    session.request("tools/list", &json!({}));
    let mut other = gateway.session("/mcp");
    other.request("tools/list", &json!({}));
    let mut early = other.listen();
    early.read_chunk().unwrap();
    other.call("one__test_trigger_tool_change", &json!({}));
    // All who listen have been told when one has.
    early.read_chunk().unwrap();
    other.request("tools/list", &json!({}));
    let mut late = session.listen();
    let mut heard = String::new();
    while !heard.contains("event: message") {
        heard += &String::from_utf8(late.read_chunk().unwrap()).unwrap();
    }
    assert!(
        heard.contains("notifications/tools/list_changed"),
        "{heard:?}"
    );
    // Whoever knows already is told nothing: the next that is heard is the next change.
    let mut known = other.listen();
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
