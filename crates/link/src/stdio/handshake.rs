//! The first words with a server: which revision, and who is who.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::caller::{Abilities, Ability};
use bowline_core::pending::Sent;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::object::{field, text};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::way::{Unstarted, Way};
use super::{ClientInfo, ConnectError};
use crate::desk::now;
use crate::link::{Answer, Exit, LinkError, Request, ServerInfo};
use crate::modern::discover::{self, Found};
use crate::peer::Peer;

/// Why a handshake failed, before it is known how the process ended.
#[derive(Debug)]
pub(crate) enum Failure {
    Link(LinkError),
    Refused { code: i64, message: String },
    Revision(String),
    Bad(&'static str),
}

/// Why a process was not met.
#[derive(Debug)]
pub(super) enum Unmet {
    /// It went away or took no handshake, having been asked how it speaks. Some legacy servers
    /// take the first message for their handshake, whatever it is.
    Asked(Failure),
    /// Anything else.
    Failed(Failure),
}

impl From<Failure> for Unmet {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// How long a server may take to say how it speaks, before it is met with a handshake as well.
/// Some legacy servers say nothing to a request that they do not know. A server that is known to
/// read may take as long for what comes next.
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(3);

/// A server that was met.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) info: ServerInfo,
    /// When it said that it is modern, where it took no handshake after that.
    pub(super) unshaken: Option<Instant>,
}

impl From<ServerInfo> for Met {
    fn from(info: ServerInfo) -> Self {
        let unshaken = None;
        Self { info, unshaken }
    }
}

/// Meets a process in one way.
pub(super) async fn meet(
    peer: &Peer,
    client: &ClientInfo,
    way: Way,
    abilities: Abilities,
    deadline: Instant,
) -> Result<Met, Unmet> {
    let shaken = |until: Instant| shake(peer, client, abilities, until.min(deadline));
    match way {
        Way::Ask => {
            let probe = pin!(peer.request(discover::request(client, deadline)));
            ask(probe, shaken, deadline).await
        }
        Way::Shake => Ok(shaken(deadline).await?.into()),
        Way::ShakeFirst(until) => match shaken(until).await {
            Ok(info) => Ok(info.into()),
            Err(failure) => {
                let soon = deadline.min(now() + PROBE_WAIT);
                let found = question(peer, client, soon).await;
                Ok(found.map_err(|_| failure)?.into())
            }
        },
        Way::Modern => Ok(question(peer, client, deadline).await?.into()),
    }
}

/// Meets a server that is known to be modern.
async fn question(
    peer: &Peer,
    client: &ClientInfo,
    deadline: Instant,
) -> Result<ServerInfo, Failure> {
    let answer = peer.request(discover::request(client, deadline)).await;
    match found(answer)? {
        Found::Modern(info) => Ok(info),
        Found::Refused { code, message } => Err(Failure::Refused { code, message }),
        Found::Legacy => Err(Failure::Bad(NOT_MODERN)),
    }
}

const NOT_MODERN: &str = "it does not speak the revision 2026-07-28";

/// Reads what came of the question how a server speaks.
fn found(answer: Result<Answer, LinkError>) -> Result<Found, Failure> {
    match answer {
        Ok(answer) => Ok(discover::read(&answer)),
        // It answered, with something that nobody can use.
        Err(LinkError::TooLong { .. } | LinkError::BadAnswer(_)) => Ok(Found::Legacy),
        Err(error) => Err(Failure::Link(error)),
    }
}

/// Finds out how a server speaks, and has it shake hands where it does so after that.
async fn ask<S>(
    mut probe: Pin<&mut impl Future<Output = Result<Answer, LinkError>>>,
    shaken: impl FnOnce(Instant) -> S,
    deadline: Instant,
) -> Result<Met, Unmet>
where
    S: Future<Output = Result<ServerInfo, Failure>>,
{
    match timeout_at(deadline.min(now() + PROBE_WAIT), &mut probe).await {
        Ok(answer) => match found(answer).map_err(Unmet::Asked)? {
            Found::Modern(info) => {
                let said = now();
                Ok(of_both(info, said, shaken(said + PROBE_WAIT).await))
            }
            Found::Refused { code, message } => {
                Err(Unmet::Failed(Failure::Refused { code, message }))
            }
            // It reads. Should it say no more, there is to be time for one that is not asked.
            Found::Legacy => {
                let half = deadline.saturating_duration_since(now()) / 2;
                let shaken = shaken(now() + half).await;
                Ok(shaken.map_err(Unmet::Asked)?.into())
            }
        },
        Err(_) => both(probe, pin!(shaken(deadline))).await,
    }
}

/// Tells how a modern server was met, by what came of the handshake after it.
fn of_both(info: ServerInfo, said: Instant, shaken: Result<ServerInfo, Failure>) -> Met {
    match shaken {
        Ok(info) => info.into(),
        Err(_) => Met {
            info,
            unshaken: Some(said),
        },
    }
}

/// Waits for a server that was asked how it speaks, and said nothing: its handshake counts, unless
/// it does not take it and answers what it was asked. When one of the two was answered, the other
/// one is soon, or never.
async fn both(
    mut probe: Pin<&mut impl Future<Output = Result<Answer, LinkError>>>,
    mut shaken: Pin<&mut impl Future<Output = Result<ServerInfo, Failure>>>,
) -> Result<Met, Unmet> {
    let answer = tokio::select! {
        biased;
        shaken = &mut shaken => match shaken {
            Ok(info) => return Ok(info.into()),
            Err(refused) => return match timeout_at(now() + PROBE_WAIT, probe).await.map(found) {
                Ok(Ok(Found::Modern(info))) => Ok(of_both(info, now(), Err(refused))),
                Ok(_) | Err(_) => Err(Unmet::Asked(refused)),
            },
        },
        answer = &mut probe => answer,
    };
    match found(answer) {
        Ok(Found::Modern(info)) => {
            let said = now();
            let late = |_| Err(Failure::Link(LATE));
            let shaken = timeout_at(said + PROBE_WAIT, shaken).await;
            Ok(of_both(info, said, shaken.unwrap_or_else(late)))
        }
        Ok(Found::Refused { .. } | Found::Legacy) | Err(_) => {
            Ok(shaken.await.map_err(Unmet::Asked)?.into())
        }
    }
}

const LATE: LinkError = LinkError::Timeout {
    sent: Sent::Perhaps,
};

/// Agrees with the server on a revision, and tells it to begin.
async fn shake(
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

impl Unmet {
    /// Adds what is known once the process is gone.
    pub(super) fn explain(
        self,
        server: Arc<str>,
        exit: Exit,
        stderr_tail: Vec<Arc<str>>,
    ) -> Unstarted {
        match self {
            // Another handshake would find no program either.
            _ if exit == Exit::ProgramNotFound => {
                Unstarted::Failed(ConnectError::ProgramNotFound {
                    server,
                    stderr_tail,
                })
            }
            Self::Asked(failure) => Unstarted::Asked(failure.explain(server, exit, stderr_tail)),
            Self::Failed(failure) => Unstarted::Failed(failure.explain(server, exit, stderr_tail)),
        }
    }
}
