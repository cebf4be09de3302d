//! Tests of the canonical form, with `serde_json` as the oracle.

use serde_json::Value;

use super::canonical;
use crate::scan::{Fault, Keys, check};
use crate::testing::fuzz;

fn form(text: &str) -> String {
    String::from_utf8(canonical(text.as_bytes()).unwrap()).unwrap()
}

#[test]
fn every_value_has_one_form() {
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
        assert_eq!(form(text), want, "{text}");
    }
}

#[test]
fn numbers_stay_as_they_were_written() {
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
        assert_eq!(form(number), number);
    }
    assert_ne!(form("9007199254740993"), form("9007199254740992"));
    assert_ne!(form("1"), form("1.0"));
}

#[test]
fn the_order_of_keys_and_the_way_they_are_escaped_do_not_matter() {
    assert_eq!(form(r#"{"a":1,"b":2}"#), form(r#"{ "\u0062":2, "a":1 }"#));
    assert_eq!(form(r#""\u0061""#), form(r#""a""#));
    assert_ne!(form("[1,2]"), form("[2,1]"));
    assert_ne!(form(r#""\ud800""#), form(r#""\ufffd""#));
    assert_ne!(form(r#""\ud800""#), form(r#""\\ud800""#));
}

#[test]
fn keys_are_sorted_by_their_utf8_bytes() {
    // In UTF-16 units the two would stand the other way round.
    assert_eq!(
        form("{\"😀\":1,\"\u{ffee}\":2}"),
        "{\"\u{ffee}\":2,\"😀\":1}"
    );
    assert_eq!(
        form(r#"{"b":1,"aa":2,"a":3,"B":4}"#),
        r#"{"B":4,"a":3,"aa":2,"b":1}"#
    );
}

#[test]
fn what_has_no_form_is_refused() {
    for (text, fault) in [
        (r#"{"a":1,"a":1}"#, Fault::DuplicateKey { at: 7 }),
        (r#"[{"a":1,"\u0061":1}]"#, Fault::DuplicateKey { at: 8 }),
        ("", Fault::Empty),
        ("1 1", Fault::Trailing { at: 2 }),
        ("[1", Fault::Syntax { at: 2 }),
    ] {
        assert_eq!(canonical(text.as_bytes()), Err(fault), "{text}");
    }
    assert_eq!(canonical(b"\"\xff\""), Err(Fault::Utf8 { at: 1 }));
    let deep = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(form(&deep(64)), deep(64));
    assert_eq!(canonical(deep(65).as_bytes()), Err(Fault::Depth { at: 64 }));
    assert_eq!(
        canonical(deep(100_000).as_bytes()),
        Err(Fault::Depth { at: 64 })
    );
}

#[test]
fn ten_thousand_malformed_inputs_never_panic_and_valid_ones_keep_their_meaning() {
    fuzz::each(fuzz::JSON, |input| {
        let formed = canonical(input);
        assert_eq!(
            formed.as_ref().err(),
            check(input, Keys::Unique).err().as_ref()
        );
        let Ok(formed) = formed else { return };
        assert_eq!(
            canonical(&formed).as_ref(),
            Ok(&formed),
            "the form of a form is itself"
        );
        // Values that `serde_json` cannot hold have no second opinion.
        if let Ok(value) = serde_json::from_slice::<Value>(input) {
            assert_eq!(serde_json::from_slice::<Value>(&formed).unwrap(), value);
        }
    });
}

#[test]
fn the_form_is_the_one_serde_json_writes_for_sorted_maps() {
    for text in fuzz::JSON {
        // Numbers are rewritten by `serde_json`, so that only texts without odd ones compare.
        if let Ok(value) = serde_json::from_str::<Value>(text)
            && !text.contains("e+")
            && !text.contains("1e")
        {
            assert_eq!(form(text), value.to_string());
        }
    }
}
