//! Arguments and the headers that repeat them.

use bowline_core::era::{Claim, Mirror};

use super::*;

fn mirror(name: &str, path: &[&str]) -> Mirror {
    Mirror {
        name: name.into(),
        path: path.iter().map(|key| Box::from(*key)).collect(),
    }
}

fn claim(name: &str, value: &str) -> Claim {
    Claim {
        name: name.into(),
        value: value.as_bytes().into(),
    }
}

#[test]
fn mirrored_arguments_are_found_along_properties() {
    let schema = br#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "x-mcp-header":{"type":"string"},
        "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"X-N_1"}}},
        "data":{"type":"object","default":{"x-mcp-header":"no"},"enum":[{"x-mcp-header":1}]},
        "flag":{"x\u002dmcp-header":"Flag","type":"boolean"}}}"#;
    let want = [
        mirror("Region", &["region"]),
        mirror("X-N_1", &["deep", "n"]),
        mirror("Flag", &["flag"]),
    ];
    assert_eq!(read(schema).unwrap(), want);
    assert_eq!(read(br#"{"type":"object"}"#), Ok(vec![]));
    assert_eq!(read(b"true"), Ok(vec![]));
}

#[test]
fn a_mirror_that_breaks_a_rule_spoils_its_tool() {
    let property = |inner: &str| format!(r#"{{"type":"object","properties":{{"a":{inner}}}}}"#);
    for name in [
        "", " ", "a b", "a:b", "h\u{e9}", "a\\u0001", "a\\r\\n", "a/b",
    ] {
        let schema = property(&format!(r#"{{"type":"string","x-mcp-header":"{name}"}}"#));
        assert_eq!(read(schema.as_bytes()), Err(BadMirror::Name), "{name}");
    }
    let schema = property(r#"{"type":"string","x-mcp-header":5}"#);
    assert_eq!(read(schema.as_bytes()), Err(BadMirror::Name));
    for kind in [
        "\"number\"",
        "\"object\"",
        "\"array\"",
        "\"null\"",
        "[\"string\"]",
    ] {
        let schema = property(&format!(r#"{{"type":{kind},"x-mcp-header":"A"}}"#));
        assert_eq!(read(schema.as_bytes()), Err(BadMirror::Kind("A".into())));
    }
    let schema = property(r#"{"x-mcp-header":"A"}"#);
    assert_eq!(read(schema.as_bytes()), Err(BadMirror::Kind("A".into())));
    for second in ["Same", "sAME"] {
        let schema = format!(
            r#"{{"properties":{{"a":{{"type":"string","x-mcp-header":"Same"}},
                "b":{{"type":"string","x-mcp-header":"{second}"}}}}}}"#
        );
        let want = Err(BadMirror::Twice(second.into()));
        assert_eq!(read(schema.as_bytes()), want);
    }
    let leaf = r#"{"type":"string","x-mcp-header":"A"}"#;
    for elsewhere in [
        leaf.to_owned(),
        format!(r#"{{"items":{leaf}}}"#),
        format!(r#"{{"anyOf":[{{}},{{"properties":{{"a":{leaf}}}}}]}}"#),
        format!(r#"{{"properties":{{"a":{{"type":"array","items":{leaf}}}}}}}"#),
        format!(r#"{{"$defs":{{"default":{leaf}}}}}"#),
        format!(r#"{{"if":{{"properties":{{"a":{leaf}}}}}}}"#),
        format!(r#"{{"patternProperties":{{"a":{leaf}}}}}"#),
        format!(r#"{{"additionalProperties":{{"not":{leaf}}}}}"#),
    ] {
        assert_eq!(
            read(elsewhere.as_bytes()),
            Err(BadMirror::Place),
            "{elsewhere}"
        );
    }
}

#[test]
fn values_are_said_as_the_specification_says_them() {
    let arguments = br#"{"s":"us-west1","e":"","n":-7,"w":42.0,"x":1e3,"f":1.5,"t":true,"z":null,
        "o":{"p":"deep"},"l":[1],"big":9007199254740993,"u":"\u0065"}"#;
    for (path, want) in [
        (&["s"][..], Some("us-west1")),
        (&["e"], Some("")),
        (&["n"], Some("-7")),
        (&["w"], Some("42")),
        (&["x"], Some("1000")),
        (&["f"], Some("1.5")),
        (&["t"], Some("true")),
        (&["z"], None),
        (&["none"], None),
        (&["o", "p"], Some("deep")),
        (&["o"], None),
        (&["l"], None),
        (&["s", "p"], None),
        (&["big"], Some("9007199254740993")),
        (&["u"], Some("e")),
    ] {
        let got = value(arguments, &mirror("A", path));
        assert_eq!(got.as_deref(), want, "{path:?}");
    }
}

#[test]
fn what_a_header_cannot_carry_is_coded_and_reads_back() {
    for (text, want) in [
        ("us-west1", "us-west1"),
        ("", ""),
        ("a b\tc", "a b\tc"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?BASE64?x?=", "=?BASE64?x?="),
    ] {
        assert_eq!(encode(text), want);
        assert_eq!(decode(want.as_bytes()).as_deref(), Some(text));
    }
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let pool = [
            'a', ' ', '\t', '\n', '\r', '\0', '=', '?', 'é', '😀', '\u{7f}',
        ];
        let text: String = (0..random.usize(0..12))
            .map(|_| pool[random.usize(0..pool.len())])
            .collect();
        let coded = encode(&text);
        assert!(
            coded
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        );
        assert_eq!(decode(coded.as_bytes()).as_deref(), Some(&*text), "{seed}");
    }
    for bad in [
        &b"a\nb"[..],
        b"\xff",
        b"\x7f",
        b"=?base64?*?=",
        b"=?base64?/w==?=",
        b"h\xc3\xa9",
    ] {
        assert_eq!(decode(bad), None, "{bad:?}");
    }
}

#[test]
fn headers_agree_when_each_mirrored_argument_is_said_once_and_truly() {
    let mirrors = [mirror("Region", &["region"]), mirror("N", &["n"])];
    let arguments = br#"{"region":"w","n":42}"#;
    for (claims, want) in [
        (&[claim("region", "w"), claim("n", "42")][..], true),
        (&[claim("region", "w"), claim("n", "42.0")], true),
        (
            &[claim("region", "=?base64?dw==?="), claim("n", "42")],
            true,
        ),
        (
            &[claim("region", "w"), claim("n", "42"), claim("other", "x")],
            true,
        ),
        (&[claim("region", "w"), claim("n", "43")], false),
        (&[claim("region", "W"), claim("n", "42")], false),
        (&[claim("n", "42")], false),
        (
            &[claim("region", "w"), claim("region", "w"), claim("n", "42")],
            false,
        ),
        (&[claim("region", "w"), claim("n", "=?base64?!?=")], false),
        (&[], false),
    ] {
        assert_eq!(agrees(claims, &mirrors, arguments), want, "{claims:?}");
    }
    let null = br#"{"region":null}"#;
    assert!(agrees(&[], &mirrors, null));
    assert!(!agrees(&[claim("region", "null")], &mirrors, null));
    assert!(!agrees(&[claim("region", "")], &mirrors, b"{}"));
    // A text of digits is a text.
    let text = br#"{"region":"42","n":1}"#;
    assert!(!agrees(
        &[claim("region", "42.0"), claim("n", "1")],
        &mirrors,
        text
    ));
}

#[test]
fn sec_60_mirrored_argument_has_one_spelling() {
    let mirrors = [Mirror {
        name: "Region".into(),
        path: ["where".into(), "region".into()].into(),
    }];
    for (arguments, want) in [
        (r#"{"where":{"region":"eu"}}"#, true),
        (r#"{"Other":1,"other":2}"#, true),
        (r#"{"where":{"region":"eu","Region":"us"}}"#, false),
        (
            r#"{"where":{"region":"eu"},"WHERE":{"region":"us"}}"#,
            false,
        ),
        (r#"{"Where":{"region":"us"}}"#, false),
        (r#"{"where":{"\u0052egion":"us"}}"#, false),
    ] {
        assert_eq!(
            is_clear(&mirrors, arguments.as_bytes()),
            want,
            "{arguments}"
        );
    }
}
