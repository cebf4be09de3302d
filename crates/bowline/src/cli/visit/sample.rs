//! Values that a schema takes, as far as it says so plainly.

use serde_json::{Map, Value, json};

/// Returns arguments of a tool: those that it needs, and those that have a default.
pub(super) fn arguments(schema: &Value) -> Value {
    object(schema, |schema, key, property| {
        property.get("default").is_some() || is_required(schema, key)
    })
}

/// Returns the content of a form, filled in as it comes.
pub(super) fn form(schema: &Value) -> Value {
    object(schema, |_, _, _| true)
}

/// Returns the arguments of a prompt.
pub(super) fn prompt(arguments: &Value) -> Value {
    let mut filled = Map::new();
    for argument in arguments.as_array().into_iter().flatten() {
        if let Some(name) = argument["name"].as_str() {
            filled.insert(name.to_owned(), json!("text"));
        }
    }
    Value::Object(filled)
}

fn object(schema: &Value, wanted: impl Fn(&Value, &str, &Value) -> bool) -> Value {
    let mut filled = Map::new();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if wanted(schema, key, property) {
            filled.insert(key.clone(), value(property));
        }
    }
    Value::Object(filled)
}

fn is_required(schema: &Value, key: &str) -> bool {
    let mut required = schema["required"].as_array().into_iter().flatten();
    required.any(|name| name == key)
}

fn value(schema: &Value) -> Value {
    let given = schema.get("default").or_else(|| schema.get("const"));
    let given = given.or_else(|| schema["enum"].as_array()?.first());
    if let Some(given) = given {
        return given.clone();
    }
    match schema["type"].as_str() {
        Some("number" | "integer") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => arguments(schema),
        Some("null") => Value::Null,
        _ => json!("text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_given_and_defaults_are_kept() {
        let schema = json!({
            "properties": {
                "a": {"type": "number"}, "b": {"type": "string"}, "c": {"default": 7},
                "d": {"enum": ["x", "y"]}, "e": {"type": "boolean"},
            },
            "required": ["a", "d"],
        });
        assert_eq!(arguments(&schema), json!({"a": 1, "c": 7, "d": "x"}));
        let all = json!({"a": 1, "b": "text", "c": 7, "d": "x", "e": true});
        assert_eq!(form(&schema), all);
        assert_eq!(prompt(&json!([{"name": "p"}])), json!({"p": "text"}));
        assert_eq!(arguments(&Value::Null), json!({}));
    }
}
