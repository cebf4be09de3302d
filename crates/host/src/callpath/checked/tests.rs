//! Tests of schemas: what is taken, what is refused, and what is found.

use std::fmt::Write as _;

use super::schema::{Refused, SCHEMA_BYTES_MAX, Schema, Wrong};

fn compiled(text: &str) -> Schema {
    Schema::compile(text.as_bytes()).unwrap()
}

fn refused(text: &str) -> Refused {
    Schema::compile(text.as_bytes()).unwrap_err()
}

#[test]
fn what_does_not_fit_is_told_with_its_place() {
    let schema = compiled(
        r##"{"type":"object","required":["list"],"properties":{"list":{"type":"array",
            "items":{"$ref":"#/$defs/a~1b"}}},"$defs":{"a/b":{"type":"integer"}}}"##,
    );
    assert_eq!(schema.check(br#"{"list":[1,2],"more":true}"#), Ok(()));
    let wrong = schema.check(br#"{"list":[1,"secret"]}"#).unwrap_err();
    let told = wrong.to_string();
    assert!(
        told.contains("`/list/1`") && told.contains("integer"),
        "{told}"
    );
    assert!(!told.contains("secret"), "{told}");
    let wrong = schema.check(b"{}").unwrap_err();
    assert!(matches!(wrong, Wrong::At { at, .. } if at.is_empty()));
    assert_eq!(schema.check(b"{"), Err(Wrong::Unreadable));
}

#[test]
fn sec_36_a_schema_that_could_do_harm_is_not_used() {
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
        (" ".repeat(SCHEMA_BYTES_MAX + 1), Refused::TooLarge),
        ("{".to_owned(), Refused::Unreadable),
        (deep, Refused::Unreadable),
        (wide, Refused::TooMany),
        (
            r#"{"$ref":"https://example.com/x"}"#.to_owned(),
            Refused::Remote,
        ),
        (
            r#"{"$ref":"file:///etc/passwd"}"#.to_owned(),
            Refused::Remote,
        ),
        (
            r#"{"items":{"$ref":"other.json#/a"}}"#.to_owned(),
            Refused::Remote,
        ),
        (r##"{"$dynamicRef":"#x"}"##.to_owned(), Refused::Remote),
        (
            r#"{"items":{"$id":"https://example.com/x"}}"#.to_owned(),
            Refused::Remote,
        ),
        (r##"{"$ref":"#/$defs/none"}"##.to_owned(), Refused::Dangling),
        (
            r#"{"$schema":"https://example.com/meta"}"#.to_owned(),
            Refused::Dialect,
        ),
        (r##"{"$ref":"#"}"##.to_owned(), Refused::Endless),
        (
            r##"{"allOf":[{"anyOf":[{"$ref":"#"}]}]}"##.to_owned(),
            Refused::Endless,
        ),
        (
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"not":{"$ref":"#/$defs/b"}},
                "b":{"if":{"$ref":"#/$defs/a"}}}}"##
                .to_owned(),
            Refused::Endless,
        ),
        (pattern(&"a".repeat(2_000)), Refused::TooMany),
    ] {
        assert_eq!(refused(&text), why, "{text:.200}");
    }
    // Only engines that go back can run these; ours cannot, and does not.
    for backtracking in ["(?=a)b", r"(a)\\1"] {
        assert!(matches!(
            refused(&pattern(backtracking)),
            Refused::Invalid(_)
        ));
    }
    for huge in ["(a{1000}){1000}", r"\\\\p{L}{1000}{10}"] {
        let outcome = Schema::compile(pattern(huge).as_bytes());
        assert!(
            matches!(outcome, Err(Refused::Invalid(_)) | Ok(_)),
            "{huge}"
        );
    }
}

#[test]
fn sec_36_a_pattern_made_to_be_slow_is_not() {
    let schema = compiled(r#"{"pattern":"^(a+)+$"}"#);
    let long = format!("\"{}!\"", "a".repeat(100_000));
    assert!(schema.check(long.as_bytes()).is_err());
    assert_eq!(schema.check(b"\"aaa\""), Ok(()));
}

/// Each definition refers twice to the next: a few lines that come to 2^30 parts.
#[test]
fn sec_36_a_schema_that_multiplies_itself_is_not_used() {
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
        assert_eq!(refused(&text), Refused::TooMany);
    }
}

#[test]
fn a_recursive_schema_is_used_where_that_can_end() {
    let tree = compiled(
        r##"{"type":"object","properties":{"name":{"type":"string"},
            "children":{"type":"array","items":{"$ref":"#"}}}}"##,
    );
    let good = r#"{"name":"a","children":[{"name":"b","children":[{"name":"c"}]}]}"#;
    assert_eq!(tree.check(good.as_bytes()), Ok(()));
    let bad = good.replace("\"c\"", "7");
    assert!(tree.check(bad.as_bytes()).is_err());
    // Two ways back for each value: what would take 2^40 steps is taken as it is.
    let twice = compiled(
        r##"{"anyOf":[{"properties":{"x":{"$ref":"#"}},"required":["no"]},
            {"properties":{"x":{"$ref":"#"}},"required":["no"]},{"not":{}}]}"##,
    );
    let deep = format!("{}1{}", r#"{"x":"#.repeat(40), "}".repeat(40));
    assert_eq!(twice.check(deep.as_bytes()), Ok(()), "not looked at");
    assert!(twice.check(br#"{"x":{}}"#).is_err());
}

/// The worst that is taken, on a stack as small as those of workers.
#[test]
fn sec_36_the_largest_schema_that_is_used_is_ready_in_time() {
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
        let schema = compiled(&text);
        assert!(schema.check(br#"{"p1":"x","last":7}"#).is_err());
        let mut nest = r#"{"type":"string"}"#.to_owned();
        for _ in 0..28 {
            nest = format!(r#"{{"allOf":[{nest}]}}"#);
        }
        let tree = format!(r##"{{"anyOf":[{{"properties":{{"x":{{"$ref":"#"}}}}}},{nest}]}}"##);
        let tree = compiled(&tree);
        let deep = format!("{}1{}", r#"{"x":"#.repeat(100), "}".repeat(100));
        let _either = tree.check(deep.as_bytes());
    };
    small.spawn(run).unwrap().join().unwrap();
}
