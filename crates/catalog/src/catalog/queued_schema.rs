//! Output schema of a queued tool as shown to clients: the tool's own schema, or the schema of a
//! queued call.

use bowline_wire::splice::{replace_span, to_literal};
use bowline_wire::{ByteSpan, ObjectEditor, object};
use bytes::Bytes;

/// Schema of the structured content of a queued call.
const QUEUED_SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"queued":{"type":"boolean"},"tool":{"type":"string"},"#,
    r#""idempotencyKey":{"type":"string"},"note":{"type":"string"},"id":{"type":"string"},"#,
    r#""position":{"type":"integer","minimum":0}},"#,
    r#""required":["queued","tool","idempotencyKey","note","id","position"]}"#,
);

/// Position of the tool's schema within the combined schema.
const SCHEMA_POINTER: &str = "#/anyOf/0";

/// Returns the definition of a queued tool with the combined schema; unchanged without an output
/// schema.
pub(super) fn with_queued_variant(definition: &Bytes) -> Bytes {
    let Some(at) = object::field(definition, "outputSchema") else {
        return definition.clone();
    };
    let schema = at.slice(definition);
    if !schema.starts_with(b"{") {
        return definition.clone();
    }
    let mut output = b"{".to_vec();
    // The dialect applies to the combined schema.
    if let Some(dialect) = object::field(schema, "$schema") {
        output.extend_from_slice(b"\"$schema\":");
        output.extend_from_slice(dialect.slice(schema));
        output.push(b',');
    }
    output.extend_from_slice(b"\"type\":\"object\",\"anyOf\":[");
    write_relocated(schema, &mut output);
    output.push(b',');
    output.extend_from_slice(QUEUED_SCHEMA.as_bytes());
    output.extend_from_slice(b"]}");
    replace_span(definition, at, &output).into()
}

/// Writes a schema with its internal references adjusted to the new position.
fn write_relocated(schema: &[u8], out: &mut Vec<u8>) {
    let mut editor = ObjectEditor::new(schema);
    let whole = editor.whole();
    relocate_references(&mut editor, whole);
    editor.edited().write(out);
}

/// Adjusts the references of the schema at a position. A schema with its own base keeps its
/// references; plain values are skipped, even if they look like schemas.
fn relocate_references(editor: &mut ObjectEditor<'_>, schema_at: ByteSpan) {
    let text = editor.text();
    let schema = schema_at.slice(text);
    if is_own_base(schema) {
        return;
    }
    for (key, at) in object::fields(schema) {
        let at = at.shift(schema_at.start);
        let value = at.slice(text);
        match key.as_ref() {
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                if let Some(to) = object::parse_string(value)
                    && (to == "#" || to.starts_with("#/"))
                {
                    editor.replace(at, to_literal(&to.replacen('#', SCHEMA_POINTER, 1)));
                }
            }
            // Members are named by the author, and each is a schema.
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
            | "dependencies" => {
                for (_, member) in object::fields(value) {
                    relocate_references(editor, member.shift(at.start));
                }
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => relocate_list_references(editor, at),
            // A schema or a list of schemas.
            "items" => {
                relocate_list_references(editor, at);
                relocate_references(editor, at);
            }
            "additionalItems"
            | "unevaluatedItems"
            | "contains"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contentSchema" => relocate_references(editor, at),
            _ => {}
        }
    }
}

fn relocate_list_references(editor: &mut ObjectEditor<'_>, list_at: ByteSpan) {
    for item in object::items(list_at.slice(editor.text())) {
        relocate_references(editor, item.shift(list_at.start));
    }
}

/// True if references resolve against the schema itself. An `$id` with only a fragment names an
/// anchor, not a base.
fn is_own_base(schema: &[u8]) -> bool {
    object::text_field(schema, "$id").is_some_and(|id| !id.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown_schema(schema: &Value) -> Value {
        let definition = json!({"name": "t", "outputSchema": schema, "title": "T"});
        let widened = with_queued_variant(&Bytes::from(definition.to_string()));
        let read: Value = serde_json::from_slice(&widened).unwrap();
        assert_eq!((&read["name"], &read["title"]), (&json!("t"), &json!("T")));
        read["outputSchema"].clone()
    }

    #[test]
    fn tool_without_schema_is_unchanged() {
        for definition in [r#"{"name":"t"}"#, r#"{"name":"t","outputSchema":true}"#] {
            let definition = Bytes::from(definition);
            assert_eq!(with_queued_variant(&definition), definition);
        }
    }

    #[test]
    fn references_are_relocated_and_values_stay() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "const": {"$ref": "#/$defs/a"},
                "self": {"$ref": "#"},
                "named": {"$ref": "#anchor"},
                "away": {"$ref": "https://example.com/x#/y"},
                "list": {"items": {"$ref": "#/$defs/a"}, "prefixItems": [{"$ref": "#/$defs/a"}]},
                "fixed": {"const": {"$ref": "#/$defs/a"}, "enum": [{"$ref": "#"}],
                          "default": {"$ref": "#"}, "examples": [{"$ref": "#"}]},
                "$ref": {"type": "string"}
            },
            "$defs": {
                "a": {"type": "integer"},
                "b": {"$id": "https://example.com/b", "properties": {"x": {"$ref": "#/c"}}}
            },
            "anyOf": [{"$ref": "#/$defs/a"}, true]
        });
        let read = shown_schema(&schema);
        assert_eq!(read["$schema"], schema["$schema"]);
        assert_eq!(read["type"], "object");
        let own = &read["anyOf"][0];
        let moved = json!("#/anyOf/0/$defs/a");
        assert_eq!(own["properties"]["const"]["$ref"], moved);
        assert_eq!(own["properties"]["self"]["$ref"], "#/anyOf/0");
        assert_eq!(own["properties"]["list"]["items"]["$ref"], moved);
        assert_eq!(own["properties"]["list"]["prefixItems"][0]["$ref"], moved);
        assert_eq!(own["anyOf"][0]["$ref"], moved);
        for same in ["named", "away", "fixed", "$ref"] {
            assert_eq!(
                own["properties"][same], schema["properties"][same],
                "{same}"
            );
        }
        assert_eq!(own["$defs"], schema["$defs"]);
    }

    #[test]
    fn a_schema_with_an_id_keeps_its_references() {
        let schema = json!({"$id": "https://example.com/a", "type": "object",
            "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}});
        assert_eq!(shown_schema(&schema)["anyOf"][0], schema);
    }

    #[test]
    fn tool_output_and_queued_output_are_valid() {
        let schema = json!({"type": "object", "required": ["tree"], "additionalProperties": false,
            "properties": {"tree": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"type": "object", "properties": {
                "leaf": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                "additionalProperties": false}}});
        let check = jsonschema::validator_for(&shown_schema(&schema)).unwrap();
        assert!(check.is_valid(&json!({"tree": {"next": {"leaf": 1}}})));
        assert!(!check.is_valid(&json!({"tree": {"next": {"leaf": "x"}}})));
        assert!(
            check.is_valid(&json!({"queued": true, "tool": "t", "idempotencyKey": "k",
            "note": "n", "id": "1", "position": 1}))
        );
        assert!(!check.is_valid(&json!({"queued": true})));
    }

    #[test]
    fn schema_bytes_stay_unchanged() {
        let definition = r#"{"name":"t","outputSchema":{ "type" : "object", "minimum": 1.50e2 }}"#;
        let shown = with_queued_variant(&Bytes::from(definition));
        let text = String::from_utf8(shown.to_vec()).unwrap();
        assert!(
            text.contains(r#"{ "type" : "object", "minimum": 1.50e2 }"#),
            "{text}"
        );
    }
}
