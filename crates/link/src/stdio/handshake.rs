//! The first words with a server: which revision, and who is who.

use std::sync::Arc;

use bowline_core::call::Body;
use bowline_core::caller::{Abilities, Ability};
use bowline_wire::mcp::{Revision, method};
use bowline_wire::object::{field, text};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::time::Instant;

use super::{ClientInfo, ConnectError};
use crate::link::{Answer, Exit, LinkError, Request, ServerInfo};
use crate::peer::Peer;

/// Why a handshake failed, before it is known how the process ended.
#[derive(Debug)]
pub(crate) enum Failure {
    Link(LinkError),
    Refused { code: i64, message: String },
    Revision(String),
    Bad(&'static str),
}

/// Agrees with the server on a revision, and tells it to begin.
pub(super) async fn shake(
    peer: &Peer,
    client: &ClientInfo,
    abilities: Abilities,
    deadline: Instant,
) -> Result<ServerInfo, Failure> {
    let request = request(client, abilities, deadline);
    let answer = peer.request(request).await.map_err(Failure::Link)?;
    let info = read(&answer)?;
    peer.notify(method::INITIALIZED, None)
        .map_err(Failure::Link)?;
    Ok(info)
}

/// Returns `initialize`.
pub(crate) fn request(client: &ClientInfo, abilities: Abilities, deadline: Instant) -> Request {
    Request::own(method::INITIALIZE, Some(offer(client, abilities)), deadline)
}

/// Reads the answer to `initialize`.
pub(crate) fn read(answer: &Answer) -> Result<ServerInfo, Failure> {
    let body = answer.body_bytes();
    if answer.body == Body::Error {
        let code = field(body, "code").and_then(|at| {
            let digits = std::str::from_utf8(at.of(body)).ok()?;
            digits.parse().ok()
        });
        return Err(Failure::Refused {
            code: code.unwrap_or_default(),
            message: text(body, "message").unwrap_or_default().into_owned(),
        });
    }
    let Some(revision) = text(body, "protocolVersion") else {
        return Err(Failure::Bad("it names no revision"));
    };
    let Some(revision) = Revision::parse_legacy(&revision) else {
        return Err(Failure::Revision(revision.into_owned()));
    };
    let itself = field(body, "serverInfo").map_or(&b""[..], |at| at.of(body));
    let info = ServerInfo {
        revision,
        name: text(itself, "name").unwrap_or_default().into(),
        version: text(itself, "version").unwrap_or_default().into(),
        initialize: answer.bytes.slice(answer.body_at.clone()),
    };
    Ok(info)
}

/// Returns the parameters of `initialize`: the newest revision, and what clients can do.
fn offer(client: &ClientInfo, abilities: Abilities) -> Bytes {
    let mut out = br#"{"protocolVersion":"#.to_vec();
    write_string(&mut out, Revision::LATEST_LEGACY.as_str());
    out.extend_from_slice(br#","capabilities":"#);
    write_capabilities(&mut out, abilities);
    out.extend_from_slice(br#","clientInfo":{"name":"#);
    write_string(&mut out, &client.name);
    out.extend_from_slice(br#","version":"#);
    write_string(&mut out, &client.version);
    out.extend_from_slice(b"}}");
    out.into()
}

/// Writes client capabilities as an object.
fn write_capabilities(out: &mut Vec<u8>, abilities: Abilities) {
    let mut members: Vec<&str> = Vec::new();
    if abilities.has(Ability::Roots) {
        members.push(r#""roots":{"listChanged":true}"#);
    }
    if abilities.has(Ability::SamplingTools) {
        members.push(r#""sampling":{"tools":{}}"#);
    } else if abilities.has(Ability::Sampling) {
        members.push(r#""sampling":{}"#);
    }
    let form = abilities.has(Ability::ElicitationForm);
    match (form, abilities.has(Ability::ElicitationUrl)) {
        (true, true) => members.push(r#""elicitation":{"form":{},"url":{}}"#),
        // What an empty object meant before there were two modes.
        (true, false) => members.push(r#""elicitation":{}"#),
        (false, true) => members.push(r#""elicitation":{"url":{}}"#),
        (false, false) => {}
    }
    out.push(b'{');
    out.extend_from_slice(members.join(",").as_bytes());
    out.push(b'}');
}

impl Failure {
    /// Returns what went wrong as one clause.
    pub(crate) fn reason(&self) -> Arc<str> {
        match self {
            Self::Link(error) => error.to_string().into(),
            Self::Refused { code, message } => format!("code {code}: {message}").into(),
            Self::Revision(revision) => format!("unknown revision `{revision}`").into(),
            Self::Bad(reason) => (*reason).into(),
        }
    }

    /// Adds what is known once the process is gone.
    pub(crate) fn explain(
        self,
        server: Arc<str>,
        exit: Exit,
        stderr_tail: Vec<Arc<str>>,
    ) -> ConnectError {
        match self {
            Self::Link(LinkError::Closed(_) | LinkError::Lost(_)) => {
                ConnectError::ExitedBeforeHandshake {
                    server,
                    exit,
                    stderr_tail,
                }
            }
            Self::Link(LinkError::Timeout { .. } | LinkError::NotSent(_)) => {
                ConnectError::HandshakeTimeout {
                    server,
                    stderr_tail,
                }
            }
            Self::Link(error) => {
                let reason = error.to_string().into();
                ConnectError::BadHandshake { server, reason }
            }
            Self::Refused { code, message } => ConnectError::HandshakeRefused {
                server,
                code,
                message,
            },
            Self::Revision(revision) => ConnectError::UnsupportedRevision { server, revision },
            Self::Bad(reason) => ConnectError::BadHandshake {
                server,
                reason: reason.into(),
            },
        }
    }
}
