//! Arguments of a call, as written by the caller.

use bowline_wire::scan::{self, JsonError, KeyPolicy};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

/// The arguments of a call: a JSON object, byte for byte, so that numbers stay exact.
///
/// ```
/// use bowline_tools::ToolArguments;
///
/// let arguments = ToolArguments::from(serde_json::json!({"path": "a.txt"}));
/// assert_eq!(arguments.to_value()["path"], "a.txt");
/// assert!(ToolArguments::parse("[1]").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolArguments(Bytes);

/// Why arguments are invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ToolArgumentsError {
    /// Not JSON.
    #[error("they are not JSON: {0}")]
    NotJson(#[from] JsonError),
    /// JSON, but not an object.
    #[error("they are no JSON object")]
    NoObject,
}

impl Default for ToolArguments {
    fn default() -> Self {
        Self(Bytes::from_static(b"{}"))
    }
}

impl ToolArguments {
    /// Parses a text, for instance as written by a model.
    ///
    /// # Errors
    /// Not a JSON object, or a duplicate key.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, ToolArgumentsError> {
        let arguments = Self(text.into());
        arguments.check_object()?;
        Ok(arguments)
    }

    /// Takes a text that was checked before, or is checked on sending.
    #[must_use]
    pub const fn new_unchecked(text: Bytes) -> Self {
        Self(text)
    }

    /// Returns the text.
    #[must_use]
    pub const fn raw(&self) -> &Bytes {
        &self.0
    }

    /// Converts to a value, in which large numbers may be rounded.
    #[must_use]
    pub fn to_value(&self) -> Value {
        self.deserialize().unwrap_or_default()
    }

    /// Deserializes into a tool's own type.
    ///
    /// # Errors
    /// The arguments do not match the type.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// Checks that the text is a JSON object without duplicate keys.
    ///
    /// # Errors
    /// The text is something else.
    pub fn check_object(&self) -> Result<(), ToolArgumentsError> {
        scan::check_json(&self.0, KeyPolicy::Unique)?;
        match self.0.trim_ascii_start().first() {
            Some(b'{') => Ok(()),
            _ => Err(ToolArgumentsError::NoObject),
        }
    }
}

/// `null` means no arguments. A value other than an object is refused on sending.
impl From<Value> for ToolArguments {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::default(),
            value => Self(value.to_string().into()),
        }
    }
}
