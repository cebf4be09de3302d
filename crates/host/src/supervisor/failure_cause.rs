//! Why a server is not ready: class, message, and consequences.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{
    CallError, FailureClass, FailureOrigin, display_chain, is_gateway_status,
};
use bowline_core::redact::Redactor;
use bowline_link::stdio::LinkConnectError;
use bowline_link::{LinkError, LinkExit};

use super::list_fetch::ListError;
use crate::callpath::{ResponseWait, to_call_error};

/// The cause of a failure.
#[derive(Clone, Debug)]
pub(super) struct FailureCause {
    pub(super) class: FailureClass,
    pub(super) reason: Arc<str>,
    /// The authentication challenge of the server, if any.
    pub(super) challenge: Option<Arc<str>>,
    /// Consequence for the catalog entries.
    pub(super) retention: CatalogRetention,
    /// The failed component.
    pub(super) source: FailureSource,
}

/// The failed component: server, program or connection path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSource {
    /// The server; restarts are limited by the budget.
    Server,
    /// The program does not exist; costs no budget.
    Program,
    /// The connection path; costs no budget.
    Path,
}

/// Consequence of a failure for the catalog entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatalogRetention {
    /// The server is down and may return unchanged: entries stay visible.
    LastKnown,
    /// The server is up and refuses access: entries may have been revoked.
    Withdrawn,
}

impl FailureCause {
    pub(super) fn new(class: FailureClass, reason: impl Into<Arc<str>>) -> Self {
        Self {
            class,
            reason: reason.into(),
            challenge: None,
            retention: CatalogRetention::LastKnown,
            source: FailureSource::Server,
        }
    }

    /// Redacts secrets from the readable texts.
    pub(super) fn redact(self, secrets: &Redactor) -> Self {
        Self {
            class: self.class,
            reason: secrets.redact_shared(&self.reason),
            challenge: self.challenge.map(|text| secrets.redact_shared(&text)),
            retention: self.retention,
            source: self.source,
        }
    }

    /// True if the server is unreachable, or a proxy reports it down. A response of the server
    /// itself is no outage.
    pub(super) const fn is_outage(&self) -> bool {
        let is_away = matches!(
            self.class,
            FailureClass::ConnectFailed
                | FailureClass::SendFailed
                | FailureClass::ConnectionLost
                | FailureClass::Timeout
                | FailureClass::Throttled
        );
        is_away && matches!(self.retention, CatalogRetention::LastKnown)
    }

    /// True if the server requires different credentials: waiting for a retry is useless.
    pub(super) const fn needs_credentials(&self) -> bool {
        matches!(
            self.class,
            FailureClass::AuthRequired | FailureClass::ScopeRequired
        )
    }

    /// Returns the error for a caller that does not wait for the `next` attempt.
    pub(super) fn to_call_error(&self, server: &Arc<str>, retry_after: Duration) -> CallError {
        let server = Arc::clone(server);
        let challenge = self.challenge.clone();
        if self.source == FailureSource::Program {
            return CallError::ProgramNotFound {
                server,
                reason: Arc::clone(&self.reason),
                retry_after,
            };
        }
        match self.class {
            FailureClass::AuthRequired => CallError::AuthRequired { server, challenge },
            FailureClass::ScopeRequired => CallError::ScopeRequired { server, challenge },
            _ => CallError::StartFailed {
                server,
                reason: Arc::clone(&self.reason),
                retry_after,
            },
        }
    }
}

impl From<&LinkConnectError> for FailureCause {
    fn from(error: &LinkConnectError) -> Self {
        let class = match error {
            LinkConnectError::Spawn { .. }
            | LinkConnectError::ProgramNotFound { .. }
            | LinkConnectError::ExitedBeforeHandshake { .. }
            | LinkConnectError::HandshakeRefused { .. } => FailureClass::ConnectFailed,
            LinkConnectError::HandshakeTimeout { .. } => FailureClass::Timeout,
            LinkConnectError::UnsupportedRevision { .. }
            | LinkConnectError::BadHandshake { .. } => FailureClass::ProtocolError,
            LinkConnectError::Refused { source, .. } => failure_class(source),
        };
        let (challenge, retained) = match error {
            LinkConnectError::Refused { source, .. } => {
                (auth_challenge(source), catalog_retention(source))
            }
            LinkConnectError::HandshakeRefused { .. } => (None, CatalogRetention::Withdrawn),
            _ => (None, CatalogRetention::LastKnown),
        };
        Self {
            class,
            reason: display_chain(error).into(),
            challenge,
            retention: retained,
            source: match error {
                LinkConnectError::Refused { source, .. } => failure_source(source),
                LinkConnectError::ExitedBeforeHandshake { exit, .. } => {
                    FailureSource::from_exit(*exit)
                }
                LinkConnectError::ProgramNotFound { .. } => FailureSource::Program,
                _ => FailureSource::Server,
            },
        }
    }
}

impl From<&ListError> for FailureCause {
    fn from(error: &ListError) -> Self {
        let (class, challenge, retained) = match error {
            ListError::Link { source, .. } => (
                failure_class(source),
                auth_challenge(source),
                catalog_retention(source),
            ),
            ListError::Refused { .. } => (
                FailureClass::ProtocolError,
                None,
                CatalogRetention::Withdrawn,
            ),
            ListError::TooManyItems(_)
            | ListError::RepeatedCursor(_)
            | ListError::CursorTooLarge(_) => (
                FailureClass::ProtocolError,
                None,
                CatalogRetention::LastKnown,
            ),
        };
        Self {
            class,
            reason: display_chain(error).into(),
            challenge,
            retention: retained,
            source: match error {
                ListError::Link { source, .. } => failure_source(source),
                _ => FailureSource::Server,
            },
        }
    }
}

impl FailureSource {
    /// Returns the failed component for a link exit.
    pub(super) const fn from_exit(exit: LinkExit) -> Self {
        match exit {
            LinkExit::Away => Self::Path,
            LinkExit::ProgramNotFound => Self::Program,
            _ => Self::Server,
        }
    }
}

fn failure_source(error: &LinkError) -> FailureSource {
    match error {
        LinkError::Lost(exit) | LinkError::Closed(exit) => FailureSource::from_exit(*exit),
        LinkError::RemoteFailure(failure) if failure.origin == FailureOrigin::Executor => {
            FailureSource::Path
        }
        _ => FailureSource::Server,
    }
}

/// Classifies a link error; a connection lost during start is a failed connect.
fn failure_class(error: &LinkError) -> FailureClass {
    match to_call_error(error, &Arc::default(), None, ResponseWait::for_server(0)).failure_class() {
        FailureClass::SendFailed | FailureClass::ConnectionLost => FailureClass::ConnectFailed,
        class => class,
    }
}

/// Derives the catalog consequence: any response of the server itself may revoke the entries.
fn catalog_retention(error: &LinkError) -> CatalogRetention {
    match error {
        LinkError::Unauthorized { .. } => CatalogRetention::Withdrawn,
        LinkError::Http { status, .. } if !is_gateway_status(*status) => {
            CatalogRetention::Withdrawn
        }
        _ => CatalogRetention::LastKnown,
    }
}

fn auth_challenge(error: &LinkError) -> Option<Arc<str>> {
    match error {
        LinkError::Unauthorized { challenge, .. } => challenge.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bowline_link::LinkExit;

    use super::*;

    fn refused_connect(source: LinkError) -> LinkConnectError {
        let server = "s".into();
        LinkConnectError::Refused { server, source }
    }

    fn unauthorized_connect(status: u16) -> LinkConnectError {
        refused_connect(LinkError::Unauthorized {
            status,
            challenge: Some("Bearer realm=x".into()),
        })
    }

    #[test]
    fn failed_start_is_classified_by_error() {
        let server = || Arc::from("s");
        for (error, class) in [
            (unauthorized_connect(401), FailureClass::AuthRequired),
            (unauthorized_connect(403), FailureClass::ScopeRequired),
            (
                refused_connect(LinkError::Unreachable("no route".into())),
                FailureClass::ConnectFailed,
            ),
            (
                LinkConnectError::HandshakeTimeout {
                    server: server(),
                    stderr_tail: Vec::new(),
                },
                FailureClass::Timeout,
            ),
            (
                LinkConnectError::ExitedBeforeHandshake {
                    server: server(),
                    exit: LinkExit::Status(3),
                    stderr_tail: Vec::new(),
                },
                FailureClass::ConnectFailed,
            ),
            (
                LinkConnectError::BadHandshake {
                    server: server(),
                    reason: "no revision".into(),
                },
                FailureClass::ProtocolError,
            ),
        ] {
            assert_eq!(FailureCause::from(&error).class, class, "{error}");
        }
    }

    #[test]
    fn wrong_credentials_at_start_give_auth_errors() {
        let refusal =
            |error| FailureCause::from(&error).to_call_error(&"s".into(), Duration::from_secs(1));
        let challenge = Some("Bearer realm=x".into());
        let server = "s".into();
        assert_eq!(
            refusal(unauthorized_connect(401)),
            CallError::AuthRequired { server, challenge }
        );
        assert_eq!(
            refusal(unauthorized_connect(403)).failure_class(),
            FailureClass::ScopeRequired
        );
        let error = refusal(refused_connect(LinkError::Unreachable("no route".into())));
        assert_eq!(
            error.to_string().matches("`s`").count(),
            1,
            "the server is named once: {error}"
        );
    }
}
