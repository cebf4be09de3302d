//! Translates tool definitions for legacy clients: legacy SDKs reject a whole list for one
//! unexpected schema.

use crate::object::{self, is_object};
use crate::object_editor::{MemberList, ObjectEditor};
use crate::splice::ByteSpan;

/// Returns the translated definition if different: legacy schemas are object schemas, with objects
/// as property schemas.
#[must_use]
pub fn tool_to_legacy(definition: &[u8]) -> Option<Vec<u8>> {
    let mut editor = ObjectEditor::new(definition);
    let (mut input, mut output) = (None, None);
    editor.retain(editor.whole(), |key, value| match key {
        b"inputSchema" => {
            input = Some(value);
            true
        }
        b"outputSchema" if !is_object_schema(value.slice(definition)) => false,
        b"outputSchema" => {
            output = Some(value);
            true
        }
        _ => true,
    });
    if let Some(at) = input {
        force_object_schema(&mut editor, at);
    }
    for at in [input, output].into_iter().flatten() {
        replace_property_flags(&mut editor, at);
    }
    (!editor.is_unchanged()).then(|| editor.finish())
}

/// Whether the root of a schema has the type `object`.
fn is_object_schema(schema: &[u8]) -> bool {
    let kind = object::field(schema, "type").map(|at| at.slice(schema));
    kind == Some(b"\"object\"")
}

/// Makes an input schema an object schema: arguments are always objects.
fn force_object_schema(editor: &mut ObjectEditor<'_>, at: ByteSpan) {
    if is_object_schema(at.slice(editor.text())) {
        return;
    }
    if editor.retain(at, |key, _| key != b"type") {
        editor.insert_first(at, MemberList::from_member("type", b"\"object\""));
    } else {
        editor.replace(at, br#"{"type":"object"}"#);
    }
}

/// Replaces boolean property schemas by objects.
fn replace_property_flags(editor: &mut ObjectEditor<'_>, schema: ByteSpan) {
    let text = editor.text();
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
        editor.replace(value, with);
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
