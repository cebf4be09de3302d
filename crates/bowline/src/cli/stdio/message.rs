//! As much of a JSON-RPC message as the shim looks at; the rest passes unread.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Wants an answer under this id, as it was written.
    Request { id: String, method: String },
    /// Wants none.
    Notification { method: String },
    /// Answers a request of the server, or of the client.
    Answer { id: String },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
}

/// What the message is, or nothing when it is none.
pub(super) fn kind(line: &[u8]) -> Option<Kind> {
    // serde also fills a struct from a list, and a batch is no message.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
    let id = envelope.id.map(|id| id.get().to_owned());
    match (envelope.method.map(Cow::into_owned), id) {
        (Some(method), Some(id)) => Some(Kind::Request { id, method }),
        (Some(method), None) => Some(Kind::Notification { method }),
        (None, Some(id)) => Some(Kind::Answer { id }),
        (None, None) => None,
    }
}

/// Whether `line` is the answer to the request with this id.
pub(super) fn answers(line: &[u8], id: &str) -> bool {
    matches!(kind(line), Some(Kind::Answer { id: found }) if found == id)
}

/// The revision that the server chose, from the answer to `initialize`.
pub(super) fn revision(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        result: Chosen,
    }
    #[derive(Deserialize)]
    struct Chosen {
        #[serde(rename = "protocolVersion")]
        revision: String,
    }
    Some(serde_json::from_slice::<Answer>(line).ok()?.result.revision)
}

/// How far a request went that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Execution {
    /// It did not reach the gateway, or the gateway refused it.
    NotStarted,
    /// It may have been carried out.
    Unknown,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) execution: Execution,
    /// The code of the error answer.
    pub(super) code: i64,
    /// A sentence for the model.
    pub(super) message: String,
}

/// The code of errors that are the shim's own.
const CODE: i64 = -32000;

impl Trouble {
    pub(super) fn not_started(message: impl Into<String>) -> Self {
        Self {
            execution: Execution::NotStarted,
            code: CODE,
            message: message.into(),
        }
    }

    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self {
            execution: Execution::Unknown,
            code: CODE,
            message: message.into(),
        }
    }

    /// The error answer for the request with this id.
    pub(super) fn answer(&self, id: &str) -> Bytes {
        let execution = match self.execution {
            Execution::NotStarted => "not_started",
            Execution::Unknown => "unknown",
        };
        let data = serde_json::json!({"execution": execution, "origin": "shim"});
        error(id, self.code, &self.message, &data)
    }
}

/// An answer to a line that is no message.
pub(super) fn malformed(code: i64, message: &str) -> Bytes {
    let data = serde_json::json!({"execution": "not_started", "origin": "shim"});
    error("null", code, message, &data)
}

fn error(id: &str, code: i64, message: &str, data: &serde_json::Value) -> Bytes {
    let error = serde_json::json!({"code": code, "message": message, "data": data});
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}").into()
}

/// A message on one line: raw line ends only separate in JSON.
pub(super) fn one_line(message: &[u8]) -> Bytes {
    let flat = |byte: &u8| {
        if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            *byte
        }
    };
    message
        .trim_ascii()
        .iter()
        .map(flat)
        .collect::<Vec<u8>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_and_ids_kept_as_written() {
        let request = kind(br#"{"id":"1","method":"a","params":{"id":2}}"#);
        assert_eq!(
            request,
            Some(Kind::Request {
                id: "\"1\"".into(),
                method: "a".into()
            })
        );
        let big = kind(br#"{"id":123456789012345678901234567890,"result":{}}"#);
        assert_eq!(
            big,
            Some(Kind::Answer {
                id: "123456789012345678901234567890".into()
            })
        );
        assert_eq!(
            kind(br#"{"method":"b\/c"}"#),
            Some(Kind::Notification {
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
            assert_eq!(kind(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn trouble_becomes_an_error_answer_with_the_callers_id() {
        let answer = Trouble::unknown("It \"may\" have run.").answer("\"x\"");
        assert_eq!(
            answer,
            concat!(
                r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"#,
                r#""data":{"execution":"unknown","origin":"shim"},"#,
                r#""message":"It \"may\" have run."}}"#
            )
        );
    }

    #[test]
    fn a_message_is_put_on_one_line() {
        assert_eq!(one_line(b"{\r\n \"a\": 1.0\n}\n"), "{   \"a\": 1.0 }");
    }
}
