//! Tools, names and responses of stdio servers, seen by a client of the gateway.

use std::collections::BTreeSet;

use bowline_testkit::gateway::{Gateway, fixture_binary, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

use crate::test_servers::{error_field, shell_handshake, shell_server};

/// Names of the listed tools.
fn listed_names(gateway: &Gateway, path: &str) -> Vec<String> {
    let answer = gateway.open_session(path).request("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn error_response_keeps_code_and_data() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let error = json!({"code": -32_042, "message": "no: \"why\"", "data": {"n": [1, null]}});
    let answer = gateway.open_session("/mcp").call("one__rpc_error", &error);
    assert_eq!(answer["error"], error);
    assert_eq!(gateway.server_status("one")["errors"], 0);
}

#[test]
fn malformed_tool_definition_is_not_listed() {
    let config = [
        fixture_config("bad", &["--fault", "bad-tool"]),
        fixture_config("good", &[]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    let bad = listed_names(&gateway, "/servers/bad/mcp");
    let good = listed_names(&gateway, "/servers/good/mcp");
    assert_eq!(bad, good);
    let text = gateway
        .open_session("/mcp")
        .request("tools/list", &json!({}))
        .to_string();
    assert!(!text.contains("without a name"));
}

#[test]
fn list_without_tools_is_empty() {
    let text = shell_handshake("{}") + "read -r l\n";
    let gateway = Gateway::start(&shell_server("bare", &text, &[]));
    gateway.wait_for_state("bare", "ready");
    for path in ["/mcp", "/servers/bare/mcp"] {
        let mut session = gateway.open_session(path);
        let answer = session.request("tools/list", &json!({}));
        assert_eq!(answer["result"]["tools"], json!([]), "{path}: {answer}");
    }
    let answer = gateway.open_session("/mcp").call("bare__x", &json!({}));
    assert_eq!(error_field(&answer, "code"), "tool_not_found");
}

#[test]
fn every_page_of_tool_list_is_read() {
    let config = [
        fixture_config("paged", &["--toolset", "many=40", "--fault", "pages=3"]),
        fixture_config("whole", &["--toolset", "many=40"]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    let paged = listed_names(&gateway, "/servers/paged/mcp");
    assert_eq!(paged, listed_names(&gateway, "/servers/whole/mcp"));
    assert!(paged.len() > 40);
    let mut session = gateway.open_session("/mcp");
    let said = session.call_text("paged__tool_00039", &json!({"message": "hi"}));
    assert_eq!(said, "tool_00039 says hi");
}

#[test]
fn changed_tool_list_replaces_routes() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    let dynamic = "one__test_dynamic_tool";
    let answer = session.call(dynamic, &json!({}));
    assert_eq!(error_field(&answer, "code"), "tool_not_found", "{answer}");
    session.call("one__test_trigger_tool_change", &json!({}));
    wait_until("it is listed", || {
        listed_names(&gateway, "/mcp").contains(&dynamic.to_owned())
    });
    let answer = session.call(dynamic, &json!({}));
    assert!(answer["result"].is_object(), "{answer}");
}

#[test]
fn tool_dropped_by_server_is_not_found() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    let dynamic = "one__test_dynamic_tool";
    for present in [true, false] {
        session.call("one__test_trigger_tool_change", &json!({}));
        wait_until("the list has changed", || {
            listed_names(&gateway, "/mcp").contains(&dynamic.to_owned()) == present
        });
    }
    let answer = session.call(dynamic, &json!({}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(error_field(&answer, "code"), "tool_not_found", "{answer}");
    assert_eq!(error_field(&answer, "execution"), "not_started", "{answer}");
}

#[test]
fn tool_error_stays_tool_error() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    for _ in 0..8 {
        let answer = session.call("one__fail", &json!({"message": "on purpose"}));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["content"][0]["text"], "on purpose");
    }
    // Eight tool errors in a row do not count against the server.
    assert_eq!(gateway.server_status("one")["circuit"], "closed");
    assert_eq!(gateway.server_status("one")["errors"], 0);
}

#[test]
fn non_text_content_passes_through() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    for (tool, kind, member) in [
        ("one__test_image_content", "image", "data"),
        ("one__test_audio_content", "audio", "data"),
        ("one__test_embedded_resource", "resource", "resource"),
    ] {
        let answer = session.call(tool, &json!({}));
        let content = &answer["result"]["content"][0];
        assert_eq!(content["type"], kind, "{answer}");
        assert!(!content[member].is_null(), "{answer}");
    }
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"one__numbers","arguments":{}}}"#;
    let answer = session.post_raw(body).text();
    for part in [
        "9007199254740993",
        "\"one\":1.0",
        "1e400",
        "123456789012345678901234567890",
        "\"vendorNote\":{\"z\":1,\"a\":2}",
        r#""\u0061\/""#,
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
}

#[test]
fn names_of_two_servers_never_collide() {
    let config = [fixture_config("one", &[]), fixture_config("one-two", &[])].concat();
    let gateway = Gateway::start(&config);
    let names = listed_names(&gateway, "/mcp");
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    let mut session = gateway.open_session("/mcp");
    session.call("one__effect", &json!({"key": "mine"}));
    for (tool, count) in [("one__executions", 1), ("one-two__executions", 0)] {
        let answer = session.call(tool, &json!({"key": "mine"}));
        let here = &answer["result"]["structuredContent"]["here"];
        assert_eq!(*here, count, "{tool}: {answer}");
    }
    // Bare names and names of the first server are unknown at the second.
    for unknown in ["echo", "one__two__echo", "One__echo", "one-two-echo"] {
        let answer = session.call(unknown, &json!({"message": "hi"}));
        assert_eq!(error_field(&answer, "execution"), "not_started", "{answer}");
    }
}

#[test]
fn tool_list_is_served_from_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let program = fixture_binary();
    let config = shell_server(
        "one",
        "tee \"$1\" | \"$2\"",
        &[log.to_str().unwrap(), program.to_str().unwrap()],
    );
    let gateway = Gateway::start(&config);
    let names = listed_names(&gateway, "/mcp");
    for path in ["/mcp", "/servers/one/mcp"] {
        for _ in 0..5 {
            assert_eq!(listed_names(&gateway, path).len(), names.len());
        }
    }
    gateway.run_cli(&["ls", "one"]);
    gateway
        .open_session("/mcp")
        .call_text("one__echo", &json!({"message": "last"}));
    let heard = std::fs::read_to_string(&log).unwrap();
    assert!(heard.contains("\"last\""), "{heard}");
    assert_eq!(heard.matches("\"tools/list\"").count(), 1, "{heard}");
}

#[test]
fn string_id_is_echoed_unchanged() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    for id in [r#""7""#, r#""""#, r#""a\"b\u00e4""#, "7"] {
        for call in [
            r#""tools/call","params":{"name":"one__echo","arguments":{"message":"hi"}}"#,
            r#""tools/call","params":{"name":"one__none","arguments":{}}"#,
            r#""tools/list""#,
            r#""ping""#,
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{call}}}"#);
            let answer = session.post_raw(body.as_bytes()).text();
            assert!(answer.contains(&format!("\"id\":{id},")), "{answer}");
        }
    }
}
