//! Translation of results between eras.

use std::time::Duration;

use bowline_core::cache::{CacheHint, CacheScope};
use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use super::*;

const INFO: &[u8] = br#"{"name":"s","version":"1"}"#;

/// A legacy result of every method, with the schema type.
const RESULTS: &[(&str, &str, &str)] = &[
    (
        method::TOOLS_CALL,
        "CallToolResult",
        r#"{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":[1]},"isError":false,"_meta":{"k":1}}"#,
    ),
    (method::TOOLS_CALL, "CallToolResult", r#"{"content":[]}"#),
    (
        method::TOOLS_LIST,
        "ListToolsResult",
        r#"{"tools":[{"name":"x","inputSchema":{"type":"object"}}],"nextCursor":"c"}"#,
    ),
    (
        method::PROMPTS_LIST,
        "ListPromptsResult",
        r#"{"prompts":[]}"#,
    ),
    (
        method::PROMPTS_GET,
        "GetPromptResult",
        r#"{"messages":[{"role":"user","content":{"type":"text","text":"a"}}]}"#,
    ),
    (
        method::RESOURCES_LIST,
        "ListResourcesResult",
        r#"{"resources":[]}"#,
    ),
    (
        method::RESOURCES_TEMPLATES_LIST,
        "ListResourceTemplatesResult",
        r#"{"resourceTemplates":[],"_meta":{}}"#,
    ),
    (
        method::RESOURCES_READ,
        "ReadResourceResult",
        r#"{"contents":[{"uri":"a://b","text":""}]}"#,
    ),
    (
        method::COMPLETION_COMPLETE,
        "CompleteResult",
        r#"{"completion":{"values":["a"]}}"#,
    ),
];

#[test]
fn result_kind_is_parsed() {
    for (result, want) in [
        (r#"{"content":[]}"#, ResultKind::Absent),
        (
            r#"{"content":[],"resultType":"complete"}"#,
            ResultKind::Complete,
        ),
        (
            r#"{"resultType":"input_required"}"#,
            ResultKind::InputRequired,
        ),
        (r#"{"result\u0054ype":"task"}"#, ResultKind::Task),
        (r#"{"resultType":"other"}"#, ResultKind::Unknown),
        (r#"{"resultType":null}"#, ResultKind::Unknown),
        (r#"{"content":[{"resultType":"task"}]}"#, ResultKind::Absent),
        ("null", ResultKind::Absent),
    ] {
        let got = result_kind(result.as_bytes());
        assert_eq!(got, want, "{result}");
        let end = matches!(want, ResultKind::Complete | ResultKind::Absent);
        assert_eq!(got.is_final(), end);
    }
}

#[test]
fn legacy_result_round_trips_through_modern() {
    let test = "legacy_result_round_trips_through_modern";
    let modern = McpSchema::load("2026-07-28", test);
    let legacy = McpSchema::load("2025-11-25", test);
    for (method, name, result) in RESULTS {
        let known = ResultContext {
            server_info: Some(INFO),
            hint: None,
        };
        let written = to_modern(result.as_bytes(), method, &known);
        assert_eq!(result_kind(&written), ResultKind::Complete);
        let value: Value = serde_json::from_slice(&written).unwrap();
        let info: Value = serde_json::from_slice(INFO).unwrap();
        assert_eq!(value["_meta"][meta::SERVER_INFO], info, "{result}");
        let hints = json!([value.get("ttlMs"), value.get("cacheScope")]);
        let want = if needs_cache_hint(method) {
            json!([0, "private"])
        } else {
            json!([null, null])
        };
        assert_eq!(hints, want, "{result}");
        if let (Some(modern), Some(legacy)) = (&modern, &legacy) {
            modern.assert_valid_text(name, &written);
            legacy.assert_valid_text(name, &to_legacy(&written, method));
        }
        // Without the name of the server, nothing is left of the journey.
        let plain = to_modern(result.as_bytes(), method, &ResultContext::default());
        let back = to_legacy(&plain, method);
        assert_eq!(std::str::from_utf8(&back).unwrap(), *result);
    }
}

#[test]
fn cache_hint_prefers_known_then_own() {
    let hint = CacheHint {
        ttl: Duration::from_secs(5),
        scope: CacheScope::Public,
    };
    let read = |result: &str, hint: Option<CacheHint>| -> Value {
        let known = ResultContext {
            server_info: None,
            hint,
        };
        let written = to_modern(result.as_bytes(), method::RESOURCES_READ, &known);
        let value: Value = serde_json::from_slice(&written).unwrap();
        json!([value["ttlMs"], value["cacheScope"]])
    };
    let own = r#"{"ttlMs":7,"contents":[],"cacheScope":"public"}"#;
    assert_eq!(read(own, None), json!([7, "public"]));
    assert_eq!(read(own, Some(hint)), json!([5_000, "public"]));
    for bad in [
        r#"{"contents":[]}"#,
        r#"{"ttlMs":7,"contents":[]}"#,
        r#"{"ttlMs":-7,"cacheScope":"public"}"#,
        r#"{"ttlMs":1.5,"cacheScope":"public"}"#,
        r#"{"ttlMs":7,"cacheScope":"all"}"#,
    ] {
        assert_eq!(read(bad, None), json!([0, "private"]), "{bad}");
    }
}

#[test]
fn legacy_result_type_is_ignored() {
    let result = br#"{"resultType":"input_required","content":[],"_meta":7}"#;
    let known = ResultContext {
        server_info: Some(INFO),
        hint: None,
    };
    let written = to_modern(result, method::TOOLS_CALL, &known);
    let want = json!({
        "resultType": "complete", "content": [],
        "_meta": {meta::SERVER_INFO: {"name": "s", "version": "1"}},
    });
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), want);
    let named = br#"{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"own"}}}"#;
    let written = to_modern(named, method::TOOLS_CALL, &known);
    let value: Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(value["_meta"][meta::SERVER_INFO]["name"], "own");
    let nothing = to_modern(b"null", method::TOOLS_CALL, &ResultContext::default());
    assert_eq!(nothing, br#"{"resultType":"complete"}"#);
}

#[test]
fn unsupported_structured_content_becomes_text() {
    for (result, want) in [
        (
            r#"{"resultType":"complete","content":[],"structuredContent":{"a":1}}"#,
            r#"{"content":[],"structuredContent":{"a":1}}"#,
        ),
        (
            r#"{"content":[{"type":"text","text":"[1]"}],"structuredContent":[1],"resultType":"complete"}"#,
            r#"{"content":[{"type":"text","text":"[1]"}]}"#,
        ),
        (
            r#"{"content":[],"structuredContent":["\"",1]}"#,
            r#"{"content":[{"type":"text","text":"[\"\\\"\",1]"}]}"#,
        ),
        (
            r#"{"structuredContent":"s","content":[{"type":"image","data":"","mimeType":"a/b"}]}"#,
            r#"{"content":[{"type":"text","text":"\"s\""},{"type":"image","data":"","mimeType":"a/b"}]}"#,
        ),
        (
            r#"{"content":[],"structuredContent":null}"#,
            r#"{"content":[]}"#,
        ),
    ] {
        let got = to_legacy(result.as_bytes(), method::TOOLS_CALL);
        assert_eq!(std::str::from_utf8(&got).unwrap(), want);
    }
    let legacy = br#"{"content":[],"isError":true,"vendor":[]}"#;
    let kept = to_legacy(legacy, method::TOOLS_CALL);
    assert!(matches!(kept, Cow::Borrowed(_)));
}

#[test]
fn empty_result_can_name_subscription() {
    assert_eq!(empty_result(None), br#"{"resultType":"complete"}"#);
    let named: Value = serde_json::from_slice(&empty_result(Some(b"\"7\""))).unwrap();
    let want = json!({"resultType": "complete", "_meta": {meta::SUBSCRIPTION_ID: "7"}});
    assert_eq!(named, want);
}
