//! One schema, ready: bounded in what it may be and in what looking at a result may cost.

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use thiserror::Error;

use super::outline::{Outline, read_limited};

/// Bytes of a schema.
pub(super) const SCHEMA_BYTES_MAX: usize = 256 * 1024;

/// Bytes that one pattern may take once it is compiled. Patterns run in linear time.
const PATTERN_SIZE_MAX: usize = 128 * 1024;

/// Steps that looking at one result may take: parts of the schema times values of the result.
const STEPS_MAX: usize = 5_000_000;

/// Ways in which a part of a recursive schema may be reached again, over all levels of a result.
const WAYS_MAX: usize = 65_536;

/// Calls on the stack that looking at one result may take.
const STACK_MAX: usize = 1_024;

/// Of what is wrong, as many characters are told.
const REASON_CHARS_MAX: usize = 256;

/// Why a schema is not used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum Refused {
    #[error("it is larger than {SCHEMA_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it is not JSON, or too deep")]
    Unreadable,
    #[error("it has too many parts, references or patterns")]
    TooMany,
    #[error("it refers to another document, which is not fetched")]
    Remote,
    #[error("it refers to something that cannot be found in it")]
    Dangling,
    #[error("it refers to itself without end")]
    Endless,
    #[error("it is written in a dialect that is not known")]
    Dialect,
    #[error("it is no schema: {0}")]
    Invalid(String),
}

/// What is wrong with a result, and where in its structured content.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum Wrong {
    #[error("structured content at `{at}`: {what}")]
    At {
        /// A JSON pointer; empty for the whole.
        at: String,
        what: String,
    },
    #[error("structured content cannot be read")]
    Unreadable,
}

#[derive(Debug)]
pub(super) struct Schema {
    validator: Validator,
    outline: Outline,
    /// How large the text was.
    pub(super) bytes: usize,
}

impl Schema {
    /// Makes a schema ready.
    pub(super) fn compile(text: &[u8]) -> Result<Self, Refused> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(Refused::TooLarge);
        }
        let value = read_limited(text).ok_or(Refused::Unreadable)?;
        let outline = Outline::of(&value)?;
        let patterns = PatternOptions::regex()
            .size_limit(PATTERN_SIZE_MAX)
            .dfa_size_limit(PATTERN_SIZE_MAX);
        let validator = jsonschema::options()
            .with_pattern_options(patterns)
            .should_validate_formats(false)
            .offline()
            .build(&value)
            .map_err(|error| Refused::Invalid(shortened(&error.masked().to_string())))?;
        Ok(Self {
            validator,
            outline,
            bytes: text.len(),
        })
    }

    /// Checks structured content. What would take too long to look at is taken as it is.
    pub(super) fn check(&self, content: &[u8]) -> Result<(), Wrong> {
        let value: Value = serde_json::from_slice(content).map_err(|_| Wrong::Unreadable)?;
        if !self.affordable(&value) {
            tracing::debug!("structured content is too large to be checked");
            return Ok(());
        }
        let Err(error) = self.validator.validate(&value) else {
            return Ok(());
        };
        Err(Wrong::At {
            at: shortened(error.instance_path().as_str()),
            // The value itself is the caller's business, not that of a log.
            what: shortened(&error.masked().to_string()),
        })
    }

    fn affordable(&self, value: &Value) -> bool {
        let (values, depth) = extent(value);
        let Outline {
            parts,
            longest,
            returns,
        } = self.outline;
        let levels = if returns == 0 { 1 } else { depth };
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let ways = returns.max(1).saturating_pow(depth);
        ways <= WAYS_MAX
            && parts.saturating_mul(values) <= STEPS_MAX
            && longest.saturating_mul(levels) <= STACK_MAX
    }
}

/// Returns how many values there are, and how deep they are nested.
fn extent(value: &Value) -> (usize, usize) {
    let join = |(values, depth): (usize, usize), one: &Value| {
        let (more, deeper) = extent(one);
        (values + more, depth.max(deeper))
    };
    let (values, depth) = match value {
        Value::Array(items) => items.iter().fold((0, 0), join),
        Value::Object(members) => members.values().fold((0, 0), join),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (0, 0),
    };
    (values + 1, depth + 1)
}

fn shortened(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}
