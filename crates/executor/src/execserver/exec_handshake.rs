//! Connection handshake: `initialize`, its response, `initialized`.

use std::sync::Arc;

use bowline_wire::FrameError;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bytes::Bytes;

use super::{ExecMethod, ExecRequestId, write_request, write_result};

/// Parameters of the first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializeParams {
    /// The client name.
    pub client_name: Arc<str>,
    /// The session to resume.
    pub resume_session: Option<Arc<str>>,
}

const INITIALIZE_MEMBERS: [&str; 2] = ["clientName", "resumeSessionId"];

impl InitializeParams {
    /// Parses the parameters.
    ///
    /// # Errors
    /// A member is missing or invalid.
    pub fn parse(params: &Bytes) -> Result<Self, FrameError> {
        let members = ObjectMembers::parse(params, &INITIALIZE_MEMBERS)?;
        Ok(Self {
            client_name: members.required_text("clientName")?,
            resume_session: members.optional_text("resumeSessionId")?,
        })
    }
}

/// Returns the `initialize` request.
#[must_use]
pub fn write_initialize(id: i64, params: &InitializeParams) -> Bytes {
    write_request(id, &ExecMethod::Initialize, 128, |out| {
        let object = ObjectWriter::begin(out).text("clientName", &params.client_name);
        match &params.resume_session {
            Some(session) => object.text("resumeSessionId", session),
            None => object.raw("resumeSessionId", b"null"),
        }
        .end();
    })
}

/// Returns the `initialized` notification.
#[must_use]
pub fn write_initialized() -> Bytes {
    let mut out = Vec::with_capacity(40);
    ObjectWriter::begin(&mut out)
        .text("method", ExecMethod::Initialized.as_str())
        .raw("params", b"{}")
        .end();
    out.into()
}

/// Returns the response to `initialize`.
#[must_use]
pub fn write_session(id: &ExecRequestId, session: &str) -> Bytes {
    write_result(id, 64, |out| {
        ObjectWriter::begin(out).text("sessionId", session).end();
    })
}

const SESSION_MEMBERS: [&str; 2] = ["sessionId", "environmentInfo"];

const ENVIRONMENT_MEMBERS: [&str; 1] = ["executorVersion"];

/// Parses the response to `initialize`: the session, and the software version if given.
///
/// # Errors
/// The session is missing.
pub fn parse_session(result: &Bytes) -> Result<(Arc<str>, Option<Arc<str>>), FrameError> {
    let members = ObjectMembers::parse(result, &SESSION_MEMBERS)?;
    let version = members.optional_raw("environmentInfo", b'{').ok().flatten();
    let version = version.and_then(|about| {
        let members = ObjectMembers::parse(&about, &ENVIRONMENT_MEMBERS).ok()?;
        members.optional_text("executorVersion").ok().flatten()
    });
    Ok((members.required_text("sessionId")?, version))
}
