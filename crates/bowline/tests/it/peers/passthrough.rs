//! Results through the gateway equal the server's, field by field.

use bowline_testkit::gateway::{Gateway, fixture_binary, fixture_config};
use serde_json::json;

use super::PeerManifest;
use super::official_servers::{NAMES, OfficialServers};
use super::raw_client::{RawClient, canonical_json, definitions_of, list_definitions};

#[test]
fn results_equal_direct_connection() {
    let test = "results_equal_direct_connection";
    let Some(peers) = PeerManifest::load(test, &[]) else {
        return;
    };
    let world = OfficialServers::new(peers);
    let gateway = world.start_gateway();
    let mut everyone = [
        ("HTTP", RawClient::open_http(&gateway, "/mcp")),
        ("the shim", RawClient::start_shim(&gateway, None)),
    ];
    let mut definitions_total = 0;
    for name in NAMES {
        let mut direct =
            RawClient::start_program(&mut world.server_program(name, "direct").to_command());
        let mut one = [
            (
                "HTTP",
                RawClient::open_http(&gateway, &format!("/servers/{name}/mcp")),
            ),
            ("the shim", RawClient::start_shim(&gateway, Some(name))),
        ];
        let listed = list_until_settled(name, &mut direct);
        let expected = list_definitions(&listed);
        definitions_total += expected.len();
        for (way, peer) in &mut one {
            let through = peer.list_tools();
            assert_eq!(
                canonical_json(through.result()),
                canonical_json(&listed),
                "tools/list of {name} over {way}"
            );
        }
        for (way, peer) in &mut everyone {
            let through = definitions_of(peer.list_tools().result(), name);
            assert_eq!(through, expected, "tools of {name} in /mcp over {way}");
        }
        for (tool, arguments) in all_calls(&world, name) {
            let expected = direct.call_tool(tool, &arguments).canonical_text();
            for (way, peer) in &mut one {
                let through = peer.call_tool(tool, &arguments).canonical_text();
                assert_eq!(through, expected, "{tool} of {name} over {way}");
            }
            for (way, peer) in &mut everyone {
                let through = peer
                    .call_tool(&format!("{name}__{tool}"), &arguments)
                    .canonical_text();
                assert_eq!(through, expected, "{tool} of {name} in /mcp over {way}");
            }
        }
    }
    for (way, peer) in &mut everyone {
        let all = list_definitions(peer.list_tools().result());
        assert_eq!(all.len(), definitions_total, "tools in /mcp over {way}");
    }
}

/// Lists until the server has added its late tool, after the handshake.
fn list_until_settled(name: &str, direct: &mut RawClient) -> Vec<u8> {
    let mut listed = direct.list_tools().result().to_vec();
    while name == "everything"
        && !String::from_utf8_lossy(&listed).contains("simulate-research-query")
    {
        listed = direct.list_tools().result().to_vec();
    }
    listed
}

/// The calls of all clients, and some that fail in various ways.
fn all_calls(world: &OfficialServers, name: &str) -> Vec<super::official_servers::ToolCallSpec> {
    let mut calls = world.stable_calls(name, "raw");
    if name == "memory" {
        // Restores the initial state, so each path to the server finds the same.
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
fn memory_server_behaves_as_directly_connected() {
    let test = "memory_server_behaves_as_directly_connected";
    let Some(peers) = PeerManifest::load(test, &[]) else {
        return;
    };
    let world = OfficialServers::new(peers);
    let gateway = world.start_gateway();
    let mut direct =
        RawClient::start_program(&mut world.server_program("memory", "direct").to_command());
    let ways = [
        (
            "HTTP",
            RawClient::open_http(&gateway, "/servers/memory/mcp"),
        ),
        ("the shim", RawClient::start_shim(&gateway, Some("memory"))),
    ];
    for (way, mut peer) in ways {
        let mut calls = world.stable_calls("memory", "memory");
        calls.insert(2, ("read_graph", json!({})));
        for (tool, arguments) in calls {
            let expected = direct.call_tool(tool, &arguments).canonical_text();
            let through = peer.call_tool(tool, &arguments).canonical_text();
            assert_eq!(through, expected, "{tool} over {way}");
        }
    }
}

#[test]
fn numbers_and_unknown_fields_pass_unchanged() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let direct = || RawClient::start_program(&mut std::process::Command::new(fixture_binary()));
    let numbers = direct().call_tool("numbers", &json!({}));
    let arguments = r#"{"beyond":9007199254740993,"huge":1e400,"one":1.0,"minus":-0,"e":1E+2}"#;
    let vendor = r#""vendor":[ 1.50, {"z":1,"a":2} ],"_meta":{"example.com/x":10e0,"\u0061":"\/"}"#;
    let params =
        |tool: &str| format!(r#"{{ "name":"{tool}", "arguments":{arguments} , {vendor}}}"#);
    let received = direct().request(2, "tools/call", &params("received"));
    let ways = [
        ("", RawClient::open_http(&gateway, "/servers/one/mcp")),
        ("", RawClient::start_shim(&gateway, Some("one"))),
        ("one__", RawClient::open_http(&gateway, "/mcp")),
        ("one__", RawClient::start_shim(&gateway, None)),
    ];
    for (prefix, mut peer) in ways {
        let through = peer.call_tool(&format!("{prefix}numbers"), &json!({}));
        // Not only equal in meaning: equal bytes.
        assert_eq!(through.result, numbers.result);
        let params = params(&format!("{prefix}received"));
        let through = peer.request(2, "tools/call", &params);
        assert_eq!(through.result, received.result);
    }
}
