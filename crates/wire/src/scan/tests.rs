//! Tests of the check, with `serde_json` as the oracle.

use super::{DEPTH_MAX, JsonError, KeyPolicy, OPEN_KEYS_MAX, UNKNOWN_MEMBERS_MAX, check_json};
use crate::testing::{fuzz, oracle};

const MODES: [KeyPolicy; 3] = [
    KeyPolicy::Unique,
    KeyPolicy::UniqueOutermost,
    KeyPolicy::Any,
];

fn nested_arrays(depth: usize) -> Vec<u8> {
    let mut text = vec![b'['; depth];
    text.extend(vec![b']'; depth]);
    text
}

#[test]
fn valid_json_passes() {
    for text in [
        "0",
        "-0",
        "1",
        "-1",
        "10",
        "1.5",
        "1e5",
        "1E+5",
        "1e-5",
        "-0.0e0",
        "1e400",
        "-1e400",
        "123456789012345678901234567890",
        "true",
        "false",
        "null",
        "\"\"",
        "[]",
        "{}",
        "[[]]",
        " [ ] ",
        "\t{ }\r\n",
        "[1, 2 ,3]",
        r#"{"a":1,"b":[{}]}"#,
        r#"{"":0}"#,
        "\"\u{7f}\"",
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        "\"é😀\u{ffff}\"",
        r#"{"a":{"a":{"a":1}}}"#,
        r#"[{"a":1},{"a":1}]"#,
        r#""12345678\"""#,
        r#""1234567\n12345678""#,
    ] {
        assert!(oracle::accepts(text.as_bytes()), "{text}");
        for keys in MODES {
            assert_eq!(check_json(text.as_bytes(), keys), Ok(()), "{text}");
        }
    }
}

#[test]
fn lone_surrogate_escapes_pass() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#"{"\ud800":"\ud800\ud800"}"#,
        r#""\udbffx""#,
    ] {
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::Unique),
            Ok(()),
            "{text}"
        );
    }
}

#[test]
fn invalid_json_names_error_offset() {
    for (text, at) in [
        ("NaN", 0),
        ("nul", 0),
        ("-", 1),
        ("-a", 1),
        ("+1", 0),
        (".5", 0),
        ("1.", 2),
        ("1.e5", 2),
        ("1e", 2),
        ("1e+", 3),
        ("Infinity", 0),
        ("-Infinity", 1),
        ("'a'", 0),
        ("[", 1),
        ("[1", 2),
        ("[1,]", 3),
        ("[,1]", 1),
        ("[1 2]", 3),
        ("[01]", 2),
        ("{", 1),
        ("{a:1}", 1),
        ("{1:1}", 1),
        (r#"{"a"}"#, 4),
        (r#"{"a":}"#, 5),
        (r#"{"a":1,}"#, 7),
        (r#"{"a":1]"#, 6),
        ("[1}", 2),
        (r#"{"a" 1}"#, 5),
        ("\"", 1),
        ("\"a", 2),
        ("\"\n\"", 1),
        ("\"\0\"", 1),
        ("\"\x1f\"", 1),
        ("\"1234567\x01\"", 8),
        (r#""\x""#, 2),
        (r#""\u12g4""#, 2),
        (r#""\u12""#, 2),
        ("\"\\", 2),
        ("\u{feff}1", 0),
        ("/**/1", 0),
        ("tru", 0),
        ("[True]", 1),
        ("}", 0),
        ("\u{a0}1", 0),
    ] {
        assert!(!oracle::accepts(text.as_bytes()), "{text:?}");
        for keys in MODES {
            assert_eq!(
                check_json(text.as_bytes(), keys),
                Err(JsonError::Syntax { at }),
                "{text:?}"
            );
        }
    }
}

#[test]
fn empty_text_is_refused() {
    for text in ["", " ", "\r\n\t "] {
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::Any),
            Err(JsonError::Empty),
            "{text:?}"
        );
    }
}

#[test]
fn trailing_text_is_refused() {
    for (text, at) in [
        ("1 2", 2),
        ("01", 1),
        ("{}{}", 2),
        ("[]\0", 2),
        ("null,", 4),
        ("1a", 1),
    ] {
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::Any),
            Err(JsonError::Trailing { at }),
            "{text:?}"
        );
    }
}

#[test]
fn invalid_utf8_is_refused() {
    for (text, at) in [
        (&b"\"\xff\""[..], 1),
        (b"\"\xc0\x80\"", 1),
        (b"\"\xed\xa0\x80\"", 1),
        (b"[1,\"\xc3", 4),
    ] {
        assert_eq!(
            check_json(text, KeyPolicy::Any),
            Err(JsonError::Utf8 { at }),
            "{text:?}"
        );
    }
}

#[test]
fn duplicate_key_is_refused_in_any_spelling() {
    for (text, at) in [
        (r#"{"method":"a","method":"b"}"#, 14),
        (r#"{"method":"a","\u006dethod":"b"}"#, 14),
        (r#"{"\u006dethod":"a","method":"b"}"#, 19),
        (r#"{"\u006dethod":"a","metho\u0064":"b"}"#, 19),
        (r#"{"":1,"":2}"#, 6),
        (r#"{"\/":1,"/":2}"#, 8),
        (r#"{"\ud83d\ude00":1,"😀":2}"#, 18),
        (r#"{"\ud800":1,"\uD800":2}"#, 12),
    ] {
        let fault = Err(JsonError::DuplicateKey { at });
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::Unique),
            fault,
            "{text}"
        );
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::UniqueOutermost),
            fault,
            "{text}"
        );
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::Any),
            Ok(()),
            "{text}"
        );
    }
}

#[test]
fn nested_duplicate_key_depends_on_policy() {
    for text in [
        r#"{"a":{"b":1,"b":2}}"#,
        r#"[{"b":1,"b":2}]"#,
        r#"{"a":[{"x":{}},{"b":1,"c":{"d":0},"b":2}]}"#,
    ] {
        let found = check_json(text.as_bytes(), KeyPolicy::Unique);
        assert!(
            matches!(found, Err(JsonError::DuplicateKey { .. })),
            "{text}"
        );
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::UniqueOutermost),
            Ok(()),
            "{text}"
        );
    }
}

#[test]
fn lookalike_keys_are_distinct() {
    for text in [
        r#"{"a":1,"A":2,"a ":3,"\\u0061":4}"#,
        r#"{"\ud800":1,"\ufffd":2,"\udc00":3}"#,
        "{\"\u{e9}\":1,\"e\u{301}\":2}",
        r#"{"a":1,"b":{"a":1,"c":{"b":1,"a":1}},"c":{"a":1}}"#,
    ] {
        assert_eq!(
            check_json(text.as_bytes(), KeyPolicy::Unique),
            Ok(()),
            "{text}"
        );
    }
}

#[test]
fn duplicate_key_is_found_at_any_count() {
    for count in 1..80 {
        for repeated in [0, count / 2, count - 1] {
            // Inside an outer object, so that the keys start at every slot of the store.
            let names: Vec<_> = (0..count)
                .map(|n| format!("\"k{n}\":{{\"k\":{n}}}"))
                .collect();
            let text = format!("{{\"k1\":0,\"o\":{{{}}},\"k2\":0}}", names.join(","));
            assert_eq!(
                check_json(text.as_bytes(), KeyPolicy::Unique),
                Ok(()),
                "{text}"
            );
            let again = format!("{{\"o\":{{{},\"k{repeated}\":0}}}}", names.join(","));
            let found = check_json(again.as_bytes(), KeyPolicy::Unique);
            assert!(
                matches!(found, Err(JsonError::DuplicateKey { .. })),
                "{again}"
            );
        }
    }
}

#[test]
fn nested_objects_keep_separate_keys() {
    // Every level holds the maximum of directly compared keys, before and after the child.
    let mut text = "0".to_owned();
    for level in 0..DEPTH_MAX {
        let keys: Vec<_> = (0..7 + level % 10).map(|n| format!("\"k{n}\":0")).collect();
        text = format!("{{{},\"child\":{text},\"last\":0}}", keys.join(","));
    }
    assert_eq!(check_json(text.as_bytes(), KeyPolicy::Unique), Ok(()));
    let inside = text.replace("\"last\":0}", "\"k3\":0}");
    let outside = format!("{},\"child\":1}}", text.strip_suffix('}').unwrap());
    for again in [inside, outside] {
        let found = check_json(again.as_bytes(), KeyPolicy::Unique);
        assert!(
            matches!(found, Err(JsonError::DuplicateKey { .. })),
            "{again}"
        );
    }
}

#[test]
fn depth_64_passes_and_65_is_refused() {
    let refused = Err(JsonError::Depth { at: 64 });
    for keys in MODES {
        assert_eq!(check_json(&nested_arrays(64), keys), Ok(()));
        assert_eq!(check_json(&nested_arrays(65), keys), refused);
    }
    let objects = format!("{}1{}", r#"{"a":"#.repeat(64), "}".repeat(64));
    assert_eq!(check_json(objects.as_bytes(), KeyPolicy::Unique), Ok(()));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(65), "}".repeat(65));
    assert_eq!(
        check_json(objects.as_bytes(), KeyPolicy::Unique),
        Err(JsonError::Depth { at: 320 })
    );
}

#[test]
fn deep_nesting_is_refused_at_limit() {
    assert_eq!(
        check_json(&nested_arrays(100_000), KeyPolicy::Unique),
        Err(JsonError::Depth { at: 64 })
    );
    assert_eq!(
        check_json(&vec![b'['; 100_000], KeyPolicy::Any),
        Err(JsonError::Depth { at: 64 })
    );
}

#[test]
fn maximum_keys_are_checked_in_linear_time() {
    // A comparison of each with each would take hours.
    let keys: Vec<_> = (0..OPEN_KEYS_MAX).map(|n| format!("\"{n}\":0")).collect();
    let text = format!("{{{}}}", keys.join(","));
    assert_eq!(check_json(text.as_bytes(), KeyPolicy::Unique), Ok(()));
    let text = format!("{{{},\"99998\":0}}", keys[..OPEN_KEYS_MAX - 1].join(","));
    assert!(matches!(
        check_json(text.as_bytes(), KeyPolicy::Unique),
        Err(JsonError::DuplicateKey { .. })
    ));
}

#[test]
fn keys_of_open_objects_are_bounded() {
    let object = |from: usize, count: usize| {
        let keys: Vec<_> = (from..from + count).map(|n| format!("\"{n}\":0")).collect();
        keys.join(",")
    };
    let whole = object(0, OPEN_KEYS_MAX + 1);
    let inside = format!(
        "{},\"o\":{{{}}}",
        object(0, OPEN_KEYS_MAX / 2),
        object(0, OPEN_KEYS_MAX / 2)
    );
    for keys in [whole, inside] {
        let text = format!("{{{keys}}}");
        let found = check_json(text.as_bytes(), KeyPolicy::Unique);
        assert!(
            matches!(found, Err(JsonError::TooManyKeys { .. })),
            "{found:?}"
        );
        assert_eq!(check_json(text.as_bytes(), KeyPolicy::Any), Ok(()));
    }
    // Sequential objects are independent, and small objects are free.
    let half = format!("{{{}}}", object(0, OPEN_KEYS_MAX / 2));
    let small = vec![r#"{"a":1,"b":2,"c":3}"#; OPEN_KEYS_MAX].join(",");
    let text = format!("[{half},{half},{half},{small}]");
    assert_eq!(check_json(text.as_bytes(), KeyPolicy::Unique), Ok(()));
}

#[test]
fn small_objects_after_large_stay_linear() {
    let keys: Vec<_> = (0..50_000).map(|n| format!("\"{n}\":0")).collect();
    let small = vec![r#"{"\u0061":0}"#; 50_000].join(",");
    let text = format!("[{{{}}},{small}]", keys.join(","));
    assert_eq!(check_json(text.as_bytes(), KeyPolicy::Unique), Ok(()));
}

#[test]
fn malformed_texts_agree_with_oracle() {
    fuzz::for_each_mutation(fuzz::JSON, |input| {
        let any = check_json(input, KeyPolicy::Any);
        if !matches!(any, Err(JsonError::Depth { .. })) {
            assert_eq!(any.is_ok(), oracle::accepts(input), "{any:?}");
        }
        let unique = check_json(input, KeyPolicy::Unique);
        match any {
            Ok(()) => {
                if let Some(repeats) = oracle::has_duplicate_keys(input) {
                    assert_eq!(unique.is_err(), repeats, "{unique:?}");
                }
            }
            Err(_) => assert!(unique.is_err()),
        }
    });
}

#[test]
fn sec_102_unknown_members_are_bounded() {
    let message = |members: usize| {
        let members: Vec<_> = (0..members).map(|n| format!("\"k{n}\":1")).collect();
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{{}}}}}",
            members.join(",")
        )
    };
    let few = message(UNKNOWN_MEMBERS_MAX);
    assert_eq!(check_json(few.as_bytes(), KeyPolicy::Message), Ok(()));
    let many = check_json(
        message(UNKNOWN_MEMBERS_MAX + 1).as_bytes(),
        KeyPolicy::Message,
    );
    assert!(
        matches!(many, Err(JsonError::TooManyMembers { .. })),
        "{many:?}"
    );
    // Arguments are the sender's own.
    let own: Vec<_> = (0..9_000).map(|n| format!("\"k{n}\":1")).collect();
    let own = format!(
        "{{\"method\":\"tools/call\",\"params\":{{\"name\":\"t\",\"arguments\":{{{}}}}}}}",
        own.join(",")
    );
    assert_eq!(check_json(own.as_bytes(), KeyPolicy::Message), Ok(()));
}
