//! TOML into a tree of values with places.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{DEPTH_MAX, Entry, Node, Value, too_deep};
use crate::config::frame::Problem;

pub(super) fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors
            .iter()
            .map(|error| {
                let span = error.span().unwrap_or(0..0);
                Problem::new(span, "the file is not valid TOML", error.message())
            })
            .collect());
    }
    let span = root.span();
    let entries = entries(root.get_ref(), 0).map_err(|problem| vec![problem])?;
    Ok(Node {
        span,
        value: Value::Table(entries),
    })
}

fn entries(table: &DeTable<'_>, depth: usize) -> Result<Vec<Entry>, Problem> {
    let mut entries = table
        .iter()
        .map(|(key, value)| {
            Ok(Entry {
                key: key.get_ref().to_string(),
                span: key.span(),
                node: node(value, depth + 1)?,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    // The parser sorts by name; people read and fix a file from top to bottom.
    entries.sort_by_key(|entry| entry.span.start);
    Ok(entries)
}

fn node(value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Problem> {
    let span = value.span();
    if depth > DEPTH_MAX {
        return Err(too_deep(span));
    }
    let value = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Other("a number out of range"),
        },
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::Other("a number out of range"),
        },
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .map(|item| node(item, depth + 1))
                .collect::<Result<Vec<_>, Problem>>()?,
        ),
        DeValue::Table(table) => Value::Table(entries(table, depth)?),
    };
    Ok(Node { span, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_remember_where_they_stood() {
        let text = "[a]\nb = \"x\"\n";
        let root = parse(text).unwrap();
        let Value::Table(top) = root.value else {
            panic!("a document is a table")
        };
        let Value::Table(inner) = &top[0].node.value else {
            panic!("[a] is a table")
        };
        assert_eq!(&text[inner[0].span.clone()], "b");
        assert_eq!(&text[inner[0].node.span.clone()], "\"x\"");
    }

    #[test]
    fn every_syntax_error_is_reported() {
        let problems = parse("a = \nb = \nc = 1\n").unwrap_err();
        assert_eq!(problems.len(), 2);
    }

    #[test]
    fn a_tower_of_arrays_is_refused() {
        let text = format!("a = {}{}", "[".repeat(40), "]".repeat(40));
        assert!(parse(&text).is_err());
    }
}
