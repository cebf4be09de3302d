//! Tests of the canonical form, with `serde_json` as the oracle.

use serde_json::Value;

use super::to_canonical;
use crate::scan::{JsonError, KeyPolicy, check_json};
use crate::testing::fuzz;

fn canonical_text(text: &str) -> String {
    String::from_utf8(to_canonical(text.as_bytes()).unwrap()).unwrap()
}

#[test]
fn value_has_one_canonical_form() {
    for (text, want) in [
        (" 1 ", "1"),
        ("[ 1 , [ ] , { } ]", "[1,[],{}]"),
        (
            r#"{"b":1,"a":{"d":[2,1],"c":null}}"#,
            r#"{"a":{"c":null,"d":[2,1]},"b":1}"#,
        ),
        (r#""\u0061\/\u00e9\u0022\u005c""#, r#""a/é\"\\""#),
        (
            r#""\u000a\u0008\u0009\u000c\u000d\u0000\u001F\u007f""#,
            "\"\\n\\b\\t\\f\\r\\u0000\\u001f\u{7f}\"",
        ),
        (r#""\ud83d\ude00""#, "\"😀\""),
        (r#""\uD800x\uDFFF""#, r#""\ud800x\udfff""#),
        (
            "\"\u{d7ff}\u{e000}\u{2028}\"",
            "\"\u{d7ff}\u{e000}\u{2028}\"",
        ),
        (r#"{"\ud800":1,"a":2,"":3}"#, r#"{"":3,"a":2,"\ud800":1}"#),
        ("true", "true"),
    ] {
        assert_eq!(canonical_text(text), want, "{text}");
    }
}

#[test]
fn numbers_keep_their_spelling() {
    for number in [
        "9007199254740993",
        "9007199254740992",
        "1",
        "1.0",
        "1e0",
        "1e400",
        "-0",
        "0",
    ] {
        assert_eq!(canonical_text(number), number);
    }
    assert_ne!(
        canonical_text("9007199254740993"),
        canonical_text("9007199254740992")
    );
    assert_ne!(canonical_text("1"), canonical_text("1.0"));
}

#[test]
fn key_order_and_escapes_do_not_matter() {
    assert_eq!(
        canonical_text(r#"{"a":1,"b":2}"#),
        canonical_text(r#"{ "\u0062":2, "a":1 }"#)
    );
    assert_eq!(canonical_text(r#""\u0061""#), canonical_text(r#""a""#));
    assert_ne!(canonical_text("[1,2]"), canonical_text("[2,1]"));
    assert_ne!(canonical_text(r#""\ud800""#), canonical_text(r#""\ufffd""#));
    assert_ne!(
        canonical_text(r#""\ud800""#),
        canonical_text(r#""\\ud800""#)
    );
}

#[test]
fn keys_are_sorted_by_their_utf8_bytes() {
    // In UTF-16 order the two keys would be swapped.
    assert_eq!(
        canonical_text("{\"😀\":1,\"\u{ffee}\":2}"),
        "{\"\u{ffee}\":2,\"😀\":1}"
    );
    assert_eq!(
        canonical_text(r#"{"b":1,"aa":2,"a":3,"B":4}"#),
        r#"{"B":4,"a":3,"aa":2,"b":1}"#
    );
}

#[test]
fn invalid_json_has_no_canonical_form() {
    for (text, fault) in [
        (r#"{"a":1,"a":1}"#, JsonError::DuplicateKey { at: 7 }),
        (r#"[{"a":1,"\u0061":1}]"#, JsonError::DuplicateKey { at: 8 }),
        ("", JsonError::Empty),
        ("1 1", JsonError::Trailing { at: 2 }),
        ("[1", JsonError::Syntax { at: 2 }),
    ] {
        assert_eq!(to_canonical(text.as_bytes()), Err(fault), "{text}");
    }
    assert_eq!(to_canonical(b"\"\xff\""), Err(JsonError::Utf8 { at: 1 }));
    let deep = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(canonical_text(&deep(64)), deep(64));
    assert_eq!(
        to_canonical(deep(65).as_bytes()),
        Err(JsonError::Depth { at: 64 })
    );
    assert_eq!(
        to_canonical(deep(100_000).as_bytes()),
        Err(JsonError::Depth { at: 64 })
    );
}

#[test]
fn malformed_inputs_never_panic() {
    fuzz::for_each_mutation(fuzz::JSON, |input| {
        let formed = to_canonical(input);
        assert_eq!(
            formed.as_ref().err(),
            check_json(input, KeyPolicy::Unique).err().as_ref()
        );
        let Ok(formed) = formed else { return };
        assert_eq!(
            to_canonical(&formed).as_ref(),
            Ok(&formed),
            "the form of a form is itself"
        );
        // Values outside the range of `serde_json` have no reference.
        if let Ok(value) = serde_json::from_slice::<Value>(input) {
            assert_eq!(serde_json::from_slice::<Value>(&formed).unwrap(), value);
        }
    });
}

#[test]
fn canonical_form_matches_serde_json() {
    for text in fuzz::JSON {
        // `serde_json` rewrites numbers, so only texts without unusual numbers compare.
        if let Ok(value) = serde_json::from_str::<Value>(text)
            && !text.contains("e+")
            && !text.contains("1e")
        {
            assert_eq!(canonical_text(text), value.to_string());
        }
    }
}
