//! Requests with and without modern metadata.

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};
use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use super::*;

fn capability_set(abilities: &[ClientCapability]) -> ClientCapabilities {
    let mut all = ClientCapabilities::default();
    for ability in abilities {
        all = all.with_capability(*ability);
    }
    all
}

#[test]
fn capabilities_are_parsed_as_declared() {
    use ClientCapability::{ElicitationForm, ElicitationUrl, Roots, Sampling, SamplingTools};
    for (declared, want) in [
        ("{}", &[][..]),
        (r#"{"sampling":{}}"#, &[Sampling]),
        (r#"{"sampling":{"tools":{}}}"#, &[Sampling, SamplingTools]),
        (r#"{"elicitation":{}}"#, &[ElicitationForm]),
        (r#"{"elicitation":{"form":{}}}"#, &[ElicitationForm]),
        (r#"{"elicitation":{"url":{}}}"#, &[ElicitationUrl]),
        (
            r#"{"elicitation":{"url":{},"form":{}}}"#,
            &[ElicitationForm, ElicitationUrl],
        ),
        (r#"{"roots":{"listChanged":true}}"#, &[Roots]),
        (r#"{"roots":null,"sampling":false,"elicitation":[]}"#, &[]),
        ("", &[]),
    ] {
        assert_eq!(
            parse_capabilities(declared.as_bytes()),
            capability_set(want),
            "{declared}"
        );
    }
}

#[test]
fn every_capability_set_round_trips() {
    let test = "every_capability_set_round_trips";
    let schema = McpSchema::load("2026-07-28", test);
    for bits in 0..32 {
        let mut set = ClientCapabilities::from_bits(bits);
        if set.supports(ClientCapability::SamplingTools) {
            set = set.with_capability(ClientCapability::Sampling);
        }
        for tasks in [TaskSupport::Supported, TaskSupport::Unsupported] {
            let written = write_capabilities(set, tasks);
            assert_eq!(parse_capabilities(&written), set);
            assert_eq!(supports_tasks(&written), tasks == TaskSupport::Supported);
            if let Some(schema) = &schema {
                schema.assert_valid_text("ClientCapabilities", &written);
            }
        }
    }
}

#[test]
fn request_meta_is_parsed() {
    let params = br#"{"name":"x","_meta":{"progressToken":1,
        "io.modelcontextprotocol/protocolVersion":"2026-07-28",
        "io.modelcontextprotocol/clientCapabilities":{"roots":{}},
        "io.modelcontextprotocol/clientInfo":{"name":"c"},
        "io.modelcontextprotocol/logLevel":"info"}}"#;
    let said = RequestMeta::parse(params);
    assert_eq!(said.version.as_deref(), Some("2026-07-28"));
    let of = |at: Option<ByteSpan>| at.map(|at| at.slice(params));
    assert_eq!(of(said.capabilities), Some(&b"{\"roots\":{}}"[..]));
    assert_eq!(of(said.client_info), Some(&b"{\"name\":\"c\"}"[..]));
    assert_eq!(of(said.log_level), Some(&b"\"info\""[..]));
    assert!(said.has_reserved_keys && said.has_version && said.meta.is_some());
    for nothing in [
        "",
        "{}",
        "[]",
        r#"{"_meta":null}"#,
        r#"{"_meta":{"progressToken":1,"io.modelcontextprotocol/related-task":{}}}"#,
        r#"{"arguments":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x"}}}"#,
    ] {
        let said = RequestMeta::parse(nothing.as_bytes());
        assert!(!said.has_reserved_keys && !said.has_version, "{nothing}");
        assert_eq!(said.version, None);
    }
    let odd = br#"{"_meta":{"io.modelcontextprotocol/protocolVersion":7}}"#;
    let said = RequestMeta::parse(odd);
    assert!(said.has_reserved_keys && said.has_version && said.version.is_none());
}

fn continuation() -> MemberList {
    let mut members = MemberList::from_member("inputResponses", b"{\"k\":{}}");
    members.push_text("requestState", "s");
    members
}

fn with_meta(params: &str, stamp_of: &MetaFields<'_>, front: MemberList) -> Value {
    let mut editor = ObjectEditor::new(params.as_bytes());
    add_meta(&mut editor, stamp_of, front);
    serde_json::from_slice(&editor.finish()).unwrap()
}

#[test]
fn add_meta_replaces_existing_keys() {
    let plain = MetaFields {
        capabilities: b"{\"roots\":{}}",
        client_info: br#"{"name":"bowline","version":"1"}"#,
        log_level: Some("notice"),
    };
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
        "io.modelcontextprotocol/clientInfo": {"name": "bowline", "version": "1"},
        "io.modelcontextprotocol/logLevel": "notice",
    });
    for params in [
        r#"{"name":"x","arguments":{"a":1}}"#,
        r#"{"name":"x","arguments":{"a":1},"_meta":{}}"#,
        r#"{"name":"x","_meta":null,"arguments":{"a":1}}"#,
        r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{}}},
            "name":"x","arguments":{"a":1}}"#,
        r#"{"name":"x","arguments":{"a":1},"_meta":{"io.modelcontextprotocol/protocolVersion":1,
            "io.modelcontextprotocol/logLevel":"debug",
            "io.modelcontextprotocol/clientInfo":[]}}"#,
    ] {
        let want = json!({"name": "x", "arguments": {"a": 1}, "_meta": meta});
        assert_eq!(
            with_meta(params, &plain, MemberList::default()),
            want,
            "{params}"
        );
    }
    assert_eq!(
        with_meta("{}", &plain, MemberList::default()),
        json!({"_meta": meta})
    );
    let mut more = meta;
    more["progressToken"] = json!(7);
    let want = json!({
        "name": "x", "_meta": more, "inputResponses": {"k": {}}, "requestState": "s",
    });
    let params = r#"{"name":"x","_meta":{"progressToken":7}}"#;
    assert_eq!(with_meta(params, &plain, continuation()), want);
    more.as_object_mut().unwrap().remove("progressToken");
    let want = json!({"_meta": more, "inputResponses": {"k": {}}, "requestState": "s"});
    assert_eq!(with_meta("{}", &plain, continuation()), want);
}

#[test]
fn request_with_meta_matches_modern_schema() {
    let test = "request_with_meta_matches_modern_schema";
    let Some(schema) = McpSchema::load("2026-07-28", test) else {
        return;
    };
    let capabilities =
        write_capabilities(ClientCapabilities::from_bits(31), TaskSupport::Supported);
    let stamp = MetaFields {
        capabilities: &capabilities,
        client_info: br#"{"name":"bowline","version":"1"}"#,
        log_level: Some("debug"),
    };
    let params = r#"{"name":"x","_meta":{"progressToken":"p"}}"#;
    let params = with_meta(params, &stamp, MemberList::default());
    schema.assert_valid_text("CallToolRequestParams", params.to_string().as_bytes());
    let params = with_meta("{}", &stamp, MemberList::default());
    schema.assert_valid_text("PaginatedRequestParams", params.to_string().as_bytes());
}

#[test]
fn strip_meta_keeps_shared_members() {
    for (params, want) in [
        ("{}", "{}"),
        (r#"{"name":"x"}"#, r#"{"name":"x"}"#),
        (
            r#"{"inputResponses":{"a":{}},"name":"x","requestState":"s"}"#,
            r#"{"name":"x"}"#,
        ),
        (
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"v","progressToken":1,
                "io.modelcontextprotocol/clientCapabilities":{}},"name":"x"}"#,
            r#"{"_meta":{"progressToken":1},"name":"x"}"#,
        ),
        (
            r#"{"_meta":{"traceparent":"t","io.modelcontextprotocol/clientInfo":{}},"uri":"u"}"#,
            r#"{"_meta":{"traceparent":"t"},"uri":"u"}"#,
        ),
        (
            r#"{"_meta":{"io.modelcontextprotocol/logLevel":"info"}}"#,
            r#"{"_meta":{}}"#,
        ),
        // Argument names belong to the tool and are kept.
        (
            r#"{"arguments":{"requestState":1,"_meta":{}}}"#,
            r#"{"arguments":{"requestState":1,"_meta":{}}}"#,
        ),
    ] {
        let mut editor = ObjectEditor::new(params.as_bytes());
        strip_meta(&mut editor);
        let got: Value = serde_json::from_slice(&editor.finish()).unwrap();
        let want: Value = serde_json::from_str(want).unwrap();
        assert_eq!(got, want, "{params}");
    }
}

#[test]
fn add_then_strip_meta_round_trips() {
    for params in [
        r#"{"name":"x", "arguments" : {"a":[1, 2]} , "_meta":{ "progressToken":1}}"#,
        r#"{ "_meta":{},"name":"x"}"#,
        r#"{"uri":"u","_meta":{"a":{},"traceparent":"t" }}"#,
    ] {
        let with = MetaFields {
            capabilities: b"{}",
            client_info: b"{}",
            log_level: Some("info"),
        };
        let mut editor = ObjectEditor::new(params.as_bytes());
        add_meta(&mut editor, &with, continuation());
        let once = editor.finish();
        let mut editor = ObjectEditor::new(&once);
        strip_meta(&mut editor);
        assert_eq!(String::from_utf8(editor.finish()).unwrap(), params);
    }
}
