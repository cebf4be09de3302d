//! A config file as one tree of values that remember where they stood, whatever its syntax.

mod from_json;
mod from_toml;

use std::ops::Range;

use crate::config::frame::Problem;

/// Deepest nesting that is read; a config has no use for more.
const DEPTH_MAX: usize = 32;

/// A value and the bytes it was written in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// Where the value stands in the file.
    pub(crate) span: Range<usize>,
    /// What it says.
    pub(crate) value: Value,
}

/// The kinds of value a config can hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Text, unescaped.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A list.
    List(Vec<Node>),
    /// Named values, in file order where the syntax keeps it.
    Table(Vec<Entry>),
    /// Anything no key of ours takes: a date, `null`.
    Other(&'static str),
}

/// One `key = value`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The key, unescaped.
    pub(crate) key: String,
    /// Where the key stands in the file.
    pub(crate) span: Range<usize>,
    /// What it is set to.
    pub(crate) node: Node,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// `bowline.toml`.
    Toml,
    /// A file with `mcpServers`.
    Json,
}

impl Syntax {
    /// The extension decides; without a telling one, a leading brace means JSON.
    pub(crate) fn of(path: &std::path::Path, text: &str) -> Self {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            _ if text.trim_start().starts_with('{') => Self::Json,
            _ => Self::Toml,
        }
    }
}

/// Reads `text`, or says everything that is wrong with it.
pub(crate) fn parse(text: &str, syntax: Syntax) -> Result<Node, Vec<Problem>> {
    match syntax {
        Syntax::Toml => from_toml::parse(text),
        Syntax::Json => from_json::parse(text),
    }
}

impl Value {
    /// The kind of the value in words, for messages.
    pub(crate) fn kind(&self) -> &'static str {
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

fn too_deep(span: Range<usize>) -> Problem {
    Problem::new(
        span,
        "values are nested too deep",
        format!("more than {DEPTH_MAX} levels"),
    )
}
