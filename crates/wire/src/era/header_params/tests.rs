//! Arguments and header parameters.

use bowline_core::era::{HeaderClaim, HeaderParam};

use super::*;

fn header_param(name: &str, path: &[&str]) -> HeaderParam {
    HeaderParam {
        name: name.into(),
        path: path.iter().map(|key| Box::from(*key)).collect(),
    }
}

fn header_claim(name: &str, value: &str) -> HeaderClaim {
    HeaderClaim {
        name: name.into(),
        value: value.as_bytes().into(),
    }
}

#[test]
fn header_params_are_found_along_properties() {
    let schema = br#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "x-mcp-header":{"type":"string"},
        "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"X-N_1"}}},
        "data":{"type":"object","default":{"x-mcp-header":"no"},"enum":[{"x-mcp-header":1}]},
        "flag":{"x\u002dmcp-header":"Flag","type":"boolean"}}}"#;
    let want = [
        header_param("Region", &["region"]),
        header_param("X-N_1", &["deep", "n"]),
        header_param("Flag", &["flag"]),
    ];
    assert_eq!(parse_header_params(schema).unwrap(), want);
    assert_eq!(parse_header_params(br#"{"type":"object"}"#), Ok(vec![]));
    assert_eq!(parse_header_params(b"true"), Ok(vec![]));
}

#[test]
fn invalid_header_param_is_an_error() {
    let property = |inner: &str| format!(r#"{{"type":"object","properties":{{"a":{inner}}}}}"#);
    for name in [
        "", " ", "a b", "a:b", "h\u{e9}", "a\\u0001", "a\\r\\n", "a/b",
    ] {
        let schema = property(&format!(r#"{{"type":"string","x-mcp-header":"{name}"}}"#));
        assert_eq!(
            parse_header_params(schema.as_bytes()),
            Err(HeaderParamError::Name),
            "{name}"
        );
    }
    let schema = property(r#"{"type":"string","x-mcp-header":5}"#);
    assert_eq!(
        parse_header_params(schema.as_bytes()),
        Err(HeaderParamError::Name)
    );
    for kind in [
        "\"number\"",
        "\"object\"",
        "\"array\"",
        "\"null\"",
        "[\"string\"]",
    ] {
        let schema = property(&format!(r#"{{"type":{kind},"x-mcp-header":"A"}}"#));
        assert_eq!(
            parse_header_params(schema.as_bytes()),
            Err(HeaderParamError::Kind("A".into()))
        );
    }
    let schema = property(r#"{"x-mcp-header":"A"}"#);
    assert_eq!(
        parse_header_params(schema.as_bytes()),
        Err(HeaderParamError::Kind("A".into()))
    );
    for second in ["Same", "sAME"] {
        let schema = format!(
            r#"{{"properties":{{"a":{{"type":"string","x-mcp-header":"Same"}},
                "b":{{"type":"string","x-mcp-header":"{second}"}}}}}}"#
        );
        let want = Err(HeaderParamError::Twice(second.into()));
        assert_eq!(parse_header_params(schema.as_bytes()), want);
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
            parse_header_params(elsewhere.as_bytes()),
            Err(HeaderParamError::Place),
            "{elsewhere}"
        );
    }
}

#[test]
fn header_values_follow_specification() {
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
        let got = header_value(arguments, &header_param("A", path));
        assert_eq!(got.as_deref(), want, "{path:?}");
    }
}

#[test]
fn unsafe_header_values_round_trip_encoded() {
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
        assert_eq!(encode_value(text), want);
        assert_eq!(decode_value(want.as_bytes()).as_deref(), Some(text));
    }
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let pool = [
            'a', ' ', '\t', '\n', '\r', '\0', '=', '?', 'é', '😀', '\u{7f}',
        ];
        let text: String = (0..random.usize(0..12))
            .map(|_| pool[random.usize(0..pool.len())])
            .collect();
        let coded = encode_value(&text);
        assert!(
            coded
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        );
        assert_eq!(
            decode_value(coded.as_bytes()).as_deref(),
            Some(&*text),
            "{seed}"
        );
    }
    for bad in [
        &b"a\nb"[..],
        b"\xff",
        b"\x7f",
        b"=?base64?*?=",
        b"=?base64?/w==?=",
        b"h\xc3\xa9",
    ] {
        assert_eq!(decode_value(bad), None, "{bad:?}");
    }
}

#[test]
fn headers_match_arguments_exactly_once() {
    let mirrors = [
        header_param("Region", &["region"]),
        header_param("N", &["n"]),
    ];
    let arguments = br#"{"region":"w","n":42}"#;
    for (pairs, want) in [
        (&[("region", "w"), ("n", "42")][..], true),
        (&[("region", "w"), ("n", "42.0")], true),
        (&[("region", "=?base64?dw==?="), ("n", "42")], true),
        (&[("region", "w"), ("n", "42"), ("other", "x")], true),
        (&[("region", "w"), ("n", "43")], false),
        (&[("region", "W"), ("n", "42")], false),
        (&[("n", "42")], false),
        (&[("region", "w"), ("region", "w"), ("n", "42")], false),
        (&[("region", "w"), ("n", "=?base64?!?=")], false),
        (&[], false),
    ] {
        let claims = pairs.iter().map(|(name, value)| header_claim(name, value));
        let claims: Vec<_> = claims.collect();
        let found = headers_match(&claims, &mirrors, arguments);
        assert_eq!(found, want, "{claims:?}");
    }
    let null = br#"{"region":null}"#;
    assert!(headers_match(&[], &mirrors, null));
    assert!(!headers_match(
        &[header_claim("region", "null")],
        &mirrors,
        null
    ));
    assert!(!headers_match(
        &[header_claim("region", "")],
        &mirrors,
        b"{}"
    ));
    // A text of digits is a text.
    let text = br#"{"region":"42","n":1}"#;
    assert!(!headers_match(
        &[header_claim("region", "42.0"), header_claim("n", "1")],
        &mirrors,
        text
    ));
}

#[test]
fn sec_60_header_param_has_one_spelling() {
    let mirrors = [HeaderParam {
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
            is_unambiguous(&mirrors, arguments.as_bytes()),
            want,
            "{arguments}"
        );
    }
}
