//! The definition of a tool as callers of the legacy era take it: their SDKs refuse a whole list
//! for one schema that they do not expect.

use crate::era::change::{Change, Fate, applied, is_object, rewrite, whole};
use crate::object;
use crate::span::Span;

/// Returns the definition of a tool where it must differ for callers of the legacy era: schemas
/// there are of objects, and properties have objects for schemas.
#[must_use]
pub fn tool_to_legacy(definition: &[u8]) -> Option<Vec<u8>> {
    let mut changes = Vec::new();
    let (mut input, mut output) = (None, None);
    rewrite(
        definition,
        whole(definition),
        Vec::new(),
        |key, value| match key {
            b"inputSchema" => {
                input = Some(value);
                Fate::Stays
            }
            b"outputSchema" if !is_of_objects(value.of(definition)) => Fate::Goes,
            b"outputSchema" => {
                output = Some(value);
                Fate::Stays
            }
            _ => Fate::Stays,
        },
        &mut changes,
    );
    if let Some(at) = input {
        of_objects(definition, at, &mut changes);
    }
    for at in [input, output].into_iter().flatten() {
        properties(definition, at, &mut changes);
    }
    (!changes.is_empty()).then(|| applied(definition, &mut changes))
}

/// Whether a schema says at its root that it is of objects.
fn is_of_objects(schema: &[u8]) -> bool {
    let kind = object::field(schema, "type").map(|at| at.of(schema));
    kind == Some(b"\"object\"")
}

/// Appends the change that has a schema of arguments say so: arguments are nothing else.
fn of_objects(text: &[u8], at: Span, changes: &mut Vec<Change>) {
    let schema = at.of(text);
    if is_of_objects(schema) {
        return;
    }
    let kind = |key: &[u8], _| match key {
        b"type" => Fate::Goes,
        _ => Fate::Stays,
    };
    let front = b"\"type\":\"object\"".to_vec();
    if !rewrite(text, at, front, kind, changes) {
        changes.push((at, br#"{"type":"object"}"#.to_vec()));
    }
}

/// Appends the changes that write the schemas `true` and `false` of properties as objects.
fn properties(text: &[u8], schema: Span, changes: &mut Vec<Change>) {
    let Some(at) = object::field(schema.of(text), "properties") else {
        return;
    };
    let at = at.shift(schema.start);
    for (_, value) in object::fields(at.of(text)) {
        let value = value.shift(at.start);
        let with: &[u8] = match value.of(text) {
            b"true" => b"{}",
            b"false" => br#"{"not":{}}"#,
            other if is_object(other) => continue,
            // Not a schema in any era.
            _ => b"{}",
        };
        changes.push((value, with.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_schema_that_old_callers_refuse_is_written_anew() {
        let object = r#"{"type":"object","properties":{"a":{"type":"array"}}}"#;
        for (definition, want) in [
            (format!(r#"{{"name":"x","inputSchema":{object}}}"#), None),
            (
                format!(r#"{{"name":"x","inputSchema":{object},"outputSchema":{object}}}"#),
                None,
            ),
            (
                format!(
                    r#"{{"outputSchema":{{"type":"array","items":{{}}}},"name":"x","inputSchema":{object},"icons":[1]}}"#
                ),
                Some(format!(r#"{{"name":"x","inputSchema":{object},"icons":[1]}}"#)),
            ),
            (
                format!(r#"{{"name":"x","inputSchema":{object}, "outputSchema":true}}"#),
                Some(format!(r#"{{"name":"x","inputSchema":{object}}}"#)),
            ),
            (
                r#"{"name":"x","inputSchema":{"anyOf":[{}]}}"#.to_owned(),
                Some(r#"{"name":"x","inputSchema":{"type":"object","anyOf":[{}]}}"#.to_owned()),
            ),
            (
                r#"{"name":"x","inputSchema":true}"#.to_owned(),
                Some(r#"{"name":"x","inputSchema":{"type":"object"}}"#.to_owned()),
            ),
            (
                r#"{"name":"x","inputSchema":{"type":["object"],"properties":{"a":true,"b":false,"c":{}}}}"#
                    .to_owned(),
                Some(
                    r#"{"name":"x","inputSchema":{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{}}}}"#
                        .to_owned(),
                ),
            ),
        ] {
            let got = tool_to_legacy(definition.as_bytes());
            let got = got.map(|text| String::from_utf8(text).unwrap());
            assert_eq!(got, want, "{definition}");
        }
    }
}
