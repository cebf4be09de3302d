//! Caller context between Bowline peers: client capabilities, era, run and trace of a request.

use std::sync::Arc;

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};
use bowline_core::era::Era;
use bowline_core::log_level::LogLevel;
use bowline_core::run::RUN_ID_BYTES_MAX;
use bowline_core::trace::{CallTrace, TRACEPARENT, TRACESTATE};
use bytes::Bytes;

use super::encode_frame::write_array;
use bowline_wire::ByteSpan;
use bowline_wire::FrameError;
use bowline_wire::object;
use bowline_wire::object_members::ObjectMembers;
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::splice::write_string;

/// Bytes of a session name.
const SESSION_BYTES_MAX: usize = 128;

/// The caller of a request, as far as visible to the server: member `mcp`,
/// `{"session":..,"can":[..],"level":..,"era":"modern","run":..,"traceparent":..,"tracestate":..}`.
/// Absent members have default values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerContext {
    /// The session of the request; absent for sessionless clients.
    pub session: Option<Arc<str>>,
    /// The client's capabilities.
    pub capabilities: ClientCapabilities,
    /// The minimum level of log messages.
    pub level: Option<LogLevel>,
    /// The era of the parameters.
    pub era: Era,
    /// The id of the agent run.
    pub run: Option<Arc<str>>,
    /// The parent span.
    pub trace: Option<Box<CallTrace>>,
}

/// Parses a capability word.
pub(super) fn parse_capability(name: &str) -> Option<ClientCapability> {
    let mut all = ClientCapability::ALL.into_iter();
    all.find(|capability| capability_word(*capability) == name)
}

/// Returns the word of a capability.
pub(super) const fn capability_word(capability: ClientCapability) -> &'static str {
    match capability {
        ClientCapability::Sampling => "sampling",
        ClientCapability::SamplingTools => "sampling_tools",
        ClientCapability::ElicitationForm => "elicitation_form",
        ClientCapability::ElicitationUrl => "elicitation_url",
        ClientCapability::Roots => "roots",
    }
}

/// Parses an era; an unknown era is an error.
pub(super) fn parse_era<const N: usize>(members: &ObjectMembers<'_, N>) -> Result<Era, FrameError> {
    let Some(name) = members.optional_text("era")? else {
        return Ok(Era::Legacy);
    };
    [Era::Legacy, Era::Modern]
        .into_iter()
        .find(|era| era.as_str() == &*name)
        .ok_or(FrameError::Member("era"))
}

/// Writes an era except the default.
pub(super) fn write_era(object: ObjectWriter<'_>, era: Era) -> ObjectWriter<'_> {
    match era {
        Era::Legacy => object,
        Era::Modern => object.text("era", era.as_str()),
    }
}

impl CallerContext {
    pub(super) fn parse_at(text: &Bytes, at: ByteSpan) -> Result<Self, FrameError> {
        const NAMES: [&str; 7] = [
            "session",
            "can",
            "level",
            "era",
            "run",
            TRACEPARENT,
            TRACESTATE,
        ];
        let members = ObjectMembers::parse_at(text, at, &NAMES, "mcp")?;
        let session = members.optional_text("session")?;
        if session
            .as_ref()
            .is_some_and(|name| name.len() > SESSION_BYTES_MAX)
        {
            return Err(FrameError::Member("session"));
        }
        let run = members.optional_text("run")?;
        let is_run = |run: &Arc<str>| (1..=RUN_ID_BYTES_MAX).contains(&run.len());
        if !run.as_ref().is_none_or(is_run) {
            return Err(FrameError::Member("run"));
        }
        // An invalid trace context is ignored, as everywhere.
        let parent = members.optional_text(TRACEPARENT).ok().flatten();
        let state = members.optional_text(TRACESTATE).ok().flatten();
        let trace = parent.and_then(|parent| CallTrace::parse(&parent, state.as_deref()));
        let level = members.optional_text("level")?;
        let can = members.optional_raw("can", b'[')?.unwrap_or_default();
        let mut capabilities = ClientCapabilities::default();
        for item in object::items(&can) {
            // An unknown capability is never requested here.
            let word = object::parse_string(item.slice(&can));
            let capability = word.and_then(|word| parse_capability(&word));
            capabilities = capability
                .into_iter()
                .fold(capabilities, ClientCapabilities::with_capability);
        }
        Ok(Self {
            session,
            capabilities,
            level: level.and_then(|level| LogLevel::parse(&level)),
            era: parse_era(&members)?,
            run,
            trace: trace.map(Box::new),
        })
    }

    /// Whether all members have default values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let capabilities: Vec<ClientCapability> = ClientCapability::ALL
            .into_iter()
            .filter(|capability| self.capabilities.supports(*capability))
            .collect();
        let object = ObjectWriter::begin(out)
            .text_if("session", self.session.as_deref())
            .text_if("level", self.level.map(LogLevel::as_str));
        let object = match capabilities.is_empty() {
            true => object,
            false => object.value_with("can", |out| {
                write_array(out, &capabilities, |one, out| {
                    write_string(out, capability_word(*one))
                });
            }),
        };
        let object = write_era(object, self.era).text_if("run", self.run.as_deref());
        let Some(trace) = &self.trace else {
            return object.end();
        };
        object
            .text(TRACEPARENT, &trace.context.to_string())
            .text_if(TRACESTATE, trace.trace_state.as_deref())
            .end();
    }
}
