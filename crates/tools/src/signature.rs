//! A tool signature on a single line: `add(a: number, b?: string)`.

use serde::Deserialize as _;
use serde_json::{Map, Value};

/// Maximum number of shown properties.
const PROPERTIES_MAX: usize = 12;

/// Returns the signature of a tool with this input schema.
#[must_use]
pub fn tool_signature(tool: &str, schema: Option<&str>) -> String {
    let schema: Value = schema.and_then(parse_schema).unwrap_or_default();
    let empty = Map::new();
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // Required arguments come first, in the order of `required`.
    let first = required
        .iter()
        .filter_map(|name| properties.get_key_value(*name));
    let rest = properties
        .iter()
        .filter(|(name, _)| !required.contains(&name.as_str()));
    let mut parameters: Vec<String> = first
        .map(|(name, schema)| format!("{name}: {}", type_name(schema)))
        .chain(rest.map(|(name, schema)| format!("{name}?: {}", type_name(schema))))
        .collect();
    if parameters.len() > PROPERTIES_MAX {
        let more = parameters.len() - PROPERTIES_MAX;
        parameters.truncate(PROPERTIES_MAX);
        parameters.push(format!("… {more} more"));
    }
    format!("{tool}({})", parameters.join(", "))
}

fn parse_schema(text: &str) -> Option<Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Value::deserialize(&mut reader).ok()
}

/// Returns the type of a schema in JSON Schema words.
fn type_name(schema: &Value) -> String {
    let types = allowed_types(schema);
    if types == ["array"] {
        let items = schema
            .get("items")
            .map_or_else(|| "any".to_owned(), type_name);
        return if items.contains('|') {
            format!("({items})[]")
        } else {
            format!("{items}[]")
        };
    }
    if types.is_empty() {
        "any".to_owned()
    } else {
        types.join("|")
    }
}

/// Returns all types allowed by a schema, including alternatives; empty if unspecified.
#[must_use]
pub fn allowed_types(schema: &Value) -> Vec<&str> {
    let mut types = Vec::new();
    match schema.get("type") {
        Some(Value::String(one)) => types.push(one.as_str()),
        Some(Value::Array(many)) => types.extend(many.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for alternatives in ["anyOf", "oneOf"] {
        for alternative in schema
            .get(alternatives)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            if let Some(Value::String(one)) = alternative.get("type")
                && !types.contains(&one.as_str())
            {
                types.push(one);
            }
        }
    }
    if types.is_empty() && schema.get("enum").is_some_and(are_all_strings) {
        types.push("string");
    }
    types
}

fn are_all_strings(values: &Value) -> bool {
    values
        .as_array()
        .is_some_and(|values| values.iter().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_arguments_come_first() {
        let schema = r#"{"type":"object","required":["b","a"],"properties":{
            "a":{"type":"number"},"b":{"type":["string","null"]},"c":{"type":"array",
            "items":{"type":"string"}},"d":{"anyOf":[{"type":"integer"},{"type":"boolean"}]},
            "e":{},"f":{"enum":["x","y"]}}}"#;
        assert_eq!(
            tool_signature("t", Some(schema)),
            "t(b: string|null, a: number, c?: string[], d?: integer|boolean, e?: any, f?: string)"
        );
    }

    #[test]
    fn unusable_schema_gives_empty_signature() {
        assert_eq!(tool_signature("t", None), "t()");
        assert_eq!(tool_signature("t", Some("[]")), "t()");
        assert_eq!(tool_signature("t", Some("{\"properties\":7}")), "t()");
    }

    #[test]
    fn long_property_list_is_truncated() {
        let properties: Vec<_> = (0..20).map(|n| format!("\"p{n:02}\":{{}}")).collect();
        let schema = format!("{{\"properties\":{{{}}}}}", properties.join(","));
        assert!(tool_signature("t", Some(&schema)).ends_with("p11?: any, … 8 more)"));
    }
}
