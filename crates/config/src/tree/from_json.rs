//! Parses JSON into a tree of values with positions.
//!
//! serde_json has no positions, but a borrowed `RawValue` is a slice of the text, so the pointer
//! offset gives the position without parsing twice.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{ConfigEntry, ConfigNode, ConfigValue, DEPTH_MAX, too_deep_problem};
use crate::config_problem::{ConfigProblem, byte_offset};

pub(super) fn parse_json(text: &str) -> Result<ConfigNode, Vec<ConfigProblem>> {
    let raw: &RawValue =
        serde_json::from_str(text).map_err(|error| vec![syntax_problem(text, &error)])?;
    let mut problems = Vec::new();
    let node = JsonTreeReader {
        text,
        problems: &mut problems,
    }
    .build_node(raw.get(), 0);
    if problems.is_empty() {
        Ok(node)
    } else {
        Err(problems)
    }
}

fn syntax_problem(text: &str, error: &serde_json::Error) -> ConfigProblem {
    let at = byte_offset(text, error.line(), error.column());
    let full = error.to_string();
    // serde_json appends the position, already shown by the code frame.
    let label = full
        .split(" at line ")
        .next()
        .unwrap_or("cannot be read")
        .to_owned();
    ConfigProblem::new(at..at + 1, "the file is not valid JSON", label)
}

struct JsonTreeReader<'t, 'p> {
    text: &'t str,
    problems: &'p mut Vec<ConfigProblem>,
}

impl<'t> JsonTreeReader<'t, '_> {
    fn span_in_text(&self, part: &str) -> Range<usize> {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        start..start + part.len()
    }

    fn build_node(&mut self, raw: &'t str, depth: usize) -> ConfigNode {
        let span = self.span_in_text(raw);
        if depth > DEPTH_MAX {
            self.problems.push(too_deep_problem(span.clone()));
            return ConfigNode {
                span,
                value: ConfigValue::Other("nested too deep"),
            };
        }
        let value = match raw.as_bytes().first() {
            Some(b'{') => ConfigValue::Table(self.build_entries(raw, depth)),
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
                ConfigValue::List(
                    items
                        .iter()
                        .map(|item| self.build_node(item.get(), depth + 1))
                        .collect(),
                )
            }
            Some(b'"') => match serde_json::from_str::<Cow<'_, str>>(raw) {
                Ok(text) => ConfigValue::Text(text.into_owned()),
                Err(_) => ConfigValue::Other("a string with a broken escape"),
            },
            Some(b't') => ConfigValue::Boolean(true),
            Some(b'f') => ConfigValue::Boolean(false),
            Some(b'n') => ConfigValue::Other("null"),
            _ if raw.contains(['.', 'e', 'E']) => raw.parse().map_or(
                ConfigValue::Other("a number out of range"),
                ConfigValue::Float,
            ),
            _ => raw.parse().map_or(
                ConfigValue::Other("a number out of range"),
                ConfigValue::Integer,
            ),
        };
        ConfigNode { span, value }
    }

    fn build_entries(&mut self, raw: &'t str, depth: usize) -> Vec<ConfigEntry> {
        let mut reader = serde_json::Deserializer::from_str(raw);
        let pairs = reader.deserialize_map(ObjectPairs).unwrap_or_default();
        let mut after = self.span_in_text(raw).start + 1;
        let mut entries: Vec<ConfigEntry> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let value_at = self.span_in_text(value.get()).start;
            let span = key_span(self.text, after..value_at);
            after = self.span_in_text(value.get()).end;
            if entries.iter().any(|entry| entry.key == key) {
                self.problems.push(ConfigProblem::new(
                    span.clone(),
                    format!("key `{key}` is given twice"),
                    "a second value for the same key",
                ));
            }
            let node = self.build_node(value.get(), depth + 1);
            entries.push(ConfigEntry { key, span, node });
        }
        entries
    }
}

/// Finds the key literal between the end of the last value and the start of this one.
fn key_span(text: &str, between: Range<usize>) -> Range<usize> {
    let part = text.get(between.clone()).unwrap_or_default();
    match (part.find('"'), part.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            between.start + first..between.start + last + 1
        }
        _ => between,
    }
}

/// Collects the pairs of an object in order, including duplicates.
struct ObjectPairs;

impl<'de> Visitor<'de> for ObjectPairs {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry::<String, &'de RawValue>()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keys_and_values_keep_spans() {
        let text = r#" { "a" : {"b":"x","c":[1,true,null]} }"#;
        let root = parse_json(text).unwrap();
        let ConfigValue::Table(top) = root.value else {
            panic!("an object is a table")
        };
        assert_eq!(&text[top[0].span.clone()], "\"a\"");
        let ConfigValue::Table(inner) = &top[0].node.value else {
            panic!("a is a table")
        };
        assert_eq!(&text[inner[1].span.clone()], "\"c\"");
        assert_eq!(&text[inner[1].node.span.clone()], "[1,true,null]");
        let ConfigValue::List(items) = &inner[1].node.value else {
            panic!("c is a list")
        };
        assert_eq!(items[0].value, ConfigValue::Integer(1));
        assert_eq!(items[2].value.kind_words(), "null");
    }

    #[test]
    fn duplicate_json_key_is_refused() {
        let problems = parse_json(r#"{"a":1,"\u0061":2}"#).unwrap_err();
        assert_eq!(problems[0].message, "key `a` is given twice");
    }

    #[test]
    fn json_syntax_error_has_position() {
        let problems = parse_json("{\n  \"a\": ,\n}").unwrap_err();
        assert_eq!(problems[0].span, 9..10);
        assert_eq!(problems[0].label, "expected value");
    }
}
