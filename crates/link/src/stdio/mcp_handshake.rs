//! MCP handshake: negotiates era and revision, and exchanges identities.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::{ClientCapabilities, ClientCapability};
use bowline_core::era::Era;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::object::{field, text_field};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::negotiation::EraNegotiation;
use super::{ClientInfo, LinkConnectError};
use crate::demux::now;
use crate::link::{LinkError, LinkExit, LinkRequest, ServerInfo};
use crate::modern::era_discovery::{self, DiscoverOutcome};
use crate::rpc::RpcConnection;

/// Why a handshake failed, before the exit of the process is known.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    Link(LinkError),
    Refused { code: i64, message: String },
    Revision(String),
    Malformed(&'static str),
}

/// Wait for a response to the first message before the message of the opposite era is sent as well.
/// Some servers ignore unknown requests.
const FIRST_RESPONSE_WAIT: Duration = Duration::from_secs(1);

/// Wait of a responsive process for the message of the opposite era.
const SECOND_RESPONSE_WAIT: Duration = Duration::from_secs(3);

/// Wait of a modern process for a response to the earlier `initialize`. Messages are read in order,
/// so a response comes at once or never.
const INITIALIZE_WAIT: Duration = Duration::from_millis(300);

/// Handshake with a process.
pub(super) struct StdioHandshake<'a> {
    pub(super) rpc: &'a RpcConnection,
    pub(super) client: &'a ClientInfo,
    pub(super) capabilities: ClientCapabilities,
    pub(super) deadline: Instant,
}

impl StdioHandshake<'_> {
    /// Negotiates with a process. Both eras are tried on the same pipes, so no second process is
    /// needed.
    pub(super) async fn negotiate(
        &self,
        negotiation: EraNegotiation,
    ) -> Result<ServerInfo, HandshakeError> {
        match negotiation {
            EraNegotiation::Only(Era::Legacy) => self.initialize(self.deadline).await,
            EraNegotiation::Only(Era::Modern) => self.discover(self.deadline).await,
            EraNegotiation::Remembered(Era::Legacy) => {
                let initialized = self.initialize(self.deadline).await;
                self.discover_if_refused(initialized).await
            }
            EraNegotiation::Remembered(Era::Modern) => {
                let initialized = pin!(self.initialize(self.deadline));
                let discovered = pin!(self.send_discover(self.deadline));
                await_both(initialized, discovered, Duration::ZERO).await
            }
            EraNegotiation::Unknown => {
                let mut initialized = pin!(self.initialize(self.deadline));
                match timeout_at(self.deadline_within(FIRST_RESPONSE_WAIT), &mut initialized).await
                {
                    Ok(initialized) => self.discover_if_refused(initialized).await,
                    Err(_) => {
                        let discovered = pin!(self.send_discover(self.deadline));
                        await_both(initialized, discovered, INITIALIZE_WAIT).await
                    }
                }
            }
            EraNegotiation::DiscoverFirst => {
                let mut discovered = pin!(self.send_discover(self.deadline));
                match timeout_at(self.deadline_within(FIRST_RESPONSE_WAIT), &mut discovered).await {
                    Ok(outcome) => match outcome? {
                        DiscoverOutcome::Modern(info) => Ok(info),
                        DiscoverOutcome::Refused { code, message } => {
                            Err(HandshakeError::Refused { code, message })
                        }
                        DiscoverOutcome::Legacy => self.initialize(self.deadline).await,
                    },
                    Err(_) => {
                        let initialized = pin!(self.initialize(self.deadline));
                        await_both(initialized, discovered, INITIALIZE_WAIT).await
                    }
                }
            }
        }
    }

    /// Sends `server/discover` to a process that refused `initialize`.
    async fn discover_if_refused(
        &self,
        initialized: Result<ServerInfo, HandshakeError>,
    ) -> Result<ServerInfo, HandshakeError> {
        let refused = match initialized {
            Err(refused) if refused.can_be_modern() => refused,
            decided => return decided,
        };
        match self
            .send_discover(self.deadline_within(SECOND_RESPONSE_WAIT))
            .await
        {
            Ok(DiscoverOutcome::Modern(info)) => Ok(info),
            Ok(DiscoverOutcome::Refused { code, message }) => {
                Err(HandshakeError::Refused { code, message })
            }
            Ok(DiscoverOutcome::Legacy) | Err(_) => Err(refused),
        }
    }

    /// Sends `initialize`, and `notifications/initialized` after its response.
    async fn initialize(&self, deadline: Instant) -> Result<ServerInfo, HandshakeError> {
        let request = initialize_request(self.client, self.capabilities, deadline);
        let response = self
            .rpc
            .request(request)
            .await
            .map_err(HandshakeError::Link)?;
        let info = parse_initialize_response(&response)?;
        self.rpc
            .notify(method::INITIALIZED, None)
            .map_err(HandshakeError::Link)?;
        Ok(info)
    }

    /// Discovers a server that must be modern.
    async fn discover(&self, deadline: Instant) -> Result<ServerInfo, HandshakeError> {
        match self.send_discover(deadline).await? {
            DiscoverOutcome::Modern(info) => Ok(info),
            DiscoverOutcome::Refused { code, message } => {
                Err(HandshakeError::Refused { code, message })
            }
            DiscoverOutcome::Legacy => Err(HandshakeError::Malformed(NOT_MODERN)),
        }
    }

    /// Sends `server/discover`.
    async fn send_discover(&self, deadline: Instant) -> Result<DiscoverOutcome, HandshakeError> {
        let request = era_discovery::discover_request(self.client, deadline);
        match self.rpc.request(request).await {
            Ok(response) => Ok(era_discovery::parse_discover_response(&response)),
            // The response is unusable, so the server is not modern.
            Err(LinkError::TooLong { .. } | LinkError::BadResponse(_)) => {
                Ok(DiscoverOutcome::Legacy)
            }
            Err(error) => Err(HandshakeError::Link(error)),
        }
    }

    fn deadline_within(&self, wait: Duration) -> Instant {
        self.deadline.min(now() + wait)
    }
}

const NOT_MODERN: &str = "it does not speak the revision 2026-07-28";

/// Awaits both responses. An accepted `initialize` decides; `server/discover` decides if
/// `initialize` is refused, or unanswered for `initialize_wait` after it.
async fn await_both(
    mut initialized: Pin<&mut impl Future<Output = Result<ServerInfo, HandshakeError>>>,
    mut discovered: Pin<&mut impl Future<Output = Result<DiscoverOutcome, HandshakeError>>>,
    initialize_wait: Duration,
) -> Result<ServerInfo, HandshakeError> {
    let outcome = tokio::select! {
        biased;
        initialized = &mut initialized => return match initialized {
            Err(refused) if refused.can_be_modern() => {
                match timeout_at(now() + SECOND_RESPONSE_WAIT, discovered).await {
                    Ok(Ok(DiscoverOutcome::Modern(info))) => Ok(info),
                    Ok(Ok(DiscoverOutcome::Refused { code, message })) => {
                        Err(HandshakeError::Refused { code, message })
                    }
                    Ok(Ok(DiscoverOutcome::Legacy) | Err(_)) | Err(_) => Err(refused),
                }
            }
            decided => decided,
        },
        found = &mut discovered => found,
    };
    match outcome {
        Ok(DiscoverOutcome::Modern(info)) => {
            match timeout_at(now() + initialize_wait, initialized).await {
                Ok(Ok(legacy)) => Ok(legacy),
                Ok(Err(_)) | Err(_) => Ok(info),
            }
        }
        Ok(DiscoverOutcome::Refused { code, message }) => {
            let refused = HandshakeError::Refused { code, message };
            initialized.await.map_err(|_| refused)
        }
        Ok(DiscoverOutcome::Legacy) | Err(_) => initialized.await,
    }
}

/// Returns the `initialize` request.
pub(crate) fn initialize_request(
    client: &ClientInfo,
    capabilities: ClientCapabilities,
    deadline: Instant,
) -> LinkRequest {
    LinkRequest::new_internal(
        method::INITIALIZE,
        initialize_params(client, capabilities),
        deadline,
    )
}

/// Parses the response to `initialize`.
pub(crate) fn parse_initialize_response(
    response: &ServerResponse,
) -> Result<ServerInfo, HandshakeError> {
    let body = response.body_bytes();
    if response.body == BodyKind::Error {
        let code = field(body, "code").and_then(|at| {
            let digits = std::str::from_utf8(at.slice(body)).ok()?;
            digits.parse().ok()
        });
        return Err(HandshakeError::Refused {
            code: code.unwrap_or_default(),
            message: text_field(body, "message").unwrap_or_default().into_owned(),
        });
    }
    let Some(revision) = text_field(body, "protocolVersion") else {
        return Err(HandshakeError::Malformed("it names no revision"));
    };
    let Some(revision) = Revision::parse_legacy(&revision) else {
        return Err(HandshakeError::Revision(revision.into_owned()));
    };
    let identity = field(body, "serverInfo").map_or(&b""[..], |at| at.slice(body));
    let info = ServerInfo {
        revision,
        name: text_field(identity, "name").unwrap_or_default().into(),
        version: text_field(identity, "version").unwrap_or_default().into(),
        initialize: response.bytes.slice(response.body_at.clone()),
    };
    Ok(info)
}

/// Returns the parameters of `initialize`: the newest revision and the client capabilities.
fn initialize_params(client: &ClientInfo, capabilities: ClientCapabilities) -> Bytes {
    let mut out = br#"{"protocolVersion":"#.to_vec();
    write_string(&mut out, Revision::LATEST_LEGACY.as_str());
    out.extend_from_slice(br#","capabilities":"#);
    write_capabilities(&mut out, capabilities);
    out.extend_from_slice(br#","clientInfo":{"name":"#);
    write_string(&mut out, &client.name);
    out.extend_from_slice(br#","version":"#);
    write_string(&mut out, &client.version);
    out.extend_from_slice(b"}}");
    out.into()
}

/// Writes client capabilities as a JSON object.
fn write_capabilities(out: &mut Vec<u8>, capabilities: ClientCapabilities) {
    let mut members: Vec<&str> = Vec::new();
    if capabilities.supports(ClientCapability::Roots) {
        members.push(r#""roots":{"listChanged":true}"#);
    }
    if capabilities.supports(ClientCapability::SamplingTools) {
        members.push(r#""sampling":{"tools":{}}"#);
    } else if capabilities.supports(ClientCapability::Sampling) {
        members.push(r#""sampling":{}"#);
    }
    let form = capabilities.supports(ClientCapability::ElicitationForm);
    match (
        form,
        capabilities.supports(ClientCapability::ElicitationUrl),
    ) {
        (true, true) => members.push(r#""elicitation":{"form":{},"url":{}}"#),
        // The meaning of an empty object before two modes existed.
        (true, false) => members.push(r#""elicitation":{}"#),
        (false, true) => members.push(r#""elicitation":{"url":{}}"#),
        (false, false) => {}
    }
    out.push(b'{');
    out.extend_from_slice(members.join(",").as_bytes());
    out.push(b'}');
}

impl HandshakeError {
    /// Whether the process is alive and may be modern after this failure of `initialize`.
    const fn can_be_modern(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Malformed(_) => true,
            Self::Link(error) => {
                matches!(error, LinkError::TooLong { .. } | LinkError::BadResponse(_))
            }
            // A response with a revision is legacy.
            Self::Revision(_) => false,
        }
    }

    /// Returns the reason as one clause.
    #[cfg(feature = "http")]
    pub(crate) fn reason(&self) -> Arc<str> {
        match self {
            Self::Link(error) => error.to_string().into(),
            Self::Refused { code, message } => format!("code {code}: {message}").into(),
            Self::Revision(revision) => format!("unknown revision `{revision}`").into(),
            Self::Malformed(reason) => (*reason).into(),
        }
    }

    /// Converts to a connect error with the exit of the process.
    pub(crate) fn into_connect_error(
        self,
        server: Arc<str>,
        exit: LinkExit,
        stderr_tail: Vec<Arc<str>>,
    ) -> LinkConnectError {
        match self {
            _ if exit == LinkExit::ProgramNotFound => LinkConnectError::ProgramNotFound {
                server,
                stderr_tail,
            },
            Self::Link(LinkError::Closed(_) | LinkError::Lost(_)) => {
                LinkConnectError::ExitedBeforeHandshake {
                    server,
                    exit,
                    stderr_tail,
                }
            }
            Self::Link(LinkError::Timeout { .. } | LinkError::NotSent(_)) => {
                LinkConnectError::HandshakeTimeout {
                    server,
                    stderr_tail,
                }
            }
            Self::Link(error) => {
                let reason = error.to_string().into();
                LinkConnectError::BadHandshake { server, reason }
            }
            Self::Refused { code, message } => LinkConnectError::HandshakeRefused {
                server,
                code,
                message,
            },
            Self::Revision(revision) => LinkConnectError::UnsupportedRevision { server, revision },
            Self::Malformed(reason) => LinkConnectError::BadHandshake {
                server,
                reason: reason.into(),
            },
        }
    }
}
