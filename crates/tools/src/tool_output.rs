//! The output of a tool: its complete result, and accessors.

use std::borrow::Cow;

use bowline_core::call::{BodyKind, CallReply, ReplyOrigin};
use bowline_wire::{object, tool_result};
use bytes::Bytes;
use serde_json::Value;

/// The result of a tool, byte for byte as written by the tool.
///
/// ```
/// use bowline_tools::ToolOutput;
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
    origin: ReplyOrigin,
}

impl ToolOutput {
    /// Creates an output from a `tools/call` result, a JSON object.
    #[must_use]
    pub fn from_result(result: impl Into<Bytes>) -> Self {
        Self {
            result: result.into(),
            origin: ReplyOrigin::Live,
        }
    }

    /// Marks the output as recorded from an earlier identical request.
    #[must_use]
    pub fn into_recorded(self) -> Self {
        Self {
            origin: ReplyOrigin::Recorded,
            ..self
        }
    }

    /// Creates the output of a successful tool with a text.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self::from_result(tool_result::from_text(text, ""))
    }

    /// Creates the output of a failed tool with an error text.
    #[must_use]
    pub fn from_error(text: &str) -> Self {
        Self::from_result(tool_result::from_text(text, tool_result::IS_ERROR_MEMBER))
    }

    /// Creates the output of a tool from a value: as structured content for an object, and always
    /// as text.
    #[must_use]
    pub fn from_value(value: &Value) -> Self {
        let text = value.to_string();
        let structured = match value {
            Value::Object(_) => format!(",\"structuredContent\":{text}"),
            _ => String::new(),
        };
        Self::from_result(tool_result::from_text(&text, &structured))
    }

    /// Reads the result of a reply.
    ///
    /// # Errors
    /// The error object of an error response.
    pub fn from_reply(reply: &CallReply) -> Result<Self, Bytes> {
        let body = reply.response.shared_body();
        match reply.response.body {
            BodyKind::Result => Ok(Self {
                result: body,
                origin: reply.origin,
            }),
            BodyKind::Error => Err(body),
        }
    }

    /// Returns the joined text blocks, or the complete result as JSON without text blocks.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        tool_result::joined_text(&self.result)
    }

    /// True if the tool ran and reported a failure.
    #[must_use]
    pub fn is_error(&self) -> bool {
        tool_result::is_error(&self.result)
    }

    /// Returns the structured content, if any.
    #[must_use]
    pub fn structured_content(&self) -> Option<Value> {
        serde_json::from_slice(self.member("structuredContent")?).ok()
    }

    /// Returns the complete result.
    #[must_use]
    pub const fn raw(&self) -> &Bytes {
        &self.result
    }

    /// Returns the origin: a live call, or an earlier result.
    #[must_use]
    pub const fn origin(&self) -> ReplyOrigin {
        self.origin
    }

    fn member(&self, key: &str) -> Option<&[u8]> {
        object::field(&self.result, key).map(|at| at.slice(&self.result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_joins_blocks_or_returns_whole_result() {
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
    fn output_constructors_roundtrip() {
        assert_eq!(ToolOutput::from_text("é \"x\"").text(), "é \"x\"");
        let failed = ToolOutput::from_error("no");
        assert!(failed.is_error());
        assert_eq!(failed.text(), "no");
        let value = serde_json::json!({"n": 1});
        assert_eq!(
            ToolOutput::from_value(&value).structured_content(),
            Some(value)
        );
        let list = ToolOutput::from_value(&serde_json::json!([1, 2]));
        assert_eq!(
            (list.structured_content(), list.text().as_ref()),
            (None, "[1,2]")
        );
    }
}
