//! Translates tool definitions for legacy clients: legacy SDKs reject a whole list for one
//! unexpected schema.

use crate::era::object_edit::{
    MemberAction, OwnedEdit, apply_edits, is_object, rewrite_object, whole_span,
};
use crate::object;
use crate::span::ByteSpan;

/// Returns the translated definition if different: legacy schemas are object schemas, with objects
/// as property schemas.
#[must_use]
pub fn tool_to_legacy(definition: &[u8]) -> Option<Vec<u8>> {
    let mut changes = Vec::new();
    let (mut input, mut output) = (None, None);
    rewrite_object(
        definition,
        whole_span(definition),
        Vec::new(),
        |key, value| match key {
            b"inputSchema" => {
                input = Some(value);
                MemberAction::Keep
            }
            b"outputSchema" if !is_object_schema(value.slice(definition)) => MemberAction::Remove,
            b"outputSchema" => {
                output = Some(value);
                MemberAction::Keep
            }
            _ => MemberAction::Keep,
        },
        &mut changes,
    );
    if let Some(at) = input {
        force_object_schema(definition, at, &mut changes);
    }
    for at in [input, output].into_iter().flatten() {
        rewrite_properties(definition, at, &mut changes);
    }
    (!changes.is_empty()).then(|| apply_edits(definition, &mut changes))
}

/// Whether the root of a schema has the type `object`.
fn is_object_schema(schema: &[u8]) -> bool {
    let kind = object::field(schema, "type").map(|at| at.slice(schema));
    kind == Some(b"\"object\"")
}

/// Appends the edit that makes an input schema an object schema: arguments are always objects.
fn force_object_schema(text: &[u8], at: ByteSpan, changes: &mut Vec<OwnedEdit>) {
    let schema = at.slice(text);
    if is_object_schema(schema) {
        return;
    }
    let kind = |key: &[u8], _| match key {
        b"type" => MemberAction::Remove,
        _ => MemberAction::Keep,
    };
    let front = b"\"type\":\"object\"".to_vec();
    if !rewrite_object(text, at, front, kind, changes) {
        changes.push((at, br#"{"type":"object"}"#.to_vec()));
    }
}

/// Appends the edits that replace boolean property schemas by objects.
fn rewrite_properties(text: &[u8], schema: ByteSpan, changes: &mut Vec<OwnedEdit>) {
    let Some(at) = object::field(schema.slice(text), "properties") else {
        return;
    };
    let at = at.shift(schema.start);
    for (_, value) in object::fields(at.slice(text)) {
        let value = value.shift(at.start);
        let with: &[u8] = match value.slice(text) {
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
    fn only_unsupported_schemas_are_rewritten() {
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
