//! Requests that say what they need, and that no longer do.

use bowline_core::caller::{Abilities, Ability};
use serde_json::{Value, json};

use super::*;
use crate::era::applied;
use crate::testing::schema::Schema;

fn all(abilities: &[Ability]) -> Abilities {
    let mut all = Abilities::default();
    for ability in abilities {
        all = all.with(*ability);
    }
    all
}

#[test]
fn abilities_are_what_the_client_declares() {
    use Ability::{ElicitationForm, ElicitationUrl, Roots, Sampling, SamplingTools};
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
        assert_eq!(abilities(declared.as_bytes()), all(want), "{declared}");
    }
}

#[test]
fn every_set_of_abilities_reads_back_from_what_is_declared_of_it() {
    let test = "every_set_of_abilities_reads_back_from_what_is_declared_of_it";
    let schema = Schema::load("2026-07-28", test);
    for bits in 0..32 {
        let mut set = Abilities::from_bits(bits);
        if set.has(Ability::SamplingTools) {
            set = set.with(Ability::Sampling);
        }
        for tasks in [Tasks::Taken, Tasks::NotTaken] {
            let written = capabilities(set, tasks);
            assert_eq!(abilities(&written), set);
            assert_eq!(takes_tasks(&written), tasks == Tasks::Taken);
            if let Some(schema) = &schema {
                schema.check("ClientCapabilities", &written);
            }
        }
    }
}

#[test]
fn a_request_is_read_for_what_it_says_of_itself() {
    let params = br#"{"name":"x","_meta":{"progressToken":1,
        "io.modelcontextprotocol/protocolVersion":"2026-07-28",
        "io.modelcontextprotocol/clientCapabilities":{"roots":{}},
        "io.modelcontextprotocol/clientInfo":{"name":"c"},
        "io.modelcontextprotocol/logLevel":"info"}}"#;
    let said = Said::read(params);
    assert_eq!(said.version.as_deref(), Some("2026-07-28"));
    let of = |at: Option<Span>| at.map(|at| at.of(params));
    assert_eq!(of(said.capabilities), Some(&b"{\"roots\":{}}"[..]));
    assert_eq!(of(said.client_info), Some(&b"{\"name\":\"c\"}"[..]));
    assert_eq!(of(said.log_level), Some(&b"\"info\""[..]));
    assert!(said.any && said.versioned && said.meta.is_some());
    for nothing in [
        "",
        "{}",
        "[]",
        r#"{"_meta":null}"#,
        r#"{"_meta":{"progressToken":1,"io.modelcontextprotocol/related-task":{}}}"#,
        r#"{"arguments":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x"}}}"#,
    ] {
        let said = Said::read(nothing.as_bytes());
        assert!(!said.any && !said.versioned, "{nothing}");
        assert_eq!(said.version, None);
    }
    let odd = br#"{"_meta":{"io.modelcontextprotocol/protocolVersion":7}}"#;
    let said = Said::read(odd);
    assert!(said.any && said.versioned && said.version.is_none());
}

fn stamped(params: &str, stamp_of: &Stamp<'_>) -> Value {
    let mut changes = Vec::new();
    stamp(params.as_bytes(), stamp_of, &mut changes);
    serde_json::from_slice(&applied(params.as_bytes(), &mut changes)).unwrap()
}

#[test]
fn a_stamped_request_says_what_it_must_whatever_it_said_before() {
    let plain = Stamp {
        capabilities: b"{\"roots\":{}}",
        client_info: br#"{"name":"bowline","version":"1"}"#,
        log_level: Some("notice"),
        ..Stamp::default()
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
        assert_eq!(stamped(params, &plain), want, "{params}");
    }
    assert_eq!(stamped("{}", &plain), json!({"_meta": meta}));
    let mut more = meta;
    more["traceparent"] = json!("t");
    more["progressToken"] = json!(7);
    let stamp = Stamp {
        more: b"\"traceparent\":\"t\"",
        front: br#""inputResponses":{"k":{}},"requestState":"s""#,
        ..plain
    };
    let want = json!({
        "name": "x", "_meta": more, "inputResponses": {"k": {}}, "requestState": "s",
    });
    let params = r#"{"name":"x","_meta":{"progressToken":7}}"#;
    assert_eq!(stamped(params, &stamp), want);
    more.as_object_mut().unwrap().remove("progressToken");
    let want = json!({"_meta": more, "inputResponses": {"k": {}}, "requestState": "s"});
    assert_eq!(stamped("{}", &stamp), want);
}

#[test]
fn a_stamped_request_is_one_of_the_modern_schema() {
    let test = "a_stamped_request_is_one_of_the_modern_schema";
    let Some(schema) = Schema::load("2026-07-28", test) else {
        return;
    };
    let capabilities = capabilities(Abilities::from_bits(31), Tasks::Taken);
    let stamp = Stamp {
        capabilities: &capabilities,
        client_info: br#"{"name":"bowline","version":"1"}"#,
        log_level: Some("debug"),
        more: b"",
        front: b"",
    };
    let params = stamped(r#"{"name":"x","_meta":{"progressToken":"p"}}"#, &stamp);
    schema.check("CallToolRequestParams", params.to_string().as_bytes());
    let params = stamped("{}", &stamp);
    schema.check("PaginatedRequestParams", params.to_string().as_bytes());
}

#[test]
fn a_bare_request_keeps_everything_that_both_eras_know() {
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
        // Arguments are the tool's, whatever they are called.
        (
            r#"{"arguments":{"requestState":1,"_meta":{}}}"#,
            r#"{"arguments":{"requestState":1,"_meta":{}}}"#,
        ),
    ] {
        let mut changes = Vec::new();
        bare(params.as_bytes(), &mut changes);
        let got: Value = serde_json::from_slice(&applied(params.as_bytes(), &mut changes)).unwrap();
        let want: Value = serde_json::from_str(want).unwrap();
        assert_eq!(got, want, "{params}");
    }
}

#[test]
fn what_is_stamped_and_made_bare_again_is_what_it_was() {
    for params in [
        r#"{"name":"x", "arguments" : {"a":[1, 2]} , "_meta":{ "progressToken":1}}"#,
        r#"{ "_meta":{},"name":"x"}"#,
        r#"{"uri":"u","_meta":{"a":{},"traceparent":"t" }}"#,
    ] {
        let mut changes = Vec::new();
        let with = Stamp {
            capabilities: b"{}",
            client_info: b"{}",
            log_level: Some("info"),
            more: b"",
            front: br#""inputResponses":{},"requestState":"s""#,
        };
        stamp(params.as_bytes(), &with, &mut changes);
        let once = applied(params.as_bytes(), &mut changes);
        let mut changes = Vec::new();
        bare(&once, &mut changes);
        let again = applied(&once, &mut changes);
        assert_eq!(String::from_utf8(again).unwrap(), params);
    }
}
