//! The body of a reply: what came of a request.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::time::millis;
use bytes::Bytes;

use super::context::{era, write_era};
use super::write::{self, array};
use super::{FRAME_BYTES_MAX, FrameError};
use crate::members::Members;
use crate::span::Span;
use crate::writer::Object;
use crate::{object, result};

mod item;
pub use item::Item;

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `{"manifest":[..],"revision":N}`.
    Manifest {
        /// The tools.
        items: Vec<Item>,
        /// Which manifest it is.
        revision: u64,
    },
    /// The tool ran: `{"result":{"success":..,"result":TEXT,"output":{..}}}`, or from peers that
    /// know no more `output` the text alone. Live answers have `output` only.
    Output {
        /// The whole result of `tools/call`.
        result: Bytes,
        /// Whether it came out of the journal of whoever ran it.
        again: bool,
        /// The era it is written in (member `era`, our own peers only).
        era: Era,
    },
    /// The server answered with a JSON-RPC error, whole:
    /// `{"error":TEXT,"failure":{..,"rpc":{..}}}`.
    Rpc {
        /// The error object.
        error: Bytes,
        /// The era it is written in, as above.
        era: Era,
    },
    /// The request could not be served: `{"error":TEXT,"failure":{class, execution, ..}}`.
    Failed(Failure),
}

/// How much an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Everything, for peers that know only the first names.
    Whole,
    /// What our own peers need.
    Brief,
}

/// What stands around a result, about, in bytes.
const AROUND_BYTES: usize = 160;

/// The most that a result may take with its text beside it, in bytes: letter and frame stand
/// around it.
const WHOLE_BYTES_MAX: usize = FRAME_BYTES_MAX - 64 * 1024;

/// The text of a result that is too long to be said twice.
const TOO_LONG: &str = "the result is too long to be told here; it stands in `output`";

const NAMES: [&str; 8] = [
    "manifest", "revision", "result", "output", "again", "error", "failure", "era",
];

impl Answer {
    /// Reads a body that was checked before: that of a frame or of a letter that was read.
    ///
    /// # Errors
    /// It is no such body.
    pub fn read(body: &Bytes) -> Result<Self, FrameError> {
        let whole = Span {
            start: 0,
            end: body.len(),
        };
        let members = Members::inside(body, whole, &NAMES, "body")?;
        let error = members.text_if("error")?;
        if error.is_some() || members.span("failure").is_some() {
            return failed(body, &members, error.unwrap_or_default());
        }
        if let Some(list) = members.begun("manifest", b'[')? {
            let items = object::items(&list).map(|at| Item::read(&list, at));
            return Ok(Self::Manifest {
                items: items.collect::<Result<_, _>>()?,
                revision: members.number_if("revision")?.unwrap_or_default(),
            });
        }
        let result = match members.begun("output", b'{')? {
            Some(result) => result,
            None => told(body, &members)?,
        };
        Ok(Self::Output {
            result,
            again: members.flag_if("again")?.unwrap_or(false),
            era: era(&members)?,
        })
    }

    /// Writes a body.
    pub fn write(&self, said: Said, out: &mut Vec<u8>) {
        match self {
            Self::Manifest { items, revision } => Object::bare(out)
                .nested("manifest", |out| {
                    array(out, items, |item, out| item.write(said, out));
                })
                .number("revision", *revision)
                .end(),
            Self::Output { result, again, era } => {
                out.reserve(result.len() + AROUND_BYTES);
                let object = match said {
                    Said::Brief => Object::bare(out).raw("output", result),
                    Said::Whole => Object::bare(out).nested("result", |out| whole(result, out)),
                };
                let object = write_era(object, *era);
                match again {
                    true => object.flag("again", true).end(),
                    false => object.end(),
                }
            }
            Self::Rpc { error, era } => {
                let text = object::text(error, "message");
                let text = text.unwrap_or_else(|| String::from_utf8_lossy(error));
                let object = Object::bare(out)
                    .text("error", &text)
                    .nested("failure", |out| tell_rpc(error, out));
                write_era(object, *era).end();
            }
            Self::Failed(failure) => Object::bare(out)
                .text("error", &failure.reason)
                .nested("failure", |out| tell(failure, out))
                .end(),
        }
    }

    /// Returns the frame that answers a live request with this, written in one go.
    #[must_use]
    pub fn response(&self, id: &str) -> Bytes {
        let mut out = Vec::new();
        if let Self::Output { result, .. } = self {
            out.reserve(result.len() + AROUND_BYTES);
        }
        write::response(id, &mut out, |out| self.write(Said::Brief, out));
        out.into()
    }

    /// Returns the body as bytes.
    #[must_use]
    pub fn to_bytes(&self, said: Said) -> Bytes {
        let mut out = Vec::new();
        self.write(said, &mut out);
        out.into()
    }
}

/// Writes a result in the first names as well; without its text where both together would be too
/// much for one frame.
fn whole(result: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let write = |text: &str, out: &mut Vec<u8>| {
        Object::bare(out)
            .flag("success", !result::is_error(result))
            .text("result", text)
            .raw("output", result)
            .end();
    };
    write(&result::text(result), out);
    if out.len() - start > WHOLE_BYTES_MAX {
        out.truncate(start);
        write(TOO_LONG, out);
    }
}

/// Reads a result in the first names, whole where it is told whole.
fn told(body: &Bytes, members: &Members<'_, 8>) -> Result<Bytes, FrameError> {
    let at = members.span("result");
    let at = at.ok_or(FrameError::Member("result"))?;
    let inside = Members::inside(body, at, &["success", "result", "output"], "result")?;
    if let Some(result) = inside.begun("output", b'{')? {
        return Ok(result);
    }
    let success = inside.flag_if("success")?;
    let success = success.ok_or(FrameError::Member("success"))?;
    let text = inside.text_if("result")?.unwrap_or_default();
    let more = if success { "" } else { result::FAILED };
    Ok(result::of_text(&text, more).into())
}

/// Reads why there is no result.
fn failed(body: &Bytes, members: &Members<'_, 8>, reason: Arc<str>) -> Result<Answer, FrameError> {
    const NAMES: [&str; 7] = [
        "class",
        "execution",
        "retry",
        "retry_after_ms",
        "origin",
        "code",
        "rpc",
    ];
    let mut failure = Failure::untold(reason);
    let Some(at) = members.span("failure") else {
        return Ok(Answer::Failed(failure));
    };
    let told = Members::inside(body, at, &NAMES, "failure")?;
    if let Some(error) = told.begun("rpc", b'{')? {
        let era = era(members)?;
        return Ok(Answer::Rpc { error, era });
    }
    // A word that is not known here is as good as none.
    let word = |name| {
        let word = told.span(name).map(|at| at.of(body));
        word.and_then(object::string).unwrap_or(Cow::Borrowed(""))
    };
    failure.class = Class::parse(&word("class")).unwrap_or(failure.class);
    failure.execution = Execution::parse(&word("execution")).unwrap_or(failure.execution);
    failure.origin = Origin::parse(&word("origin")).unwrap_or(failure.origin);
    failure.code = told.text_if("code")?.unwrap_or(failure.code);
    let after = told.number_if("retry_after_ms")?.unwrap_or_default();
    failure.retry = match &*word("retry") {
        "safe" => Retry::Safe,
        "after" => Retry::After(Duration::from_millis(after)),
        _ => Retry::Never,
    };
    Ok(Answer::Failed(failure))
}

fn tell_rpc(error: &[u8], out: &mut Vec<u8>) {
    Object::bare(out)
        .text("class", Class::ProtocolError.as_str())
        .text("execution", Execution::Completed.as_str())
        .text("retry", Retry::Never.as_str())
        .text("origin", Origin::Upstream.as_str())
        .raw("rpc", error)
        .end();
}

fn tell(failure: &Failure, out: &mut Vec<u8>) {
    let after = match failure.retry {
        Retry::After(wait) => Some(millis(wait)),
        Retry::Never | Retry::Safe => None,
    };
    Object::bare(out)
        .text("class", failure.class.as_str())
        .text("execution", failure.execution.as_str())
        .text("retry", failure.retry.as_str())
        .number_if("retry_after_ms", after)
        .text("origin", failure.origin.as_str())
        .text("code", &failure.code)
        .end();
}
