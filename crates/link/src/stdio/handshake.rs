//! The first words with a server: which revision, and who is who.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::caller::{Abilities, Ability};
use bowline_core::era::Era;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::object::{field, text};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::opening::Opening;
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

/// How long a process may take to respond to the first message before it is sent the one of the
/// other era as well. Some servers say nothing to a request that they do not know.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// How long a process that is known to read may take for the message of the other era.
const SECOND_WAIT: Duration = Duration::from_secs(3);

/// How long a process that said that it is modern may take to respond to the `initialize` before
/// it. Messages are read in order, so a response comes at once or never.
const TURN_WAIT: Duration = Duration::from_millis(300);

/// One process that is met.
pub(super) struct Meeting<'a> {
    pub(super) peer: &'a Peer,
    pub(super) client: &'a ClientInfo,
    pub(super) abilities: Abilities,
    pub(super) deadline: Instant,
}

impl Meeting<'_> {
    /// Meets a process. Both eras are tried on the same pipes: no answer costs a second process.
    pub(super) async fn meet(&self, opening: Opening) -> Result<ServerInfo, Failure> {
        match opening {
            Opening::Only(Era::Legacy) => self.initialize(self.deadline).await,
            Opening::Only(Era::Modern) => self.discover(self.deadline).await,
            Opening::Remembered(Era::Legacy) => {
                let initialized = self.initialize(self.deadline).await;
                self.discover_after(initialized).await
            }
            Opening::Remembered(Era::Modern) => {
                let initialized = pin!(self.initialize(self.deadline));
                let discovered = pin!(self.ask(self.deadline));
                both(initialized, discovered, Duration::ZERO).await
            }
            Opening::Unknown => {
                let mut initialized = pin!(self.initialize(self.deadline));
                match timeout_at(self.soon(QUIET_WAIT), &mut initialized).await {
                    Ok(initialized) => self.discover_after(initialized).await,
                    Err(_) => {
                        let discovered = pin!(self.ask(self.deadline));
                        both(initialized, discovered, TURN_WAIT).await
                    }
                }
            }
            Opening::DiscoverFirst => {
                let mut discovered = pin!(self.ask(self.deadline));
                match timeout_at(self.soon(QUIET_WAIT), &mut discovered).await {
                    Ok(found) => match found? {
                        Found::Modern(info) => Ok(info),
                        Found::Refused { code, message } => Err(Failure::Refused { code, message }),
                        Found::Legacy => self.initialize(self.deadline).await,
                    },
                    Err(_) => {
                        let initialized = pin!(self.initialize(self.deadline));
                        both(initialized, discovered, TURN_WAIT).await
                    }
                }
            }
        }
    }

    /// Sends `server/discover` to a process that refused `initialize`.
    async fn discover_after(
        &self,
        initialized: Result<ServerInfo, Failure>,
    ) -> Result<ServerInfo, Failure> {
        let refused = match initialized {
            Err(refused) if refused.may_be_modern() => refused,
            decided => return decided,
        };
        match self.ask(self.soon(SECOND_WAIT)).await {
            Ok(Found::Modern(info)) => Ok(info),
            Ok(Found::Refused { code, message }) => Err(Failure::Refused { code, message }),
            Ok(Found::Legacy) | Err(_) => Err(refused),
        }
    }

    /// Agrees with the server on a revision, and tells it to begin.
    async fn initialize(&self, deadline: Instant) -> Result<ServerInfo, Failure> {
        let request = request(self.client, self.abilities, deadline);
        let answer = self.peer.request(request).await.map_err(Failure::Link)?;
        let info = read(&answer)?;
        self.peer
            .notify(method::INITIALIZED, None)
            .map_err(Failure::Link)?;
        Ok(info)
    }

    /// Meets a server that is to be modern.
    async fn discover(&self, deadline: Instant) -> Result<ServerInfo, Failure> {
        match self.ask(deadline).await? {
            Found::Modern(info) => Ok(info),
            Found::Refused { code, message } => Err(Failure::Refused { code, message }),
            Found::Legacy => Err(Failure::Bad(NOT_MODERN)),
        }
    }

    /// Asks with `server/discover`.
    async fn ask(&self, deadline: Instant) -> Result<Found, Failure> {
        let request = discover::request(self.client, deadline);
        match self.peer.request(request).await {
            Ok(answer) => Ok(discover::read(&answer)),
            // It answered, with something that nobody can use.
            Err(LinkError::TooLong { .. } | LinkError::BadAnswer(_)) => Ok(Found::Legacy),
            Err(error) => Err(Failure::Link(error)),
        }
    }

    fn soon(&self, wait: Duration) -> Instant {
        self.deadline.min(now() + wait)
    }
}

const NOT_MODERN: &str = "it does not speak the revision 2026-07-28";

/// Waits for a process that was sent both messages. `initialize` decides where it is taken;
/// `server/discover` decides where `initialize` is refused, or not answered for `turn` after it.
async fn both(
    mut initialized: Pin<&mut impl Future<Output = Result<ServerInfo, Failure>>>,
    mut discovered: Pin<&mut impl Future<Output = Result<Found, Failure>>>,
    turn: Duration,
) -> Result<ServerInfo, Failure> {
    let found = tokio::select! {
        biased;
        initialized = &mut initialized => return match initialized {
            Err(refused) if refused.may_be_modern() => {
                match timeout_at(now() + SECOND_WAIT, discovered).await {
                    Ok(Ok(Found::Modern(info))) => Ok(info),
                    Ok(Ok(Found::Refused { code, message })) => {
                        Err(Failure::Refused { code, message })
                    }
                    Ok(Ok(Found::Legacy) | Err(_)) | Err(_) => Err(refused),
                }
            }
            decided => decided,
        },
        found = &mut discovered => found,
    };
    match found {
        Ok(Found::Modern(info)) => match timeout_at(now() + turn, initialized).await {
            Ok(Ok(legacy)) => Ok(legacy),
            Ok(Err(_)) | Err(_) => Ok(info),
        },
        Ok(Found::Refused { code, message }) => {
            let refused = Failure::Refused { code, message };
            initialized.await.map_err(|_| refused)
        }
        Ok(Found::Legacy) | Err(_) => initialized.await,
    }
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
    /// Whether a process that fails so at `initialize` lives and may speak the modern era.
    const fn may_be_modern(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Bad(_) => true,
            Self::Link(error) => {
                matches!(error, LinkError::TooLong { .. } | LinkError::BadAnswer(_))
            }
            // It answers with a revision, so it is legacy.
            Self::Revision(_) => false,
        }
    }

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
            _ if exit == Exit::ProgramNotFound => ConnectError::ProgramNotFound {
                server,
                stderr_tail,
            },
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
