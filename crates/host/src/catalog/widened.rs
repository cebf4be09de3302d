//! The output schema of a tool that is queued, as clients are shown it: what the tool promises, or
//! the news that its call waits.

use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited, replace, write_string};
use bytes::Bytes;

/// What the structured content of a queued call looks like.
const QUEUED: &str = concat!(
    r#"{"type":"object","properties":{"queued":{"type":"boolean"},"tool":{"type":"string"},"#,
    r#""idempotencyKey":{"type":"string"},"note":{"type":"string"},"id":{"type":"string"},"#,
    r#""position":{"type":"integer","minimum":0}},"#,
    r#""required":["queued","tool","idempotencyKey","note","id","position"]}"#,
);

/// Where the schema of the tool stands in the one that is shown.
const PLACE: &str = "#/anyOf/0";

/// Returns the definition of a queued tool as it is shown; unchanged where it promises nothing.
pub(super) fn widened(definition: &Bytes) -> Bytes {
    let Some(at) = object::field(definition, "outputSchema") else {
        return definition.clone();
    };
    let schema = at.of(definition);
    if !schema.starts_with(b"{") {
        return definition.clone();
    }
    let mut shown = b"{".to_vec();
    // The dialect is that of the whole.
    if let Some(dialect) = object::field(schema, "$schema") {
        shown.extend_from_slice(b"\"$schema\":");
        shown.extend_from_slice(dialect.of(schema));
        shown.push(b',');
    }
    shown.extend_from_slice(b"\"type\":\"object\",\"anyOf\":[");
    moved(schema, &mut shown);
    shown.push(b',');
    shown.extend_from_slice(QUEUED.as_bytes());
    shown.extend_from_slice(b"]}");
    replace(definition, at, &shown).into()
}

/// Writes a schema with its references into itself leading to where it stands now.
fn moved(schema: &[u8], out: &mut Vec<u8>) {
    let mut found = Vec::new();
    walk(schema, 0, &mut found);
    found.sort_by_key(|(at, _)| at.start);
    let edits: Vec<_> = found
        .iter()
        .map(|(at, with)| Edit { at: *at, with })
        .collect();
    Edited {
        source: schema,
        edits: &edits,
    }
    .write(out);
}

/// Finds the references of a schema that stands at `start`. What names another base keeps its own
/// references; what is a value, and no schema, may look like one.
fn walk(schema: &[u8], start: usize, found: &mut Vec<(Span, Vec<u8>)>) {
    if is_own_base(schema) {
        return;
    }
    for (key, at) in object::fields(schema) {
        let value = at.of(schema);
        let here = start + at.start;
        match key.as_ref() {
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                if let Some(to) = object::string(value)
                    && (to == "#" || to.starts_with("#/"))
                {
                    let mut with = Vec::new();
                    write_string(&mut with, &to.replacen('#', PLACE, 1));
                    found.push((at.shift(start), with));
                }
            }
            // Members are named by the author, and each is a schema.
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
            | "dependencies" => {
                for (_, member) in object::fields(value) {
                    walk(member.of(value), here + member.start, found);
                }
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => list(value, here, found),
            // A schema, or a list of them.
            "items" => {
                list(value, here, found);
                walk(value, here, found);
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
            | "contentSchema" => walk(value, here, found),
            _ => {}
        }
    }
}

fn list(value: &[u8], start: usize, found: &mut Vec<(Span, Vec<u8>)>) {
    for item in object::items(value) {
        walk(item.of(value), start + item.start, found);
    }
}

/// Whether references in it are meant from itself on. Where `$id` is only a fragment, it names a
/// place and no base.
fn is_own_base(schema: &[u8]) -> bool {
    object::text(schema, "$id").is_some_and(|id| !id.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(schema: &Value) -> Value {
        let definition = json!({"name": "t", "outputSchema": schema, "title": "T"});
        let widened = widened(&Bytes::from(definition.to_string()));
        let read: Value = serde_json::from_slice(&widened).unwrap();
        assert_eq!((&read["name"], &read["title"]), (&json!("t"), &json!("T")));
        read["outputSchema"].clone()
    }

    #[test]
    fn a_tool_without_a_schema_is_shown_as_it_is() {
        for definition in [r#"{"name":"t"}"#, r#"{"name":"t","outputSchema":true}"#] {
            let definition = Bytes::from(definition);
            assert_eq!(widened(&definition), definition);
        }
    }

    #[test]
    fn references_lead_to_where_the_schema_is_now_and_values_stay() {
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
        let read = shown(&schema);
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
        assert_eq!(shown(&schema)["anyOf"][0], schema);
    }

    #[test]
    fn both_the_tools_own_content_and_a_queued_answer_are_valid() {
        let schema = json!({"type": "object", "required": ["tree"], "additionalProperties": false,
            "properties": {"tree": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"type": "object", "properties": {
                "leaf": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                "additionalProperties": false}}});
        let check = jsonschema::validator_for(&shown(&schema)).unwrap();
        assert!(check.is_valid(&json!({"tree": {"next": {"leaf": 1}}})));
        assert!(!check.is_valid(&json!({"tree": {"next": {"leaf": "x"}}})));
        assert!(
            check.is_valid(&json!({"queued": true, "tool": "t", "idempotencyKey": "k",
            "note": "n", "id": "1", "position": 1}))
        );
        assert!(!check.is_valid(&json!({"queued": true})));
    }

    #[test]
    fn bytes_of_the_schema_stay_as_they_are_written() {
        let definition = r#"{"name":"t","outputSchema":{ "type" : "object", "minimum": 1.50e2 }}"#;
        let shown = widened(&Bytes::from(definition));
        let text = String::from_utf8(shown.to_vec()).unwrap();
        assert!(
            text.contains(r#"{ "type" : "object", "minimum": 1.50e2 }"#),
            "{text}"
        );
    }
}
