//! A tool in one line: `add(a: number, b?: string)`.

use serde::Deserialize as _;
use serde_json::{Map, Value};

/// Most properties that are shown before the rest is summed up.
const PROPERTIES_MAX: usize = 12;

/// The signature of a tool with this schema of its arguments.
#[must_use]
pub fn signature(tool: &str, schema: Option<&str>) -> String {
    let schema: Value = schema.and_then(parse).unwrap_or_default();
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
    // What must be given comes first, in the order the schema asks for it.
    let first = required
        .iter()
        .filter_map(|name| properties.get_key_value(*name));
    let rest = properties
        .iter()
        .filter(|(name, _)| !required.contains(&name.as_str()));
    let mut shown: Vec<String> = first
        .map(|(name, schema)| format!("{name}: {}", kind(schema)))
        .chain(rest.map(|(name, schema)| format!("{name}?: {}", kind(schema))))
        .collect();
    if shown.len() > PROPERTIES_MAX {
        let more = shown.len() - PROPERTIES_MAX;
        shown.truncate(PROPERTIES_MAX);
        shown.push(format!("… {more} more"));
    }
    format!("{tool}({})", shown.join(", "))
}

fn parse(text: &str) -> Option<Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Value::deserialize(&mut reader).ok()
}

/// The kind of value in the words of JSON Schema.
fn kind(schema: &Value) -> String {
    let types = types(schema);
    if types == ["array"] {
        let items = schema.get("items").map_or_else(|| "any".to_owned(), kind);
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

/// Every type a schema allows, through alternatives; empty when it does not say.
#[must_use]
pub fn types(schema: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    match schema.get("type") {
        Some(Value::String(one)) => found.push(one.as_str()),
        Some(Value::Array(many)) => found.extend(many.iter().filter_map(Value::as_str)),
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
                && !found.contains(&one.as_str())
            {
                found.push(one);
            }
        }
    }
    if found.is_empty() && schema.get("enum").is_some_and(all_strings) {
        found.push("string");
    }
    found
}

fn all_strings(values: &Value) -> bool {
    values
        .as_array()
        .is_some_and(|values| values.iter().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_arguments_come_first_and_kinds_are_named() {
        let schema = r#"{"type":"object","required":["b","a"],"properties":{
            "a":{"type":"number"},"b":{"type":["string","null"]},"c":{"type":"array",
            "items":{"type":"string"}},"d":{"anyOf":[{"type":"integer"},{"type":"boolean"}]},
            "e":{},"f":{"enum":["x","y"]}}}"#;
        assert_eq!(
            signature("t", Some(schema)),
            "t(b: string|null, a: number, c?: string[], d?: integer|boolean, e?: any, f?: string)"
        );
    }

    #[test]
    fn a_tool_without_a_usable_schema_still_has_a_signature() {
        assert_eq!(signature("t", None), "t()");
        assert_eq!(signature("t", Some("[]")), "t()");
        assert_eq!(signature("t", Some("{\"properties\":7}")), "t()");
    }

    #[test]
    fn a_long_list_is_summed_up() {
        let properties: Vec<_> = (0..20).map(|n| format!("\"p{n:02}\":{{}}")).collect();
        let schema = format!("{{\"properties\":{{{}}}}}", properties.join(","));
        assert!(signature("t", Some(&schema)).ends_with("p11?: any, … 8 more)"));
    }
}
