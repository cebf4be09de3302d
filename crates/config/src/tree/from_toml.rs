//! Parses TOML into a tree of values with positions.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigEntry, ConfigNode, ConfigValue, DEPTH_MAX, too_deep_problem};
use crate::config_problem::ConfigProblem;

pub(super) fn parse_toml(text: &str) -> Result<ConfigNode, Vec<ConfigProblem>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors
            .iter()
            .map(|error| {
                let span = error.span().unwrap_or(0..0);
                ConfigProblem::new(span, "the file is not valid TOML", error.message())
            })
            .collect());
    }
    let span = root.span();
    let entries = build_entries(root.get_ref(), 0).map_err(|problem| vec![problem])?;
    Ok(ConfigNode {
        span,
        value: ConfigValue::Table(entries),
    })
}

fn build_entries(table: &DeTable<'_>, depth: usize) -> Result<Vec<ConfigEntry>, ConfigProblem> {
    let mut entries = table
        .iter()
        .map(|(key, value)| {
            Ok(ConfigEntry {
                key: key.get_ref().to_string(),
                span: key.span(),
                node: build_node(value, depth + 1)?,
            })
        })
        .collect::<Result<Vec<_>, ConfigProblem>>()?;
    // The parser sorts by name; problems are reported in file order.
    entries.sort_by_key(|entry| entry.span.start);
    Ok(entries)
}

fn build_node(value: &Spanned<DeValue<'_>>, depth: usize) -> Result<ConfigNode, ConfigProblem> {
    let span = value.span();
    if depth > DEPTH_MAX {
        return Err(too_deep_problem(span));
    }
    let value = match value.get_ref() {
        DeValue::String(text) => ConfigValue::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => ConfigValue::Integer(number),
            Err(_) => ConfigValue::Other("a number out of range"),
        },
        DeValue::Boolean(yes) => ConfigValue::Boolean(*yes),
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => ConfigValue::Float(number),
            Err(_) => ConfigValue::Other("a number out of range"),
        },
        DeValue::Datetime(_) => ConfigValue::Other("a date"),
        DeValue::Array(items) => ConfigValue::List(
            items
                .iter()
                .map(|item| build_node(item, depth + 1))
                .collect::<Result<Vec<_>, ConfigProblem>>()?,
        ),
        DeValue::Table(table) => ConfigValue::Table(build_entries(table, depth)?),
    };
    Ok(ConfigNode { span, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_keys_and_values_keep_spans() {
        let text = "[a]\nb = \"x\"\n";
        let root = parse_toml(text).unwrap();
        let ConfigValue::Table(top) = root.value else {
            panic!("a document is a table")
        };
        let ConfigValue::Table(inner) = &top[0].node.value else {
            panic!("[a] is a table")
        };
        assert_eq!(&text[inner[0].span.clone()], "b");
        assert_eq!(&text[inner[0].node.span.clone()], "\"x\"");
    }

    #[test]
    fn every_toml_syntax_error_is_reported() {
        let problems = parse_toml("a = \nb = \nc = 1\n").unwrap_err();
        assert_eq!(problems.len(), 2);
    }

    #[test]
    fn too_deep_toml_is_refused() {
        let text = format!("a = {}{}", "[".repeat(40), "]".repeat(40));
        assert!(parse_toml(&text).is_err());
    }
}
