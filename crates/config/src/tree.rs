//! A config file as a tree of values with positions, independent of the syntax.

mod from_json;
mod from_toml;

use std::ops::Range;

use crate::config_problem::ConfigProblem;

/// Maximum nesting depth.
const DEPTH_MAX: usize = 32;

/// A value and its byte span.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConfigNode {
    /// Span of the value in the file.
    pub(crate) span: Range<usize>,
    /// The value.
    pub(crate) value: ConfigValue,
}

/// The kinds of values in a config.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConfigValue {
    /// Text, unescaped.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A list.
    List(Vec<ConfigNode>),
    /// Named values, in file order where the syntax preserves it.
    Table(Vec<ConfigEntry>),
    /// A value accepted by no key: a date, `null`.
    Other(&'static str),
}

/// One `key = value`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConfigEntry {
    /// The key, unescaped.
    pub(crate) key: String,
    /// Span of the key in the file.
    pub(crate) span: Range<usize>,
    /// The value of the key.
    pub(crate) node: ConfigNode,
}

/// Syntax of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigSyntax {
    /// `bowline.toml`.
    Toml,
    /// A file with `mcpServers`.
    Json,
}

impl ConfigSyntax {
    /// Detects the syntax by the extension; otherwise a leading brace means JSON.
    pub(crate) fn detect(path: &std::path::Path, text: &str) -> Self {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            _ if text.trim_start().starts_with('{') => Self::Json,
            _ => Self::Toml,
        }
    }
}

/// Parses `text`, or returns all problems.
pub(crate) fn parse_tree(
    text: &str,
    syntax: ConfigSyntax,
) -> Result<ConfigNode, Vec<ConfigProblem>> {
    match syntax {
        ConfigSyntax::Toml => from_toml::parse_toml(text),
        ConfigSyntax::Json => from_json::parse_json(text),
    }
}

impl ConfigValue {
    /// Returns the kind of the value in words, for messages.
    pub(crate) fn kind_words(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "a number",
            Self::Float(_) => "a number with a fraction",
            Self::Boolean(_) => "a boolean",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

fn too_deep_problem(span: Range<usize>) -> ConfigProblem {
    ConfigProblem::new(
        span,
        "values are nested too deep",
        format!("more than {DEPTH_MAX} levels"),
    )
}
