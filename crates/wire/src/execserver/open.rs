//! How a connection begins: `initialize`, its answer, `initialized`.

use std::sync::Arc;

use bytes::Bytes;

use super::{Id, Verb, request, result};
use crate::frame::FrameError;
use crate::members::Members;
use crate::writer::Object;

/// The first request of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initialize {
    /// Who the client is.
    pub client: Arc<str>,
    /// The session that it had before.
    pub resume: Option<Arc<str>>,
}

const INITIALIZE: [&str; 2] = ["clientName", "resumeSessionId"];

impl Initialize {
    /// Reads what the request says.
    ///
    /// # Errors
    /// It does not say it.
    pub fn read(params: &Bytes) -> Result<Self, FrameError> {
        let members = Members::of_text(params, &INITIALIZE)?;
        Ok(Self {
            client: members.text("clientName")?,
            resume: members.text_if("resumeSessionId")?,
        })
    }
}

/// Returns the message of the first request.
#[must_use]
pub fn initialize(id: i64, said: &Initialize) -> Bytes {
    request(id, &Verb::Initialize, 128, |out| {
        let object = Object::bare(out).text("clientName", &said.client);
        match &said.resume {
            Some(session) => object.text("resumeSessionId", session),
            None => object.raw("resumeSessionId", b"null"),
        }
        .end();
    })
}

/// Returns the message that the answer was read.
#[must_use]
pub fn initialized() -> Bytes {
    let mut out = Vec::with_capacity(40);
    Object::bare(&mut out)
        .text("method", Verb::Initialized.as_str())
        .raw("params", b"{}")
        .end();
    out.into()
}

/// Returns the answer to the first request.
#[must_use]
pub fn opened(id: &Id, session: &str) -> Bytes {
    result(id, 64, |out| {
        Object::bare(out).text("sessionId", session).end();
    })
}

const OPENED: [&str; 2] = ["sessionId", "environmentInfo"];

const ENVIRONMENT: [&str; 1] = ["executorVersion"];

/// Reads the answer to the first request: the session, and the version of the software where it
/// is told.
///
/// # Errors
/// It names no session.
pub fn session(answer: &Bytes) -> Result<(Arc<str>, Option<Arc<str>>), FrameError> {
    let members = Members::of_text(answer, &OPENED)?;
    let version = members.begun("environmentInfo", b'{').ok().flatten();
    let version = version.and_then(|about| {
        let members = Members::of_text(&about, &ENVIRONMENT).ok()?;
        members.text_if("executorVersion").ok().flatten()
    });
    Ok((members.text("sessionId")?, version))
}
