//! Tests of schema compilation and validation.

use std::fmt::Write as _;

use super::compiled_schema::{CompiledSchema, OutputMismatch, SCHEMA_BYTES_MAX, SchemaError};

fn compile_schema(text: &str) -> CompiledSchema {
    CompiledSchema::compile(text.as_bytes()).unwrap()
}

fn compile_error(text: &str) -> SchemaError {
    CompiledSchema::compile(text.as_bytes()).unwrap_err()
}

#[test]
fn mismatch_names_its_position() {
    let schema = compile_schema(
        r##"{"type":"object","required":["list"],"properties":{"list":{"type":"array",
            "items":{"$ref":"#/$defs/a~1b"}}},"$defs":{"a/b":{"type":"integer"}}}"##,
    );
    assert_eq!(schema.validate(br#"{"list":[1,2],"more":true}"#), Ok(()));
    let wrong = schema.validate(br#"{"list":[1,"secret"]}"#).unwrap_err();
    let told = wrong.to_string();
    assert!(
        told.contains("`/list/1`") && told.contains("integer"),
        "{told}"
    );
    assert!(!told.contains("secret"), "{told}");
    let wrong = schema.validate(b"{}").unwrap_err();
    assert!(matches!(wrong, OutputMismatch::At { at, .. } if at.is_empty()));
    assert_eq!(schema.validate(b"{"), Err(OutputMismatch::Unreadable));
}

#[test]
fn sec_36_harmful_schema_is_rejected() {
    let deep = format!(
        "{}{}",
        r#"{"not":"#.repeat(70),
        "{}".to_owned() + &"}".repeat(70)
    );
    let wide: String = (0..10_001)
        .map(|nth| format!(r#""p{nth}":{{}},"#))
        .collect();
    let wide = format!(r#"{{"properties":{{{}}}}}"#, wide.trim_end_matches(','));
    let pattern = |pattern: &str| format!(r#"{{"pattern":"{pattern}"}}"#);
    for (text, why) in [
        (" ".repeat(SCHEMA_BYTES_MAX + 1), SchemaError::TooLarge),
        ("{".to_owned(), SchemaError::Unreadable),
        (deep, SchemaError::Unreadable),
        (wide, SchemaError::TooMany),
        (
            r#"{"$ref":"https://example.com/x"}"#.to_owned(),
            SchemaError::Remote,
        ),
        (
            r#"{"$ref":"file:///etc/passwd"}"#.to_owned(),
            SchemaError::Remote,
        ),
        (
            r#"{"items":{"$ref":"other.json#/a"}}"#.to_owned(),
            SchemaError::Remote,
        ),
        (r##"{"$dynamicRef":"#x"}"##.to_owned(), SchemaError::Remote),
        (
            r#"{"items":{"$id":"https://example.com/x"}}"#.to_owned(),
            SchemaError::Remote,
        ),
        (
            r##"{"$ref":"#/$defs/none"}"##.to_owned(),
            SchemaError::Dangling,
        ),
        (
            r#"{"$schema":"https://example.com/meta"}"#.to_owned(),
            SchemaError::Dialect,
        ),
        (r##"{"$ref":"#"}"##.to_owned(), SchemaError::Endless),
        (
            r##"{"allOf":[{"anyOf":[{"$ref":"#"}]}]}"##.to_owned(),
            SchemaError::Endless,
        ),
        (
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"not":{"$ref":"#/$defs/b"}},
                "b":{"if":{"$ref":"#/$defs/a"}}}}"##
                .to_owned(),
            SchemaError::Endless,
        ),
        (pattern(&"a".repeat(2_000)), SchemaError::TooMany),
    ] {
        assert_eq!(compile_error(&text), why, "{text:.200}");
    }
    // Only backtracking engines support these; the linear-time engine rejects them.
    for backtracking in ["(?=a)b", r"(a)\\1"] {
        assert!(matches!(
            compile_error(&pattern(backtracking)),
            SchemaError::Invalid(_)
        ));
    }
    for huge in ["(a{1000}){1000}", r"\\\\p{L}{1000}{10}"] {
        let outcome = CompiledSchema::compile(pattern(huge).as_bytes());
        assert!(
            matches!(outcome, Err(SchemaError::Invalid(_)) | Ok(_)),
            "{huge}"
        );
    }
}

#[test]
fn sec_36_slow_pattern_runs_in_linear_time() {
    let schema = compile_schema(r#"{"pattern":"^(a+)+$"}"#);
    let long = format!("\"{}!\"", "a".repeat(100_000));
    assert!(schema.validate(long.as_bytes()).is_err());
    assert_eq!(schema.validate(b"\"aaa\""), Ok(()));
}

/// Each definition refers twice to the next: a few lines expand to 2^30 parts.
#[test]
fn sec_36_exponential_schema_is_rejected() {
    for way in ["allOf", "anyOf"] {
        let mut defs = String::new();
        for nth in 0..30 {
            let next = nth + 1;
            write!(
                defs,
                r##""d{nth}":{{"{way}":[{{"$ref":"#/$defs/d{next}"}},{{"$ref":"#/$defs/d{next}"}}]}},"##
            )
            .unwrap();
        }
        let text = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{defs}"d30":{{}}}}}}"##);
        assert_eq!(compile_error(&text), SchemaError::TooMany);
    }
}

#[test]
fn recursive_schema_is_used_within_cost_limit() {
    let tree = compile_schema(
        r##"{"type":"object","properties":{"name":{"type":"string"},
            "children":{"type":"array","items":{"$ref":"#"}}}}"##,
    );
    let good = r#"{"name":"a","children":[{"name":"b","children":[{"name":"c"}]}]}"#;
    assert_eq!(tree.validate(good.as_bytes()), Ok(()));
    let bad = good.replace("\"c\"", "7");
    assert!(tree.validate(bad.as_bytes()).is_err());
    // Two recursive references per level: a validation of 2^40 steps is skipped.
    let twice = compile_schema(
        r##"{"anyOf":[{"properties":{"x":{"$ref":"#"}},"required":["no"]},
            {"properties":{"x":{"$ref":"#"}},"required":["no"]},{"not":{}}]}"##,
    );
    let deep = format!("{}1{}", r#"{"x":"#.repeat(40), "}".repeat(40));
    assert_eq!(twice.validate(deep.as_bytes()), Ok(()), "not looked at");
    assert!(twice.validate(br#"{"x":{}}"#).is_err());
}

/// The most expensive accepted schema, on a stack as small as a worker's.
#[test]
fn sec_36_largest_accepted_schema_fits_small_stack() {
    let small = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    let run = || {
        let mut properties = String::new();
        for nth in 0..3_000 {
            write!(properties, r#""p{nth}":{{"type":"string"}},"#).unwrap();
        }
        for nth in 0..32 {
            write!(
                properties,
                r#""q{nth}":{{"pattern":"^([a-z0-9_]+[-.]?){{1,8}}{nth}$"}},"#
            )
            .unwrap();
        }
        let mut defs = String::new();
        for nth in 0..60 {
            let next = nth + 1;
            write!(
                defs,
                r##""d{nth}":{{"not":{{"$ref":"#/$defs/d{next}"}}}},"##
            )
            .unwrap();
        }
        let text = format!(
            r##"{{"properties":{{{properties}"last":{{"$ref":"#/$defs/d0"}}}},
                "$defs":{{{defs}"d60":{{"type":"null"}}}}}}"##
        );
        let schema = compile_schema(&text);
        assert!(schema.validate(br#"{"p1":"x","last":7}"#).is_err());
        let mut nest = r#"{"type":"string"}"#.to_owned();
        for _ in 0..28 {
            nest = format!(r#"{{"allOf":[{nest}]}}"#);
        }
        let tree = format!(r##"{{"anyOf":[{{"properties":{{"x":{{"$ref":"#"}}}}}},{nest}]}}"##);
        let tree = compile_schema(&tree);
        let deep = format!("{}1{}", r#"{"x":"#.repeat(100), "}".repeat(100));
        let _either = tree.validate(deep.as_bytes());
    };
    small.spawn(run).unwrap().join().unwrap();
}
