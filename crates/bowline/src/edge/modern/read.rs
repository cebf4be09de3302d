//! What a request says of itself, checked before anything is done with it.

use bowline_core::caller::Abilities;
use bowline_core::era::Claim;
use bowline_core::level::Level;
use bowline_wire::era::meta::{Said, abilities};
use bowline_wire::jsonrpc::write_error;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::splice::write_string;
use bowline_wire::{Message, Span, object};
use http::StatusCode;

use super::headers;
use crate::edge::body::{self, Answer};
use crate::edge::mcp::Caller;

/// The methods of this era that are answered here.
const METHODS: [&str; 13] = [
    method::DISCOVER,
    method::TOOLS_LIST,
    method::TOOLS_CALL,
    method::PROMPTS_LIST,
    method::PROMPTS_GET,
    method::RESOURCES_LIST,
    method::RESOURCES_TEMPLATES_LIST,
    method::RESOURCES_READ,
    method::COMPLETION_COMPLETE,
    method::SUBSCRIPTIONS_LISTEN,
    method::TASKS_GET,
    method::TASKS_UPDATE,
    method::TASKS_CANCEL,
];

/// A request that passed every check.
#[derive(Debug)]
pub(in crate::edge) struct Asked<'a> {
    /// Who asks, and where.
    pub(in crate::edge) caller: Caller<'a>,
    /// The whole request.
    pub(in crate::edge) message: &'a Message,
    /// What is asked.
    pub(in crate::edge) method: &'a str,
    /// What its client can be asked for.
    pub(in crate::edge) abilities: Abilities,
    /// Where in the parameters the client's capabilities stand.
    pub(in crate::edge) capabilities: Span,
    /// Where in the parameters the client says who it is, if it does.
    pub(in crate::edge) client_info: Option<Span>,
    /// From which level on it wants to hear log messages; none where absent.
    pub(in crate::edge) level: Option<Level>,
    /// What the headers say of its arguments; absent where it came without headers of its own.
    pub(in crate::edge) claims: Option<Vec<Claim>>,
}

impl Asked<'_> {
    /// Returns the id, as its caller wrote it.
    pub(in crate::edge) fn id(&self) -> &[u8] {
        self.message.id().unwrap_or(b"null")
    }

    /// Returns the parameters.
    pub(in crate::edge) fn params(&self) -> &[u8] {
        self.message.params().unwrap_or_default()
    }
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::edge) enum Refused {
    /// This header does not say what the body says.
    Header(&'static str),
    /// The parameters lack what every request must say.
    Meta(&'static str),
    /// Its revision is not spoken here.
    Version(String),
    /// There is no such method.
    Method,
}

impl Refused {
    /// Writes the answer that says so.
    pub(in crate::edge) fn answer(&self, id: Option<&[u8]>) -> Answer {
        let mut data = None;
        let (status, number, text) = match self {
            Self::Header(name) => (
                StatusCode::BAD_REQUEST,
                code::HEADER_MISMATCH,
                format!("the header {name} must stand once and say what the body says"),
            ),
            Self::Meta(key) => (
                StatusCode::BAD_REQUEST,
                code::INVALID_PARAMS,
                format!("every request needs {key} in params._meta"),
            ),
            Self::Version(requested) => {
                data = Some(versions(requested));
                (
                    StatusCode::BAD_REQUEST,
                    code::UNSUPPORTED_VERSION,
                    "this revision of the protocol is not spoken here".to_owned(),
                )
            }
            Self::Method => (
                StatusCode::NOT_FOUND,
                code::METHOD_NOT_FOUND,
                "this gateway does not serve that method".to_owned(),
            ),
        };
        let mut out = Vec::new();
        write_error(&mut out, id, number, &text, data.as_deref());
        body::json(status, out)
    }
}

fn versions(requested: &str) -> Vec<u8> {
    let mut out = Vec::from(&b"{\"supported\":"[..]);
    write_supported(&mut out);
    out.extend_from_slice(b",\"requested\":");
    write_string(&mut out, requested);
    out.push(b'}');
    out
}

/// Writes the revisions that are spoken here, the latest first.
pub(super) fn write_supported(out: &mut Vec<u8>) {
    for (nth, revision) in Revision::ALL.into_iter().rev().enumerate() {
        out.push(if nth == 0 { b'[' } else { b',' });
        write_string(out, revision.as_str());
    }
    out.push(b']');
}

/// Reads a request, in the order in which faults are told: headers, parameters, revision, method.
pub(super) fn check<'a>(caller: Caller<'a>, message: &'a Message) -> Result<Asked<'a>, Refused> {
    let params = message.params().unwrap_or_default();
    let said = Said::read(params);
    let claims = headers::check(&caller.parts.headers, message, said.version.as_deref())?;
    let Some(version) = said.version else {
        return Err(Refused::Meta(meta::PROTOCOL_VERSION));
    };
    let is_object = |at: &Span| at.of(params).starts_with(b"{");
    let Some(capabilities) = said.capabilities.filter(is_object) else {
        return Err(Refused::Meta(meta::CLIENT_CAPABILITIES));
    };
    let level = match said.log_level {
        None => None,
        Some(at) => {
            let word = object::string(at.of(params));
            let level = word.as_deref().and_then(Level::parse);
            Some(level.ok_or(Refused::Meta(
                "a level of the protocol where it has a logLevel",
            ))?)
        }
    };
    if Revision::parse(&version) != Some(Revision::LATEST) {
        return Err(Refused::Version(version.into_owned()));
    }
    let method = message.method().unwrap_or_default();
    if !METHODS.contains(&method) {
        return Err(Refused::Method);
    }
    Ok(Asked {
        caller,
        message,
        method,
        abilities: abilities(capabilities.of(params)),
        capabilities,
        client_info: said.client_info.filter(is_object),
        level,
        claims,
    })
}
