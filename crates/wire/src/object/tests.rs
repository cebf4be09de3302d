//! Tests of the shallow look, with `serde_json` as the oracle.

use super::{field, fields, items, parse_string};
use crate::scan::{KeyPolicy, check_json};
use crate::splice::ByteSpan;
use crate::testing::{fuzz, oracle};

fn members(text: &str) -> Vec<(String, &str)> {
    fields(text.as_bytes())
        .map(|(key, at)| (key.into_owned(), &text[at.start..at.end]))
        .collect()
}

fn elements(text: &str) -> Vec<&str> {
    items(text.as_bytes())
        .map(|at| &text[at.start..at.end])
        .collect()
}

#[test]
fn members_keep_their_order() {
    let text = " { \"b\" : [1, {\"x\":\"}\"}] ,\n\"a\":\"q\\\"]\",\"\\u0063\":-1.5e3,\"d\":null } ";
    let want = [
        ("b", "[1, {\"x\":\"}\"}]"),
        ("a", "\"q\\\"]\""),
        ("c", "-1.5e3"),
        ("d", "null"),
    ];
    assert_eq!(
        members(text),
        want.map(|(key, value)| (key.to_owned(), value))
    );
    assert_eq!(members("{}"), []);
    assert_eq!(members("{ }"), []);
}

#[test]
fn non_object_has_no_members() {
    for text in ["[1]", "1", "\"{}\"", "null", "", " "] {
        assert_eq!(members(text), [], "{text}");
        assert_eq!(field(text.as_bytes(), "a"), None, "{text}");
    }
}

#[test]
fn field_matches_unescaped_key_at_top_level() {
    let text = br#"{"x":{"name":1},"n\u0061me":"a","name2":2}"#;
    assert_eq!(
        field(text, "name").map(|at| at.slice(text)),
        Some(&b"\"a\""[..])
    );
    assert_eq!(field(text, "nam"), None);
    assert_eq!(field(text, "n\\u0061me"), None);
    assert_eq!(
        field(br#"{"a":1}"#, "a"),
        Some(ByteSpan { start: 5, end: 6 })
    );
}

#[test]
fn last_duplicate_field_wins() {
    let text = br#"{"a":1,"b":2,"\u0061":3}"#;
    assert_eq!(field(text, "a").map(|at| at.slice(text)), Some(&b"3"[..]));
}

#[test]
fn items_yield_array_elements() {
    assert_eq!(elements("[]"), [""; 0]);
    assert_eq!(elements("[ ]"), [""; 0]);
    assert_eq!(
        elements(" [1 , \"a,]\",[2,[3]],{\"b\":[4]}, true ] "),
        ["1", "\"a,]\"", "[2,[3]]", "{\"b\":[4]}", "true"]
    );
    assert_eq!(elements("{\"a\":1}"), [""; 0]);
}

#[test]
fn parse_string_unescapes_text() {
    for (text, want) in [
        (r#""""#, Some("")),
        (r#""abc é😀""#, Some("abc é😀")),
        (r#""\"\\\/\b\f\n\r\t""#, Some("\"\\/\u{8}\u{c}\n\r\t")),
        (r#""\u0061\u00e9\ud83d\ude00\u0000""#, Some("aé😀\0")),
        (r#""a\uD83D\uDE00b""#, Some("a😀b")),
        (r#""\ud800""#, None),
        (r#""\ud800\u0061""#, None),
        (r#""\ude00\ud83d""#, None),
        (r#""\ud83d\\ude00""#, None),
        ("1", None),
        ("", None),
        ("\"", None),
        (r#""a"b""#, None),
        (r#"{"a":1}"#, None),
        ("\"\n\"", None),
    ] {
        assert_eq!(parse_string(text.as_bytes()).as_deref(), want, "{text}");
    }
}

#[test]
fn plain_string_is_borrowed() {
    assert!(matches!(
        parse_string(b"\"plain\""),
        Some(std::borrow::Cow::Borrowed("plain"))
    ));
}

#[test]
fn deep_nesting_is_skipped_without_recursion() {
    let text = format!("[{},1]", "[".repeat(100_000) + &"]".repeat(100_000));
    assert_eq!(elements(&text).len(), 2);
}

#[test]
fn malformed_objects_agree_with_oracle() {
    fuzz::for_each_mutation(fuzz::JSON, |input| {
        let mut end = 0;
        for at in items(input).chain(fields(input).map(|(_, at)| at)) {
            assert!(at.start < at.end && at.end <= input.len());
            end = at.end.max(end);
        }
        assert!(end <= input.len());
        if !input.trim_ascii().is_empty() && input == input.trim_ascii() {
            let want = serde_json::from_slice::<String>(input).ok();
            assert_eq!(parse_string(input).as_deref(), want.as_deref());
        }
        if check_json(input, KeyPolicy::Any).is_err() {
            return;
        }
        let text = std::str::from_utf8(input).unwrap();
        if let Some(want) = oracle::members(input) {
            let got: Vec<_> = members(text)
                .into_iter()
                .map(|(k, v)| (k, v.to_owned()))
                .collect();
            assert_eq!(got, want);
        }
        if let Ok(want) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(text) {
            let want: Vec<_> = want.iter().map(|value| value.get()).collect();
            assert_eq!(elements(text), want);
        }
    });
}
