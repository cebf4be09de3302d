//! What a tool gave back: its whole result, and the parts of it that programs ask for.

use std::borrow::Cow;

use bowline_core::call::{Body, Origin, Reply};
use bowline_wire::{object, result};
use bytes::Bytes;
use serde_json::Value;

/// The result of a tool, byte for byte as the tool wrote it.
///
/// ```
/// use bowline_host::ToolOutput;
///
/// let result = r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
/// let output = ToolOutput::from_result(result);
/// assert_eq!(output.text(), "a\nb");
/// assert!(!output.is_error());
/// assert_eq!(output.raw(), result.as_bytes());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutput {
    result: Bytes,
    origin: Origin,
}

impl ToolOutput {
    /// Takes a result of `tools/call` as it stands, one JSON object.
    #[must_use]
    pub fn from_result(result: impl Into<Bytes>) -> Self {
        Self {
            result: result.into(),
            origin: Origin::Live,
        }
    }

    /// Says that the tool gave it before, to the same request.
    pub(crate) fn recorded(self) -> Self {
        Self {
            origin: Origin::Recorded,
            ..self
        }
    }

    /// Returns the output of a tool that did its work and says this.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        Self::from_result(result::of_text(text, ""))
    }

    /// Returns the output of a tool that ran and failed, and says why.
    #[must_use]
    pub fn failed(text: &str) -> Self {
        Self::from_result(result::of_text(text, result::FAILED))
    }

    /// Returns the output of a tool whose answer is a value: as structured content where it is an
    /// object, and as text for those who read no other.
    #[must_use]
    pub fn of_value(value: &Value) -> Self {
        let text = value.to_string();
        let structured = match value {
            Value::Object(_) => format!(",\"structuredContent\":{text}"),
            _ => String::new(),
        };
        Self::from_result(result::of_text(&text, &structured))
    }

    /// Reads the result of a reply; the error object where the server answered with an error.
    pub(crate) fn of_reply(reply: &Reply) -> Result<Self, Bytes> {
        let body = reply.answer.slice(reply.body_at.clone());
        match reply.body {
            Body::Result => Ok(Self {
                result: body,
                origin: reply.origin,
            }),
            Body::Error => Err(body),
        }
    }

    /// Returns the text of all text blocks, one below the other; the whole result as JSON where
    /// there is none.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        result::text(&self.result)
    }

    /// Whether the tool ran and says that it failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        result::is_error(&self.result)
    }

    /// Returns the structured content, where there is some.
    #[must_use]
    pub fn structured(&self) -> Option<Value> {
        serde_json::from_slice(self.member("structuredContent")?).ok()
    }

    /// Returns the whole result.
    #[must_use]
    pub const fn raw(&self) -> &Bytes {
        &self.result
    }

    /// Returns how it came to be: the server was asked, or had said the same before.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    fn member(&self, key: &str) -> Option<&[u8]> {
        object::field(&self.result, key).map(|at| at.of(&self.result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_blocks_are_joined_and_a_result_without_any_is_shown_whole() {
        for (result, text, is_error) in [
            (
                r#"{"content":[{"type":"text","text":"one"}]}"#,
                "one",
                false,
            ),
            (
                r#"{"content":[{"type":"text","text":"a"},{"type":"image","data":"x"},
                   {"text":"b\n","type":"text"}],"isError":true}"#,
                "a\nb\n",
                true,
            ),
            (
                r#"{"content":[],"structuredContent":{"n":1}}"#,
                r#"{"content":[],"structuredContent":{"n":1}}"#,
                false,
            ),
            (r#"{"isError":false}"#, r#"{"isError":false}"#, false),
        ] {
            let output = ToolOutput::from_result(result);
            assert_eq!(output.text(), text);
            assert_eq!(output.is_error(), is_error, "{result}");
            assert_eq!(output.raw(), result.as_bytes());
        }
    }

    #[test]
    fn what_an_executor_makes_reads_back() {
        assert_eq!(ToolOutput::of_text("é \"x\"").text(), "é \"x\"");
        let failed = ToolOutput::failed("no");
        assert!(failed.is_error());
        assert_eq!(failed.text(), "no");
        let value = serde_json::json!({"n": 1});
        assert_eq!(ToolOutput::of_value(&value).structured(), Some(value));
        let list = ToolOutput::of_value(&serde_json::json!([1, 2]));
        assert_eq!((list.structured(), list.text().as_ref()), (None, "[1,2]"));
    }
}
