//! JSON into a tree of values with places.
//!
//! serde_json keeps no places, but a borrowed `RawValue` is a slice of the file, and where a
//! slice begins in the file can be told without parsing anything twice.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{DEPTH_MAX, Entry, Node, Value, too_deep};
use crate::config::frame::{Problem, offset};

pub(super) fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| vec![syntax(text, &error)])?;
    let mut problems = Vec::new();
    let node = Reader {
        text,
        problems: &mut problems,
    }
    .node(raw.get(), 0);
    if problems.is_empty() {
        Ok(node)
    } else {
        Err(problems)
    }
}

fn syntax(text: &str, error: &serde_json::Error) -> Problem {
    let at = offset(text, error.line(), error.column());
    let full = error.to_string();
    // serde_json appends the place, which the code frame shows already.
    let label = full
        .split(" at line ")
        .next()
        .unwrap_or("cannot be read")
        .to_owned();
    Problem::new(at..at + 1, "the file is not valid JSON", label)
}

struct Reader<'t, 'p> {
    text: &'t str,
    problems: &'p mut Vec<Problem>,
}

impl<'t> Reader<'t, '_> {
    fn span(&self, part: &str) -> Range<usize> {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        start..start + part.len()
    }

    fn node(&mut self, raw: &'t str, depth: usize) -> Node {
        let span = self.span(raw);
        if depth > DEPTH_MAX {
            self.problems.push(too_deep(span.clone()));
            return Node {
                span,
                value: Value::Other("nested too deep"),
            };
        }
        let value = match raw.as_bytes().first() {
            Some(b'{') => Value::Table(self.entries(raw, depth)),
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
                Value::List(
                    items
                        .iter()
                        .map(|item| self.node(item.get(), depth + 1))
                        .collect(),
                )
            }
            Some(b'"') => match serde_json::from_str::<Cow<'_, str>>(raw) {
                Ok(text) => Value::Text(text.into_owned()),
                Err(_) => Value::Other("a string with a broken escape"),
            },
            Some(b't') => Value::Boolean(true),
            Some(b'f') => Value::Boolean(false),
            Some(b'n') => Value::Other("null"),
            _ if raw.contains(['.', 'e', 'E']) => raw
                .parse()
                .map_or(Value::Other("a number out of range"), Value::Float),
            _ => raw
                .parse()
                .map_or(Value::Other("a number out of range"), Value::Integer),
        };
        Node { span, value }
    }

    fn entries(&mut self, raw: &'t str, depth: usize) -> Vec<Entry> {
        let mut reader = serde_json::Deserializer::from_str(raw);
        let pairs = reader.deserialize_map(Pairs).unwrap_or_default();
        let mut after = self.span(raw).start + 1;
        let mut entries: Vec<Entry> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let value_at = self.span(value.get()).start;
            let span = key_span(self.text, after..value_at);
            after = self.span(value.get()).end;
            if entries.iter().any(|entry| entry.key == key) {
                self.problems.push(Problem::new(
                    span.clone(),
                    format!("key `{key}` is given twice"),
                    "a second value for the same key",
                ));
            }
            let node = self.node(value.get(), depth + 1);
            entries.push(Entry { key, span, node });
        }
        entries
    }
}

/// The literal between the end of the last value and the beginning of this one.
fn key_span(text: &str, between: Range<usize>) -> Range<usize> {
    let part = text.get(between.clone()).unwrap_or_default();
    match (part.find('"'), part.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            between.start + first..between.start + last + 1
        }
        _ => between,
    }
}

/// The pairs of an object, in order, duplicates kept.
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
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
    fn keys_and_values_remember_where_they_stood() {
        let text = r#" { "a" : {"b":"x","c":[1,true,null]} }"#;
        let root = parse(text).unwrap();
        let Value::Table(top) = root.value else {
            panic!("an object is a table")
        };
        assert_eq!(&text[top[0].span.clone()], "\"a\"");
        let Value::Table(inner) = &top[0].node.value else {
            panic!("a is a table")
        };
        assert_eq!(&text[inner[1].span.clone()], "\"c\"");
        assert_eq!(&text[inner[1].node.span.clone()], "[1,true,null]");
        let Value::List(items) = &inner[1].node.value else {
            panic!("c is a list")
        };
        assert_eq!(items[0].value, Value::Integer(1));
        assert_eq!(items[2].value.kind(), "null");
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        let problems = parse(r#"{"a":1,"\u0061":2}"#).unwrap_err();
        assert_eq!(problems[0].message, "key `a` is given twice");
    }

    #[test]
    fn a_syntax_error_points_at_its_place() {
        let problems = parse("{\n  \"a\": ,\n}").unwrap_err();
        assert_eq!(problems[0].span, 9..10);
        assert_eq!(problems[0].label, "expected value");
    }
}
