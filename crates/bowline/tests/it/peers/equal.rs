//! What passes through the gateway is what the server said, field by field.

use serde_json::json;

use super::Peers;
use super::raw::{Peer, definitions, definitions_of, meaning};
use super::world::{NAMES, World};
use crate::harness::{Gateway, bowline, fixture};

#[test]
fn results_through_bowline_equal_a_direct_connection_field_by_field() {
    let test = "results_through_bowline_equal_a_direct_connection_field_by_field";
    let Some(peers) = Peers::of(test, &[]) else {
        return;
    };
    let world = World::new(peers);
    let gateway = world.gateway();
    let mut everyone = [
        ("HTTP", Peer::http(&gateway, "/mcp")),
        ("the shim", Peer::shim(&gateway, None)),
    ];
    let mut definitions_total = 0;
    for name in NAMES {
        let mut direct = Peer::program(&mut world.program(name, "direct").command());
        let mut one = [
            (
                "HTTP",
                Peer::http(&gateway, &format!("/servers/{name}/mcp")),
            ),
            ("the shim", Peer::shim(&gateway, Some(name))),
        ];
        let listed = settled_list(name, &mut direct);
        let expected = definitions(&listed);
        definitions_total += expected.len();
        for (way, peer) in &mut one {
            let through = peer.list();
            assert_eq!(
                meaning(through.result()),
                meaning(&listed),
                "tools/list of {name} over {way}"
            );
        }
        for (way, peer) in &mut everyone {
            let through = definitions_of(peer.list().result(), name);
            assert_eq!(through, expected, "tools of {name} in /mcp over {way}");
        }
        for (tool, arguments) in calls(&world, name) {
            let expected = direct.call(tool, &arguments).meaning();
            for (way, peer) in &mut one {
                let through = peer.call(tool, &arguments).meaning();
                assert_eq!(through, expected, "{tool} of {name} over {way}");
            }
            for (way, peer) in &mut everyone {
                let through = peer.call(&format!("{name}__{tool}"), &arguments).meaning();
                assert_eq!(through, expected, "{tool} of {name} in /mcp over {way}");
            }
        }
    }
    for (way, peer) in &mut everyone {
        let all = definitions(peer.list().result());
        assert_eq!(all.len(), definitions_total, "tools in /mcp over {way}");
    }
}

/// Lists until the server has added the tool that it adds after the handshake.
fn settled_list(name: &str, direct: &mut Peer) -> Vec<u8> {
    let mut listed = direct.list().result().to_vec();
    while name == "everything"
        && !String::from_utf8_lossy(&listed).contains("simulate-research-query")
    {
        listed = direct.list().result().to_vec();
    }
    listed
}

/// The calls of all clients, and some that end in errors of all kinds.
fn calls(world: &World, name: &str) -> Vec<super::world::Call> {
    let mut calls = world.calls(name, "raw");
    if name == "memory" {
        // Ends as it began, so that each way to the server finds the same.
        calls.clear();
        calls.push(("read_graph", json!({})));
        calls.push(("delete_entities", json!({"entityNames": ["nobody"]})));
        calls.push(("open_nodes", json!({"names": ["nobody"]})));
    }
    let wrong = match name {
        "everything" => vec![("echo", json!({})), ("get-sum", json!({"a": "x", "b": 1}))],
        "filesystem" => vec![("read_text_file", json!({"path": "/etc/passwd"}))],
        "memory" => vec![("create_entities", json!({"entities": 5}))],
        "time" => vec![("convert_time", json!({"time": "25:00"}))],
        _ => vec![("git_status", json!({"repo_path": "/nowhere"}))],
    };
    calls.extend(wrong);
    calls
}

#[test]
fn memory_through_bowline_remembers_as_a_direct_connection_does() {
    let test = "memory_through_bowline_remembers_as_a_direct_connection_does";
    let Some(peers) = Peers::of(test, &[]) else {
        return;
    };
    let world = World::new(peers);
    let gateway = world.gateway();
    let mut direct = Peer::program(&mut world.program("memory", "direct").command());
    let ways = [
        ("HTTP", Peer::http(&gateway, "/servers/memory/mcp")),
        ("the shim", Peer::shim(&gateway, Some("memory"))),
    ];
    for (way, mut peer) in ways {
        let mut calls = world.calls("memory", "memory");
        calls.insert(2, ("read_graph", json!({})));
        for (tool, arguments) in calls {
            let expected = direct.call(tool, &arguments).meaning();
            let through = peer.call(tool, &arguments).meaning();
            assert_eq!(through, expected, "{tool} over {way}");
        }
    }
}

#[test]
fn numbers_and_unknown_fields_pass_unchanged() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let direct = || {
        let mut command = std::process::Command::new(bowline());
        Peer::program(command.arg("fixture"))
    };
    let numbers = direct().call("numbers", &json!({}));
    let arguments = r#"{"beyond":9007199254740993,"huge":1e400,"one":1.0,"minus":-0,"e":1E+2}"#;
    let vendor = r#""vendor":[ 1.50, {"z":1,"a":2} ],"_meta":{"example.com/x":10e0,"\u0061":"\/"}"#;
    let params =
        |tool: &str| format!(r#"{{ "name":"{tool}", "arguments":{arguments} , {vendor}}}"#);
    let received = direct().request(2, "tools/call", &params("received"));
    let ways = [
        ("", Peer::http(&gateway, "/servers/one/mcp")),
        ("", Peer::shim(&gateway, Some("one"))),
        ("one__", Peer::http(&gateway, "/mcp")),
        ("one__", Peer::shim(&gateway, None)),
    ];
    for (prefix, mut peer) in ways {
        let through = peer.call(&format!("{prefix}numbers"), &json!({}));
        // Not only what it means: the very bytes.
        assert_eq!(through.result, numbers.result);
        let params = params(&format!("{prefix}received"));
        let through = peer.request(2, "tools/call", &params);
        assert_eq!(through.result, received.result);
    }
}
