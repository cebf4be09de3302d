//! The parts of a JSON-RPC message inspected by the shim; the rest passes unread.

use std::borrow::Cow;

use bowline_wire::jsonrpc::{flatten_lines, write_error};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShimMessageKind {
    /// A request with its id verbatim.
    Request { id: String, method: String },
    /// A notification.
    Notification { method: String },
    /// A response to a request of either side.
    Response { id: String },
}

#[derive(Deserialize)]
struct ShimEnvelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
}

/// Classifies a message; `None` for anything else.
pub(super) fn classify_message(line: &[u8]) -> Option<ShimMessageKind> {
    // serde also fills a struct from a list, and a batch is no single message.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let envelope: ShimEnvelope<'_> = serde_json::from_slice(line).ok()?;
    let id = envelope.id.map(|id| id.get().to_owned());
    match (envelope.method.map(Cow::into_owned), id) {
        (Some(method), Some(id)) => Some(ShimMessageKind::Request { id, method }),
        (Some(method), None) => Some(ShimMessageKind::Notification { method }),
        (None, Some(id)) => Some(ShimMessageKind::Response { id }),
        (None, None) => None,
    }
}

/// Returns whether `line` is the response to the request with this id.
pub(super) fn is_response_to(line: &[u8], id: &str) -> bool {
    matches!(classify_message(line), Some(ShimMessageKind::Response { id: found }) if found == id)
}

/// Returns the revision chosen by the server, from the response to `initialize`.
pub(super) fn negotiated_revision(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct InitializeResponse {
        result: InitializeRevision,
    }
    #[derive(Deserialize)]
    struct InitializeRevision {
        #[serde(rename = "protocolVersion")]
        revision: String,
    }
    Some(
        serde_json::from_slice::<InitializeResponse>(line)
            .ok()?
            .result
            .revision,
    )
}

/// Execution state of a request without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShimExecution {
    /// The request did not reach the gateway, or was refused.
    NotStarted,
    /// The request may have been executed.
    Unknown,
}

/// Reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShimFailure {
    pub(super) execution: ShimExecution,
    /// The code of the error response.
    pub(super) code: i64,
    /// A sentence for the model.
    pub(super) message: String,
}

/// Error code of the shim.
const SHIM_ERROR_CODE: i64 = -32000;

impl ShimFailure {
    pub(super) fn not_started(message: impl Into<String>) -> Self {
        Self {
            execution: ShimExecution::NotStarted,
            code: SHIM_ERROR_CODE,
            message: message.into(),
        }
    }

    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self {
            execution: ShimExecution::Unknown,
            code: SHIM_ERROR_CODE,
            message: message.into(),
        }
    }

    /// Builds the error response to the request with this id.
    pub(super) fn error_response(&self, id: &str) -> Bytes {
        let execution = match self.execution {
            ShimExecution::NotStarted => "not_started",
            ShimExecution::Unknown => "unknown",
        };
        let data = serde_json::json!({"execution": execution, "origin": "shim"});
        error_message(Some(id), self.code, &self.message, &data)
    }
}

/// Builds the response to a line that is no message.
pub(super) fn malformed_response(code: i64, message: &str) -> Bytes {
    let data = serde_json::json!({"execution": "not_started", "origin": "shim"});
    error_message(None, code, message, &data)
}

fn error_message(id: Option<&str>, code: i64, message: &str, data: &serde_json::Value) -> Bytes {
    let (id, data) = (id.map(str::as_bytes), data.to_string());
    let mut out = Vec::new();
    write_error(&mut out, id, code, message, Some(data.as_bytes()));
    out.into()
}

/// Puts a message on one line: in JSON a raw line end is only whitespace.
pub(super) fn flatten_line(message: &[u8]) -> Bytes {
    let mut line = message.trim_ascii().to_vec();
    flatten_lines(&mut line);
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_classified_with_verbatim_ids() {
        let request = classify_message(br#"{"id":"1","method":"a","params":{"id":2}}"#);
        assert_eq!(
            request,
            Some(ShimMessageKind::Request {
                id: "\"1\"".into(),
                method: "a".into()
            })
        );
        let big = classify_message(br#"{"id":123456789012345678901234567890,"result":{}}"#);
        assert_eq!(
            big,
            Some(ShimMessageKind::Response {
                id: "123456789012345678901234567890".into()
            })
        );
        assert_eq!(
            classify_message(br#"{"method":"b\/c"}"#),
            Some(ShimMessageKind::Notification {
                method: "b/c".into()
            })
        );
        for bad in [
            "[]",
            "{}",
            "5",
            "{\"id\":1,\"id\":2}",
            "{\"method\":3}",
            "{",
        ] {
            assert_eq!(classify_message(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn failure_becomes_error_response() {
        let answer = ShimFailure::unknown("It \"may\" have run.").error_response("\"x\"");
        assert_eq!(
            answer,
            concat!(
                r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"#,
                r#""message":"It \"may\" have run.","#,
                r#""data":{"execution":"unknown","origin":"shim"}}}"#
            )
        );
    }

    #[test]
    fn message_is_flattened_to_one_line() {
        assert_eq!(flatten_line(b"{\r\n \"a\": 1.0\n}\n"), "{   \"a\": 1.0 }");
    }
}
