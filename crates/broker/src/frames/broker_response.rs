//! Response bodies on the broker.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::time::to_millis;
use bytes::Bytes;

use super::caller_context::{parse_era, write_era};
use super::encode_frame::{self, write_array};
use super::{FRAME_BYTES_MAX, FrameError};
use bowline_wire::ByteSpan;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::{object, tool_result};

mod manifest_item;
pub use manifest_item::ManifestItem;

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerResponse {
    /// `{"manifest":[..],"revision":N}`.
    Manifest {
        /// The tools.
        items: Vec<ManifestItem>,
        /// The revision of the manifest.
        revision: u64,
    },
    /// The tool ran: `{"result":{"success":..,"result":TEXT,"output":{..}}}`; minimal peers omit
    /// `output`. Live responses have `output` only.
    Output {
        /// The whole result of `tools/call`.
        result: Bytes,
        /// Whether the result comes from the executing peer's journal.
        from_journal: bool,
        /// The era of the encoding (member `era`, between Bowline peers only).
        era: Era,
    },
    /// A JSON-RPC error of the server:
    /// `{"error":TEXT,"failure":{..,"rpc":{..}}}`.
    RpcError {
        /// The error object.
        error: Bytes,
        /// The era of the encoding, as above.
        era: Era,
    },
    /// The request failed: `{"error":TEXT,"failure":{class, execution, ..}}`.
    Failed(FailureReport),
}

/// Verbosity of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultForm {
    /// With redundant members for minimal peers.
    Whole,
    /// For Bowline peers.
    Brief,
}

/// Approximate overhead of a result, in bytes.
const RESULT_OVERHEAD_BYTES: usize = 160;

/// Maximum bytes of a result with its text; message and frame add overhead.
const WHOLE_BYTES_MAX: usize = FRAME_BYTES_MAX - 64 * 1024;

/// Replaces the text of a result too long to be sent twice.
const TOO_LONG_TEXT: &str = "the result is too long to be told here; it stands in `output`";

const NAMES: [&str; 8] = [
    "manifest", "revision", "result", "output", "again", "error", "failure", "era",
];

impl BrokerResponse {
    /// Parses a validated body of a frame or message.
    ///
    /// # Errors
    /// The body is invalid.
    pub fn parse(body: &Bytes) -> Result<Self, FrameError> {
        let whole = ByteSpan {
            start: 0,
            end: body.len(),
        };
        let members = ObjectMembers::parse_at(body, whole, &NAMES, "body")?;
        let error = members.optional_text("error")?;
        if error.is_some() || members.span("failure").is_some() {
            return parse_failure(body, &members, error.unwrap_or_default());
        }
        if let Some(list) = members.optional_raw("manifest", b'[')? {
            let items = object::items(&list).map(|at| ManifestItem::parse(&list, at));
            return Ok(Self::Manifest {
                items: items.collect::<Result<_, _>>()?,
                revision: members.optional_number("revision")?.unwrap_or_default(),
            });
        }
        let result = match members.optional_raw("output", b'{')? {
            Some(result) => result,
            None => parse_text_result(body, &members)?,
        };
        Ok(Self::Output {
            result,
            from_journal: members.optional_flag("again")?.unwrap_or(false),
            era: parse_era(&members)?,
        })
    }

    /// Writes the body.
    pub fn write(&self, form: ResultForm, out: &mut Vec<u8>) {
        match self {
            Self::Manifest { items, revision } => ObjectWriter::begin(out)
                .value_with("manifest", |out| {
                    write_array(out, items, |item, out| item.write(form, out));
                })
                .number("revision", *revision)
                .end(),
            Self::Output {
                result,
                from_journal,
                era,
            } => {
                out.reserve(result.len() + RESULT_OVERHEAD_BYTES);
                let object = match form {
                    ResultForm::Brief => ObjectWriter::begin(out).raw("output", result),
                    ResultForm::Whole => ObjectWriter::begin(out)
                        .value_with("result", |out| write_whole(result, out)),
                };
                let object = write_era(object, *era);
                match from_journal {
                    true => object.flag("again", true).end(),
                    false => object.end(),
                }
            }
            Self::RpcError { error, era } => {
                let text = object::text_field(error, "message");
                let text = text.unwrap_or_else(|| String::from_utf8_lossy(error));
                let object = ObjectWriter::begin(out)
                    .text("error", &text)
                    .value_with("failure", |out| write_rpc_failure(error, out));
                write_era(object, *era).end();
            }
            Self::Failed(failure) => ObjectWriter::begin(out)
                .text("error", &failure.reason)
                .value_with("failure", |out| write_failure(failure, out))
                .end(),
        }
    }

    /// Returns the response frame of a live request, written without an intermediate body.
    #[must_use]
    pub fn to_response_frame(&self, id: &str) -> Bytes {
        let mut out = Vec::new();
        if let Self::Output { result, .. } = self {
            out.reserve(result.len() + RESULT_OVERHEAD_BYTES);
        }
        encode_frame::write_response(id, &mut out, |out| self.write(ResultForm::Brief, out));
        out.into()
    }

    /// Returns the body as bytes.
    #[must_use]
    pub fn to_bytes(&self, form: ResultForm) -> Bytes {
        let mut out = Vec::new();
        self.write(form, &mut out);
        out.into()
    }
}

/// Writes a result with its text for minimal peers; without the text if both would exceed a frame.
fn write_whole(result: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let write = |text: &str, out: &mut Vec<u8>| {
        ObjectWriter::begin(out)
            .flag("success", !tool_result::is_error(result))
            .text("result", text)
            .raw("output", result)
            .end();
    };
    write(&tool_result::joined_text(result), out);
    if out.len() - start > WHOLE_BYTES_MAX {
        out.truncate(start);
        write(TOO_LONG_TEXT, out);
    }
}

/// Parses a result of a minimal peer, or the full result if present.
fn parse_text_result(body: &Bytes, members: &ObjectMembers<'_, 8>) -> Result<Bytes, FrameError> {
    let at = members.span("result");
    let at = at.ok_or(FrameError::Member("result"))?;
    let inside = ObjectMembers::parse_at(body, at, &["success", "result", "output"], "result")?;
    if let Some(result) = inside.optional_raw("output", b'{')? {
        return Ok(result);
    }
    let success = inside.optional_flag("success")?;
    let success = success.ok_or(FrameError::Member("success"))?;
    let text = inside.optional_text("result")?.unwrap_or_default();
    let more = if success {
        ""
    } else {
        tool_result::IS_ERROR_MEMBER
    };
    Ok(tool_result::from_text(&text, more).into())
}

/// Parses a failure.
fn parse_failure(
    body: &Bytes,
    members: &ObjectMembers<'_, 8>,
    reason: Arc<str>,
) -> Result<BrokerResponse, FrameError> {
    const NAMES: [&str; 7] = [
        "class",
        "execution",
        "retry",
        "retry_after_ms",
        "origin",
        "code",
        "rpc",
    ];
    let mut failure = FailureReport::from_reason(reason);
    let Some(at) = members.span("failure") else {
        return Ok(BrokerResponse::Failed(failure));
    };
    let failure_members = ObjectMembers::parse_at(body, at, &NAMES, "failure")?;
    if let Some(error) = failure_members.optional_raw("rpc", b'{')? {
        let era = parse_era(members)?;
        return Ok(BrokerResponse::RpcError { error, era });
    }
    // Unknown words count as absent.
    let word = |name| {
        let word = failure_members.span(name).map(|at| at.slice(body));
        word.and_then(object::parse_string)
            .unwrap_or(Cow::Borrowed(""))
    };
    failure.class = FailureClass::parse(&word("class")).unwrap_or(failure.class);
    failure.execution = ExecutionStatus::parse(&word("execution")).unwrap_or(failure.execution);
    failure.origin = FailureOrigin::parse(&word("origin")).unwrap_or(failure.origin);
    failure.code = failure_members
        .optional_text("code")?
        .unwrap_or(failure.code);
    let after = failure_members
        .optional_number("retry_after_ms")?
        .unwrap_or_default();
    failure.retry = match &*word("retry") {
        "safe" => RetryAdvice::Safe,
        "after" => RetryAdvice::After(Duration::from_millis(after)),
        _ => RetryAdvice::Never,
    };
    Ok(BrokerResponse::Failed(failure))
}

fn write_rpc_failure(error: &[u8], out: &mut Vec<u8>) {
    ObjectWriter::begin(out)
        .text("class", FailureClass::ProtocolError.as_str())
        .text("execution", ExecutionStatus::Completed.as_str())
        .text("retry", RetryAdvice::Never.as_str())
        .text("origin", FailureOrigin::Upstream.as_str())
        .raw("rpc", error)
        .end();
}

fn write_failure(failure: &FailureReport, out: &mut Vec<u8>) {
    let after = match failure.retry {
        RetryAdvice::After(wait) => Some(to_millis(wait)),
        RetryAdvice::Never | RetryAdvice::Safe => None,
    };
    ObjectWriter::begin(out)
        .text("class", failure.class.as_str())
        .text("execution", failure.execution.as_str())
        .text("retry", failure.retry.as_str())
        .number_if("retry_after_ms", after)
        .text("origin", failure.origin.as_str())
        .text("code", &failure.code)
        .end();
}
