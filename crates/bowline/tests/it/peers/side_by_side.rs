//! Five official servers behind one gateway at once.

use serde_json::json;

use super::Peers;
use super::world::{NAMES, World};
use crate::harness::{Gateway, eventually, signal};

#[test]
fn five_official_servers_serve_side_by_side() {
    let Some(peers) = Peers::of("five_official_servers_serve_side_by_side", &[]) else {
        return;
    };
    let world = World::new(peers);
    let gateway = world.gateway();
    let mut session = gateway.session("/mcp");
    let listed = session.request("tools/list", &json!({}));
    let listed = listed["result"]["tools"].as_array().unwrap().clone();
    for (name, tools) in NAMES.iter().zip([17, 14, 9, 2, 12]) {
        let prefix = format!("{name}__");
        let own = listed.iter().map(|tool| tool["name"].as_str().unwrap());
        let own = own.filter(|tool| tool.starts_with(&prefix)).count();
        assert_eq!(own, tools, "tools of {name}");
        assert_eq!(gateway.wait_for(name, "ready")["tools"], tools);
    }
    assert_eq!(listed.len(), 17 + 14 + 9 + 2 + 12);
    std::thread::scope(|scope| {
        for name in NAMES {
            scope.spawn(|| (0..5).for_each(|_| work(&world, &gateway, name)));
        }
    });

    // One of them dies; the others do not notice, and it comes back.
    let memory = gateway.wait_for("memory", "ready");
    signal(memory["pid"].as_u64().unwrap().try_into().unwrap(), "KILL");
    for name in ["everything", "filesystem", "time", "git"] {
        work(&world, &gateway, name);
        assert_eq!(
            gateway.wait_for(name, "ready")["restart_count"],
            0,
            "{name}"
        );
    }
    eventually("memory runs again", || {
        let status = gateway.wait_for("memory", "ready");
        status["generation"].as_u64() > memory["generation"].as_u64()
    });
    work(&world, &gateway, "memory");
}

/// Makes the calls of one server in a session of its own; each ends in a result of its own.
fn work(world: &World, gateway: &Gateway, name: &str) {
    let mut session = gateway.session("/mcp");
    for (tool, arguments) in world.calls(name, "side") {
        let answer = session.call(&format!("{name}__{tool}"), &arguments);
        let content = answer["result"]["content"].as_array();
        assert!(content.is_some(), "{tool} of {name}: {answer}");
        let fails = arguments.to_string().contains("missing.txt");
        let failed = answer["result"]["isError"] == true;
        assert_eq!(failed, fails, "{tool} of {name}: {answer}");
    }
}
