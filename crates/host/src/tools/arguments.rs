//! The arguments of a call, as their author wrote them.

use bowline_wire::scan::{self, Fault, Keys};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

/// The arguments of a call: one JSON object, byte for byte, so that no number changes on the way.
///
/// ```
/// use bowline_host::tools::Arguments;
///
/// let arguments = Arguments::from(serde_json::json!({"path": "a.txt"}));
/// assert_eq!(arguments.value()["path"], "a.txt");
/// assert!(Arguments::parse("[1]").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(Bytes);

/// Why arguments cannot be sent.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadArguments {
    /// They are not JSON.
    #[error("they are not JSON: {0}")]
    NotJson(#[from] Fault),
    /// They are JSON, but no object.
    #[error("they are no JSON object")]
    NoObject,
}

impl Default for Arguments {
    fn default() -> Self {
        Self(Bytes::from_static(b"{}"))
    }
}

impl Arguments {
    /// Takes a text as it stands, for instance the one that a model wrote.
    ///
    /// # Errors
    /// It is not one JSON object, or a key comes twice in it.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, BadArguments> {
        let arguments = Self(text.into());
        arguments.check()?;
        Ok(arguments)
    }

    /// Takes a text that was checked, or that is refused when it is sent.
    pub(crate) const fn unchecked(text: Bytes) -> Self {
        Self(text)
    }

    /// Returns the text.
    #[must_use]
    pub const fn raw(&self) -> &Bytes {
        &self.0
    }

    /// Returns them as a value, in which large numbers may be rounded.
    #[must_use]
    pub fn value(&self) -> Value {
        self.read().unwrap_or_default()
    }

    /// Reads them as what a tool takes.
    ///
    /// # Errors
    /// They are not that.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    pub(crate) fn check(&self) -> Result<(), BadArguments> {
        scan::check(&self.0, Keys::Unique)?;
        match self.0.trim_ascii_start().first() {
            Some(b'{') => Ok(()),
            _ => Err(BadArguments::NoObject),
        }
    }
}

/// `null` is no arguments. What is no object is refused when it is sent.
impl From<Value> for Arguments {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::default(),
            value => Self(value.to_string().into()),
        }
    }
}
