//! Tests of the rules about case, with a reader like Go's as the oracle.

use std::collections::{BTreeSet, HashSet};

use fastrand::Rng;
use serde_json::Value;

use super::known::{self, Holds};
use super::{Alike, Names, folded, has_variant};
use crate::mcp::code;
use crate::testing::oracle;
use crate::testing::schema::Schema;
use crate::{Message, object, scan};

/// How many random messages the property is held against.
const MESSAGES: u64 = 8_000;

#[test]
fn letters_of_one_orbit_fold_alike() {
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
        let all: HashSet<_> = alike.iter().map(|c| folded(c.as_bytes())).collect();
        assert_eq!(all.len(), 1, "{alike:?}");
    }
    for (one, other) in [
        ("a", "b"),
        ("e", "\u{e9}"),
        ("ss", "\u{df}"),
        ("name", "names"),
    ] {
        assert_ne!(folded(one.as_bytes()), folded(other.as_bytes()));
    }
    // Two lone surrogates are two keys to us and one to Go.
    assert_eq!(folded(b"\xed\xa0\x80"), "\u{fffd}".as_bytes());
    assert_eq!(
        folded(b"a\xed\xb0\x80\xed\xa0\x80"),
        "a\u{fffd}\u{fffd}".as_bytes()
    );
}

#[test]
fn known_names_are_grouped_and_distinct() {
    let all: Vec<_> = known::all().collect();
    assert!(all.len() > 80);
    for (len, name) in &all {
        assert_eq!(name.len(), *len, "{name}");
        assert!(name.is_ascii() && known::known(name.as_bytes()).is_some());
    }
    let alike: HashSet<_> = all
        .iter()
        .map(|(_, name)| folded(name.as_bytes()))
        .collect();
    assert_eq!(alike.len(), all.len());
}

#[test]
fn known_names_cover_the_schema() {
    for revision in crate::mcp::Revision::ALL {
        let test = "known_names_cover_the_schema";
        let Some(schema) = Schema::load(revision.as_str(), test) else {
            return;
        };
        let mut names = BTreeSet::new();
        for root in ["ClientRequest", "ClientNotification", "ClientResult"] {
            collect(
                schema.definitions(),
                &schema.definitions()[root],
                0,
                &mut names,
            );
        }
        assert!(names.len() > 10);
        for name in names {
            assert!(known::known(name.as_bytes()).is_some(), "{revision} {name}");
        }
    }
}

/// Collects the members of the protocol's objects that a schema speaks of.
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
        if known::known(name.as_bytes()) != Some(Holds::Anything) {
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

fn code_of(text: &str) -> Option<i64> {
    let refusal = Message::parse(text.to_owned().into()).err()?;
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
        assert_eq!(code_of(text), Some(code::INVALID_REQUEST), "{text}");
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
        assert_eq!(code_of(&text), Some(code::INVALID_PARAMS), "{text}");
        let note = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
        assert_eq!(code_of(&note), Some(code::INVALID_PARAMS), "{note}");
        let found = scan::check(params.as_bytes(), scan::Keys::Params);
        assert!(found.is_err(), "{params}");
    }
}

#[test]
fn sec_60_names_of_others_are_left_alone() {
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
        assert_eq!(code_of(&text), None, "{text}");
    }
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"A":1,"a":2}}}"#;
    assert_eq!(code_of(answer), None);
    let batch = r#" [{"jsonrpc":"2.0","id":1,"ID":2,"method":"m"}]"#;
    assert_eq!(
        Message::parse(batch.into()).err(),
        Some(crate::Refusal::Batch)
    );
    let server = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"Content":[]}}"#;
    assert!(Message::parse_peer(server.into()).is_ok());
}

#[test]
fn names_that_are_asked_for_have_one_spelling() {
    let mut names = Names::default();
    names.ask("path");
    names.perhaps("Path");
    names.perhaps("Admin");
    for (json, want) in [
        (r#"{"path":"a","other":{"x":[{"path":1}]}}"#, Ok(())),
        (r#"{"Admin":1,"Other":2}"#, Ok(())),
        ("[]", Ok(())),
        (r#"{"path":1,"Path":2}"#, Err(Alike::Variant)),
        (r#"{"Path":2}"#, Err(Alike::Variant)),
        (r#"{"\u0050ath":2}"#, Err(Alike::Variant)),
        (r#"{"a":[{"b":{"PATH":1}}]}"#, Err(Alike::Variant)),
        (r#"{"admin":1}"#, Err(Alike::Variant)),
        (r#"{"x":{"y":1,"Y":2}}"#, Err(Alike::Twins)),
        (r#"{"key":1,"\u212aey":2}"#, Err(Alike::Twins)),
    ] {
        assert_eq!(names.check(json.as_bytes()), want, "{json}");
    }
    assert!(has_variant(br#"{"Key":1}"#, "key"));
    assert!(has_variant("{\"\u{212a}ey\":1}".as_bytes(), "key"));
    assert!(!has_variant(br#"{"key":1,"keys":2}"#, "key"));
}

/// Letters that Go takes for each other, from the tables of Unicode and not from our folding.
const ORBITS: [&[char]; 6] = [
    &['k', 'K', '\u{212a}'],
    &['s', 'S', '\u{17f}'],
    &['\u{e9}', '\u{c9}'],
    &['\u{3c3}', '\u{3a3}', '\u{3c2}'],
    &['\u{b5}', '\u{3bc}', '\u{39c}'],
    &['\u{3c9}', '\u{3a9}', '\u{2126}'],
];

/// The letters of which `c` is one.
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

/// What a struct field of Go holds after all members were read: the last that matches.
fn go_reads(object: &str, field: &str) -> Option<String> {
    let members = oracle::members(object.as_bytes())?;
    let mut matching = members.into_iter().rev();
    let found = matching.find(|(key, _)| go_matches(key, field));
    found.map(|(_, value)| value)
}

fn ours(json: &str, field: &str) -> Option<String> {
    let at = object::field(json.as_bytes(), field)?;
    Some(json[at.start..at.end].to_owned())
}

/// Another spelling of a name, most often the same one.
fn respelled(rng: &mut Rng, name: &str) -> String {
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
        let name = respelled(rng, name);
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

/// Holds what Go reads against what we read, at every path of names.
fn same_reading(json: &str, depth: usize) {
    for field in NAMES {
        let (go, ours) = (go_reads(json, field), ours(json, field));
        // A name that we do not know we do not read either.
        if known::known(field.as_bytes()).is_some() || ours.is_some() {
            assert_eq!(go, ours, "{field} of {json}");
        }
        let free = known::known(field.as_bytes()) != Some(Holds::Members);
        if let Some(inner) = ours.filter(|inner| inner.starts_with('{') && !free && depth > 0) {
            same_reading(&inner, depth - 1);
        }
    }
}

#[test]
fn sec_61_whatever_is_taken_reads_alike_in_go() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..MESSAGES {
        let mut rng = Rng::with_seed(seed);
        let params = random_object(&mut rng, 3, &mut 0);
        let member = respelled(&mut rng, "params");
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","{member}":{params}}}"#);
        let message = Message::parse(text.clone().into());
        let by_itself = scan::check(params.as_bytes(), scan::Keys::Params);
        match message {
            Ok(message) => {
                taken += 1;
                assert_eq!(by_itself, Ok(()), "{text}");
                assert_eq!(
                    go_reads(&text, "params").as_deref(),
                    Some(&*params),
                    "{text}"
                );
                assert_eq!(message.params(), Some(params.as_bytes()), "{text}");
                same_reading(&params, 3);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 800 && refused > 800, "{taken} {refused}");
}

#[test]
fn sec_61_arguments_that_are_judged_read_alike_in_go() {
    let (mut taken, mut refused) = (0, 0);
    let mut names = Names::default();
    NAMES.iter().for_each(|name| names.ask(name));
    for seed in 0..MESSAGES {
        let mut rng = Rng::with_seed(seed);
        let arguments = random_object(&mut rng, 2, &mut 0);
        if scan::check(arguments.as_bytes(), scan::Keys::Unique).is_err() {
            continue;
        }
        match names.check(arguments.as_bytes()) {
            Ok(()) => {
                taken += 1;
                same_reading(&arguments, 2);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 800 && refused > 800, "{taken} {refused}");
}
