//! A compiled output schema with bounded size and bounded validation cost.

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use thiserror::Error;

use super::schema_outline::{SchemaOutline, parse_limited};

/// Maximum bytes of a schema.
pub(super) const SCHEMA_BYTES_MAX: usize = 256 * 1024;

/// Maximum bytes of a compiled pattern. Patterns run in linear time.
const PATTERN_SIZE_MAX: usize = 128 * 1024;

/// Maximum validation steps: schema parts times values of the result.
const STEPS_MAX: usize = 5_000_000;

/// Maximum number of paths into recursive parts, over all nesting levels of a result.
const PATHS_MAX: usize = 65_536;

/// Maximum stack depth of a validation.
const STACK_MAX: usize = 1_024;

/// Maximum characters of an error message.
const REASON_CHARS_MAX: usize = 256;

/// Why a schema is unusable.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum SchemaError {
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

/// A validation error with its position in the structured content.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum OutputMismatch {
    #[error("structured content at `{at}`: {what}")]
    At {
        /// A JSON pointer; empty for the root.
        at: String,
        what: String,
    },
    #[error("structured content cannot be read")]
    Unreadable,
}

#[derive(Debug)]
pub(super) struct CompiledSchema {
    validator: Validator,
    outline: SchemaOutline,
    /// Size of the schema text.
    bytes: usize,
}

impl CompiledSchema {
    /// Compiles a schema.
    pub(super) fn compile(text: &[u8]) -> Result<Self, SchemaError> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge);
        }
        let value = parse_limited(text).ok_or(SchemaError::Unreadable)?;
        let outline = SchemaOutline::from_schema(&value)?;
        let patterns = PatternOptions::regex()
            .size_limit(PATTERN_SIZE_MAX)
            .dfa_size_limit(PATTERN_SIZE_MAX);
        let validator = jsonschema::options()
            .with_pattern_options(patterns)
            .should_validate_formats(false)
            .offline()
            .build(&value)
            .map_err(|error| SchemaError::Invalid(truncate_reason(&error.masked().to_string())))?;
        Ok(Self {
            validator,
            outline,
            bytes: text.len(),
        })
    }

    /// Returns the size of the schema text.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Validates structured content. Content over the cost limit passes unchecked.
    pub(super) fn validate(&self, content: &[u8]) -> Result<(), OutputMismatch> {
        let value: Value =
            serde_json::from_slice(content).map_err(|_| OutputMismatch::Unreadable)?;
        if !self.is_affordable(&value) {
            tracing::debug!("structured content is too large for schema validation");
            return Ok(());
        }
        let Err(error) = self.validator.validate(&value) else {
            return Ok(());
        };
        Err(OutputMismatch::At {
            at: truncate_reason(error.instance_path().as_str()),
            // Masked: the value is private to the caller and must not reach a log.
            what: truncate_reason(&error.masked().to_string()),
        })
    }

    fn is_affordable(&self, value: &Value) -> bool {
        let (values, depth) = count_values(value);
        let SchemaOutline {
            parts,
            longest,
            recursive_references: returns,
        } = self.outline;
        let levels = if returns == 0 { 1 } else { depth };
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let paths = returns.max(1).saturating_pow(depth);
        paths <= PATHS_MAX
            && parts.saturating_mul(values) <= STEPS_MAX
            && longest.saturating_mul(levels) <= STACK_MAX
    }
}

/// Returns the number of values and the nesting depth.
fn count_values(value: &Value) -> (usize, usize) {
    let join = |(values, depth): (usize, usize), one: &Value| {
        let (more, deeper) = count_values(one);
        (values + more, depth.max(deeper))
    };
    let (values, depth) = match value {
        Value::Array(items) => items.iter().fold((0, 0), join),
        Value::Object(members) => members.values().fold((0, 0), join),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (0, 0),
    };
    (values + 1, depth + 1)
}

fn truncate_reason(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}
