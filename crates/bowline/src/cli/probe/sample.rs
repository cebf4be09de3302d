//! Generates sample values for simple schemas.

use serde_json::{Map, Value, json};

/// Generates arguments of a tool: required ones, and ones with a default.
pub(super) fn sample_arguments(schema: &Value) -> Value {
    sample_object(schema, |schema, key, property| {
        property.get("default").is_some() || is_required(schema, key)
    })
}

/// Generates the content of a form with every field filled in.
pub(super) fn sample_form(schema: &Value) -> Value {
    sample_object(schema, |_, _, _| true)
}

/// Generates the arguments of a prompt.
pub(super) fn sample_prompt_arguments(arguments: &Value) -> Value {
    let mut filled = Map::new();
    for argument in arguments.as_array().into_iter().flatten() {
        if let Some(name) = argument["name"].as_str() {
            filled.insert(name.to_owned(), json!("text"));
        }
    }
    Value::Object(filled)
}

fn sample_object(schema: &Value, is_included: impl Fn(&Value, &str, &Value) -> bool) -> Value {
    let mut filled = Map::new();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if is_included(schema, key, property) {
            filled.insert(key.clone(), sample_value(property));
        }
    }
    Value::Object(filled)
}

fn is_required(schema: &Value, key: &str) -> bool {
    let mut required = schema["required"].as_array().into_iter().flatten();
    required.any(|name| name == key)
}

fn sample_value(schema: &Value) -> Value {
    let fixed = schema.get("default").or_else(|| schema.get("const"));
    let fixed = fixed.or_else(|| schema["enum"].as_array()?.first());
    if let Some(fixed) = fixed {
        return fixed.clone();
    }
    match schema["type"].as_str() {
        Some("number" | "integer") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => sample_arguments(schema),
        Some("null") => Value::Null,
        _ => json!("text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_values_and_defaults_are_generated() {
        let schema = json!({
            "properties": {
                "a": {"type": "number"}, "b": {"type": "string"}, "c": {"default": 7},
                "d": {"enum": ["x", "y"]}, "e": {"type": "boolean"},
            },
            "required": ["a", "d"],
        });
        assert_eq!(sample_arguments(&schema), json!({"a": 1, "c": 7, "d": "x"}));
        let all = json!({"a": 1, "b": "text", "c": 7, "d": "x", "e": true});
        assert_eq!(sample_form(&schema), all);
        assert_eq!(
            sample_prompt_arguments(&json!([{"name": "p"}])),
            json!({"p": "text"})
        );
        assert_eq!(sample_arguments(&Value::Null), json!({}));
    }
}
