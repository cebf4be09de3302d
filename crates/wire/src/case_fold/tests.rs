//! Tests of the rules about case, with a reader like Go's as the oracle.

use std::collections::{BTreeSet, HashSet};

use bowline_testkit::McpSchema;
use fastrand::Rng;
use serde_json::Value;

use super::protocol_names::{self, MemberValue};
use super::{CaseConflict, QueriedNames, fold_name, has_variant};
use crate::mcp::code;
use crate::testing::oracle;
use crate::{RpcMessage, object, scan};

/// How many random messages the property is held against.
const MESSAGES: u64 = 8_000;

#[test]
fn case_orbit_folds_alike() {
    for alike in [
        &["k", "K", "\u{212a}"][..],
        &["s", "S", "\u{17f}"],
        &["i", "I", "\u{130}", "\u{131}"],
        &["\u{e9}", "\u{c9}"],
        &["\u{3c3}", "\u{3a3}", "\u{3c2}"],
        &["\u{b5}", "\u{3bc}", "\u{39c}"],
        &["\u{df}", "\u{1e9e}"],
        &["\u{1c4}", "\u{1c5}", "\u{1c6}"],
        &["\u{3c9}", "\u{3a9}", "\u{2126}"],
        &["\u{1e61}", "\u{1e60}", "\u{1e9b}"],
        &["\u{390}", "\u{1fd3}"],
        &["\u{345}", "\u{399}", "\u{3b9}", "\u{1fbe}"],
        &["\u{13a0}", "\u{ab70}"],
        &["\u{10400}", "\u{10428}"],
    ] {
        let all: HashSet<_> = alike.iter().map(|c| fold_name(c.as_bytes())).collect();
        assert_eq!(all.len(), 1, "{alike:?}");
    }
    for (one, other) in [
        ("a", "b"),
        ("e", "\u{e9}"),
        ("ss", "\u{df}"),
        ("name", "names"),
    ] {
        assert_ne!(fold_name(one.as_bytes()), fold_name(other.as_bytes()));
    }
    // Two lone surrogates are two keys here and a single key in Go.
    assert_eq!(fold_name(b"\xed\xa0\x80"), "\u{fffd}".as_bytes());
    assert_eq!(
        fold_name(b"a\xed\xb0\x80\xed\xa0\x80"),
        "a\u{fffd}\u{fffd}".as_bytes()
    );
}

#[test]
fn known_names_are_grouped_and_distinct() {
    let all: Vec<_> = protocol_names::all_names().collect();
    assert!(all.len() > 80);
    for (len, name) in &all {
        assert_eq!(name.len(), *len, "{name}");
        assert!(name.is_ascii() && protocol_names::member_value(name.as_bytes()).is_some());
    }
    let alike: HashSet<_> = all
        .iter()
        .map(|(_, name)| fold_name(name.as_bytes()))
        .collect();
    assert_eq!(alike.len(), all.len());
}

#[test]
fn known_names_cover_the_schema() {
    for revision in crate::mcp::Revision::ALL {
        let test = "known_names_cover_the_schema";
        let Some(schema) = McpSchema::load(revision.as_str(), test) else {
            return;
        };
        let mut names = BTreeSet::new();
        for root in ["ClientRequest", "ClientNotification", "ClientResult"] {
            collect(schema.types(), &schema.types()[root], 0, &mut names);
        }
        assert!(names.len() > 10);
        for name in names {
            assert!(
                protocol_names::member_value(name.as_bytes()).is_some(),
                "{revision} {name}"
            );
        }
    }
}

/// Collects the member names of protocol objects in a schema.
fn collect(all: &Value, schema: &Value, depth: usize, names: &mut BTreeSet<String>) {
    if depth > 12 {
        return;
    }
    if let Some(to) = schema["$ref"].as_str() {
        let to = to.rsplit('/').next().unwrap();
        collect(all, &all[to], depth + 1, names);
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        names.insert(name.clone());
        if protocol_names::member_value(name.as_bytes()) != Some(MemberValue::Opaque) {
            collect(all, inner, depth + 1, names);
        }
    }
    for word in ["anyOf", "allOf", "oneOf"] {
        for inner in schema[word].as_array().into_iter().flatten() {
            collect(all, inner, depth + 1, names);
        }
    }
    for word in ["items", "additionalProperties"] {
        collect(all, &schema[word], depth + 1, names);
    }
}

fn error_code(text: &str) -> Option<i64> {
    let refusal = RpcMessage::parse_from_client(text.to_owned().into()).err()?;
    Some(refusal.code())
}

#[test]
fn sec_60_case_variants_of_members_are_refused() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","Params":{}}"#,
        r#"{"JSONRPC":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"ID":2,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","param\u017f":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","x":1,"X":2}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"Result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"action":"decline","Action":"accept"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"Code":2,"message":"m"}}"#,
    ] {
        assert_eq!(error_code(text), Some(code::INVALID_REQUEST), "{text}");
    }
    for params in [
        r#"{"name":"a","Name":"b"}"#,
        r#"{"Name":"b","name":"a"}"#,
        r#"{"Name":"b"}"#,
        r#"{"name":"a","\u004eame":"b"}"#,
        r#"{"name":"a","argument\u017f":{}}"#,
        "{\"name\":\"a\",\"argument\u{17f}\":{}}",
        "{\"tas\u{212a}\":{},\"name\":\"a\"}",
        r#"{"taskid":"t"}"#,
        r#"{"taskId":"t","TaskID":"u"}"#,
        r#"{"uri":"a","URI":"b"}"#,
        r#"{"x":1,"X":2}"#,
        r#"{"é":1,"É":2}"#,
        r#"{"\ud800":1,"\udc00":2}"#,
        r#"{"_Meta":{}}"#,
        r#"{"_meta":{"progressToken":1,"progresstoken":2}}"#,
        r#"{"_meta":{"Dev.Bowline/IdempotencyKey":"k"}}"#,
        r#"{"_meta":{"a/b":1,"a/B":2}}"#,
        r#"{"_meta":{"io.modelcontextprotocol/protocolversion":"x"}}"#,
        r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"Sampling":{}}}}"#,
        r#"{"ref":{"type":"ref/prompt","name":"a","Name":"b"}}"#,
        r#"{"ref":{"Type":"ref/prompt"}}"#,
        r#"{"context":{"Arguments":{}}}"#,
        r#"{"argument":{"name":"a","Value":"b"}}"#,
        r#"{"inputResponses":{"k":{"action":"decline","ACTION":"accept"}}}"#,
        r#"{"inputResponses":{"k":{"content":{}},"l":{"Action":"accept"}}}"#,
        r#"{"inputResponses":{},"InputResponses":{}}"#,
        r#"{"arguments":{"a":{"b":[1]}},"Name":"b"}"#,
        r#"{"vendor":{"x":{}},"Name":"b"}"#,
        r#"{"notifications":{"ToolsListChanged":true}}"#,
        r#"{"capabilities":{"roots":{"ListChanged":true}}}"#,
        r#"{"roots":[{"vendor":1},[{"Uri":"x"}]]}"#,
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
        assert_eq!(error_code(&text), Some(code::INVALID_PARAMS), "{text}");
        let note = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
        assert_eq!(error_code(&note), Some(code::INVALID_PARAMS), "{note}");
        let found = scan::check_json(params.as_bytes(), scan::KeyPolicy::Params);
        assert!(found.is_err(), "{params}");
    }
}

#[test]
fn sec_60_foreign_names_are_accepted() {
    for params in [
        r#"{"name":"a","arguments":{"Name":1,"name":2,"NAME":{"_Meta":0,"_meta":1}}}"#,
        r#"{"n\u0061me":"a","_meta":{"progressToken":1,"com.example/Thing":{"A":1,"a":2}}}"#,
        r#"{"vendorThing":{"Name":1,"name":2},"x":[{"B":1,"b":2}]}"#,
        r#"{"inputResponses":{"Name":{"action":"accept","content":{"A":1,"a":2}},"name":{}}}"#,
        r#"{"capabilities":{"experimental":{"A":{},"a":{}},"extensions":{"X/y":{"Z":1,"z":2}}}}"#,
        r#"{"context":{"arguments":{"A":"1","a":"2"}},"argument":{"name":"A","value":"a"}}"#,
        r#"{"x":{"Q":1},"y":{"q":1},"z":[{"q":1},{"Q":1}]}"#,
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
        assert_eq!(error_code(&text), None, "{text}");
    }
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"A":1,"a":2}}}"#;
    assert_eq!(error_code(answer), None);
    let batch = r#" [{"jsonrpc":"2.0","id":1,"ID":2,"method":"m"}]"#;
    assert_eq!(
        RpcMessage::parse_from_client(batch.into()).err(),
        Some(crate::MessageError::Batch)
    );
    let server = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"Content":[]}}"#;
    assert!(RpcMessage::parse_from_server(server.into()).is_ok());
}

#[test]
fn queried_names_have_one_spelling() {
    let mut names = QueriedNames::default();
    names.add_name("path");
    names.add_possible_name("Path");
    names.add_possible_name("Admin");
    for (json, want) in [
        (r#"{"path":"a","other":{"x":[{"path":1}]}}"#, Ok(())),
        (r#"{"Admin":1,"Other":2}"#, Ok(())),
        ("[]", Ok(())),
        (r#"{"path":1,"Path":2}"#, Err(CaseConflict::Variant)),
        (r#"{"Path":2}"#, Err(CaseConflict::Variant)),
        (r#"{"\u0050ath":2}"#, Err(CaseConflict::Variant)),
        (r#"{"a":[{"b":{"PATH":1}}]}"#, Err(CaseConflict::Variant)),
        (r#"{"admin":1}"#, Err(CaseConflict::Variant)),
        (r#"{"x":{"y":1,"Y":2}}"#, Err(CaseConflict::Twins)),
        (r#"{"key":1,"\u212aey":2}"#, Err(CaseConflict::Twins)),
    ] {
        assert_eq!(names.check_value(json.as_bytes()), want, "{json}");
    }
    assert!(has_variant(br#"{"Key":1}"#, "key"));
    assert!(has_variant("{\"\u{212a}ey\":1}".as_bytes(), "key"));
    assert!(!has_variant(br#"{"key":1,"keys":2}"#, "key"));
}

/// Letters equal to Go, from the Unicode tables instead of the tested folding.
const ORBITS: [&[char]; 6] = [
    &['k', 'K', '\u{212a}'],
    &['s', 'S', '\u{17f}'],
    &['\u{e9}', '\u{c9}'],
    &['\u{3c3}', '\u{3a3}', '\u{3c2}'],
    &['\u{b5}', '\u{3bc}', '\u{39c}'],
    &['\u{3c9}', '\u{3a9}', '\u{2126}'],
];

/// Returns the letters equal to `c`.
fn orbit(c: char) -> Vec<char> {
    match ORBITS.iter().find(|orbit| orbit.contains(&c)) {
        Some(orbit) => orbit.to_vec(),
        None if c.is_ascii_alphabetic() => vec![c.to_ascii_lowercase(), c.to_ascii_uppercase()],
        None => vec![c],
    }
}

/// Whether Go matches a key with the name of a field.
fn go_matches(key: &str, field: &str) -> bool {
    let (key, field): (Vec<_>, Vec<_>) = (key.chars().collect(), field.chars().collect());
    key.len() == field.len()
        && key
            .iter()
            .zip(&field)
            .all(|(one, other)| orbit(*one).contains(other))
}

/// Returns the value of a Go struct field after parsing: the last matching member.
fn read_field_as_go(object: &str, field: &str) -> Option<String> {
    let members = oracle::members(object.as_bytes())?;
    let mut matching = members.into_iter().rev();
    let found = matching.find(|(key, _)| go_matches(key, field));
    found.map(|(_, value)| value)
}

fn read_field(json: &str, field: &str) -> Option<String> {
    let at = object::field(json.as_bytes(), field)?;
    Some(json[at.start..at.end].to_owned())
}

/// Returns a random spelling of a name, mostly unchanged.
fn random_spelling(rng: &mut Rng, name: &str) -> String {
    let changes = rng.u8(..10) < 2;
    let mut out = String::new();
    for c in name.chars() {
        let orbit = orbit(c);
        let c = match changes && rng.u8(..4) == 0 {
            true => orbit[rng.usize(..orbit.len())],
            false => c,
        };
        match rng.u8(..12) {
            0 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            1 => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out
}

const NAMES: [&str; 14] = [
    "name",
    "uri",
    "taskId",
    "arguments",
    "_meta",
    "ref",
    "task",
    "requestState",
    "cursor",
    "level",
    "progressToken",
    "type",
    "vendor\u{e9}",
    "skill\u{3c3}",
];

/// A random object of the protocol, with objects inside.
fn random_object(rng: &mut Rng, depth: usize, next: &mut u32) -> String {
    let members = (0..rng.usize(1..5)).map(|_| {
        let name = NAMES[rng.usize(..NAMES.len())];
        let name = random_spelling(rng, name);
        *next += 1;
        let value = match depth > 0 && rng.bool() {
            true => random_object(rng, depth - 1, next),
            false => next.to_string(),
        };
        format!("\"{name}\":{value}")
    });
    let members: Vec<_> = members.collect();
    format!("{{{}}}", members.join(","))
}

/// Compares the values read by Go and by Bowline at every path of names.
fn assert_same_reading(json: &str, depth: usize) {
    for field in NAMES {
        let (go, ours) = (read_field_as_go(json, field), read_field(json, field));
        // Unknown names are not read here either.
        if protocol_names::member_value(field.as_bytes()).is_some() || ours.is_some() {
            assert_eq!(go, ours, "{field} of {json}");
        }
        let free = protocol_names::member_value(field.as_bytes()) != Some(MemberValue::Members);
        if let Some(inner) = ours.filter(|inner| inner.starts_with('{') && !free && depth > 0) {
            assert_same_reading(&inner, depth - 1);
        }
    }
}

#[test]
fn sec_61_accepted_messages_parse_alike_in_go() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..MESSAGES {
        let mut rng = Rng::with_seed(seed);
        let params = random_object(&mut rng, 3, &mut 0);
        let member = random_spelling(&mut rng, "params");
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","{member}":{params}}}"#);
        let message = RpcMessage::parse_from_client(text.clone().into());
        let by_itself = scan::check_json(params.as_bytes(), scan::KeyPolicy::Params);
        match message {
            Ok(message) => {
                taken += 1;
                assert_eq!(by_itself, Ok(()), "{text}");
                assert_eq!(
                    read_field_as_go(&text, "params").as_deref(),
                    Some(&*params),
                    "{text}"
                );
                assert_eq!(message.params(), Some(params.as_bytes()), "{text}");
                assert_same_reading(&params, 3);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 800 && refused > 800, "{taken} {refused}");
}

#[test]
fn sec_61_checked_arguments_parse_alike_in_go() {
    let (mut taken, mut refused) = (0, 0);
    let mut names = QueriedNames::default();
    NAMES.iter().for_each(|name| names.add_name(name));
    for seed in 0..MESSAGES {
        let mut rng = Rng::with_seed(seed);
        let arguments = random_object(&mut rng, 2, &mut 0);
        if scan::check_json(arguments.as_bytes(), scan::KeyPolicy::Unique).is_err() {
            continue;
        }
        match names.check_value(arguments.as_bytes()) {
            Ok(()) => {
                taken += 1;
                assert_same_reading(&arguments, 2);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 800 && refused > 800, "{taken} {refused}");
}
